//! Decides when the next checkpoint is made. Reads no clock; times count from the start of the job. Wanted
//! properties: (A) no step is chosen twice, except the last one if its save was abandoned; (B) every chosen
//! step is after all steps seen so far, or is the first or last one; (C) with `save_steps`, a chosen step is
//! a multiple of it, is the first or last one, or was requested; (D) if shards repeatedly pass the chosen
//! step before they learn of it, steps are chosen further ahead until a save succeeds; (E) after a failed
//! save, the next multiple is chosen only when a shard has reached the failed step.

use std::collections::BTreeSet;
use std::time::Duration;

use pushpull_messages::id::Version;

/// The largest `margin`, in updates. While the shards train, a save is planned at a version that is at least
/// `margin` updates ahead of them. No shard can apply `MARGIN_MAX` updates while a message is in transit.
const MARGIN_MAX: u64 = 1 << 32;

/// The decision of the schedule: what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextSave {
    /// Save when the shards have reached this version.
    At(Version),
    /// Consult the schedule again at this time.
    AtTime(Duration),
    /// Consult the schedule again when a shard is known to have reached this version.
    Seen(Version),
    /// Do nothing until another event changes the schedule.
    Nothing,
}

impl NextSave {
    /// Returns the version to save, if there is one.
    pub(super) const fn at(self) -> Option<Version> {
        match self {
            Self::At(at) => Some(at),
            Self::AtTime(_) | Self::Seen(_) | Self::Nothing => None,
        }
    }
}

/// The schedule of one job's checkpoints.
#[derive(Debug)]
pub(super) struct Schedule {
    every_steps: Option<u64>,
    every: Option<Duration>,
    /// The last version of the job; set when all workers have finished at it.
    trained: Option<Version>,
    /// The greatest version that any shard is known to have reached.
    seen: Version,
    /// The chosen versions that are not before `seen`.
    named: BTreeSet<Version>,
    /// The version that a fresh job begins with; `None` after the first decision.
    first: Option<Version>,
    margin: u64,
    /// The time at which the next save is due; used only if the job sets `every`, the time between saves.
    due: Duration,
    /// The version of the last save that has ended, successfully or not.
    ended: Option<Version>,
    /// The version of the last failed save. The shards may not have reached it yet.
    failed: Version,
    /// Whether a save was requested, but no version has been chosen for it yet.
    requested: bool,
    /// Whether the most recent choice of a version was made because of a request.
    urgent: bool,
}

impl Schedule {
    /// Creates the schedule of a job whose shards begin with version `began`. `saved` is the version of the
    /// newest checkpoint. If there is none, version `began` is saved at once.
    pub(super) fn new(
        every_steps: Option<u64>,
        every: Option<Duration>,
        began: Version,
        saved: Option<Version>,
    ) -> Self {
        Self {
            every_steps,
            every,
            trained: None,
            seen: began,
            named: saved.into_iter().collect(),
            first: saved.is_none().then_some(began),
            margin: 1,
            due: every.unwrap_or_default(),
            ended: saved,
            failed: began,
            requested: false,
            urgent: false,
        }
    }

    /// Records that a shard has reached `version`.
    pub(super) fn saw(&mut self, version: Version) {
        self.seen = self.seen.max(version);
        self.named = self.named.split_off(&self.seen);
    }

    /// Returns the last version of the job if all workers have finished at it.
    pub(super) const fn last(&self) -> Option<Version> {
        self.trained
    }

    /// Returns whether a requested save has not been made yet.
    pub(super) const fn is_requested(&self) -> bool {
        self.requested || self.urgent
    }

    /// Requests one more save. Returns true if the schedule must be consulted again: either no save is under
    /// way, or the save under way waits for a distant step.
    pub(super) fn request(&mut self, under_way: Option<Version>) -> bool {
        let far = |named: Version| named.0 > self.seen.0.saturating_add(self.margin);
        let changes = under_way.is_none_or(far);
        // A save that waits for a step at most `margin` ahead satisfies the request. A save that is already
        // being written does not, because its step was reached before the request.
        self.requested |= changes || under_way.is_some_and(|named| named <= self.seen);
        changes
    }

    /// Records that all workers have finished at `version`. Returns true if the schedule must be consulted
    /// again.
    pub(super) fn trained(&mut self, version: Version, under_way: Option<Version>) -> bool {
        self.trained = Some(version);
        self.requested = false;
        under_way.is_none_or(|named| named > version)
    }

