//! Finds overloaded and silent shards. The figures in a shard's row describe the last few seconds.
//!
//! Wanted properties: (A) if all shards are about equally fast and none is busy, nothing is found, even if
//! messages that arrive together wait for a long time; (B) a shard is found to be overloaded if it is busy
//! almost all of the time, if messages pile up while it is busy, or if it replies much later than the other
//! shards; a shard that does not reply is found to be silent; no other shard is found.

use std::time::Duration;

use pushpull_messages::observe::{Finding, FindingKind, ShardRow, ShardState};

use super::evidence::{Cause, EVIDENCE_MIN, Evidence};
use super::peer_times::{PeerTimes, shown};

/// The limits for late replies. A shard's reply time is compared with the median reply time of the other
/// shards: the first limit is for the quotient, and the second is for the difference, in microseconds. The
/// replies are late if they reach both limits.
const LATE: (f64, u64) = (2.0, 5_000);
/// A shard that is busy for at least this fraction of the time counts as overloaded.
const BUSY: f64 = 0.8;
/// Messages count as piled up only if they wait for at least this time, in microseconds.
const WAIT_US: u64 = 5_000;
/// A shard where messages pile up counts as overloaded if it is busy for at least this fraction of the time.
/// At a less busy shard, messages wait only because many of them arrive at the same moment.
const BUSY_WHILE_THEY_WAIT: f64 = 0.5;

/// Returns the evidence for each shard that is overloaded or silent.
pub(super) fn troubled_shards(shards: &[ShardRow]) -> Vec<Evidence> {
    let round_trips: PeerTimes = shards.iter().filter_map(|row| row.round_trip_us).collect();
    let mut found = Vec::new();
    for shard in shards {
        let mut against = |kind, cause, reason| {
            let finding = Finding { kind, name: shard.shard.to_string(), reason };
            found.push(Evidence { finding, lasted: Duration::ZERO, cause });
        };
        let silent = Duration::from_millis(shard.seen_ms);
        if silent >= EVIDENCE_MIN {
            // The older metrics of a silent shard say nothing about it now. The evidence counts as new,
            // because the chief itself may have been suspended during the silence.
            let reason = format!("it has not replied for {} s", silent.as_secs());
            against(FindingKind::SilentShard, Cause::Mute, reason);
            continue;
        }
        if shard.state == ShardState::Unreachable {
            against(FindingKind::SilentShard, Cause::Mute, "its connection is broken".to_owned());
            continue;
        }
        let mut reasons = Vec::new();
        if shard.busy >= BUSY {
            reasons.push(format!("it is busy {:.0} % of the time", shard.busy * 100.0));
        }
        let piled_up = shard.waited_us > shard.handling_us && shard.waited_us >= WAIT_US;
        if piled_up && shard.busy >= BUSY_WHILE_THEY_WAIT {
            let (waited, handling) = (shown(shard.waited_us), shown(shard.handling_us));
            reasons.push(format!("messages wait for {waited}, and are then handled in {handling}"));
        }
        if let Some((time, usual)) = round_trips.beyond(shard.round_trip_us, LATE) {
            reasons.push(format!(
                "it replies to pushes after {}, other shards after {}",
                shown(time),
                shown(usual)
            ));
        }
        if !reasons.is_empty() {
            let reason = reasons.join("; ");
            against(FindingKind::OverloadedShard, Cause::Overloaded, reason);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::{ShardId, Version};
    use pushpull_messages::message::ShardCounters;

    use super::*;

    fn shard(shard: u32) -> ShardRow {
        ShardRow {
            shard: ShardId::new(shard, 0),
            state: ShardState::Serving,
            seen_ms: 100,
            version: Version(1),
            updates_per_s: 10.0,
            busy: 0.3,
            queue: 1,
            waited_us: 300,
            handling_us: 400,
            round_trip_us: Some(3_000),
            variables: 1,
            slices: 1,
            bytes: 1,
            more_bytes: 0,
            pushes: ShardCounters::default(),
            pulls: 0,
            staleness: None,
            waiting: 0,
        }
    }

    proptest! {
        /// (A) and (B)
        #[test]
        fn only_the_troubled_shard_is_found(
            shards in prop::collection::vec((0.0f64..0.79, 0u64..60_000, 3_000u64..5_000), 1..8),
            at in 0usize..8,
            how in 0u8..5,
        ) {
            let mut rows: Vec<ShardRow> = Vec::new();
            for (index, &(busy, waited_us, round_trip)) in (0..).zip(&shards) {
                // Pushes that arrive at the same moment wait even if the shard has little to do.
                let waited_us = if busy < 0.5 { waited_us } else { waited_us / 15 };
                rows.push(ShardRow { busy, waited_us, round_trip_us: Some(round_trip), ..shard(index) });
            }
            prop_assert!(troubled_shards(&rows).is_empty(), "(A)");
            let at = at % rows.len();
            match how {
                0 => rows[at].busy = 0.93,
                1 => (rows[at].waited_us, rows[at].handling_us, rows[at].busy) = (12_000, 4_000, 0.55),
                2 => rows[at].round_trip_us = Some(40_000),
                3 => rows[at].seen_ms = 4_000,
                _ => rows[at].state = ShardState::Unreachable,
            }
            let found = troubled_shards(&rows);
            // A shard counts as late only in comparison with other shards.
            let kind = if how >= 3 { FindingKind::SilentShard } else { FindingKind::OverloadedShard };
            let wanted = if how == 2 && rows.len() == 1 { vec![] } else { vec![(kind, format!("ps/{at}/shard/0"))] };
            let found: Vec<_> = found.into_iter().map(|found| (found.finding.kind, found.finding.name)).collect();
            prop_assert_eq!(found, wanted, "(B)");
        }
    }

    #[test]
    fn simultaneous_pushes_are_no_overload() {
        // Eight workers push at the same moment, once a second.
        let together = ShardRow { busy: 0.08, waited_us: 35_000, handling_us: 10_000, ..shard(0) };
        assert_eq!(troubled_shards(&[together.clone(), shard(1)]), []);
        let more = ShardRow { busy: 0.6, ..together };
        let found = troubled_shards(&[more, shard(1)]);
        assert_eq!(found[0].finding.reason, "messages wait for 35 ms, and are then handled in 10 ms");
    }

    #[test]
    fn reasons_contain_numbers() {
        let late = ShardRow { busy: 0.934, round_trip_us: Some(90_000), ..shard(0) };
        let found = troubled_shards(&[late.clone(), shard(1)]);
        let reason =
            "it is busy 93 % of the time; it replies to pushes after 90 ms, other shards after 3.0 ms";
        assert_eq!(found[0].finding.reason, reason);
        let found = troubled_shards(&[ShardRow { seen_ms: 4_200, ..late }, shard(1)]);
        assert_eq!(found[0].finding.reason, "it has not replied for 4 s");
        assert_eq!((found.len(), found[0].lasted), (1, Duration::ZERO));
    }
}
