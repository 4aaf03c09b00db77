//! The words of device code: what a text says without its comments, strings and preprocessor lines.

use std::ops::Range;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Names and keywords.
    Word,
    /// With its suffix.
    Number,
    /// Operators and brackets.
    Sign,
    /// Strings and characters.
    Quoted,
}

/// A token and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Bytes of the file.
    pub bytes: Range<usize>,
}

/// Longest first.
const SIGNS: &[&str] = &[
    "<<=", ">>=", "...", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=",
    "|=", "^=", "++", "--", "->", "::",
];

/// The tokens of a file, in order.
pub fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let (mut at, mut found, mut fresh_line) = (0, Vec::new(), true);
    while at < bytes.len() {
        let rest = &text[at..];
        let byte = bytes[at];
        if byte == b'\n' {
            fresh_line = true;
            at += 1;
        } else if byte.is_ascii_whitespace() {
            at += 1;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if byte == b'#' && fresh_line {
            at += directive(rest);
        } else {
            fresh_line = false;
            let (kind, length) = token(rest);
            found.push(Token { kind, bytes: at..at + length });
            at += length;
        }
    }
    found
}

/// Bytes of a preprocessor directive, its continued lines included.
fn directive(rest: &str) -> usize {
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        length += line.len();
        if !line.trim_end().ends_with('\\') {
            // The line's end is left: what follows begins a line.
            return length - usize::from(line.ends_with('\n'));
        }
    }
    length
}

fn token(rest: &str) -> (Kind, usize) {
    let first = rest.as_bytes()[0];
    let of_word = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    let while_word = |extra: char| rest.find(|c| !of_word(c) && c != extra).unwrap_or(rest.len());
    if first.is_ascii_digit() {
        // 0x7fffu, 1.0f, 1'000; an exponent's sign does not occur in the kernels' decimal numbers.
        return (Kind::Number, while_word('.').max(1));
    }
    if first.is_ascii_alphabetic() || first == b'_' {
        return (Kind::Word, while_word('_'));
    }
    if first == b'"' || first == b'\'' {
        let mut escaped = false;
        let end = rest.bytes().skip(1).position(|byte| {
            let ends = byte == first && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        return (Kind::Quoted, end.map_or(rest.len(), |end| end + 2));
    }
    let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
    (Kind::Sign, sign.map_or_else(|| rest.chars().next().map_or(1, char::len_utf8), |sign| sign.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).into_iter().map(|token| &text[token.bytes]).collect()
    }

    #[test]
    fn comments_strings_and_directives_are_no_code() {
        assert_eq!(words("a /* < 1 */ < // b < 2\n c"), ["a", "<", "c"]);
        assert_eq!(words("#if X < 1 \\\n && Y\nd\n  # pragma unroll\ne"), ["d", "e"]);
        assert_eq!(words(r#"f("a < \" b", 'c') "#), ["f", "(", r#""a < \" b""#, ",", "'c'", ")"]);
    }

    #[test]
    fn numbers_and_signs_are_whole() {
        assert_eq!(words("x<<=0x7fffu>>1.5f"), ["x", "<<=", "0x7fffu", ">>", "1.5f"]);
        assert_eq!(words("a->b::c[i]++"), ["a", "->", "b", "::", "c", "[", "i", "]", "++"]);
    }

    #[test]
    fn every_kernel_is_read_to_its_end() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let code = tokens(&text);
            let count = |sign: &str| code.iter().filter(|token| &text[token.bytes.clone()] == sign).count();
            if path.extension().is_some_and(|extension| extension == "cuh") {
                assert_eq!(count("("), count(")"), "{}", path.display());
                assert!(code.len() > 20, "{}", path.display());
            }
        }
    }
}
