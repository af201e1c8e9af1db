//! Formats numbers so that people can read them at a glance.

/// Formats a whole number, with a space as the thousands separator.
pub(super) fn whole(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a rate per second; `-` if it is not finite.
pub(super) fn rate(value: f64) -> String {
    match value {
        value if !value.is_finite() => "-".to_owned(),
        value if value >= 1000.0 => whole(value.round() as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        value => format!("{value:.2}"),
    }
}

/// Formats a loss or a metric.
pub(super) fn real(value: f32) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => value.to_string(),
        size if size != 0.0 && !(1e-3..1e5).contains(&size) => format!("{value:.2e}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Formats a duration that is given in microseconds, such as `2.50 ms`.
pub(super) fn micros(us: u64) -> String {
    match us as f64 {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e4 => format!("{:.2} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Formats a duration that is given in milliseconds: `m:ss` below an hour, `h:mm:ss` below a day, then days
/// and hours.
pub(super) fn clock(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..3600 => format!("{}:{:02}", s / 60, s % 60),
        3600..86_400 => format!("{}:{:02}:{:02}", s / 3600, s % 3600 / 60, s % 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// Formats an age that is given in milliseconds.
pub(super) fn ago(ms: u64) -> String {
    match ms / 1000 {
        0 => "now".to_owned(),
        s @ 1..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min", s / 60),
        s @ 3600..86_400 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 12_345_678].map(whole), ["0", "999", "1 000", "12 345 678"]);
        assert_eq!([0.0, 0.256, 14.31, 143.4, 1843.6].map(rate), ["0", "0.26", "14.3", "143", "1 844"]);
        assert_eq!(rate(f64::NAN), "-");
        assert_eq!(
            [0.0, 0.2134, 12.0, 1e-5, 1e6].map(real),
            ["0.0000", "0.2134", "12.00", "1.00e-5", "1.00e6"]
        );
        assert_eq!(real(f32::NAN), "NaN");
        assert_eq!([7, 2300, 61_000, 2_500_000].map(micros), ["7 µs", "2.30 ms", "61 ms", "2.50 s"]);
        assert_eq!([59_999, 3_600_000, 90_000_000].map(clock), ["0:59", "1:00:00", "1 d 1 h"]);
        assert_eq!(
            [900, 59_000, 61_000, 7_200_000, 200_000_000].map(ago),
            ["now", "59 s", "1 min", "2 h", "2 d"]
        );
    }
}
