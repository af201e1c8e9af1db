//! Determines the earliest time at which a whole push could be sent. The call that sends a push may begin
//! earlier, while the gradients are still being computed. This module must not depend on shards.

use std::collections::BTreeMap;
use std::time::Instant;

use pushpull_messages::id::TaskId;
use pushpull_messages::observe;
use pushpull_transport::buffer::Payload;

/// Awaits the reply of a call that sends `gradients`. Returns the reply, and the time at which all gradients
/// were complete, but not before the call began. If they never were, returns the time at which the call
/// began.
pub(super) async fn timed<T>(gradients: Payload, call: impl Future<Output = T>) -> (T, Instant) {
    let begun = observe::now();
    let reply = call.await;
    let complete = gradients.complete_at().map_or(begun, |complete| complete.max(begun));
    (reply, complete)
}

/// Returns, for each call, the earliest time at which its whole push could be sent; `None` for a pull.
/// `trips` holds one entry for each call: the task that was called and, for a push, the times at which its
/// gradients were complete and its reply arrived.
///
/// All pushes to one ps task share a connection and are sent in order. Therefore a push waits until the
/// gradients of all earlier pushes to the task are complete.
pub(super) fn departures(
    trips: impl Iterator<Item = (TaskId, Option<(Instant, Instant)>)>,
) -> Vec<Option<Instant>> {
    let mut complete: BTreeMap<TaskId, Instant> = BTreeMap::new();
    let left = |(task, trip): (TaskId, Option<(Instant, Instant)>)| {
        let (own, back) = trip?;
        let all = complete.entry(task).or_insert(own);
        *all = own.max(*all);
        // If the reply arrived before `all`, this push was sent before some of the earlier entries of
        // `trips`. Such an order occurs if the credits do not suffice for all pushes at once.
        Some(if *all <= back { *all } else { own })
    };
    trips.map(left).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use pushpull_transport::buffer::{Buffer, Promise};
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_round_trip_begins_when_the_gradients_are_complete() {
        let promise = Promise::new(4);
        let (answer, answered) = oneshot::channel();
        let mut push = pin!(timed(Payload::new(vec![promise.segment(0, 4)]), answered));
        assert!(push.as_mut().now_or_never().is_none());
        let before = Instant::now();
        promise.keep(Buffer::zeroed(4));
        assert!(push.as_mut().now_or_never().is_none());
        let after = Instant::now();
        answer.send(7).unwrap();
        let (answer, complete) = push.await;
        assert_eq!(answer, Ok(7));
        assert!((before..=after).contains(&complete));
    }

    #[test]
    fn a_push_leaves_when_those_before_it_have_left() {
        let begun = Instant::now();
        let at = |ms: u64| begun + std::time::Duration::from_millis(ms);
        let trip = |ps, complete, back| (TaskId::ps(ps), Some((at(complete), at(back))));
        let trips = [
            // The gradients of the first layer are computed last. They delay the push to the next shard of
            // the same task, but no push to another task.
            trip(0, 40, 45),
            trip(0, 5, 46),
            trip(1, 7, 12),
            (TaskId::ps(1), None),
            trip(1, 9, 13),
            // The reply to this push arrived before the gradients of the first push were complete, so this
            // push did not wait for them.
            trip(0, 6, 11),
        ];
        let expected = [40, 40, 7, 0, 9, 6].map(|ms| (ms > 0).then(|| at(ms)));
        assert_eq!(departures(trips.into_iter()), expected);
    }

    #[tokio::test]
    async fn a_failed_push_does_not_wait_for_its_gradients() {
        let promise = Promise::new(4);
        let push = timed(Payload::new(vec![promise.segment(0, 4)]), std::future::ready(7));
        let before = Instant::now();
        let (answer, complete) = push.await;
        assert_eq!(answer, 7);
        assert!((before..=Instant::now()).contains(&complete), "it is the begin of the call");
    }
}
