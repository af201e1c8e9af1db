//! At which step the next checkpoint is made. Knows neither clock nor store: time is what has gone by since the job began.
//! Wanted properties: (A) no step is named twice; (B) every step that is named is beyond all that were seen, or that of the
//! end; (C) with `save_steps` it is a multiple of that, unless somebody wished for one; (D) where shards are always beyond
//! what is named, the margin grows until they are not; (E) after one that failed the next multiple is not named before a
//! shard has come as far as that one.

use std::collections::BTreeSet;
use std::time::Duration;

use pushpull_messages::id::Version;

/// Beyond that a margin is no margin: no shard does so many updates while a message travels.
const MARGIN_MAX: u64 = 1 << 32;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Save when the shards are at that version.
    At(Version),
    /// Ask again then.
    AtTime(Duration),
    /// Ask again when a shard is known to be there.
    Seen(Version),
    /// Nothing until something else happens.
    Nothing,
}

impl Next {
    /// The version that is saved, if any.
    pub(super) const fn at(self) -> Option<Version> {
        match self {
            Self::At(at) => Some(at),
            Self::AtTime(_) | Self::Seen(_) | Self::Nothing => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Schedule {
    every_steps: Option<u64>,
    every: Option<Duration>,
    /// All workers have finished at that version: it is the last.
    trained: Option<Version>,
    /// The greatest version that any shard has told of.
    seen: Version,
    /// Named already, and not behind what was seen.
    named: BTreeSet<Version>,
    /// The version that a fresh job begins with, until that is saved or past.
    first: Option<Version>,
    margin: u64,
    /// When the next is due, with `every`.
    due: Duration,
    /// The version of a save that failed, perhaps before any shard was there.
    failed: Version,
    /// One is wanted as soon as can be.
    wished: bool,
    /// And so was the one that was named last.
    urgent: bool,
}

impl Schedule {
    /// Of a job whose shards begin with that version; `fresh` if no checkpoint has it.
    pub(super) fn new(
        every_steps: Option<u64>,
        every: Option<Duration>,
        began: Version,
        fresh: bool,
    ) -> Self {
        Self {
            every_steps,
            every,
            trained: None,
            seen: began,
            // A checkpoint has it already, unless the job is fresh.
            named: (!fresh).then_some(began).into_iter().collect(),
            first: fresh.then_some(began),
            margin: 1,
            due: every.unwrap_or_default(),
            failed: began,
            wished: false,
            urgent: false,
        }
    }

    /// A shard is there.
    pub(super) fn saw(&mut self, version: Version) {
        self.seen = self.seen.max(version);
        self.named = self.named.split_off(&self.seen);
    }

    /// One is wished for, beside the others. Whether that changes what is to be done next: what is under way may wait for
    /// a step that is far.
    pub(super) fn wish(&mut self, under_way: Option<Version>) -> bool {
        let far = |named: Version| named.0 > self.seen.0.saturating_add(self.margin);
        let changes = under_way.is_none_or(far);
        // One that waits for the very next step will do; one that is being written is of an earlier step.
        self.wished |= changes || under_way.is_some_and(|named| named <= self.seen);
        changes
    }

    /// All workers have finished, at that version. Whether that changes what is to be done next.
    pub(super) fn trained(&mut self, version: Version, under_way: Option<Version>) -> bool {
        self.trained = Some(version);
        self.wished = false;
        under_way.is_none_or(|named| named > version)
    }

    /// What to do now, where no save is under way.
    pub(super) fn next(&mut self, now: Duration) -> Next {
        if self.first.take() == Some(self.seen) {
            return self.name(self.seen);
        }
        if let Some(last) = self.trained {
            return if last < self.seen || self.named.contains(&last) {
                Next::Nothing
            } else {
                self.name(last)
            };
        }
        let soon = self.wished || self.every.is_some() && now >= self.due;
        let step = match (soon, self.every_steps) {
            (true, _) => 1,
            (false, Some(_)) if self.seen < self.failed => return Next::Seen(self.failed),
            (false, Some(steps)) => steps,
            (false, None) if self.every.is_some() => return Next::AtTime(self.due),
            (false, None) => return Next::Nothing,
        };
        let least = self.seen.0.saturating_add(self.margin);
        let mut at = least.checked_next_multiple_of(step).unwrap_or(u64::MAX);
        while self.named.contains(&Version(at)) {
            at = at.saturating_add(step);
        }
        self.urgent = std::mem::take(&mut self.wished);
        self.name(Version(at))
    }

    fn name(&mut self, at: Version) -> Next {
        self.named.insert(at);
        Next::At(at)
    }

    /// The save came too late: a shard is beyond it, at that version.
    pub(super) fn was_late(&mut self, version: Version) {
        self.saw(version);
        self.margin = (2 * self.margin).min(MARGIN_MAX);
        self.wished |= self.urgent;
    }

    /// The save of that version has failed: the next one is tried when it is due, and not at once.
    pub(super) fn failed(&mut self, at: Version, now: Duration) {
        self.failed = at;
        self.ended(now);
    }

    /// A save has ended.
    pub(super) fn ended(&mut self, now: Duration) {
        self.margin = (self.margin / 2).max(1);
        if let Some(every) = self.every {
            self.due = now.saturating_add(every);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Turn {
        /// The shards go on.
        Train(u64),
        /// Time goes by.
        Wait(u64),
        Wish,
        Late(u64),
        Ended,
        Failed,
    }

    fn turn() -> impl Strategy<Value = Turn> {
        prop_oneof![
            3 => (0u64..40).prop_map(Turn::Train),
            2 => (0u64..40).prop_map(Turn::Wait),
            1 => Just(Turn::Wish),
            1 => (0u64..9).prop_map(Turn::Late),
            3 => Just(Turn::Ended),
            1 => Just(Turn::Failed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn whatever_happens_steps_are_named_once_and_ahead(
            steps in prop::option::of(1u64..50),
            secs in prop::option::of(1u64..50),
            began in 0u64..500,
            fresh in any::<bool>(),
            turns in prop::collection::vec(turn(), 0..60),
        ) {
            let every = if steps.is_some() { None } else { secs.map(Duration::from_secs) };
            let mut schedule = Schedule::new(steps, every, Version(began), fresh);
            let (mut now, mut real, mut wished, mut failed) = (Duration::ZERO, began, false, 0);
            let (mut all, mut under_way) = (BTreeSet::new(), None::<Version>);
            for turn in turns {
                match turn {
                    Turn::Train(more) => {
                        real += more;
                        schedule.saw(Version(real));
                    }
                    Turn::Wait(seconds) => now += Duration::from_secs(seconds),
                    Turn::Wish => {
                        wished = true;
                        if schedule.wish(under_way) {
                            under_way = None;
                        }
                    }
                    Turn::Late(by) => if let Some(named) = under_way.take() {
                        real = real.max(named.0 + by + 1);
                        schedule.was_late(Version(real));
                    }
                    Turn::Ended => if let Some(named) = under_way.take() {
                        real = real.max(named.0);
                        schedule.saw(named);
                        schedule.ended(now);
                    }
                    Turn::Failed => if let Some(named) = under_way.take() {
                        failed = named.0;
                        schedule.failed(named, now);
                    }
                }
                if under_way.is_none() {
                    match schedule.next(now) {
                        Next::At(named) => {
                            let first = all.is_empty() && fresh && named.0 == began;
                            prop_assert!(all.insert(named), "(A) {named} again");
                            prop_assert!(named.0 > real || first && real == began, "(B) {named} at {real}");
                            let multiple = steps.is_some_and(|steps| named.0 % steps == 0);
                            prop_assert!(first || multiple || wished || every.is_some(), "(C) {named}");
                            prop_assert!(wished || every.is_some() || real >= failed, "(E) {named}");
                            under_way = Some(named);
                        }
                        Next::AtTime(due) => prop_assert!(due > now && every.is_some()),
                        Next::Seen(version) => prop_assert!(version.0 > real && version.0 == failed, "(E)"),
                        Next::Nothing => {}
                    }
                }
            }
        }

        #[test]
        fn shards_that_run_fast_are_caught_in_the_end(speed in 1u64..5000, steps in prop::option::of(1u64..20)) {
            let mut schedule = Schedule::new(steps, None, Version(7), false);
            schedule.wish(None);
            let mut real = 7;
            for _ in 0..40 {
                let Next::At(named) = schedule.next(Duration::ZERO) else { panic!("one is wished for") };
                real += speed;
                if named.0 >= real {
                    return Ok(());
                }
                schedule.was_late(Version(real));
            }
            prop_assert!(false, "(D)");
        }
    }

    #[test]
    fn steps_and_seconds_are_what_they_say() {
        let seconds = Duration::from_secs;
        let mut schedule = Schedule::new(Some(100), None, Version(0), true);
        assert_eq!(schedule.next(seconds(0)), Next::At(Version(0)));
        schedule.ended(seconds(1));
        assert_eq!(schedule.next(seconds(1)), Next::At(Version(100)));
        // A wish comes first, and the multiple that was named is left out.
        schedule.saw(Version(40));
        assert!(schedule.wish(Some(Version(100))));
        assert_eq!(schedule.next(seconds(2)), Next::At(Version(41)));
        schedule.saw(Version(41));
        schedule.ended(seconds(2));
        assert_eq!(schedule.next(seconds(2)), Next::At(Version(200)));
        schedule.was_late(Version(299));
        assert_eq!(schedule.next(seconds(3)), Next::At(Version(400)));
        assert!(schedule.trained(Version(390), Some(Version(400))), "it will never come");
        schedule.saw(Version(390));
        assert_eq!(schedule.next(seconds(3)), Next::At(Version(390)));
        schedule.ended(seconds(3));
        assert_eq!(schedule.next(seconds(3)), Next::Nothing, "(A)");

        let mut schedule = Schedule::new(None, Some(seconds(60)), Version(10), false);
        assert_eq!(schedule.next(seconds(3)), Next::AtTime(seconds(60)));
        assert_eq!(schedule.next(seconds(60)), Next::At(Version(11)));
        schedule.was_late(Version(30));
        assert_eq!(schedule.next(seconds(60)), Next::At(Version(32)));
        schedule.ended(seconds(70));
        assert_eq!(schedule.next(seconds(70)), Next::AtTime(seconds(130)));

        let mut schedule = Schedule::new(None, None, Version(0), false);
        assert_eq!(schedule.next(seconds(999)), Next::Nothing);
    }
}
