//! Observes every shard about once a second, each independently: a shard that does not reply does not delay
//! the queries of other shards, and its last reply is kept.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pushpull_messages::id::{ShardId, TaskId};
use pushpull_messages::message::{Observe, ShardSnapshot};
use pushpull_transport::CallError;
use pushpull_transport::buffer::Payload;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::debug;

use crate::launch::PsTasks;

/// The time between two queries of one shard.
const INTERVAL: Duration = Duration::from_secs(1);

/// A monitor that keeps the last known state of every shard.
#[derive(Debug)]
pub(crate) struct ShardMonitor {
    shards: RefCell<BTreeMap<ShardId, ShardObservation>>,
    /// Sends a notification whenever a shard replies or a query fails.
    answers: watch::Sender<()>,
    /// Notified when all shards should be queried without delay.
    now: Notify,
    /// Sends a notification about once a second, after `waited_s` has been updated for all shards.
    seconds: watch::Sender<()>,
}

/// The last known state of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardObservation {
    /// Whether a query is waiting for its reply.
    pending: bool,
    /// The number of seconds for which this query has waited. Only seconds in which the monitor's loop runs
    /// are counted, so the time during which the chief itself was suspended is left out.
    waited_s: u64,
    /// The time at which the chief connected to the shard's task.
    reached: Instant,
    /// The last reply: the time of the query, the time of the reply, and the snapshot.
    pub answer: Option<(Instant, Instant, ShardSnapshot)>,
}

impl ShardObservation {
    /// Returns the time at which the shard last replied or, before its first reply, the time at which the
    /// chief connected to its task.
    pub(crate) fn last_heard(&self) -> Instant {
        self.answer.as_ref().map_or(self.reached, |&(_, answered, _)| answered)
    }
}

impl Default for ShardMonitor {
    fn default() -> Self {
        let [(answers, _), (seconds, _)] = [watch::channel(()), watch::channel(())];
        Self { shards: RefCell::default(), answers, now: Notify::new(), seconds }
    }
}

