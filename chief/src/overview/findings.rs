//! Who holds up the others, while that is so. Knows no clock, and not what speaks against whom: it is told.
//!
//! Wanted properties: (A) nothing is found before it has been seen for 3 s, or is known to have lasted for so long; (B) what has not
//! been seen for 2 s is not found any more, unless nobody could tell.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::message::REPORT_EVERY_MAX;
use pushpull_messages::observe::{Finding, FindingKind, ShardRow};
use pushpull_messages::sync::SyncSpec;

use super::slow::{Trainer, slow_workers};
use super::troubled::troubled_shards;

/// So long something has to be seen before it is found.
pub(crate) const SEEN: Duration = Duration::from_secs(3);
// Who reports as seldom as it may is not silent.
const _: () = assert!(SEEN.as_millis() > REPORT_EVERY_MAX.as_millis());
/// So long it may not be seen and is still found.
pub(crate) const UNSEEN: Duration = Duration::from_secs(2);

/// By what somebody holds up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A worker that says nothing.
    Silent,
    /// One that is at the same for too long.
    Standing,
    /// One whose steps take longer.
    Slower,
    /// A shard that has more to do than it can.
    Overloaded,
    /// One that does not answer.
    Mute,
}

impl Cause {
    const fn kind(self) -> FindingKind {
        match self {
            Self::Silent | Self::Standing | Self::Slower => FindingKind::SlowWorker,
            Self::Overloaded => FindingKind::OverloadedShard,
            Self::Mute => FindingKind::SilentShard,
        }
    }
}

/// What speaks against somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    pub finding: Finding,
    /// For how long that has been so, where that can be told by itself.
    pub lasted: Duration,
    pub cause: Cause,
}

/// What there is at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllEvidence {
    pub against: Vec<Evidence>,
    /// Of whom it cannot be told now whether they are innocent of what.
    pub unclear: Vec<(String, Cause)>,
}

/// What speaks against workers that train, and shards, at one moment, by rows that are of the last seconds.
pub(crate) fn evidence(workers: &[Trainer<'_>], shards: &[ShardRow], sync: SyncSpec) -> AllEvidence {
    let mut all = slow_workers(workers, sync);
    all.against.extend(troubled_shards(shards));
    all
}

/// What is found, while it is.
#[derive(Debug, Default)]
pub(crate) struct Findings(BTreeMap<(FindingKind, String), Suspicion>);

#[derive(Debug)]
struct Suspicion {
    since: Duration,
    seen: Duration,
    cause: Cause,
    reason: String,
    found: bool,
}

/// What was found since the last look, and what is not any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub begun: Vec<Finding>,
    pub ended: Vec<Finding>,
}

impl Findings {
    /// What was seen at that time, which is not before the last one.
    pub(crate) fn look(&mut self, at: Duration, evidence: AllEvidence) -> Changes {
        let AllEvidence { against, unclear } = evidence;
        let mut changes = Changes::default();
        for Evidence { finding: Finding { kind, name, reason }, lasted, cause } in against {
            let since = at.saturating_sub(lasted);
            let new = || Suspicion { since, seen: at, cause, reason: String::new(), found: false };
            let known = self.0.entry((kind, name.clone())).or_insert_with(new);
            (known.since, known.seen) = (known.since.min(since), at);
            (known.cause, known.reason) = (cause, reason.clone());
            if !known.found && at - known.since >= SEEN {
                known.found = true;
                changes.begun.push(Finding { kind, name, reason });
            }
        }
        for (name, cause) in unclear {
            let known = self.0.get_mut(&(cause.kind(), name));
            if let Some(known) = known.filter(|known| known.found && known.cause == cause) {
                known.seen = at;
            }
        }
        self.0.retain(|(kind, name), known| {
            let stays = at - known.seen < UNSEEN;
            if !stays && known.found {
                let reason = std::mem::take(&mut known.reason);
                changes.ended.push(Finding { kind: *kind, name: name.clone(), reason });
            }
            stays
        });
        changes
    }

    /// All that is found now.
    pub(crate) fn found(&self) -> Vec<Finding> {
        let found = self.0.iter().filter(|(_, known)| known.found);
        found
            .map(|((kind, name), known)| Finding {
                kind: *kind,
                name: name.clone(),
                reason: known.reason.clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// (A) and (B), of one who is seen, cannot be seen or is not seen at any times.
        #[test]
        fn what_is_found_has_been_seen_for_a_while(
            looks in prop::collection::vec((1u64..2500, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut findings = Findings::default();
            let (mut at, mut since, mut seen, mut told) = (Duration::ZERO, None, Duration::ZERO, false);
            for (wait, sees, unclear) in looks {
                at += Duration::from_millis(wait);
                let finding = Finding { kind: FindingKind::SlowWorker, name: "worker/2".into(), reason: "x".into() };
                let (cause, lasted) = (Cause::Slower, Duration::ZERO);
                let against = sees.then(|| Evidence { finding: finding.clone(), lasted, cause });
                // Of another cause it says nothing.
                let about = if unclear { Cause::Slower } else { Cause::Silent };
                let (against, unclear_now) = (against.into_iter().collect(), vec![("worker/2".to_owned(), about)]);
                let changes = findings.look(at, AllEvidence { against, unclear: unclear_now });
                if sees {
                    since.get_or_insert(at);
                    seen = at;
                } else if unclear && told {
                    seen = at;
                } else if at - seen >= UNSEEN {
                    since = None;
                }
                let found = findings.found();
                prop_assert!(found.is_empty() || since.is_some_and(|since| at - since >= SEEN) && at - seen < UNSEEN);
                if since.is_some_and(|since| at - since >= SEEN) && sees {
                    prop_assert_eq!(&found, std::slice::from_ref(&finding));
                }
                // Each is told when it begins, and when it ends.
                prop_assert_eq!(changes.begun.len(), usize::from(!told && !found.is_empty()));
                prop_assert_eq!(changes.ended.len(), usize::from(told && found.is_empty()));
                told = !found.is_empty();
            }
        }
    }
}
