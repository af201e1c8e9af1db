//! One worker of the job from the point of view of the chief: its incarnation, its connection and its state.

use std::collections::VecDeque;

use pushpull_messages::id::Incarnation;
use pushpull_messages::message::Resume;

/// The maximum number of replaced incarnations that are remembered for each worker. If a forgotten
/// incarnation registered again, it would be taken for a new one and be appointed.
const REPLACED_MAX: usize = 64;

/// A worker of the job.
pub(super) struct Member<R> {
    /// Whether the cluster lists the worker. The job does not wait for another one before it begins.
    pub is_listed: bool,
    /// The incarnation that has registered last. `None` until the worker has registered.
    pub incarnation: Option<Incarnation>,
    /// The incarnations before `incarnation`, the latest last; their requests are refused. The numbers of
    /// incarnations say nothing about their order, because the clocks of hosts may be wrong.
    pub replaced: VecDeque<Incarnation>,
    /// Whether all shards know that the latest incarnation is appointed.
    pub appointed: bool,
    /// Whether the worker registered with an earlier run of the chief, and has neither rejoined nor
    /// registered again yet.
    pub unknown: bool,
    /// The incarnation that trains under an earlier run of the chief, and the connection over which it waits
    /// until this run leads the job; `None` if there is none.
    pub early: Option<(Incarnation, u64)>,
    /// Whether the worker's process has registered before, as another incarnation.
    pub again: bool,
    /// The incarnations that have ended, but that shards may still count as members. The next appointment of
    /// the worker removes them from the shards. If the worker does not come back, an order to leave removes
    /// them.
    pub ended: Vec<Incarnation>,
    /// Whether the shards count the worker as a member although it does not train. This is the case after a
    /// rollback, or after an earlier run of the chief has appointed the worker. It ends when the worker
    /// begins to train or leaves.
    pub expected: bool,
    /// Whether a shard may have missed that the worker left before it joined. It then waits for the next
    /// incarnation.
    pub missed: bool,
    /// Whether the shards were told that the latest incarnation has left.
    pub has_left: bool,
    /// The number of incarnations that have registered.
    pub lives: u64,
    /// The address of the worker's HTTP endpoint, if it has one.
    pub http: Option<String>,
    /// The number of the latest connection of the latest incarnation. The worker repeats its unanswered
    /// requests over this connection.
    pub connection: u64,
    /// Whether the latest connection is broken. The worker may reconnect.
    pub away: bool,
    pub state: MemberState<R>,
    /// Whether the worker has left because of a signal.
    pub interrupted: bool,
    /// The last finite loss that the worker has reported; `None` again when it has left.
    pub loss: Option<f32>,
    /// The metrics that the worker has reported last; empty before its first report and after it has left.
    pub metrics: Vec<f32>,
    /// The position at which the worker continues in its input if it is started again.
    pub resume: Resume,
}

/// The state of a worker: what it does or waits for.
pub(super) enum MemberState<R> {
    /// The worker has never registered.
    Absent,
    /// The worker waits for the description of the job.
    Registered(R),
    /// The worker prepares for the training.
    Preparing,
    /// The worker waits until all workers are ready.
    Ready(R),
    Training,
    /// The worker has finished, and waits for the reply that says whether it must evaluate.
    Finished(R),
    Evaluating,
    /// The incarnation has ended because a ps task was lost. The worker's process registers again as another
    /// incarnation.
    Restarting,
    /// The worker has left by itself or was told to leave.
    Left,
    /// The worker did not reconnect in time; its later requests are refused.
    Lost,
}

impl<R> Member<R> {
    pub(super) const fn absent() -> Self {
        Self {
            is_listed: true,
            incarnation: None,
            replaced: VecDeque::new(),
            appointed: false,
            unknown: false,
            early: None,
            again: false,
            ended: Vec::new(),
            expected: false,
            missed: false,
            has_left: false,
            lives: 0,
            http: None,
            connection: 0,
            away: false,
            state: MemberState::Absent,
            interrupted: false,
            loss: None,
            metrics: Vec::new(),
            resume: Resume { drawn: 0, examples: 0, files: None },
        }
    }

    /// Records that a new incarnation registers.
    pub(super) fn replace(&mut self, incarnation: Incarnation) {
        self.replaced.extend(self.incarnation.replace(incarnation));
        while self.replaced.len() > REPLACED_MAX {
            self.replaced.pop_front();
        }
        (self.appointed, self.unknown, self.interrupted) = (false, false, false);
        self.has_left = false;
        self.lives += 1;
    }

    /// Returns whether the worker has trained under an earlier run of the chief, and waits for this one.
    pub(super) const fn waits_for_chief(&self) -> bool {
        self.early.is_some() || self.again
    }

    /// Returns whether the worker is ready to train and all shards let it join.
    pub(super) const fn may_begin(&self) -> bool {
        self.appointed && matches!(self.state, MemberState::Ready(_))
    }

    /// Returns whether the worker takes part; its connection may be broken.
    pub(super) const fn is_here(&self) -> bool {
        !matches!(self.state, MemberState::Absent | MemberState::Left | MemberState::Lost)
    }

    /// Returns whether the worker takes part and its connection works.
    pub(super) const fn is_present(&self) -> bool {
        self.is_here() && !self.away
    }

    /// Returns whether this incarnation of the worker took part and has left or is lost.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, MemberState::Left | MemberState::Lost)
    }

    /// Returns whether the worker has something to do before the job can be evaluated.
    pub(super) const fn is_busy(&self) -> bool {
        self.is_here() && !matches!(self.state, MemberState::Finished(_))
    }

    /// Returns whether the shards count the worker as a member. If so, they must be told when it leaves.
    pub(super) const fn is_counted(&self) -> bool {
        self.expected
            || !self.ended.is_empty()
            || matches!(self.state, MemberState::Training | MemberState::Restarting)
    }

    /// Records that all incarnations of the worker together have drawn `drawn` batches of `batch_size`
    /// examples.
    pub(super) fn has_drawn(&mut self, drawn: u64, batch_size: u32) {
        if let Some(more) = drawn.checked_sub(self.resume.drawn) {
            let examples = more.saturating_mul(u64::from(batch_size));
            self.resume.drawn = drawn;
            self.resume.examples = self.resume.examples.saturating_add(examples);
        }
    }

    /// Records that the worker no longer takes part, and returns the incarnations that the shards must
    /// remove.
    pub(super) fn departures(&mut self) -> Vec<Incarnation> {
        self.expected = false;
        self.has_left = true;
        let mut departures = std::mem::take(&mut self.ended);
        departures.push(self.last_life());
        departures
    }

    /// Returns the latest incarnation. A worker that has not registered with this run of the chief has none,
    /// and the default number stands for it.
    pub(super) fn last_life(&self) -> Incarnation {
        self.incarnation.unwrap_or_default()
    }

    /// Replaces the state. Returns the reply handle if the worker was waiting for a reply.
    pub(super) fn put(&mut self, state: MemberState<R>) -> Option<R> {
        match std::mem::replace(&mut self.state, state) {
            MemberState::Registered(reply) | MemberState::Ready(reply) | MemberState::Finished(reply) => {
                Some(reply)
            }
            _ => None,
        }
    }
}
