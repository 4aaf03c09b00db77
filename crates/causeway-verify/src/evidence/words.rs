//! Numbers as people read them.

/// Bytes with a binary unit: `1.5 KiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Groups of three digits: `361 977 696`.
pub fn thousands(number: u64) -> String {
    group(&number.to_string())
}

/// A sentence with the digits of its long numbers in groups. Digits that are part of a word, such as a digest or a path,
/// stay as they are.
pub fn grouped(sentence: &str) -> String {
    const LONG: usize = 5;
    let group_word = |word: &str| {
        let number = word.trim_matches(|character: char| "().,;:".contains(character));
        match number.len() >= LONG && number.bytes().all(|byte| byte.is_ascii_digit()) {
            true => word.replace(number, &group(number)),
            false => word.to_string(),
        }
    };
    sentence.split(' ').map(group_word).collect::<Vec<_>>().join(" ")
}

fn group(digits: &str) -> String {
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            // A narrow space that does not break.
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Four digits with a unit: `1.234 ms`.
pub fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 { 3 } else { 2 };
    format!("{value:.digits$} {unit}")
}

/// An absolute error: `1.9e-7`, or `0`.
pub fn error(error: f64) -> String {
    if error == 0.0 { "0".to_string() } else { format!("{error:.1e}") }
}

/// Units in the last place. Results that cancel to almost nothing have a tiny last place: their error counts many.
pub fn ulps(ulps: f64) -> String {
    if ulps < 1000.0 { format!("{ulps:.2}") } else { format!("{ulps:.0e}") }
}

/// A part of something, in per cent: `37.5%`.
pub fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// A moment in Coordinated Universal Time: `2026-11-21 20:58 UTC`.
pub fn date(unix_time: u64) -> String {
    let (days, of_day) = (unix_time / 86_400, unix_time % 86_400);
    // Years that begin in March have their leap day at their end; 400 of them are 146,097 days.
    let day = days + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

/// Names in a line: a few by name, many by their number.
pub fn shortened(names: &[String]) -> String {
    const MOST: usize = 8;
    match names {
        [] => "no case".to_string(),
        _ if names.len() <= MOST => names.join(", "),
        [first, ..] => format!("{first} and {} more cases", names.len() - 1),
    }
}

/// `1 kernel`, `2 kernels`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_for_people() {
        for (number, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (480 << 20, "480 MiB"),
            (24 << 30, "24.0 GiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn long_numbers_are_read_in_groups() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1\u{202f}000"), (361_977_696, "361\u{202f}977\u{202f}696")]
        {
            assert_eq!(thousands(number), text);
        }
        for (sentence, text) in [
            ("361977696 elements of 189 outputs", "361\u{202f}977\u{202f}696 elements of 189 outputs"),
            ("sums (12345, 1234).", "sums (12\u{202f}345, 1234)."),
            ("BLAKE3 12345ab of /tmp/1234567, 1.234567", "BLAKE3 12345ab of /tmp/1234567, 1.234567"),
            ("", ""),
        ] {
            assert_eq!(grouped(sentence), text);
        }
    }

    #[test]
    fn times_have_four_digits_and_a_unit() {
        for (number, text) in
            [(1.5e-7, "0.150 µs"), (1.2e-5, "12.00 µs"), (0.0125, "12.50 ms"), (3.0, "3.000 s")]
        {
            assert_eq!(seconds(number), text);
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (time, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00 UTC"),
            (1_795_221_274, "2026-11-21 00:34 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(time), text);
        }
    }
}
