//! The gradients of several workers, which a shard holds until they become one update.
//!
//! Wanted properties: (A) the total is the sum of all gradients that were added; (B) with `in_order`, the
//! bits of the total do not depend on the order in which the gradients of different workers arrive; (C)
//! without `in_order`, the held gradients take at most the memory of one gradient and one sum.

use std::collections::BTreeMap;

use pushpull_kernels::cpu::{Threads, accumulate, add_into};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

/// The gradients held for the next update.
#[derive(Debug, Default)]
pub(super) struct Aggregate {
    /// Whether the gradients are summed in the order of their workers instead of the order of arrival.
    in_order: bool,
    /// The gradients that have not been added to the sum yet. The key is the worker and the gradient's place
    /// in the order of arrival.
    held: BTreeMap<(u32, u32), Payload>,
    sum: Option<Vec<Buffer>>,
    count: u32,
}

/// The sum of the gradients of one update, slice by slice.
#[derive(Debug)]
pub(super) enum Total {
    /// A single gradient, as it arrived.
    One(Payload),
    Sum(Vec<Buffer>),
}

impl Total {
    /// Iterates over the sums of the slices. They have the same order as the slices in a gradient's payload.
    pub(super) fn slices(&self) -> Box<dyn Iterator<Item = &[f32]> + '_> {
        match self {
            Self::One(payload) => Box::new(payload.segments().iter().map(Segment::as_f32)),
            Self::Sum(buffers) => Box::new(buffers.iter().map(Buffer::as_f32)),
        }
    }
}

impl Aggregate {
    /// Returns an empty aggregate. It sums gradients in the order of workers if `in_order` is true, and
    /// otherwise in the order of arrival.
    pub(super) fn new(in_order: bool) -> Self {
        Self { in_order, ..Self::default() }
    }

    /// Adds a worker's gradient.
    pub(super) fn add(&mut self, worker: u32, gradient: Payload, pool: &BufferPool) {
        self.count += 1;
        self.held.insert((worker, self.count), gradient);
        // A single gradient is not copied into a sum, because it may be the only one of the update.
        if !self.in_order && self.held.len() + usize::from(self.sum.is_some()) > 1 {
            self.accumulate(pool);
        }
    }

    fn accumulate(&mut self, pool: &BufferPool) {
        let mut held = std::mem::take(&mut self.held).into_values();
        if self.sum.is_none() {
            let (Some(first), Some(second)) = (held.next(), held.next()) else {
                unreachable!("a sum begins with at least two gradients")
            };
            let pairs = first.segments().iter().zip(second.segments());
            let sums = pairs.map(|(first, second)| {
                let mut sum = pool.take(first.len());
                add_into(sum.as_f32_mut(), first.as_f32(), second.as_f32(), Threads::One);
                sum
            });
            self.sum = Some(sums.collect());
        }
        let sum = self.sum.as_mut().expect("just begun");
        for gradient in held {
            for (sum, segment) in sum.iter_mut().zip(gradient.segments()) {
                accumulate(sum.as_f32_mut(), segment.as_f32(), Threads::One);
            }
        }
    }

    /// Returns the number of bytes that the held gradients and their sum take.
    pub(super) fn bytes(&self) -> usize {
        let held: usize = self.held.values().map(Payload::bytes).sum();
        held + self.sum.iter().flatten().map(Buffer::len).sum::<usize>()
    }

