//! What a shard holds and how it changes: V1 the version never decreases; V2 every push is counted under exactly
//! one outcome; V3 exactly `last_step` updates are applied. Nothing changes unless all of a push fits.

use kernels::cpu::all_finite;
use messages::buffer::{BufferPool, Payload};
use messages::id::{PlacementEpoch, ShardId, SliceId, Version};
use messages::message::{
    CreateShard, Pull, Pulled, Push, Pushed, Refusal, RefusalCode, ShardCounters, ShardCreated,
    ShardSnapshot, StalenessHistogram, Verdict,
};

use super::ledger::{Ledger, Turn};
use super::slice::Slice;
use crate::sync::{self, Admission, Policy};

/// A shard without its actor.
pub struct ShardState {
    id: ShardId,
    pool: BufferPool,
    /// Most bytes of values: all of them must fit into one frame.
    bytes_max: u64,
    held: Option<Held>,
    counters: ShardCounters,
    pulls: u64,
    staleness: StalenessHistogram,
}

/// What it holds once the chief has created it.
struct Held {
    created: CreateShard,
    placement_digest: u32,
    policy: Box<dyn Policy>,
    ledger: Ledger,
    slices: Vec<Slice>,
    version: Version,
}

impl ShardState {
    /// An empty shard, for values of at most so many bytes.
    pub fn new(id: ShardId, pool: BufferPool, bytes_max: u64) -> Self {
        Self {
            id,
            pool,
            bytes_max,
            held: None,
            counters: ShardCounters::default(),
            pulls: 0,
            staleness: StalenessHistogram::default(),
        }
    }

    /// Which shard it is.
    pub const fn id(&self) -> ShardId {
        self.id
    }

    /// Takes its slices and fills them. The same request once more changes nothing.
    ///
    /// # Errors
    /// Where it holds something else already, or is another shard.
    pub fn create(&mut self, create: CreateShard) -> Result<ShardCreated, Refusal> {
        if create.shard != self.id {
            return Err(misfit(format!("this is {}, and not {}", self.id, create.shard)));
        }
        match &self.held {
            Some(held) if held.created != create => {
                let reason = format!("{} already serves another job: start it again for a new one", self.id);
                return Err(Refusal::new(RefusalCode::Unavailable, reason));
            }
            Some(_) => {}
            None if create.bytes() > self.bytes_max => {
                let (id, bytes, max) = (self.id, create.bytes(), self.bytes_max);
                return Err(misfit(format!("{id} would hold {bytes} bytes, and may hold at most {max}")));
            }
            None => self.held = Some(Held::new(self.id, create, &self.pool)),
        }
        let snapshot = self.observe();
        Ok(ShardCreated { slices: snapshot.slices, bytes: snapshot.bytes })
    }

    /// Takes a gradient, says what became of it, and gives the values after it where they are asked for.
    ///
    /// # Errors
    /// Where it does not fit; then nothing has changed.
    pub fn push(&mut self, push: &Push, gradients: Payload) -> Result<(Pushed, Payload), Refusal> {
        self.counters.received += 1;
        let taken = self.take(push, &gradients);
        drop(gradients);
        let (verdict, first_version) = taken.inspect_err(|_| self.counters.refused += 1)?;
        let (slices, values, version) = if push.pull {
            self.pulls += 1;
            self.held.as_ref().expect("a push was taken").values()
        } else {
            (Vec::new(), Payload::EMPTY, first_version)
        };
        debug_assert!(self.counters.add_up(), "V2: {:?}", self.counters);
        Ok((Pushed { verdict, version, slices }, values))
    }

    fn take(&mut self, push: &Push, gradients: &Payload) -> Result<(Verdict, Version), Refusal> {
        let held = held(&mut self.held, self.id)?;
        held.check_placement(push.epoch, push.placement_digest)?;
        match held.ledger.turn(&push.id) {
            Turn::New => {}
            Turn::Duplicate(verdict) => {
                self.counters.duplicate += 1;
                return Ok((verdict, held.version));
            }
            Turn::NotDue(reason) => return Err(misfit(reason)),
        }
        held.check_gradients(push, gradients)?;
        let verdict = match held.policy.admit(held.version) {
            Admission::Apply => {
                held.apply(gradients, &self.pool);
                self.counters.applied += 1;
                self.staleness.record(held.version.0 - 1 - push.version.0);
                Verdict::Applied
            }
            Admission::Stop => {
                self.counters.stopped += 1;
                Verdict::Stopped
            }
        };
        held.ledger.record(&push.id, verdict);
        Ok((verdict, held.version))
    }

