//! The part of an update that concerns one slice. Several gradients are added up while they are applied, in
//! blocks that stay in the processor's caches. Several threads share a large slice. A value without readers
//! changes in place.
//!
//! Wanted properties: (A) neither the blocks, nor the threads, nor a change in place change a bit of the
//! result; (B) a value that may have readers does not change.

use std::cell::RefCell;

use pushpull_kernels::cpu::{Threads, accumulate, add_into, average};

use super::optimizer;
use super::update::Update;

/// The number of elements in a block. The block's part of everything that an update reads and writes fits
/// into the first cache.
const BLOCK_ELEMENTS: usize = 2048;
/// The smallest number of elements for which another thread is asked to help. They take longer than to wake
/// it.
const TASK_ELEMENTS: usize = 1 << 16;
/// The largest number of slots that an optimizer keeps.
pub(super) const SLOTS_MAX: usize = 2;

thread_local! {
    /// The memory for the sum of the gradients of a block. It is made once, because filling it with zeros
    /// takes longer than a small slice.
    static SUM: RefCell<Box<[f32]>> = RefCell::new(vec![0.0; BLOCK_ELEMENTS].into());
}

/// The elements that an update changes.
pub(super) enum Change<'a> {
    /// The new elements replace the old ones.
    InPlace(&'a mut [f32]),
    /// The new elements are written elsewhere, because the old ones may have readers.
    Beside { old: &'a [f32], next: &'a mut [f32] },
}

/// The slots of the elements; an optimizer with fewer slots leaves the last ones empty.
pub(super) type Slots<'a> = [&'a mut [f32]; SLOTS_MAX];

/// The work of an update on one slice, or on a part of one.
pub(super) struct SliceWork<'a> {
    pub value: Change<'a>,
    /// `None` if the slice has no moving average.
    pub average: Option<Change<'a>>,
    pub slots: Slots<'a>,
    pub slots_used: usize,
    /// The gradients whose sum is applied.
    pub gradients: &'a [&'a [f32]],
    /// The place of the first element in the gradients.
    pub start: usize,
}

impl<'a> Change<'a> {
    const fn len(&self) -> usize {
        match self {
            Self::InPlace(elements) => elements.len(),
            Self::Beside { next, .. } => next.len(),
        }
    }

    fn split(self, at: usize) -> (Self, Self) {
        match self {
            Self::InPlace(elements) => {
                let (first, rest) = elements.split_at_mut(at);
                (Self::InPlace(first), Self::InPlace(rest))
            }
            Self::Beside { old, next } => {
                let ((old, old_rest), (next, next_rest)) = (old.split_at(at), next.split_at_mut(at));
                (Self::Beside { old, next }, Self::Beside { old: old_rest, next: next_rest })
            }
        }
    }

    /// Returns the elements to write, and the old ones if they are elsewhere.
    const fn parts(&mut self) -> (&mut [f32], Option<&[f32]>) {
        match self {
            Self::InPlace(elements) => (elements, None),
            Self::Beside { old, next } => (next, Some(old)),
        }
    }
}

