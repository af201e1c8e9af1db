//! Formats times, sizes and untrusted text for people.

/// The maximum length of an untrusted name in a message, in characters. Longer names are cut off.
const NAME_MAX: usize = 64;

/// Returns the date and the time of day for a time in milliseconds since 1970.
pub(crate) fn time_shown(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Here years begin in March and are counted in eras of 400 years, so that a leap day is the last day of
    // its year.
    let from_era = days + 719_468;
    let (era, day_of_era) = (from_era / 146_097, from_era % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns a size with its unit and one decimal, such as `1.5 KiB`.
pub(crate) fn bytes_shown(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (0..units.len()).rev().find(|unit| bytes >> (10 * unit) > 0).unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.1} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, units[unit]),
    }
}

/// Returns an untrusted name in a form that is safe in a message: short and without control characters.
pub(crate) fn plain(name: &str) -> String {
    let letters = name.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter });
    let mut shown: String = letters.clone().take(NAME_MAX).collect();
    if letters.count() > NAME_MAX {
        shown.push_str("..");
    }
    shown
}

/// Puts U+FFFD in place of each character that moves the cursor, rings the bell or changes the direction of
/// text.
pub(crate) fn clean(text: &str) -> String {
    let harmless = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_readable() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(time_shown(seconds * 1000 + 999), shown);
        }
        for (bytes, shown) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(bytes_shown(bytes), shown);
        }
        time_shown(u64::MAX);
        bytes_shown(u64::MAX);
    }

    #[test]
    fn a_foreign_name_is_short_and_plain() {
        assert_eq!(plain("a\u{1b}[31m\n"), "a\u{fffd}[31m\u{fffd}");
        assert_eq!(plain(&"x".repeat(1000)).len(), NAME_MAX + 2);
    }
}
