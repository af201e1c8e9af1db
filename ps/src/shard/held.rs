//! What a shard holds once the chief has created it: slices of one version, with all that decides what becomes of a push.
//! Checks change nothing. Knows neither replies nor counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_kernels::cpu::all_finite;
use pushpull_messages::id::{GlobalStep, PlacementEpoch, SliceId, Version};
use pushpull_messages::message::{CreateShard, Push, Refusal, RefusalCode, Save, ShardCreated};
use pushpull_transport::buffer::{BufferPool, Payload};

use super::aggregate::Aggregate;
use super::cut::{Cut, Restored};
use super::ledger::Ledger;
use super::slice::Slice;
use super::update::Update;
use super::updates::Updates;
use crate::sync::{self, Candidate, Members, Policy};

/// The values of all slices, of one version.
pub(super) struct Values {
    pub slices: Vec<SliceId>,
    pub payload: Payload,
    pub version: Version,
    /// The step at which the shard stops.
    pub last_step: GlobalStep,
}

/// What it holds once the chief has created it.
pub(super) struct Held {
    pub created: Arc<CreateShard>,
    placement_digest: u32,
    pub policy: Box<dyn Policy>,
    pub members: Members,
    pub aggregate: Aggregate,
    pub ledger: Ledger,
    pub slices: Vec<Slice>,
    pub version: Version,
    /// The version that it was created with.
    pub began: Version,
    /// Where it stops: at the job's last step, or before.
    pub end: GlobalStep,
    /// Whether the end was reached once, and then moved: workers may have gone on before their turn.
    pub reopened: bool,
    /// Whether a worker has taken part.
    pub touched: bool,
}

impl Held {
    /// As it was found, or else with initial values.
    pub(super) fn new(create: Arc<CreateShard>, restored: Restored, pool: &BufferPool) -> Self {
        let Restored { version, slices, workers } = restored;
        let mut found: BTreeMap<SliceId, _> = slices.into_iter().map(|state| (state.id, state)).collect();
        let slices = create
            .placement
            .on_shard(create.shard)
            .map(|(id, slice)| {
                let variable = &create.variables[slice.variable.index()];
                Slice::new(id, &slice, variable, &create.update, create.seed, found.remove(&id), pool)
            })
            .collect();
        Self {
            placement_digest: create.placement.digest(),
            policy: sync::policy(create.sync),
            members: Members::new(create.workers),
            aggregate: Aggregate::new(create.deterministic),
            ledger: Ledger::from(workers),
            slices,
            version,
            began: version,
            end: create.last_step,
            reopened: false,
            touched: false,
            created: create,
        }
    }

    /// What its creation is answered with.
    pub(super) fn created(&self) -> ShardCreated {
        let bytes = self.slices.iter().map(|slice| slice.bytes() as u64).sum();
        ShardCreated { slices: self.slices.len() as u64, bytes, version: self.version }
    }

    /// All that a save wants.
    pub(super) fn cut(&self, save: Save) -> Cut {
        debug_assert_eq!(save.at, self.version);
        let slices = self.slices.iter().map(Slice::state).collect();
        Cut { save, created: Arc::clone(&self.created), slices, workers: self.ledger.records() }
    }

    /// Whether it has reached its last step.
    pub(super) fn is_complete(&self) -> bool {
        self.version.0 >= self.end.0
    }

    /// Stops at that step, or at the job's last where that comes first, unless it is beyond it.
    pub(super) fn stop_at(&mut self, step: GlobalStep) {
        if self.version.0 > step.0 {
            return;
        }
        let was_complete = self.is_complete();
        self.end = step.min(self.created.last_step);
        self.reopened |= was_complete && !self.is_complete();
    }

    /// For whoever pulls: the averages, where some are kept, or the values.
    pub(super) fn values(&self, averages: bool) -> Values {
        let snapshot = if averages { Slice::averaged } else { Slice::snapshot };
        let ids = self.slices.iter().map(Slice::id).collect();
        Values {
            slices: ids,
            payload: Payload::new(self.slices.iter().map(snapshot).collect()),
            version: self.version,
            last_step: self.end,
        }
    }