impl SliceWork<'_> {
    /// Does the work, on several threads if the slice is large and `threads` allows it.
    pub(super) fn run(self, update: &Update<'_>, threads: Threads) {
        let elements = self.value.len();
        if !matches!(threads, Threads::Pool(n) if n > 1) || elements < 2 * TASK_ELEMENTS {
            return SUM.with_borrow_mut(|sum| self.run_blocks(update, sum));
        }
        let (first, rest) = self.split((elements / 2).next_multiple_of(BLOCK_ELEMENTS));
        rayon::join(|| first.run(update, threads), || rest.run(update, threads));
    }

    /// Does the work as one block, for an optimizer that needs all elements at once. There must be one
    /// gradient, and nothing may change in place.
    pub(super) fn run_whole(mut self, update: &Update<'_>) {
        let [gradient] = self.gradients else { unreachable!("one gradient, found {}", self.gradients.len()) };
        self.apply(gradient, update);
    }

    fn split(self, at: usize) -> (Self, Self) {
        let Self { value, average, slots, slots_used, gradients, start } = self;
        let (value, value_rest) = value.split(at);
        let (average, average_rest) = average.map(|average| average.split(at)).unzip();
        let [(a, a_rest), (b, b_rest)] = slots.map(|slot| slot.split_at_mut(at.min(slot.len())));
        let first = Self { value, average, slots: [a, b], slots_used, gradients, start };
        let rest = Self {
            value: value_rest,
            average: average_rest,
            slots: [a_rest, b_rest],
            slots_used,
            gradients,
            start: start + at,
        };
        (first, rest)
    }

    fn run_blocks(self, update: &Update<'_>, sum: &mut [f32]) {
        // With one gradient and no average, one loop does all the work, so nothing has to stay in the caches.
        let is_one_loop = self.gradients.len() == 1 && self.average.is_none();
        let block_elements = if is_one_loop { self.value.len() } else { BLOCK_ELEMENTS };
        let mut left = self;
        while left.value.len() > 0 {
            let elements = left.value.len().min(block_elements);
            let (mut block, rest) = left.split(elements);
            let place = block.start..block.start + elements;
            let gradient = match block.gradients {
                [one] => &one[place],
                [first, second, others @ ..] => {
                    let sum = &mut sum[..elements];
                    add_into(sum, &first[place.clone()], &second[place.clone()], Threads::One);
                    others.iter().for_each(|other| accumulate(sum, &other[place.clone()], Threads::One));
                    &*sum
                }
                [] => unreachable!("an update has at least one gradient"),
            };
            block.apply(gradient, update);
            left = rest;
        }
    }

    fn apply(&mut self, gradient: &[f32], update: &Update<'_>) {
        let (next, old) = self.value.parts();
        optimizer::apply(update, next, old, gradient, &mut self.slots[..self.slots_used]);
        if let Some(mean) = &mut self.average {
            let (mean, old) = mean.parts();
            average(mean, old, next, update.average_decay);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::{GlobalStep, Version};
    use pushpull_messages::optimizer::{OptimizerSpec, UpdateSpec};

    use super::*;

    /// Returns numbers that differ from each other.
    fn numbers(elements: usize, seed: u64) -> Vec<f32> {
        (0..elements as u64)
            .map(|at| ((at * 2_654_435_761 + seed * 97) % 1999) as f32 / 1000.0 - 1.0)
            .collect()
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    fn optimizer() -> impl Strategy<Value = OptimizerSpec> {
        let momentum = OptimizerSpec::Momentum { learning_rate: 0.1, momentum: 0.9, nesterov: true };
        prop_oneof![Just(OptimizerSpec::sgd(0.1)), Just(momentum), Just(OptimizerSpec::adam(0.1))]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Applies the sum of several gradients, with and without blocks, threads and changes in place.
        #[test]
        fn blocks_and_threads_change_no_bit(
            elements in prop_oneof![0usize..20, 2000usize..6200, 2 * TASK_ELEMENTS..5 * TASK_ELEMENTS],
            count in 1u32..5,
            optimizer in optimizer(),
            in_place: [bool; 2],
            averages: bool,
        ) {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
            let spec = UpdateSpec { average: Some(0.9), weight_decay: 0.01, ..optimizer.into() };
            let update = Update::new(&spec, Version(5), GlobalStep(9), 0.5, count);
            let gradients: Vec<_> = (0..count).map(|seed| numbers(elements, seed.into())).collect();
            let gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
            let (value, mean) = (numbers(elements, 7), numbers(elements, 8));
            let slots = [numbers(elements, 9), numbers(elements, 10).into_iter().map(f32::abs).collect()];
            let slots_used = optimizer::slots(&spec.optimizer).len();

            let mut sum = gradients[0].to_vec();
            for other in &gradients[1..] {
                sum.iter_mut().zip(*other).for_each(|(sum, other)| *sum += other);
            }
            let (mut next, mut next_mean, mut next_slots) = (value.clone(), mean.clone(), slots.clone());
            let mut used: Vec<_> = next_slots[..slots_used].iter_mut().map(Vec::as_mut_slice).collect();
            optimizer::apply(&update, &mut next, Some(&value), &sum, &mut used);
            average(&mut next_mean, Some(&mean), &next, update.average_decay);

            let (mut values, mut means, mut own_slots) = ([value.clone(), value], [mean.clone(), mean], slots);
            let [old_value, new_value] = &mut values;
            let [old_mean, new_mean] = &mut means;
            let change = |old, next, in_place| match in_place {
                true => Change::InPlace(next),
                false => Change::Beside { old, next },
            };
            let mut changed = own_slots.iter_mut().map(Vec::as_mut_slice).take(slots_used);
            let work = SliceWork {
                value: change(old_value, new_value, in_place[0]),
                average: averages.then(|| change(old_mean, new_mean, in_place[1])),
                slots: [(); SLOTS_MAX].map(|()| changed.next().unwrap_or_default()),
                slots_used,
                gradients: &gradients,
                start: 0,
            };
            pool.install(|| work.run(&update, Threads::Pool(3)));
            prop_assert_eq!(bits(&values[1]), bits(&next), "(A)");
            prop_assert_eq!(bits(&means[1]), bits(if averages { &next_mean } else { &means[0] }), "(A)");
            for (own, expected) in own_slots.iter().zip(&next_slots) {
                prop_assert_eq!(bits(own), bits(expected), "(A)");
            }
            prop_assert_eq!(bits(&values[0]), bits(&numbers(elements, 7)), "(B)");
            prop_assert_eq!(bits(&means[0]), bits(&numbers(elements, 8)), "(B)");
        }
    }
}
