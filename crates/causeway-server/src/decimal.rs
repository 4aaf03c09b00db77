//! Bit patterns as decimal text and back, eight bytes at a time.

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Reads exactly as many numbers as `bits` has places. One pass, no allocation.
pub(super) fn read_numbers(line: &[u8], bits: &mut [u16]) -> Result<(), String> {
    let mut at = 0;
    for (index, place) in bits.iter_mut().enumerate() {
        // A number and the one blank after it, wherever there are eight bytes to look at.
        if let Some(word) = line.get(at..at + 8).and_then(|bytes| bytes.try_into().ok())
            && let Some((value, length)) = number_and_blank(word)
        {
            *place = value;
            at += length;
            continue;
        }
        (*place, at) = one_number(line, at, index)?;
    }
    match line[at..].iter().all(|&byte| is_blank(byte)) {
        true => Ok(()),
        false => Err("there are more".to_string()),
    }
}

/// The number that eight bytes begin with, if one blank follows it, and the bytes of both.
#[inline]
fn number_and_blank(bytes: [u8; 8]) -> Option<(u16, usize)> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // Digits become 0 to 9. The sum sets the highest bit of a byte that is more; what it carries over goes to bytes
    // after the first of those, which do not matter.
    let values = u64::from_le_bytes(bytes) ^ (0x30 * ONES);
    let others = (values.wrapping_add(0x76 * ONES) | values) & (0x80 * ONES);
    let digits = others.trailing_zeros() as usize / 8;
    if !(1..=7).contains(&digits) || bytes[digits] != b' ' {
        return None;
    }
    // The last digit goes to the highest byte, and zeros come before the first one. Then pairs, then fours, are added up.
    let mut sum = values << (64 - 8 * digits);
    sum = (sum.wrapping_mul(10) + (sum >> 8)) & 0x00ff_00ff_00ff_00ff;
    sum = (sum.wrapping_mul(100) + (sum >> 16)) & 0x0000_ffff_0000_ffff;
    sum = (sum.wrapping_mul(10_000) + (sum >> 32)) & 0xffff_ffff;
    Some((u16::try_from(sum).ok()?, digits + 1))
}

/// The number at a place of the line, blanks before it passed over, and the index after it.
fn one_number(line: &[u8], mut at: usize, index: usize) -> Result<(u16, usize), String> {
    while at < line.len() && is_blank(line[at]) {
        at += 1;
    }
    if at == line.len() {
        return Err(format!("there are {index}"));
    }
    let start = at;
    let mut value = 0u32;
    while at < line.len() && line[at].is_ascii_digit() && value <= u32::from(u16::MAX) {
        value = value * 10 + u32::from(line[at] - b'0');
        at += 1;
    }
    let ended = at == line.len() || is_blank(line[at]);
    match u16::try_from(value) {
        Ok(value) if at > start && ended => Ok((value, at)),
        _ => Err(format!("number {index} is {:?}, not 0 to 65535", token(line, start))),
    }
}

/// The text up to the next blank, or the beginning of it.
fn token(line: &[u8], start: usize) -> String {
    let token = line[start..].split(|&byte| is_blank(byte)).next().unwrap_or_default();
    String::from_utf8_lossy(&token[..token.len().min(20)]).into_owned()
}

/// The bytes that [`write_numbers`] appends.
pub(super) fn length_of_numbers(bits: &[u16]) -> u64 {
    bits.iter().map(|&value| digits(value.into()) as u64 + 1).sum::<u64>().max(1)
}

/// Appends the numbers with blanks between them, and ends the line.
pub(super) fn write_numbers(text: &mut Vec<u8>, bits: &[u16]) {
    // A number is written as eight bytes, of which the next ones overwrite what is not its own.
    let mut at = text.len();
    text.resize(at + length_of_numbers(bits) as usize + 8, 0);
    for &value in bits {
        let (bytes, length) = digits_and_blank(value);
        text[at..at + 8].copy_from_slice(&bytes);
        at += length;
    }
    text.truncate(at);
    match text.last_mut().filter(|_| !bits.is_empty()) {
        Some(blank) => *blank = b'\n',
        None => text.push(b'\n'),
    }
}

#[inline]
fn digits(value: u64) -> usize {
    1 + usize::from(value >= 10)
        + usize::from(value >= 100)
        + usize::from(value >= 1000)
        + usize::from(value >= 10_000)
}

/// A number's text with a blank after it, and the bytes of both; what comes after them means nothing.
#[inline]
fn digits_and_blank(value: u16) -> ([u8; 8], usize) {
    let value = u64::from(value);
    let digits = digits(value);
    let digit = |power: u64| value / power % 10;
    let word = digit(10_000) | (digit(1000) << 8) | (digit(100) << 16) | (digit(10) << 24) | (digit(1) << 32);
    let text = (word | 0x20_30_30_30_30_30) >> (8 * (5 - digits));
    (text.to_le_bytes(), digits + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut text = Vec::new();
        write_numbers(&mut text, &all);
        let words: Vec<_> = all.iter().map(u16::to_string).collect();
        assert_eq!(String::from_utf8(text.clone()).unwrap(), words.join(" ") + "\n");
        let mut read = vec![0; all.len()];
        read_numbers(text.trim_ascii_end(), &mut read).unwrap();
        assert_eq!(read, all);
    }

    #[test]
    fn text_before_the_numbers_stays() {
        for (bits, expected) in [(&[][..], "R=\n"), (&[7], "R=7\n"), (&[65535, 0], "R=65535 0\n")] {
            let mut text = b"R=".to_vec();
            write_numbers(&mut text, bits);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    /// What is read eight bytes at a time is what is read byte by byte, and so are the mistakes.
    #[test]
    fn both_ways_to_read_agree() {
        let tokens = [
            "0", "7", "00", "000001", "0000001", "00000001", "65535", "65536", "99999", "1234567", "-1",
            "+1", "1.", "a", "\u{e9}", "", "\t5",
        ];
        let read = |line: &str, count: usize| {
            let mut bits = vec![0; count];
            read_numbers(line.as_bytes(), &mut bits).map(|()| bits)
        };
        let slowly = |line: &str, count: usize| -> Result<Vec<u16>, String> {
            let (mut at, mut bits) = (0, Vec::new());
            for index in 0..count {
                let (value, next) = one_number(line.as_bytes(), at, index)?;
                (at, bits) = (next, [bits, vec![value]].concat());
            }
            let rest = line.as_bytes()[at..].iter().all(|&byte| is_blank(byte));
            if rest { Ok(bits) } else { Err("there are more".to_string()) }
        };
        for first in tokens {
            for second in tokens {
                for blanks in [" ", "  ", "\t", " \r"] {
                    let line = format!("{first}{blanks}{second}{blanks}3 4 5 6 7 8");
                    for count in [1, 2, 3, 7, 8, 9] {
                        assert_eq!(read(&line, count), slowly(&line, count), "{line:?} {count}");
                    }
                }
            }
        }
    }
}