    /// P2.
    pub(super) fn check_placement(&self, epoch: PlacementEpoch, digest: u32) -> Result<(), Refusal> {
        let (expected_epoch, expected) = (self.created.placement.epoch, self.placement_digest);
        if (epoch, digest) == (expected_epoch, expected) {
            return Ok(());
        }
        Err(misfit(format!(
            "expected placement epoch {expected_epoch} ({expected:08x}), and got {epoch} ({digest:08x})"
        )))
    }

    /// Whether a push fits what is held.
    pub(super) fn check_gradients(&self, push: &Push, gradients: &Payload) -> Result<(), Refusal> {
        if push.version > self.version {
            return Err(misfit(format!(
                "a gradient computed at version {} came at version {}",
                push.version, self.version
            )));
        }
        if !push.slices.iter().copied().eq(self.slices.iter().rev().map(Slice::id)) {
            return Err(misfit(format!(
                "expected gradients of all {} slices, the last of the placement first, and got {}",
                self.slices.len(),
                push.slices.len()
            )));
        }
        let (expected, got) = (self.slices.len(), gradients.segments().len());
        if expected != got {
            return Err(misfit(format!("expected {expected} gradients, and got {got}")));
        }
        for (slice, gradient) in self.slices.iter().rev().zip(gradients.segments()) {
            let (expected, got) = (slice.bytes(), gradient.len());
            if expected != got {
                return Err(misfit(format!(
                    "the gradient of slice {} of variable '{}' should have {expected} bytes, and has {got}",
                    slice.id(),
                    slice.variable()
                )));
            }
        }
        Ok(())
    }

    /// Whether the worker's next step has begun.
    pub(super) fn may_push(&self, worker: u32) -> bool {
        self.policy.may_push(worker, self.version, &self.members)
    }

    /// None that waits as it should ever pushes before its next step has begun.
    pub(super) fn check_turn(&self, push: Candidate) -> Result<(), Refusal> {
        if self.may_push(push.worker) {
            return Ok(());
        }
        let (worker, step) = (push.worker, self.members.next(push.worker));
        Err(misfit(format!("worker/{worker} pushes before it was given the values for its step {step}")))
    }

    /// Whether it may be applied.
    pub(super) fn check_finite(&self, push: &Push, gradients: &Payload) -> Result<(), Refusal> {
        for (slice, gradient) in self.slices.iter().rev().zip(gradients.segments()) {
            if !all_finite(gradient.as_f32()) {
                let reason = format!(
                    "the gradient of variable '{}' from worker/{} at its step {} is not finite",
                    slice.variable(),
                    push.id.worker,
                    push.local_step
                );
                return Err(Refusal::new(RefusalCode::NotFinite, reason));
            }
        }
        Ok(())
    }

    /// Makes the sum of so many gradients, those of the last slice first, the next version.
    pub(super) fn apply<'a>(
        &mut self,
        gradients: impl Iterator<Item = &'a [f32]>,
        rate: f32,
        count: u32,
        pool: &BufferPool,
    ) {
        let update = Update::new(&self.created.update, self.version, self.created.last_step, rate, count);
        for (slice, gradient) in self.slices.iter_mut().rev().zip(gradients) {
            slice.apply(gradient, &update, pool);
        }
        self.version = self.version.next();
    }

    /// Makes the held gradients the next version, where the policy has enough of them.
    pub(super) fn update_if_due(&mut self, updates: &mut Updates, pool: &BufferPool) {
        if self.is_complete() || !self.policy.is_due(self.version, &self.members) {
            return;
        }
        updates.make(|| {
            let Some((total, count)) = self.aggregate.take(pool) else { return false };
            self.apply(total.slices(), 1.0, count, pool);
            self.policy.updated();
            self.ledger.updated();
            true
        });
    }
}

pub(super) fn misfit(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Misfit, reason)
}

pub(super) fn unavailable(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Unavailable, reason)
}
