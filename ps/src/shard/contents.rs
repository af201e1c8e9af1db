//! The contents of a shard that the chief has created: its slices at one version, and the state that decides
//! whether a push is applied, held or dropped. The `check_…` functions change nothing. `ShardState` keeps
//! the pending replies and the counters.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_cuda::DriverError;
use pushpull_kernels::cpu::{all_below, all_finite};
use pushpull_messages::gradient::GRADIENT_LIMIT;
use pushpull_messages::id::{GlobalStep, PlacementEpoch, SliceId, Version};
use pushpull_messages::message::{
    CreateShard, HeldShard, Push, Refusal, RefusalCode, Save, ShardCreated, StopAt,
};
use pushpull_messages::optimizer::{RateChange, RateSpec};
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{BufferPool, Payload, Segment};

use super::aggregate::Aggregate;
use super::answer::{again, misfit};
use super::compression::{BadGradient, Compression};
use super::cut::{Cut, Restored};
use super::draft::{Draft, Plan};
use super::in_flight::update_each;
use super::ledger::Ledger;
use super::newest::{Newest, ValuesKind};
use super::on_device::Device;
use super::outcome::Fault;
use super::slice::{Slice, among_slices};
use super::threads::{UpdateThreads, first_not};
use super::timer::{Measure, UpdateTimer};
use super::update::Update;
use super::waiting::Values;
use crate::device::MakeDevice;
use crate::sync::{self, Candidate, Members, Policy};

/// The contents of a shard that the chief has created.
pub(super) struct Contents {
    pub created: Arc<CreateShard>,
    placement_digest: u32,
    pub policy: Box<dyn Policy>,
    pub members: Members,
    pub aggregate: Aggregate,
    pub ledger: Ledger,
    pub slices: Vec<Slice>,
    compression: Compression,
    /// The values of this version in the encodings of the replies to pushes, once such a reply was due. All
    /// replies share them.
    sent: OnceCell<Vec<Segment>>,
    pub version: Version,
    /// The version with which the shard was created.
    pub began: Version,
    /// The step at which the shard stops: the job's last step, or an earlier one.
    pub end: GlobalStep,
    /// The greatest step at which the chief has requested a stop, and whether another job will continue from
    /// it. `None` if the chief has requested no stop.
    stop: Option<(GlobalStep, bool)>,
    /// The factor by which hooks have multiplied the learning rate, and the next change of this factor, if
    /// any.
    rate: RateSpec,
    /// The version that the shard does not pass until its learning rate is set; `None` if the shard may pass
    /// every version.
    hold: Option<Version>,
    /// The version from which on the last change of the learning rate applies; `None` if there was no change
    /// since the shard was created.
    changed: Option<Version>,
    /// Whether `end` was moved to a later step after the shard had reached the earlier end. All waiting
    /// workers were released at the earlier end, so some of them may push for a step that has not begun.
    pub reopened: bool,
    /// Whether a worker has joined, pushed, or pulled the values for a step.
    pub touched: bool,
}

impl Contents {
    /// Returns the contents that `create` describes. A slice gets its state from `restored`, or its initial
    /// value if `restored` does not contain the slice. `keeps_last` is for [`Aggregate::new`]. With a
    /// `device`, the optimizers' slots are kept there.
    ///
    /// # Errors
    /// If the device cannot be used, or has too little memory.
    pub(super) fn new(
        create: Arc<CreateShard>,
        restored: Restored,
        pool: &BufferPool,
        keeps_last: bool,
        device: Option<&MakeDevice>,
    ) -> Result<Self, DriverError> {
        let device = device.map(Device::open).transpose()?;
        let Restored { version, slices, workers, rate } = restored;
        let mut found: BTreeMap<SliceId, _> = slices.into_iter().map(|state| (state.id, state)).collect();
        let slices = create
            .placement
            .on_shard(create.shard)
            .map(|(id, slice)| {
                let variable = &create.variables[slice.variable.index()];
                let (update, found) = (&create.update, found.remove(&id));
                let slice = Slice::new(id, &slice, variable, update, create.seed, found, pool);
                match &device {
                    Some(device) => slice.moved_to(device, update),
                    None => Ok(slice),
                }
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            placement_digest: create.placement.digest(),
            policy: sync::policy(create.sync, create.workers),
            members: Members::new(create.workers),
            aggregate: Aggregate::new(create.deterministic, keeps_last),
            ledger: Ledger::new(create.pipeline, workers),
            slices,
            compression: Compression::new(&create),
            sent: OnceCell::new(),
            version,
            began: version,
            end: create.last_step,
            stop: None,
            rate,
            hold: None,
            changed: None,
            reopened: false,
            touched: false,
            created: create,
        })
    }

