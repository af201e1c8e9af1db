//! The gradients of several workers, which a shard holds until they become one update. The update adds up the
//! last of them itself. One that arrives may be the sum of several workers' gradients. Wanted properties: (A)
//! the sum of what is taken is the sum of all gradients that were added; (B) with `in_order`, the bits of the
//! sum do not depend on the order in which the gradients of different workers arrive; (C) without `in_order`,
//! the held gradients take at most the memory of one gradient and one sum, and without `keeps_last`, of one
//! of the two.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_kernels::cpu::{Threads, accumulate, add_into};
use pushpull_transport::buffer::{Buffer, BufferPool, Payload, Segment};

use super::threads::UpdateThreads;

/// The gradients held for the next update.
#[derive(Debug, Default)]
pub(super) struct Aggregate {
    /// Whether the gradients are summed in the order of their workers instead of the order of arrival.
    in_order: bool,
    /// Whether the last gradient is kept beside the sum, so that the update adds it up.
    keeps_last: bool,
    /// The gradients that have not been added to the sum yet. The key is the worker and the gradient's place
    /// in the order of arrival.
    held: BTreeMap<(u32, u32), Payload>,
    sum: Option<Vec<Buffer>>,
    count: u32,
}

impl Aggregate {
    /// Returns an empty aggregate. It sums gradients in the order of workers if `in_order` is true, and
    /// otherwise in the order of arrival. In the order of arrival, it adds each gradient to the sum when the
    /// next one has arrived or, without `keeps_last`, at once.
    pub(super) fn new(in_order: bool, keeps_last: bool) -> Self {
        Self { in_order, keeps_last, ..Self::default() }
    }

    /// Adds what a worker has pushed: the sum of `count` gradients. `threads` share a large addition.
    pub(super) fn add(
        &mut self,
        (worker, count): (u32, u32),
        gradient: Payload,
        pool: &BufferPool,
        threads: &UpdateThreads,
    ) {
        self.count += count;
        // The last gradient, and the only one of an update, are not added to a sum. The update reads them.
        if self.keeps_last {
            self.accumulate_in_turn(pool, threads);
        }
        self.held.insert((worker, self.count), gradient);
        if !self.keeps_last {
            self.accumulate_in_turn(pool, threads);
        }
    }

    /// Adds the held gradients to the sum, unless there is only one gradient or they wait for their order.
    fn accumulate_in_turn(&mut self, pool: &BufferPool, threads: &UpdateThreads) {
        if !self.in_order && self.held.len() + usize::from(self.sum.is_some()) > 1 {
            threads.share(self.bytes(), |threads| self.accumulate(pool, threads));
        }
    }

    /// Adds the held gradients to the sum.
    fn accumulate(&mut self, pool: &BufferPool, threads: Threads) {
        let mut held = std::mem::take(&mut self.held).into_values();
        if self.sum.is_none() {
            let (Some(first), Some(second)) = (held.next(), held.next()) else {
                unreachable!("a sum begins with at least two gradients")
            };
            let pairs = first.segments().iter().zip(second.segments());
            let sums = pairs.map(|(first, second)| {
                let mut sum = pool.take(first.len());
                add_into(sum.as_f32_mut(), first.as_f32(), second.as_f32(), threads);
                sum
            });
            self.sum = Some(sums.collect());
        }
        let sum = self.sum.as_mut().expect("just begun");
        for gradient in held {
            for (sum, segment) in sum.iter_mut().zip(gradient.segments()) {
                accumulate(sum.as_f32_mut(), segment.as_f32(), threads);
            }
        }
    }

    /// Returns the number of bytes that the held gradients and their sum take.
    pub(super) fn bytes(&self) -> usize {
        let held: usize = self.held.values().map(Payload::bytes).sum();
        held + self.sum.iter().flatten().map(Buffer::len).sum::<usize>()
    }

    /// Removes all gradients. Returns what is still to be added up, in the order of the additions, and the
    /// number of gradients that were added; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<(Vec<Payload>, u32)> {
        let count = std::mem::take(&mut self.count);
        let payload = |sum: Vec<Buffer>| sum.into_iter().map(|part| Segment::whole(Arc::new(part))).collect();
        let sum = self.sum.take().map(|sum| Payload::new(payload(sum)));
        let addends: Vec<_> = sum.into_iter().chain(std::mem::take(&mut self.held).into_values()).collect();
        (!addends.is_empty()).then_some((addends, count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn payload(slices: &[Vec<f32>]) -> Payload {
        Payload::new(slices.iter().map(|slice| Segment::whole(Arc::new(Buffer::from_f32(slice)))).collect())
    }

    fn total(in_order: bool, keeps_last: bool, arrivals: &[(u32, Vec<Vec<f32>>)]) -> (Vec<Vec<f32>>, u32) {
        let pool = BufferPool::default();
        let mut aggregate = Aggregate::new(in_order, keeps_last);
        for (number, (worker, slices)) in arrivals.iter().enumerate() {
            aggregate.add((*worker, 1), payload(slices), &pool, &UpdateThreads::NONE);
            let bytes = 4 * slices.iter().map(Vec::len).sum::<usize>();
            let kept = if in_order { number + 1 } else { (number + 1).min(if keeps_last { 2 } else { 1 }) };
            assert_eq!(aggregate.bytes(), bytes * kept, "(C)");
        }
        let (addends, count) = aggregate.take().expect("a gradient was added");
        assert!(aggregate.take().is_none() && aggregate.bytes() == 0, "the aggregate is empty");
        let mut addends = addends.iter().map(|addend| addend.segments().iter().map(Segment::as_f32));
        let mut sums: Vec<Vec<f32>> = addends.next().expect("at least one").map(<[f32]>::to_vec).collect();
        for addend in addends {
            sums.iter_mut().zip(addend).for_each(|(sum, slice)| accumulate(sum, slice, Threads::One));
        }
        (sums, count)
    }

    #[test]
    fn threads_that_share_an_addition_change_no_bit() {
        let pool = BufferPool::default();
        let (started, starts) = std::sync::mpsc::channel();
        let three = move |threads| {
            started.send(threads).unwrap();
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok()
        };
        let sum = |threads: UpdateThreads| {
            let mut aggregate = Aggregate::new(false, false);
            for worker in 0..3u32 {
                let numbers = (0..(1u32 << 20) + 3).map(|at| (at % 1999 * (worker + 7)) as f32 / 1000.0);
                aggregate.add((worker, 1), payload(&[numbers.collect(), vec![0.5]]), &pool, &threads);
            }
            let (addends, count) = aggregate.take().expect("a gradient was added");
            assert_eq!((addends.len(), count), (1, 3));
            addends[0].segments().iter().map(|segment| segment.as_bytes().to_vec()).collect::<Vec<_>>()
        };
        assert!(sum(UpdateThreads::new(3, three)) == sum(UpdateThreads::NONE));
        assert_eq!(starts.iter().collect::<Vec<_>>(), [3], "the threads have shared it");
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
            keeps_last: bool,
        ) {
            let shuffled = interleaved(&gradients, &order);
            let (expected, count) = total(true, keeps_last, &gradients);
            prop_assert_eq!(count as usize, gradients.len());
            let bits = |slices: &[Vec<f32>]| -> Vec<u32> { slices.iter().flatten().map(|x| x.to_bits()).collect() };
            prop_assert_eq!(bits(&total(true, keeps_last, &shuffled).0), bits(&expected), "(B)");
            let (sum, count) = total(false, keeps_last, &shuffled);
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
