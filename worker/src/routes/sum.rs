//! Adds up the gradients of several workers. Wanted properties: (A) the bits of the sum depend only on the
//! gradients and their order; (B) the thread gets free for other work after each part of the sum.

use std::sync::Arc;

use pushpull_kernels::cpu::{Threads, accumulate, add_into};
use pushpull_transport::buffer::{BufferPool, Payload, Segment};

/// The number of elements of a part, 256 KiB. The thread may also send and receive, so it must not be busy
/// for long.
const PART_ELEMENTS: usize = 64 << 10;

/// Returns the sum of `own` and of `others`, added in this order. All segments must be ready, and those of
/// all payloads must have the same lengths.
///
/// # Panics
/// If `others` is empty, or if the lengths differ.
pub(super) async fn sum(own: &Payload, others: &[&Payload], pool: &BufferPool) -> Payload {
    let (first, rest) = others.split_first().expect("a sum has at least two gradients");
    let mut sums = Vec::with_capacity(own.segments().len());
    for (position, segment) in own.segments().iter().enumerate() {
        let mut sum = pool.take(segment.len());
        let of = |payload: &Payload| payload.segments()[position].clone();
        let (first, rest) = (of(first), rest.iter().map(|payload| of(payload)).collect::<Vec<_>>());
        let elements = segment.len() / 4;
        for start in (0..elements).step_by(PART_ELEMENTS) {
            let part = start..elements.min(start + PART_ELEMENTS);
            let to = &mut sum.as_f32_mut()[part.clone()];
            add_into(to, &segment.as_f32()[part.clone()], &first.as_f32()[part.clone()], Threads::One);
            for other in &rest {
                accumulate(to, &other.as_f32()[part.clone()], Threads::One);
            }
            if part.end < elements {
                tokio::task::yield_now().await;
            }
        }
        sums.push(Segment::whole(Arc::new(sum)));
    }
    Payload::new(sums)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_transport::buffer::Buffer;

    use super::*;

    fn payload(segments: &[Vec<f32>]) -> Payload {
        Payload::new(segments.iter().map(|part| Segment::whole(Arc::new(Buffer::from_f32(part)))).collect())
    }

    fn added(payloads: &[Vec<Vec<f32>>]) -> Vec<Vec<f32>> {
        let payloads: Vec<Payload> = payloads.iter().map(|segments| payload(segments)).collect();
        let others: Vec<&Payload> = payloads[1..].iter().collect();
        let pool = BufferPool::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sum = runtime.block_on(sum(&payloads[0], &others, &pool));
        sum.segments().iter().map(|segment| segment.as_f32().to_vec()).collect()
    }

    proptest! {
        #[test]
        fn gradients_are_added_in_their_order(
            (count, lengths, seed) in (2usize..5, prop::collection::vec(0usize..40, 1..4), any::<u32>()),
        ) {
            let number = |which: usize, segment: usize, at: usize| {
                let mixed = seed.wrapping_add((which * 7919 + segment * 104_729 + at) as u32).wrapping_mul(2_654_435_761);
                (mixed >> 8) as f32 / 1e3 - 8e3
            };
            let all: Vec<Vec<Vec<f32>>> = (0..count)
                .map(|which| {
                    let segment = |(segment, &length): (usize, &usize)| {
                        (0..length).map(|at| number(which, segment, at)).collect()
                    };
                    lengths.iter().enumerate().map(segment).collect()
                })
                .collect();
            for (segment, sums) in added(&all).into_iter().enumerate() {
                prop_assert_eq!(sums.len(), lengths[segment]);
                for (at, sum) in sums.into_iter().enumerate() {
                    let expected = all[1..].iter().fold(all[0][segment][at], |sum, own| sum + own[segment][at]);
                    prop_assert_eq!(sum.to_bits(), expected.to_bits(), "(A)");
                }
            }
        }
    }

    #[test]
    fn a_sum_of_several_parts_is_whole() {
        let length = 2 * PART_ELEMENTS + 3;
        let gradient = |factor: f32| vec![(0..length).map(|at| at as f32 * factor).collect()];
        let sum = added(&[gradient(1.0), gradient(2.0), gradient(0.5)]);
        assert!(sum[0].iter().enumerate().all(|(at, sum)| *sum == at as f32 * 3.5));
    }
}