    /// Returns the reply to the request that created the shard.
    pub(super) fn created(&self) -> ShardCreated {
        let bytes = self.slices.iter().map(|slice| slice.bytes() as u64).sum();
        let (slices, appointed) = (self.slices.len() as u64, self.members.appointed());
        ShardCreated { slices, bytes, version: self.version, appointed }
    }

    /// Takes a snapshot of the current state, which `save` will write. The snapshot shares all buffers with
    /// the shard and copies none, except slots that are on a device.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn cut(&self, save: Save) -> Result<Cut, DriverError> {
        debug_assert_eq!(save.at, self.version);
        let slices = self.slices.iter().map(Slice::state).collect::<Result<_, _>>()?;
        Ok(Cut { save, created: Arc::clone(&self.created), slices, workers: self.ledger.records() })
    }

    /// Returns whether the shard has reached the step at which it stops.
    pub(super) fn is_complete(&self) -> bool {
        self.version.0 >= self.end.0
    }

    /// Returns what a later run of the chief must know to continue the job.
    pub(super) fn held(&self) -> HeldShard {
        HeldShard {
            created: (*self.created).clone(),
            version: self.version,
            began: self.began,
            touched: self.touched,
            end: self.end,
            drains: self.stop.is_some_and(|(_, drains)| drains),
            rate: self.rate,
            hold: self.hold,
            workers: self.ledger.records(),
            members: self.members.held(),
        }
    }

    /// Makes the shard stop at the requested step, or at the job's last step if that is smaller. Changes
    /// nothing if the shard's version is already greater than this step. Also changes nothing if a stop at a
    /// later step was requested before: in that case, this request is a late copy, or comes from a chief that
    /// does not know of the later stop. Returns the version for the reply. If the shard does not stop at the
    /// step, this version is greater than the step.
    pub(super) fn stop_at(&mut self, &StopAt { step, drains, .. }: &StopAt) -> Version {
        let step = step.min(self.created.last_step);
        if let Some((later, _)) = self.stop.filter(|(later, _)| *later > step) {
            // The chief that requested the earlier step must not believe that the shard stops there.
            return self.version.max(Version(later.0));
        }
        if self.version.0 <= step.0 {
            self.stop = Some((step, drains));
            let was_complete = self.is_complete();
            self.end = step;
            self.reopened |= was_complete && !self.is_complete();
        }
        self.version
    }

    /// Makes the shard stay at `version` until its learning rate is set. The shard goes on if it has already
    /// passed this version, or if it already knows the learning rate from this version on. If the shard
    /// already waits at a later version, the request is a late copy and is ignored, because the versions of
    /// the chief's requests only grow.
    pub(super) fn hold_at(&mut self, version: Version) {
        let known = self.changed.is_some_and(|changed| version <= changed);
        if !known && self.hold.is_none_or(|hold| hold <= version) {
            self.hold = Some(version).filter(|&version| self.version <= version);
        }
    }

    /// Sets the factor of the learning rate for all updates from the version `change.from` on. If the shard
    /// waited for its learning rate, it continues. Ignores a change that arrives again, even if a later
    /// change arrived in between.
    pub(super) fn set_rate(&mut self, change: RateChange) {
        if self.changed.is_some_and(|changed| change.from <= changed) {
            return;
        }
        self.rate = RateSpec { next: Some(change), ..self.rate.at(self.version) };
        (self.hold, self.changed) = (None, Some(change.from));
    }

    /// Returns whether the shard waits for its learning rate before it applies another update.
    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some_and(|hold| hold <= self.version) && !self.is_complete()
    }

    /// Returns the factor by which hooks multiply the learning rate of the next update; `None` if no hook
    /// has changed the learning rate.
    pub(super) fn rate_factor(&self) -> Option<f32> {
        (!self.rate.is_default()).then(|| self.rate.at(self.version).factor)
    }

    /// Returns the values for an answer.
    pub(super) fn values(&self, kind: ValuesKind, pool: &BufferPool, threads: &UpdateThreads) -> Values {
        let segments = match kind {
            ValuesKind::Sent if self.compression.has_values() => self.sent(pool, threads).to_vec(),
            ValuesKind::Sent | ValuesKind::Current => self.slices.iter().map(Slice::snapshot).collect(),
            ValuesKind::Averages => self.slices.iter().map(Slice::averaged).collect(),
        };
        let ids = self.slices.iter().map(Slice::id).collect();
        Values {
            slices: ids,
            payload: Payload::new(segments),
            kind,
            version: self.version,
            last_step: self.end,
        }
    }

    /// Returns the values in the encodings of the replies to pushes. They are encoded once for each version,
    /// by the shard: the thread of a connection serves others meanwhile.
    fn sent(&self, pool: &BufferPool, threads: &UpdateThreads) -> &[Segment] {
        let Self { slices, compression, .. } = self;
        let bytes = || slices.iter().map(Slice::bytes).sum();
        let encode = |threads| compression.encode(slices.iter().map(Slice::snapshot), pool, threads);
        self.sent.get_or_init(|| threads.share(bytes(), encode))
    }

    /// Encodes the current values, if replies to pushes carry them encoded.
    pub(super) fn encode_values(&self, pool: &BufferPool, threads: &UpdateThreads) {
        if self.compression.has_values() {
            self.sent(pool, threads);
        }
    }

    /// Fills `newest` with the current values, unless it has them already.
    pub(super) fn refill(&self, newest: &mut Newest, pool: &BufferPool, threads: &UpdateThreads) {
        let at = Some((self.version, self.end));
        if newest.at == at {
            return;
        }
        newest.clear();
        newest.at = at;
        newest.values.extend(self.slices.iter().map(Slice::snapshot));
        if self.compression.has_values() {
            newest.sent.extend_from_slice(self.sent(pool, threads));
        }
        if self.created.update.average.is_some() {
            newest.averages.extend(self.slices.iter().map(Slice::averaged));
        }
    }

    /// Checks that the peer uses the same placement as this shard (P2).
    pub(super) fn check_placement(&self, epoch: PlacementEpoch, digest: u32) -> Result<(), Refusal> {
        let (expected_epoch, expected) = (self.created.placement.epoch, self.placement_digest);
        if (epoch, digest) == (expected_epoch, expected) {
            return Ok(());
        }
        Err(misfit(format!(
            "expected placement epoch {expected_epoch} with digest {expected:08x}, but got epoch {epoch} with \
             digest {digest:08x}"
        )))
    }

    /// Checks that a push has exactly one gradient of the right size for every slice. Also checks that the
    /// gradients were computed from values whose version is at most the shard's version.
    pub(super) fn check_gradients(&self, push: &Push, gradients: &Payload) -> Result<(), Refusal> {
        if push.version > self.version {
            return Err(misfit(format!(
                "the gradients were computed from version {}, but the shard is only at version {}",
                push.version, self.version
            )));
        }
        if !push.slices.iter().copied().eq(self.slices.iter().rev().map(Slice::id)) {
            return Err(misfit(format!(
                "expected gradients of all {} slices, the last slice first, but got {} gradients, perhaps \
                 in another order",
                self.slices.len(),
                push.slices.len()
            )));
        }
        let (expected, got) = (self.slices.len(), gradients.segments().len());
        if expected != got {
            return Err(misfit(format!("expected {expected} gradients in the payload, but got {got}")));
        }
        let slices = self.slices.iter().enumerate().rev();
        for ((position, slice), gradient) in slices.zip(gradients.segments()) {
            let expected = self.compression.gradient_bytes(position, slice.bytes());
            let got = gradient.len();
            if expected != got {
                return Err(misfit(format!(
                    "the gradient of slice {} of variable '{}' must have {expected} bytes, but has {got}",
                    slice.id(),
                    slice.variable()
                )));
            }
        }
        Ok(())
    }

    /// Returns whether the worker may push now, which means that the worker's next step has begun.
    pub(super) fn may_push(&self, worker: u32) -> bool {
        self.policy.may_push(worker, self.version, &self.members)
    }

    /// Returns whether a push may be the sum of several workers' gradients.
    pub(super) fn takes_sums(&self) -> bool {
        self.created.sync == SyncSpec::SYNC && !self.compression.has_gradients()
    }

    /// Returns the policy as the job names it.
    pub(super) fn policy_spec(&self) -> SyncSpec {
        self.created.sync
    }

    /// Rejects a push sent before its step began; a correct worker never does this.
    pub(super) fn check_turn(&self, push: Candidate) -> Result<(), Refusal> {
        if self.may_push(push.worker) {
            return Ok(());
        }
        let (worker, step) = (push.worker, self.members.next(push.worker));
        Err(misfit(format!("worker/{worker} pushed before it received the values for its step {step}")))
    }

    /// Replaces gradients that arrived in an encoding with the numbers that they stand for. Their sizes have
    /// been checked. The time counts as part of the next update.
    ///
    /// # Errors
    /// Returns the refusal of a push whose gradients cannot be decoded.
    pub(super) fn decode(
        &self,
        gradients: &mut Payload,
        timer: &mut UpdateTimer,
        pool: &BufferPool,
        threads: &UpdateThreads,
    ) -> Result<(), Refusal> {
        if !self.compression.has_gradients() {
            return Ok(());
        }
        let mut result = Ok(());
        timer.aggregate(|| {
            let Self { slices, compression, .. } = self;
            let sizes = || slices.iter().rev().map(Slice::bytes);
            let decode = |threads| compression.decode(gradients, sizes(), pool, threads);
            result = threads.share(sizes().sum(), decode).map(|decoded| *gradients = decoded);
        });
        result.map_err(|BadGradient { position, error }| {
            let (slice, variable) = (self.slices[position].id(), self.slices[position].variable());
            misfit(format!(
                "the gradient of slice {slice} of variable '{variable}' cannot be decoded: {error}"
            ))
        })
    }

    /// Checks that all elements of a push's gradients are finite, and so small that neither the sum of an
    /// update's gradients nor the square of an element overflows.
    pub(super) fn check_finite(
        &self,
        push: &Push,
        gradients: &Payload,
        threads: &UpdateThreads,
    ) -> Result<(), Refusal> {
        let segments = gradients.segments();
        let small = |gradient: &Segment| all_below(gradient.as_f32(), GRADIENT_LIMIT);
        let large = threads.share(gradients.bytes(), |threads| first_not(segments, threads, &small));
        let Some(at) = large else { return Ok(()) };
        let slice = &self.slices[self.slices.len() - 1 - at];
        let fault = Fault { slice: slice.id(), is_finite: all_finite(segments[at].as_f32()) };
        Err(self.not_finite(push, fault))
    }

    /// Checks that a draft leads from the current version with the factor of the learning rate that its push
    /// gets now, and that all of its gradients are checked, finite and small enough.
    ///
    /// # Errors
    /// Returns the refusal of the push.
    pub(super) fn check_draft(&self, push: &Push, draft: &Draft) -> Result<(), Refusal> {
        let factor = sync::factor(self.created.sync, self.version.0.saturating_sub(push.version.0));
        let rate = self.rate.at(self.version).factor;
        if !factor.is_some_and(|factor| draft.fits(self.version, factor * rate)) || draft.is_torn() {
            return Err(again());
        }
        draft.fault().map_or(Ok(()), |fault| Err(self.not_finite(push, fault)))
    }

    /// Returns the refusal of a push with a gradient that cannot be applied.
    fn not_finite(&self, push: &Push, Fault { slice, is_finite }: Fault) -> Refusal {
        let fault = match is_finite {
            true => format!("is too large: an element is {GRADIENT_LIMIT:e} or more"),
            false => "is not finite".to_owned(),
        };
        let variable = self.slices.iter().find(|own| own.id() == slice).map_or("?", Slice::variable);
        let reason = format!(
            "the gradient of variable '{variable}' from worker/{} at its step {} {fault}",
            push.id.worker, push.local_step
        );
        Refusal::new(RefusalCode::NotFinite, reason)
    }

    /// Returns what a draft must know of the shard; `None` if the shard applies no push at once now.
    pub(super) fn plan(&self, measure: Measure, threads: &UpdateThreads) -> Option<Plan> {
        let (created, rate) = (Arc::clone(&self.created), self.planned_rate()?);
        let member = |worker| {
            let incarnation = self.members.incarnation(worker)?;
            Some((worker, (incarnation, self.ledger.last(worker, incarnation))))
        };
        let members = self.members.indices().filter_map(member).collect();
        let slices = self.slices.iter().rev().map(Slice::view).collect();
        let (next, with) = ((self.version, rate, self.compression.has_values()), (measure, threads.clone()));
        Some(Plan::new(created, self.placement_digest, next, members, slices, with))
    }

    /// Returns the factor by which hooks multiply the learning rate of the next update; `None` if the shard
    /// applies no push at once now.
    pub(super) fn planned_rate(&self) -> Option<f32> {
        // A draft is made of numbers, not of their encodings.
        let applies = !self.compression.has_gradients()
            && !self.is_complete()
            && !self.is_held()
            && sync::factor(self.created.sync, 0).is_some();
        applies.then(|| self.rate.at(self.version).factor)
    }

    /// Makes the next version from a draft that leads to it.
    ///
    /// # Errors
    /// If the device fails. The contents must not be used again.
    pub(super) fn apply_draft(
        &mut self,
        draft: Draft,
        learning_rate_factor: f32,
        pool: &BufferPool,
        threads: &UpdateThreads,
    ) -> Result<(), DriverError> {
        self.sent.take();
        self.rate = self.rate.at(self.version);
        let (created, version) = (Arc::clone(&self.created), self.version);
        let factor = learning_rate_factor * self.rate.factor;
        assert!(draft.fits(version, factor), "a draft of another update");
        let update = Update::new(&created.update, version, created.last_step, factor, 1);
        let (kept, slices) = (draft.kept_bytes(), &mut self.slices);
        threads.share(kept, |threads| {
            let of_slices = among_slices(slices, &update, threads);
            let (drafted, uploads) = draft.into_slices();
            // Begins with the gradients that have arrived last, which may still be in the caches.
            let drafted = drafted.into_iter().map(Some);
            let mut slices: Vec<_> = slices.iter_mut().zip(drafted.rev()).collect();
            update_each(&mut slices, of_slices, &|slice, drafted| {
                let drafted = drafted.take().expect("each slice is visited once");
                slice.apply_drafted(drafted, uploads.as_ref(), &update, pool, threads)
            })
        })?;
        self.version = version.next();
        Ok(())
    }

    /// Applies the sum of `count` gradients, and thereby makes the next version. `addends` are payloads whose
    /// sum is this sum; each has a segment for each slice, in the reverse order of the placement. The
    /// learning rate is multiplied by `learning_rate_factor`.
    ///
    /// # Errors
    /// If the device fails. The contents must not be used again.
    pub(super) fn apply(
        &mut self,
        addends: &[Payload],
        learning_rate_factor: f32,
        count: u32,
        pool: &BufferPool,
        threads: &UpdateThreads,
    ) -> Result<(), DriverError> {
        debug_assert!(!self.is_held(), "the learning rate of this update is not known");
        // Slices that are sent exactly change in place only if nobody else has them.
        self.sent.take();
        self.rate = self.rate.at(self.version);
        let (last_step, factor) = (self.created.last_step, learning_rate_factor * self.rate.factor);
        let update = Update::new(&self.created.update, self.version, last_step, factor, count);
        let (slices, bytes) = (&mut self.slices, addends.iter().map(Payload::bytes).sum());
        threads.share(bytes, |threads| {
            let of_slices = among_slices(slices, &update, threads);
            let of_slice = |at: usize| addends.iter().map(move |addend| addend.segments()[at].as_f32());
            let gradients: Vec<&[f32]> = (0..slices.len()).flat_map(of_slice).collect();
            let gradients = gradients.chunks_exact(addends.len());
            let mut slices: Vec<_> = slices.iter_mut().rev().zip(gradients).collect();
            update_each(&mut slices, of_slices, &|slice, gradients| {
                slice.apply(gradients, None, &update, pool, threads)
            })
        })?;
        self.version = self.version.next();
        Ok(())
    }

    /// Applies the held gradients as one update if the policy says that they are due.
    ///
    /// # Errors
    /// If the device fails. The contents must not be used again.
    pub(super) fn update_if_due(
        &mut self,
        timer: &mut UpdateTimer,
        pool: &BufferPool,
        threads: &UpdateThreads,
    ) -> Result<(), DriverError> {
        if self.is_complete() || self.is_held() || !self.policy.is_due(self.version, &self.members) {
            return Ok(());
        }
        let mut applied = Ok(());
        timer.update(|| {
            let Some((addends, count)) = self.aggregate.take() else { return false };
            applied = self.apply(&addends, 1.0, count, pool, threads);
            self.policy.updated();
            self.ledger.updated();
            applied.is_ok()
        });
        applied
    }
}
