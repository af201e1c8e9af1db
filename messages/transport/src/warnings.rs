//! Limits how often warnings about one peer are logged, so that no peer can fill the log. Each warning that
//! is left out is counted, and the count is logged later.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::strangers::host_of;

/// The largest number of warnings of one kind about one host that are logged in one period.
const BURST: u32 = 10;
/// The length of the period in which warnings of one kind about one host are counted. The period begins with
/// the first of these warnings.
const PERIOD: Duration = Duration::from_secs(60);
/// The largest number of pairs of a host and a kind of warning that are counted separately. For each kind,
/// all further hosts are counted together.
const SUBJECTS_MAX: usize = 1024;
/// The name under which all further hosts are counted together.
const OTHERS: &str = "other hosts";

/// Decides which warnings about peers are logged.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Periods>);

/// The host that a warning is about, and the kind of the warning.
type Subject = (String, &'static str);

/// The current periods of all subjects. The caller supplies the time.
///
/// Wanted properties: (A) in any time of length [`PERIOD`], fewer than twice [`BURST`] warnings about a
/// subject are logged; (B) each warning is either logged, or counted in exactly one summary; (C) at most
/// [`SUBJECTS_MAX`] subjects are remembered, and one more for each kind; (D) the first [`BURST`] warnings
/// about a subject in a period are logged.
#[derive(Debug, Default)]
struct Periods(BTreeMap<Subject, Period>);

#[derive(Debug)]
struct Period {
    began: Instant,
    logged: u32,
    left_out: u64,
}

/// The number of warnings about one subject that were left out.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    subject: Subject,
    count: u64,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject: (host, kind), count } = self;
        write!(f, "left out {count} more warning(s) about {host} (reason: {kind})")
    }
}

impl Periods {
    /// Returns whether to log a warning about a subject now.
    fn allow(&mut self, (host, kind): Subject, now: Instant) -> bool {
        let known = self.0.contains_key(&(host.clone(), kind));
        let host = if known || self.0.len() < SUBJECTS_MAX { host } else { OTHERS.to_owned() };
        let fresh = Period { began: now, logged: 0, left_out: 0 };
        let period = self.0.entry((host, kind)).or_insert(fresh);
        let allowed = period.logged < BURST;
        period.logged += u32::from(allowed);
        period.left_out += u64::from(!allowed);
        allowed
    }

    /// Forgets the subjects whose periods are over, and returns how many warnings about them were left out.
    fn end(&mut self, is_over: impl Fn(Instant) -> bool) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.0.retain(|subject, period| {
            let over = is_over(period.began);
            if over && period.left_out > 0 {
                left_out.push(LeftOut { subject: subject.clone(), count: period.left_out });
            }
            !over
        });
        left_out
    }
}

/// Returns the name of the host that a warning about the peer at `address` is about. It has no port, because
/// each connection of a host has its own.
fn subject_of(address: &str) -> String {
    host_of(address).map_or_else(|| address.to_owned(), |host| host.to_string())
}

impl Warnings {
    /// Calls `log` unless there were too many warnings of this kind about the host of `address` within the
    /// last minute. Logs how many warnings were left out in earlier minutes.
    pub fn limit(&self, address: &str, kind: &'static str, log: impl FnOnce()) {
        let now = Instant::now();
        let subject = (subject_of(address), kind);
        let (left_out, allowed) = {
            let mut periods = self.0.lock();
            (periods.end(|began| now - began >= PERIOD), periods.allow(subject, now))
        };
        for left_out in left_out {
            tracing::warn!("{left_out}");
        }
        if allowed {
            log();
        }
    }
}

impl Drop for Warnings {
    /// Logs how many warnings were left out in the last minute.
    fn drop(&mut self) {
        for left_out in self.0.get_mut().end(|_| true) {
            tracing::warn!("{left_out}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks (A), (B) and (D).
        #[test]
        fn warnings_are_logged_or_counted(
            times in prop::collection::vec((0u64..20, 0u32..3, prop::sample::select(vec!["a", "b"])), 0..400),
        ) {
            let begin = Instant::now();
            let (mut now, mut periods) = (begin, Periods::default());
            let mut logged: BTreeMap<Subject, Vec<Instant>> = BTreeMap::new();
            let mut total: BTreeMap<Subject, u64> = BTreeMap::new();
            let mut counted: BTreeMap<Subject, u64> = BTreeMap::new();
            let mut count = |left_out: Vec<LeftOut>| {
                for LeftOut { subject, count } in left_out {
                    *counted.entry(subject).or_default() += count;
                }
            };
            for (wait, host, kind) in times {
                now += Duration::from_secs(wait / 10);
                let subject = (host.to_string(), kind);
                *total.entry(subject.clone()).or_default() += 1;
                count(periods.end(|began| now - began >= PERIOD));
                let recent = periods.0.get(&subject).map_or(0, |period| period.logged);
                let allowed = periods.allow(subject.clone(), now);
                prop_assert_eq!(allowed, recent < BURST, "(D)");
                if allowed {
                    logged.entry(subject).or_default().push(now);
                }
            }
            count(periods.end(|_| true));
            for (subject, total) in total {
                let logged = logged.remove(&subject).unwrap_or_default();
                let counted = counted.get(&subject).copied().unwrap_or(0);
                prop_assert_eq!(logged.len() as u64 + counted, total, "(B)");
                for times in logged.windows(2 * BURST as usize) {
                    prop_assert!(times[times.len() - 1] - times[0] >= PERIOD, "(A)");
                }
            }
        }
    }

    #[test]
    fn a_minute_later_warnings_are_logged_again() {
        let (begin, mut periods) = (Instant::now(), Periods::default());
        let subject = || ("h".to_owned(), "magic");
        let logged = (0..1000).filter(|_| periods.allow(subject(), begin)).count();
        assert_eq!(logged, BURST as usize);
        let later = begin + PERIOD;
        assert!(periods.end(|began| later - began > PERIOD).is_empty());
        let ended = periods.end(|began| later - began >= PERIOD);
        assert_eq!(ended[0].to_string(), "left out 990 more warning(s) about h (reason: magic)");
        assert!(periods.allow(subject(), later));
    }

    /// Checks (C).
    #[test]
    fn the_number_of_subjects_is_bounded() {
        let (now, mut periods) = (Instant::now(), Periods::default());
        let allowed = (0..10_000).filter(|host| periods.allow((format!("h{host}"), "magic"), now)).count();
        assert_eq!(allowed, SUBJECTS_MAX + BURST as usize);
        assert_eq!(periods.0.len(), SUBJECTS_MAX + 1);
        let left_out = periods.end(|_| true);
        assert_eq!(left_out[0].subject.0, OTHERS);
        assert_eq!(left_out[0].count, 10_000 - allowed as u64);
    }

    #[test]
    fn all_connections_of_a_host_are_one_subject() {
        for (address, host) in [
            ("10.0.0.1:99", "10.0.0.1"),
            ("[2001:db8::1:2]:99", "2001:db8::"),
            ("this process", "this process"),
        ] {
            assert_eq!(subject_of(address), host);
        }
    }
}
