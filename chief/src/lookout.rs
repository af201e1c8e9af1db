//! Looks at every shard about once a second, each on its own: one that does not answer hides no other, and what it said last
//! is kept. Knows nothing of workers, and not who wants to know.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pushpull_messages::id::ShardId;
use pushpull_messages::message::{Observe, ShardSnapshot};
use pushpull_transport::buffer::Payload;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::ps_tasks::PsTasks;

/// Between two questions to one shard.
const EVERY: Duration = Duration::from_secs(1);

/// What is known of the shards.
#[derive(Debug)]
pub(crate) struct Lookout {
    shards: RefCell<BTreeMap<ShardId, Looked>>,
    /// Told of every answer.
    answers: watch::Sender<()>,
    /// Somebody wants to know now.
    now: Notify,
}

/// One shard as it is known.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    /// A question that is not answered yet.
    asking: bool,
    /// When it was reached.
    reached: Instant,
    /// Its last answer: when that was asked for, when it came, and what it says.
    pub answer: Option<(Instant, Instant, ShardSnapshot)>,
}

impl Looked {
    /// When it was heard last, or reached.
    pub(crate) fn heard(&self) -> Instant {
        self.answer.as_ref().map_or(self.reached, |&(_, answered, _)| answered)
    }
}

impl Default for Lookout {
    fn default() -> Self {
        let (answers, _) = watch::channel(());
        Self { shards: RefCell::default(), answers, now: Notify::new() }
    }
}

impl Lookout {
    /// Looks at the shards until these are about to be told to stop, and never returns.
    pub(crate) async fn run(&self, ps: &PsTasks) -> Infallible {
        let mut asking = FuturesUnordered::new();
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.now.notified() => ticks.reset(),
                Some((shard, asked, answer)) = asking.next() => {
                    self.hear(shard, asked, answer);
                    continue;
                }
                () = ps.stopping() => break,
            }
            for (shard, caller) in ps.shards() {
                let asked = Instant::now();
                let mut shards = self.shards.borrow_mut();
                let known =
                    shards.entry(shard).or_insert(Looked { asking: false, reached: asked, answer: None });
                if !std::mem::replace(&mut known.asking, true) {
                    asking.push(async move {
                        let observe = Observe { shard: shard.shard };
                        let answer = caller.call::<ShardSnapshot>(observe, Payload::EMPTY).await;
                        (shard, asked, answer.map(|(snapshot, _)| snapshot))
                    });
                }
            }
        }
        // Each question holds on to the caller of its task.
        drop(asking);
        std::future::pending().await
    }

    fn hear(
        &self,
        shard: ShardId,
        asked: Instant,
        answer: Result<ShardSnapshot, pushpull_transport::CallError>,
    ) {
        if let Some(known) = self.shards.borrow_mut().get_mut(&shard) {
            known.asking = false;
            match answer {
                Ok(snapshot) => known.answer = Some((asked, Instant::now(), snapshot)),
                Err(error) => tracing::debug!("{shard} cannot be observed: {error}"),
            }
        }
        self.answers.send_replace(());
    }

    /// Has all be asked at once, as far as they are not being asked.
    pub(crate) fn look_now(&self) {
        self.now.notify_one();
    }

    /// Every shard, each as it was known last.
    pub(crate) fn shards(&self) -> Vec<(ShardId, Looked)> {
        self.shards.borrow().iter().map(|(&shard, looked)| (shard, looked.clone())).collect()
    }

    /// Waits until every shard has been asked after that moment, and has answered.
    pub(crate) async fn all_since(&self, since: Instant) -> Vec<(ShardId, ShardSnapshot)> {
        let mut answers = self.answers.subscribe();
        loop {
            answers.mark_unchanged();
            if let Some(all) = self.all(since) {
                return all;
            }
            // It holds the sender itself.
            let _ = answers.changed().await;
        }
    }

    fn all(&self, since: Instant) -> Option<Vec<(ShardId, ShardSnapshot)>> {
        let shards = self.shards.borrow();
        let answered = |(&shard, looked): (&ShardId, &Looked)| match &looked.answer {
            Some((asked, _, snapshot)) if *asked >= since => Some((shard, snapshot.clone())),
            _ => None,
        };
        shards.iter().map(answered).collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
    }
}