    /// Removes all gradients, and returns their sum and their number; `None` if there are none.
    pub(super) fn take(&mut self, pool: &BufferPool) -> Option<(Total, u32)> {
        let count = std::mem::take(&mut self.count);
        if self.held.len() + usize::from(self.sum.is_some()) > 1 {
            self.accumulate(pool);
        }
        match self.sum.take() {
            Some(sum) => Some((Total::Sum(sum), count)),
            None => self.held.pop_first().map(|(_, only)| (Total::One(only), count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn payload(slices: &[Vec<f32>]) -> Payload {
        Payload::new(slices.iter().map(|slice| Segment::whole(Arc::new(Buffer::from_f32(slice)))).collect())
    }

    fn total(in_order: bool, arrivals: &[(u32, Vec<Vec<f32>>)]) -> (Vec<Vec<f32>>, u32) {
        let pool = BufferPool::default();
        let mut aggregate = Aggregate::new(in_order);
        for (number, (worker, slices)) in arrivals.iter().enumerate() {
            aggregate.add(*worker, payload(slices), &pool);
            assert!(in_order || aggregate.held.len() <= 1, "(C)");
            let bytes = 4 * slices.iter().map(Vec::len).sum::<usize>();
            assert_eq!(aggregate.bytes(), bytes * if in_order { number + 1 } else { 1 }, "(C)");
        }
        let (total, count) = aggregate.take(&pool).expect("a gradient was added");
        assert!(aggregate.take(&pool).is_none() && aggregate.bytes() == 0, "the aggregate is empty");
        (total.slices().map(<[f32]>::to_vec).collect(), count)
    }

    /// Draws gradients, each with the index of its worker, and sorts them by worker. A worker may have
    /// several gradients. All gradients have slices of the same lengths.
    fn gradients() -> impl Strategy<Value = Vec<(u32, Vec<Vec<f32>>)>> {
        (1usize..8, 1u32..5, prop::collection::vec(0usize..9, 1..4)).prop_flat_map(
            |(count, workers, lengths)| {
                let slices: Vec<_> =
                    lengths.iter().map(|&length| prop::collection::vec(-1e3f32..1e3, length)).collect();
                let one = (0..workers, slices);
                prop::collection::vec(one, count).prop_map(|mut all| {
                    all.sort_by_key(|&(worker, _)| worker);
                    all
                })
            },
        )
    }

    /// Returns `gradients` in a shuffled order of arrival: each number in `order` selects the worker whose
    /// next gradient arrives. The gradients of one worker keep their order.
    fn interleaved(gradients: &[(u32, Vec<Vec<f32>>)], order: &[u32]) -> Vec<(u32, Vec<Vec<f32>>)> {
        let mut left: BTreeMap<u32, VecDeque<_>> = BTreeMap::new();
        for (worker, own) in gradients {
            left.entry(*worker).or_default().push_back(own.clone());
        }
        let mut next = order.iter().cycle();
        let mut arrivals = Vec::new();
        while !left.is_empty() {
            let turn = *next.next().expect("an order without end") as usize % left.len();
            let worker = *left.keys().nth(turn).expect("fewer than there are");
            let queue = left.get_mut(&worker).expect("a worker with gradients");
            arrivals.extend(queue.pop_front().map(|own| (worker, own)));
            if queue.is_empty() {
                left.remove(&worker);
            }
        }
        arrivals
    }

    proptest! {
        #[test]
        fn the_total_is_the_sum_and_in_order_has_the_same_bits(
            gradients in gradients(),
            order in prop::collection::vec(any::<u32>(), 1..9),
        ) {
            let shuffled = interleaved(&gradients, &order);
            let (expected, count) = total(true, &gradients);
            prop_assert_eq!(count as usize, gradients.len());
            let bits = |slices: &[Vec<f32>]| -> Vec<u32> { slices.iter().flatten().map(|x| x.to_bits()).collect() };
            prop_assert_eq!(bits(&total(true, &shuffled).0), bits(&expected), "(B)");
            let (sum, count) = total(false, &shuffled);
            prop_assert_eq!(count as usize, gradients.len());
            for (slice, (sum, ordered)) in sum.iter().zip(&expected).enumerate() {
                for (element, (sum, ordered)) in sum.iter().zip(ordered).enumerate() {
                    let exact: f64 = gradients.iter().map(|(_, own)| f64::from(own[slice][element])).sum();
                    for got in [sum, ordered] {
                        prop_assert!((f64::from(*got) - exact).abs() < 1e-2, "(A): {got} and {exact}");
                    }
                }
            }
        }
    }
}