    /// The latest values of all its slices, of one version.
    ///
    /// # Errors
    /// Where the worker holds another placement.
    pub fn pull(&mut self, pull: &Pull) -> Result<(Pulled, Payload), Refusal> {
        let held = held(&mut self.held, self.id)?;
        held.check_placement(pull.epoch, pull.placement_digest)?;
        self.pulls += 1;
        let (slices, values, version) = held.values();
        Ok((Pulled { version, slices }, values))
    }

    /// Its state, for whoever wants to see it.
    pub fn observe(&self) -> ShardSnapshot {
        let slices = self.held.as_ref().map_or(&[][..], |held| &held.slices);
        ShardSnapshot {
            version: self.held.as_ref().map_or(Version(0), |held| held.version),
            slices: slices.len() as u64,
            bytes: slices.iter().map(|slice| slice.bytes() as u64).sum(),
            pushes: self.counters,
            pulls: self.pulls,
            staleness: self.staleness,
        }
    }
}

fn misfit(reason: String) -> Refusal {
    Refusal::new(RefusalCode::Misfit, reason)
}

fn held(held: &mut Option<Held>, id: ShardId) -> Result<&mut Held, Refusal> {
    held.as_mut().ok_or_else(|| {
        Refusal::new(RefusalCode::Unavailable, format!("{id} has not been given its variables yet"))
    })
}

impl Held {
    fn new(id: ShardId, create: CreateShard, pool: &BufferPool) -> Self {
        let slices = create
            .placement
            .on_shard(id)
            .map(|(slice_id, slice)| {
                let variable = &create.variables[slice.variable.index()];
                Slice::new(slice_id, &slice, variable, &create.optimizer, create.seed, pool)
            })
            .collect();
        Self {
            placement_digest: create.placement.digest(),
            policy: sync::policy(create.sync, create.last_step),
            ledger: Ledger::default(),
            slices,
            version: Version(0),
            created: create,
        }
    }

    fn values(&self) -> (Vec<SliceId>, Payload, Version) {
        let ids = self.slices.iter().map(Slice::id).collect();
        let values = Payload::new(self.slices.iter().map(Slice::snapshot).collect());
        (ids, values, self.version)
    }

    fn check_placement(&self, epoch: PlacementEpoch, digest: u32) -> Result<(), Refusal> {
        let (expected_epoch, expected) = (self.created.placement.epoch, self.placement_digest);
        if (epoch, digest) == (expected_epoch, expected) {
            return Ok(());
        }
        Err(misfit(format!(
            "expected placement epoch {expected_epoch} ({expected:08x}), and got {epoch} ({digest:08x})"
        )))
    }

    fn check_gradients(&self, push: &Push, gradients: &Payload) -> Result<(), Refusal> {
        if push.version > self.version {
            return Err(misfit(format!(
                "a gradient computed at version {} came at version {}",
                push.version, self.version
            )));
        }
        if !push.slices.iter().copied().eq(self.slices.iter().map(Slice::id)) {
            return Err(misfit(format!(
                "expected gradients of all {} slices in the placement's order, and got {}",
                self.slices.len(),
                push.slices.len()
            )));
        }
        let (expected, got) = (self.slices.len(), gradients.segments().len());
        if expected != got {
            return Err(misfit(format!("expected {expected} gradients, and got {got}")));
        }
        for (slice, gradient) in self.slices.iter().zip(gradients.segments()) {
            let (expected, got) = (slice.bytes(), gradient.len());
            if expected != got {
                return Err(misfit(format!(
                    "the gradient of slice {} of variable '{}' should have {expected} bytes, and has {got}",
                    slice.id(),
                    slice.variable()
                )));
            }
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

    fn apply(&mut self, gradients: &Payload, pool: &BufferPool) {
        let version = self.version.next();
        let (applied, last_step) = (self.version.0, self.created.last_step.0);
        let optimizer =
            self.created.optimizer.with_learning_rate_times(self.created.schedule.factor(applied, last_step));
        for (slice, gradient) in self.slices.iter_mut().zip(gradients.segments()) {
            slice.apply(gradient.as_f32(), &optimizer, version, pool);
        }
        self.version = version;
    }
}
