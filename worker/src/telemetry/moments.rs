//! The times at which the phases of a step began and ended. The phases are consecutive, and their durations
//! add up to the duration of the step. This module must not depend on clocks.

use std::time::Instant;

use pushpull_messages::observe::Phases;

/// The times of one step, in chronological order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    /// When the step began, which is when the previous step ended.
    pub begun: Instant,
    /// When the batch was ready. If a step has several batches, the waits for the later ones are counted as
    /// if they came before the computation.
    pub fed: Instant,
    /// When the hooks before the step had returned and the devices began to compute.
    pub started: Instant,
    /// When the gradients were complete.
    pub computed: Instant,
    /// When the gradients had been filtered; `None` if they were not filtered.
    pub filtered: Option<Instant>,
    /// When every shard had replied; `None` if the gradients were not pushed.
    pub answered: Option<Instant>,
    /// When the hooks after the step had returned.
    pub ended: Instant,
    /// True if the worker has any hooks.
    pub hooks: bool,
}

impl Moments {
    /// Returns the name, the beginning and the end of each phase. The phase `hooks` occurs twice: before and
    /// after the computation.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, Instant, Instant)> + use<> {
        let Self { begun, fed, started, computed, filtered, answered, ended, hooks } = *self;
        let passed = filtered.unwrap_or(computed);
        let parts = [
            ("input", Some((begun, fed))),
            ("hooks", hooks.then_some((fed, started))),
            ("compute", Some((started, computed))),
            ("filter", filtered.map(|filtered| (computed, filtered))),
            ("exchange", answered.map(|answered| (passed, answered))),
            ("hooks", hooks.then_some((answered.unwrap_or(passed), ended))),
        ];
        parts.into_iter().filter_map(|(name, part)| part.map(|(from, until)| (name, from, until)))
    }

    /// Adds the duration of each phase of this step to `phases`.
    pub(crate) fn count(&self, phases: &mut Phases) {
        let mut hooks = None;
        for (name, from, until) in self.parts() {
            let took = until.saturating_duration_since(from);
            match name {
                "input" => phases.input.record(took),
                "compute" => phases.compute.record(took),
                "filter" => phases.filter.record(took),
                "exchange" => phases.exchange.record(took),
                _ => hooks = Some(hooks.unwrap_or_default() + took),
            }
        }
        if let Some(took) = hooks {
            phases.hooks.record(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn phases_are_counted_once_and_add_up_to_the_step(
            took in any::<[u16; 6]>(),
            [filters, pushes, hooks] in any::<[bool; 3]>(),
        ) {
            let mut at = Instant::now();
            let mut passes = |happens: bool, took: u16| {
                at += Duration::from_micros(u64::from(took) * u64::from(happens));
                at
            };
            let moments = Moments {
                begun: passes(false, 0),
                fed: passes(true, took[0]),
                started: passes(hooks, took[1]),
                computed: passes(true, took[2]),
                filtered: Some(passes(filters, took[3])).filter(|_| filters),
                answered: Some(passes(pushes, took[4])).filter(|_| pushes),
                ended: passes(hooks, took[5]),
                hooks,
            };
            let mut phases = Phases::default();
            moments.count(&mut phases);
            let counts = phases.iter().map(|(_, times)| times.count());
            prop_assert_eq!(counts, [1, 1, u64::from(filters), u64::from(pushes), u64::from(hooks)]);
            let sum: u64 = phases.iter().iter().map(|(_, times)| times.sum_us).sum();
            prop_assert_eq!(u128::from(sum), (moments.ended - moments.begun).as_micros());
            let mut last = moments.begun;
            for (_, from, until) in moments.parts() {
                prop_assert!(from == last && until >= from);
                last = until;
            }
            prop_assert_eq!(last, moments.ended);
        }
    }
}
