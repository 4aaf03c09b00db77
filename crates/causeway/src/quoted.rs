//! Text of others in messages.

/// Text from a file or a request as messages quote it: escaped, since it may hold line breaks or escape codes for a terminal, and
/// cut, since it may be as long as the file.
pub fn quoted(text: &str) -> String {
    /// Longer than any name that somebody chose.
    const CHARACTERS: usize = 100;
    match text.char_indices().nth(CHARACTERS) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(quoted("a\n\u{1b}b"), r#""a\n\u{1b}b""#);
        assert_eq!(quoted(&"é".repeat(100)), format!("\"{}\"", "é".repeat(100)));
        assert_eq!(quoted(&"é".repeat(101)), format!("\"{}\"… (202 bytes)", "é".repeat(100)));
    }
}
