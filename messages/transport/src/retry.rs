//! The settings for dialling again and for sending requests again, and the pauses that follow from them.
//! This module only computes the pauses; the caller waits.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use pushpull_messages::out_of_range::OutOfRange;

/// The longest pause before a request is sent again, unless [`RetryConfig::resend_after`] is longer.
const RESEND_PAUSE_MAX: Duration = Duration::from_secs(60);
/// The bounds on the first pause before a request is sent again. The lower bound keeps a client from flooding
/// a slow peer.
const RESEND_AFTER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(600));
/// The upper bound on [`RetryConfig::redial_for`]. A peer that is away for longer is unlikely to return with
/// its state.
const REDIAL_FOR_MAX: Duration = Duration::from_secs(3600);
/// The shortest and the longest pause between two attempts to dial.
const DIAL_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How a client deals with connections that break and replies that do not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryConfig {
    /// How long the client tries to dial again after a connection has broken; after this time, the peer
    /// counts as lost. At most an hour. If zero, the client does not dial again.
    pub redial_for: Duration,
    /// How long the client waits for a reply before it sends the request again, from 10 ms to 600 s. Each
    /// further wait is twice as long as the previous one, up to a minute. If the first wait is longer than a
    /// minute, all further waits are as long as the first.
    pub resend_after: Duration,
    /// The maximum number of connections, one after another, on which the client sends the same request. If
    /// all of them break, the call fails: the request may be the cause, and another connection would break
    /// too.
    pub connections_max: u32,
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
    /// Checks the settings.
    ///
    /// # Errors
    /// If a setting is out of range; the error names it.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let (least, most) = RESEND_AFTER;
        if self.redial_for > REDIAL_FOR_MAX {
            let (expected, got) = (format!("at most {REDIAL_FOR_MAX:?}"), format!("{:?}", self.redial_for));
            return Err(OutOfRange::new("retry.redial_for", expected, got));
        }
        if !(least..=most).contains(&self.resend_after) {
            let (expected, got) = (format!("{least:?} to {most:?}"), format!("{:?}", self.resend_after));
            return Err(OutOfRange::new("retry.resend_after", expected, got));
        }
        if self.connections_max == 0 {
            return Err(OutOfRange::new("retry.connections_max", "at least 1", 0));
        }
        Ok(())
    }

    /// Returns the times to wait for a reply, one before each repetition of the request.
    pub(crate) fn resend_pauses(&self) -> ExponentialBackoff {
        ExponentialBuilder::default()
            .with_min_delay(self.resend_after)
            .with_max_delay(RESEND_PAUSE_MAX.max(self.resend_after))
            .without_max_times()
            .build()
    }
}

/// Returns the pauses between attempts to dial: they grow exponentially, with a jitter that `seed`
/// determines, so that tasks that lost the same peer do not all dial at once.
pub(crate) fn dial_pauses(seed: u64) -> ExponentialBackoff {
    let (least, most) = DIAL_PAUSE;
    ExponentialBuilder::default()
        .with_min_delay(least)
        // The jitter makes a pause up to twice as long, so the limit before the jitter is half of the longest
        // pause.
        .with_max_delay(most / 2)
        .without_max_times()
        .with_jitter()
        .with_jitter_seed(seed)
        .build()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn resend_pauses_double_up_to_a_minute() {
        let seconds = |first: u64| {
            let retry = RetryConfig { resend_after: Duration::from_secs(first), ..Default::default() };
            retry.resend_pauses().take(5).map(|pause| pause.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(seconds(10), [10, 20, 40, 60, 60]);
        assert_eq!(seconds(90), [90; 5]);
    }

    proptest! {
        #[test]
        fn dial_pauses_grow_within_their_bounds(seed in any::<u64>()) {
            let pauses: Vec<_> = dial_pauses(seed).take(50).collect();
            for (attempt, pause) in pauses.iter().enumerate() {
                let base = (DIAL_PAUSE.0 * 2u32.pow(attempt.min(9) as u32)).min(DIAL_PAUSE.1 / 2);
                prop_assert!((base..=2 * base).contains(pause), "{attempt}: {pause:?}");
            }
            prop_assert_eq!(dial_pauses(seed).take(50).collect::<Vec<_>>(), pauses);
        }
    }

    #[test]
    fn tasks_with_different_seeds_pause_differently() {
        let [one, other] = [1, 2].map(|seed| dial_pauses(seed).take(5).collect::<Vec<_>>());
        assert_ne!(one, other);
    }

    #[test]
    fn a_setting_out_of_range_is_named() {
        let usual = RetryConfig::default();
        assert_eq!(usual.validate(), Ok(()));
        for (wrong, text) in [
            (RetryConfig { redial_for: Duration::MAX, ..usual }, "retry.redial_for must be at most 3600s"),
            (
                RetryConfig { resend_after: Duration::ZERO, ..usual },
                "retry.resend_after must be 10ms to 600s, but is 0ns",
            ),
            (RetryConfig { connections_max: 0, ..usual }, "retry.connections_max must be at least 1"),
        ] {
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
