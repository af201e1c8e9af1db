//! Turns evidence into findings about workers and shards that hold up the others. Reads no clock, and does
//! not depend on the source of the evidence.
//!
//! Wanted properties: (A) a finding begins only when there has been evidence for 3 s, or when the evidence
//! shows that the condition has lasted for 3 s; (B) a finding ends after 2 s without evidence; the 2 s start
//! again at each update that leaves it unclear whether the cause of the finding still applies.

use std::collections::BTreeMap;
use std::time::Duration;

use pushpull_messages::observe::{Finding, FindingKind};

use super::evidence::{AllEvidence, Cause, EVIDENCE_MIN, Evidence};

/// The time after which a finding without evidence ends.
pub(crate) const FINDING_TIMEOUT: Duration = Duration::from_secs(2);

/// The current findings, and the evidence that may become a finding.
#[derive(Debug, Default)]
pub(crate) struct Findings(BTreeMap<(FindingKind, String), Suspicion>);

/// The evidence against one worker or shard. If `found` is true, it is a finding; otherwise, it may become
/// one.
#[derive(Debug)]
struct Suspicion {
    since: Duration,
    last_evidence: Duration,
    cause: Cause,
    reason: String,
    found: bool,
}

/// The findings that began or ended with the last update.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub begun: Vec<Finding>,
    pub ended: Vec<Finding>,
}

impl Findings {
    /// Updates the findings with the evidence at the time `at`, which must not be earlier than in the last
    /// call. Returns the findings that began or ended.
    pub(crate) fn update(&mut self, at: Duration, evidence: AllEvidence) -> Changes {
        let AllEvidence { against, unclear } = evidence;
        let mut changes = Changes::default();
        for Evidence { finding: Finding { kind, name, reason }, lasted, cause } in against {
            let since = at.saturating_sub(lasted);
            let new = || Suspicion { since, last_evidence: at, cause, reason: String::new(), found: false };
            let known = self.0.entry((kind, name.clone())).or_insert_with(new);
            (known.since, known.last_evidence) = (known.since.min(since), at);
            (known.cause, known.reason) = (cause, reason.clone());
            if !known.found && at - known.since >= EVIDENCE_MIN {
                known.found = true;
                changes.begun.push(Finding { kind, name, reason });
            }
        }
        for (name, cause) in unclear {
            let known = self.0.get_mut(&(cause.kind(), name));
            if let Some(known) = known.filter(|known| known.found && known.cause == cause) {
                known.last_evidence = at;
            }
        }
        self.0.retain(|(kind, name), known| {
            let stays = at - known.last_evidence < FINDING_TIMEOUT;
            if !stays && known.found {
                let reason = std::mem::take(&mut known.reason);
                changes.ended.push(Finding { kind: *kind, name: name.clone(), reason });
            }
            stays
        });
        changes
    }

    /// Returns all current findings.
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
        /// Checks when a finding about one worker begins (A) and ends (B). Draws the times of updates, and
        /// whether each has clear, unclear or no evidence against the worker.
        #[test]
        fn findings_begin_and_end_with_their_evidence(
            updates in prop::collection::vec((1u64..2500, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let mut findings = Findings::default();
            let (mut at, mut since, mut seen, mut found_before) = (Duration::ZERO, None, Duration::ZERO, false);
            for (wait, evident, unclear) in updates {
                at += Duration::from_millis(wait);
                let finding = Finding { kind: FindingKind::SlowWorker, name: "worker/2".into(), reason: "x".into() };
                let (cause, lasted) = (Cause::Slower, Duration::ZERO);
                let against = evident.then(|| Evidence { finding: finding.clone(), lasted, cause });
                // Unclear evidence about another cause has no effect.
                let about = if unclear { Cause::Slower } else { Cause::Silent };
                let (against, unclear_now) = (against.into_iter().collect(), vec![("worker/2".to_owned(), about)]);
                let changes = findings.update(at, AllEvidence { against, unclear: unclear_now });
                if evident {
                    since.get_or_insert(at);
                    seen = at;
                } else if unclear && found_before {
                    seen = at;
                } else if at - seen >= FINDING_TIMEOUT {
                    since = None;
                }
                let found = findings.found();
                prop_assert!(found.is_empty() || since.is_some_and(|since| at - since >= EVIDENCE_MIN) && at - seen < FINDING_TIMEOUT);
                if since.is_some_and(|since| at - since >= EVIDENCE_MIN) && evident {
                    prop_assert_eq!(&found, std::slice::from_ref(&finding));
                }
                // Each finding is returned when it begins, and when it ends.
                prop_assert_eq!(changes.begun.len(), usize::from(!found_before && !found.is_empty()));
                prop_assert_eq!(changes.ended.len(), usize::from(found_before && found.is_empty()));
                found_before = !found.is_empty();
            }
        }
    }
}