    /// Returns what to do at the time `now`. Must be called only when no save is under way.
    pub(super) fn next(&mut self, now: Duration) -> NextSave {
        if self.first.take() == Some(self.seen) {
            return self.name(self.seen);
        }
        if let Some(last) = self.trained {
            return if last < self.seen || self.ended == Some(last) {
                NextSave::Nothing
            } else {
                self.name(last)
            };
        }
        let soon = self.requested || self.every.is_some() && now >= self.due;
        let step = match (soon, self.every_steps) {
            (true, _) => 1,
            (false, Some(_)) if self.seen < self.failed => return NextSave::Seen(self.failed),
            (false, Some(steps)) => steps,
            (false, None) if self.every.is_some() => return NextSave::AtTime(self.due),
            (false, None) => return NextSave::Nothing,
        };
        let least = self.seen.0.saturating_add(self.margin);
        let mut at = least.checked_next_multiple_of(step).unwrap_or(u64::MAX);
        while self.named.contains(&Version(at)) {
            at = at.saturating_add(step);
        }
        self.urgent = std::mem::take(&mut self.requested);
        self.name(Version(at))
    }

    fn name(&mut self, at: Version) -> NextSave {
        self.named.insert(at);
        NextSave::At(at)
    }

    /// Records that the chosen version was too early to be saved, because a shard had already reached
    /// `version`.
    pub(super) fn was_late(&mut self, version: Version) {
        self.saw(version);
        self.margin = (2 * self.margin).min(MARGIN_MAX);
        self.requested |= self.urgent;
    }

    /// Records that the save of version `at` has failed. The save is not retried at once; the next save is
    /// made when it is due.
    pub(super) fn failed(&mut self, at: Version, now: Duration) {
        self.failed = at;
        self.ended(at, now);
    }

