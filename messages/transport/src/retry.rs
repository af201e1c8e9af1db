//! When a caller dials again, when it asks again, and when it gives up. Numbers only.

use std::time::Duration;

/// The longest pause before a request is made again, where its first pause is not longer.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// A peer that answers slowly must not be flooded.
const RESEND_AFTER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(600));
/// Who has been away for longer will hardly come back with all that it knew.
const REDIAL_FOR_MAX: Duration = Duration::from_secs(3600);

/// How a caller deals with connections that break and answers that do not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// So long it dials a peer whose connection has broken, before the peer counts as lost; zero: it does not.
    pub redial_for: Duration,
    /// When no answer has come for so long the request is made again; then after twice, four times as long, up to
    /// a minute. From 10 ms to 600 s.
    pub resend_after: Duration,
    /// On so many connections a request is made at most: what breaks every connection will break the next.
    pub connections_max: u32,
}

/// A number out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} must be {expected}, and is {got}")]
pub struct RetryError {
    /// Which one.
    pub key: &'static str,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub got: String,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            redial_for: Duration::from_secs(5),
            resend_after: Duration::from_secs(60),
            connections_max: 100,
        }
    }
}

impl RetryConfig {
    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the one that is out of range.
    pub fn validate(&self) -> Result<(), RetryError> {
        let (least, most) = RESEND_AFTER;
        let wrong = |key, expected: String, got: String| Err(RetryError { key, expected, got });
        if self.redial_for > REDIAL_FOR_MAX {
            let got = format!("{:?}", self.redial_for);
            return wrong("retry.redial_for", format!("at most {REDIAL_FOR_MAX:?}"), got);
        }
        if !(least..=most).contains(&self.resend_after) {
            let got = format!("{:?}", self.resend_after);
            return wrong("retry.resend_after", format!("{least:?} to {most:?}"), got);
        }
        if self.connections_max == 0 {
            return wrong("retry.connections_max", "at least 1".into(), "0".into());
        }
        Ok(())
    }

    /// The pause after this one.
    pub(super) fn next_pause(&self, pause: Duration) -> Duration {
        PAUSE_MAX.max(self.resend_after).min(2 * pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let seconds = |first: u64| {
            let retry = RetryConfig { resend_after: Duration::from_secs(first), ..Default::default() };
            let next = |pause: &Duration| Some(retry.next_pause(*pause));
            let pauses = std::iter::successors(Some(retry.resend_after), next);
            pauses.take(5).map(|pause| pause.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(seconds(10), [10, 20, 40, 60, 60]);
        assert_eq!(seconds(90), [90; 5]);
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let usual = RetryConfig::default();
        assert_eq!(usual.validate(), Ok(()));
        for (wrong, text) in [
            (RetryConfig { redial_for: Duration::MAX, ..usual }, "retry.redial_for must be at most 3600s"),
            (
                RetryConfig { resend_after: Duration::ZERO, ..usual },
                "retry.resend_after must be 10ms to 600s, and is 0ns",
            ),
            (RetryConfig { connections_max: 0, ..usual }, "retry.connections_max must be at least 1"),
        ] {
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