impl ShardMonitor {
    /// Observes the shards once this chief has claimed them. Stops doing so just before the ps tasks are
    /// told to stop, and then waits forever.
    pub(crate) async fn run(&self, ps: &PsTasks) -> Infallible {
        let mut queries = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = ticks.tick() => self.count_second(),
                () = self.now.notified() => ticks.reset(),
                Some((shard, asked, answer)) = queries.next() => {
                    if let Err(error) = &answer {
                        ps.note(error);
                    }
                    self.record(shard, asked, answer);
                    continue;
                }
                () = ps.stopping() => break,
            }
            // Before this chief has claimed the tasks, they may belong to another chief.
            let claimed = if ps.is_claimed() { ps.shards() } else { Vec::new() };
            self.keep(&claimed.iter().map(|&(shard, _)| shard).collect());
            for (shard, caller) in claimed {
                let asked = Instant::now();
                let mut shards = self.shards.borrow_mut();
                let new = ShardObservation { pending: false, waited_s: 0, reached: asked, answer: None };
                let known = shards.entry(shard).or_insert(new);
                if !std::mem::replace(&mut known.pending, true) {
                    queries.push(async move {
                        let observe = Observe { shard: shard.shard };
                        let answer = caller.call::<ShardSnapshot>(observe, Payload::EMPTY).await;
                        (shard, asked, answer.map(|(snapshot, _)| snapshot))
                    });
                }
            }
        }
        // Pending queries hold clients of the ps tasks, and would keep the connections open.
        drop(queries);
        std::future::pending().await
    }

    fn record(&self, shard: ShardId, asked: Instant, answer: Result<ShardSnapshot, CallError>) {
        if let Some(known) = self.shards.borrow_mut().get_mut(&shard) {
            (known.pending, known.waited_s) = (false, 0);
            match answer {
                Ok(snapshot) => known.answer = Some((asked, Instant::now(), snapshot)),
                Err(error) => debug!(%shard, %error, "shard could not be observed"),
            }
        }
        self.answers.send_replace(());
    }

    /// Counts another second for the queries that wait for their replies.
    fn count_second(&self) {
        let mut shards = self.shards.borrow_mut();
        shards.values_mut().filter(|known| known.pending).for_each(|known| known.waited_s += 1);
        self.seconds.send_replace(());
    }

    /// Waits until a shard has not replied to a query for `limit`, rounded up to seconds, and returns this
    /// shard. Without a limit, waits forever. A query on a broken connection counts, too. In that case,
    /// however, the chief notices the loss of the shard's ps task much earlier.
    pub(crate) async fn wait_hung(&self, limit: Option<Duration>) -> ShardId {
        let Some(limit) = limit else { return std::future::pending().await };
        let limit_s = limit.as_millis().div_ceil(1000);
        let mut seconds = self.seconds.subscribe();
        loop {
            let hung = |(_, known): &(&ShardId, &ShardObservation)| u128::from(known.waited_s) >= limit_s;
            let found = self.shards.borrow().iter().find(hung).map(|(&shard, _)| shard);
            if let Some(shard) = found {
                return shard;
            }
            // This struct holds the sender, so waiting cannot fail.
            let _ = seconds.changed().await;
        }
    }

    /// Queries every shard that has no pending query, without delay.
    pub(crate) fn observe_now(&self) {
        self.now.notify_one();
    }

    /// Forgets all shards but these. The others are no longer in the placement.
    fn keep(&self, placed: &BTreeSet<ShardId>) {
        let mut shards = self.shards.borrow_mut();
        let known = shards.len();
        shards.retain(|shard, _| placed.contains(shard));
        if shards.len() < known {
            self.answers.send_replace(());
        }
    }

    /// Forgets the shards of a task that was left out.
    pub(crate) fn forget(&self, task: TaskId) {
        self.shards.borrow_mut().retain(|shard, _| shard.task() != task);
        self.answers.send_replace(());
    }

    /// Returns the last known state of every shard.
    pub(crate) fn shards(&self) -> Vec<(ShardId, ShardObservation)> {
        self.shards.borrow().iter().map(|(&shard, known)| (shard, known.clone())).collect()
    }

    /// Waits until every shard has replied to a query made after `since`, and returns the replies. A query
    /// made at `since` does not count: a caller that asks again at once would get the same replies for ever,
    /// on a clock that stands still meanwhile.
    pub(crate) async fn all_since(&self, since: Instant) -> Vec<(ShardId, ShardSnapshot)> {
        let mut answers = self.answers.subscribe();
        loop {
            answers.mark_unchanged();
            if let Some(all) = self.all(since) {
                return all;
            }
            // This struct holds the sender, so waiting cannot fail.
            let _ = answers.changed().await;
        }
    }

    fn all(&self, since: Instant) -> Option<Vec<(ShardId, ShardSnapshot)>> {
        let shards = self.shards.borrow();
        let answered = |(&shard, known): (&ShardId, &ShardObservation)| match &known.answer {
            Some((asked, _, snapshot)) if *asked > since => Some((shard, snapshot.clone())),
            _ => None,
        };
        shards.iter().map(answered).collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_is_no_longer_placed_is_not_waited_for() {
        let (monitor, asked) = (ShardMonitor::default(), Instant::now());
        let known = |answer| ShardObservation { pending: true, waited_s: 0, reached: asked, answer };
        let shards = [0, 1].map(|shard| ShardId::new(0, shard));
        let answer = Some((asked, asked, ShardSnapshot::default()));
        monitor.shards.borrow_mut().extend([(shards[0], known(answer)), (shards[1], known(None))]);
        let before = asked - Duration::from_nanos(1);
        assert!(monitor.all(before).is_none(), "the second shard has not replied");
        monitor.keep(&BTreeSet::from([shards[0]]));
        assert_eq!(monitor.all(before).map(|all| all.len()), Some(1));
    }

    #[test]
    fn a_reply_counts_only_if_it_was_asked_for_later() {
        let (monitor, asked) = (ShardMonitor::default(), Instant::now());
        let answer = Some((asked, asked, ShardSnapshot::default()));
        let known = ShardObservation { pending: false, waited_s: 0, reached: asked, answer };
        monitor.shards.borrow_mut().insert(ShardId::new(0, 0), known);
        assert!(monitor.all(asked).is_none(), "the same replies would be returned again and again");
        assert_eq!(monitor.all(asked - Duration::from_nanos(1)).map(|all| all.len()), Some(1));
    }
}