    /// Records that the save of version `at` has ended, successfully or not.
    pub(super) fn ended(&mut self, at: Version, now: Duration) {
        self.ended = Some(at);
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
    enum TrainingEvent {
        /// An event: the shards make this number of updates.
        Train(u64),
        /// An event: this number of seconds passes.
        Wait(u64),
        Request,
        Late(u64),
        Ended,
        Failed,
    }

    fn event() -> impl Strategy<Value = TrainingEvent> {
        prop_oneof![
            3 => (0u64..40).prop_map(TrainingEvent::Train),
            2 => (0u64..40).prop_map(TrainingEvent::Wait),
            1 => Just(TrainingEvent::Request),
            1 => (0u64..9).prop_map(TrainingEvent::Late),
            3 => Just(TrainingEvent::Ended),
            1 => Just(TrainingEvent::Failed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn steps_are_named_once_and_ahead(
            steps in prop::option::of(1u64..50),
            secs in prop::option::of(1u64..50),
            began in 0u64..500,
            fresh in any::<bool>(),
            events in prop::collection::vec(event(), 0..60),
        ) {
            let every = if steps.is_some() { None } else { secs.map(Duration::from_secs) };
            let mut schedule = Schedule::new(steps, every, Version(began), (!fresh).then_some(Version(began)));
            let (mut now, mut real, mut requested, mut failed) = (Duration::ZERO, began, false, 0);
            let (mut all, mut under_way) = (BTreeSet::new(), None::<Version>);
            for event in events {
                match event {
                    TrainingEvent::Train(more) => {
                        real += more;
                        schedule.saw(Version(real));
                    }
                    TrainingEvent::Wait(seconds) => now += Duration::from_secs(seconds),
                    TrainingEvent::Request => {
                        requested = true;
                        if schedule.request(under_way) {
                            under_way = None;
                        }
                    }
                    TrainingEvent::Late(by) => if let Some(named) = under_way.take() {
                        real = real.max(named.0 + by + 1);
                        schedule.was_late(Version(real));
                    }
                    TrainingEvent::Ended => if let Some(named) = under_way.take() {
                        real = real.max(named.0);
                        schedule.saw(named);
                        schedule.ended(named, now);
                    }
                    TrainingEvent::Failed => if let Some(named) = under_way.take() {
                        failed = named.0;
                        schedule.failed(named, now);
                    }
                }
                if under_way.is_none() {
                    match schedule.next(now) {
                        NextSave::At(named) => {
                            let first = all.is_empty() && fresh && named.0 == began;
                            prop_assert!(all.insert(named), "(A) {named} again");
                            prop_assert!(named.0 > real || first && real == began, "(B) {named} at {real}");
                            let multiple = steps.is_some_and(|steps| named.0 % steps == 0);
                            prop_assert!(first || multiple || requested || every.is_some(), "(C) {named}");
                            prop_assert!(requested || every.is_some() || real >= failed, "(E) {named}");
                            under_way = Some(named);
                        }
                        NextSave::AtTime(due) => prop_assert!(due > now && every.is_some()),
                        NextSave::Seen(version) => prop_assert!(version.0 > real && version.0 == failed, "(E)"),
                        NextSave::Nothing => {}
                    }
                }
            }
        }

        #[test]
        fn fast_shards_are_caught_in_the_end(speed in 1u64..5000, steps in prop::option::of(1u64..20)) {
            let mut schedule = Schedule::new(steps, None, Version(7), Some(Version(7)));
            schedule.request(None);
            let mut real = 7;
            for _ in 0..40 {
                let NextSave::At(named) = schedule.next(Duration::ZERO) else { panic!("a save is requested") };
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
    fn steps_and_seconds_are_obeyed() {
        let seconds = Duration::from_secs;
        let mut schedule = Schedule::new(Some(100), None, Version(0), None);
        assert_eq!(schedule.next(seconds(0)), NextSave::At(Version(0)));
        schedule.ended(Version(0), seconds(1));
        assert_eq!(schedule.next(seconds(1)), NextSave::At(Version(100)));
        // A request takes precedence. Version 100, which was chosen before, is not chosen again.
        schedule.saw(Version(40));
        assert!(schedule.request(Some(Version(100))));
        assert_eq!(schedule.next(seconds(2)), NextSave::At(Version(41)));
        schedule.saw(Version(41));
        schedule.ended(Version(41), seconds(2));
        assert_eq!(schedule.next(seconds(2)), NextSave::At(Version(200)));
        schedule.was_late(Version(299));
        assert_eq!(schedule.next(seconds(3)), NextSave::At(Version(400)));
        assert!(schedule.trained(Version(390), Some(Version(400))), "the shards never reach it");
        schedule.saw(Version(390));
        assert_eq!(schedule.next(seconds(3)), NextSave::At(Version(390)));
        schedule.ended(Version(390), seconds(3));
        assert_eq!(schedule.next(seconds(3)), NextSave::Nothing, "(A)");

        let mut schedule = Schedule::new(None, Some(seconds(60)), Version(10), Some(Version(10)));
        assert_eq!(schedule.next(seconds(3)), NextSave::AtTime(seconds(60)));
        assert_eq!(schedule.next(seconds(60)), NextSave::At(Version(11)));
        schedule.was_late(Version(30));
        assert_eq!(schedule.next(seconds(60)), NextSave::At(Version(32)));
        schedule.ended(Version(32), seconds(70));
        assert_eq!(schedule.next(seconds(70)), NextSave::AtTime(seconds(130)));

        let mut schedule = Schedule::new(None, None, Version(0), Some(Version(0)));
        assert_eq!(schedule.next(seconds(999)), NextSave::Nothing);
    }

    #[test]
    fn the_last_step_is_saved_although_its_save_was_abandoned() {
        let now = Duration::ZERO;
        let mut schedule = Schedule::new(Some(100), None, Version(50), Some(Version(50)));
        assert_eq!(schedule.next(now), NextSave::At(Version(100)));
        assert!(schedule.request(Some(Version(100))));
        assert_eq!(schedule.next(now), NextSave::At(Version(51)));
        schedule.ended(Version(51), now);
        assert!(schedule.trained(Version(100), None));
        assert_eq!(schedule.next(now), NextSave::At(Version(100)));
        schedule.failed(Version(100), now);
        assert_eq!(schedule.next(now), NextSave::Nothing);
    }

    #[test]
    fn a_later_run_of_the_chief_saves_the_last_step() {
        let (nine, steps, now) = (Version(9), Some(100), Duration::ZERO);
        for (newest, next) in [(3, NextSave::At(nine)), (9, NextSave::Nothing)] {
            let mut schedule = Schedule::new(steps, None, nine, Some(Version(newest)));
            assert_eq!(schedule.next(now), NextSave::At(Version(100)));
            assert!(schedule.trained(nine, Some(Version(100))));
            assert_eq!(schedule.next(now), next, "{newest}");
        }
    }
}
