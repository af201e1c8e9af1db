//! A draft of an update: the next values of all slices, computed from the gradients of a push while they
//! arrive. Nobody sees a draft before its push has passed every check; then all slices change at once.
//!
//! Wanted properties: (A) an update that was drafted has the same bits as one that was not; (B) a draft that
//! is dropped changes nothing; (C) a draft becomes an update only of the version from which it leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pushpull_kernels::cpu::{all_below, all_finite};
use pushpull_messages::gradient::GRADIENT_LIMIT;
use pushpull_messages::id::{Incarnation, Sequence, SliceId, Version};
use pushpull_messages::message::{CreateShard, Push, PushId};
use pushpull_transport::buffer::{Buffer, BufferPool, Credit};

use super::slice::{Drafted, SliceView};
use super::timer::Measure;
use super::update::Update;
use crate::sync;

/// The number of bytes of a gradient that are used at a time. They stay in the processor's caches between
/// their arrival and their use.
const BLOCK_BYTES: usize = 128 << 10;
/// The same for a large draft, which leaves its results out of the caches. Larger blocks arrive with fewer
/// waits for the socket.
const LARGE_BLOCK_BYTES: usize = 512 << 10;
/// The least number of bytes of a large draft. The caches of a core cannot keep it until it is read.
const LARGE_BYTES: u64 = 8 << 20;

/// What a draft must know of its shard at one version.
#[derive(Clone)]
pub(crate) struct Plan(Arc<Planned>);

struct Planned {
    created: Arc<CreateShard>,
    placement_digest: u32,
    version: Version,
    /// The factor by which hooks multiply the learning rate.
    rate: f32,
    /// The incarnation of each worker that is a member, and the number of its last push.
    members: BTreeMap<u32, (Incarnation, Sequence)>,
    /// In the order of the gradients of a push.
    slices: Vec<SliceView>,
    /// Measures the work on a draft.
    measure: Measure,
}

/// The next values of all slices.
pub(crate) struct Draft {
    /// The version from which the draft leads to the next one.
    version: Version,
    learning_rate_factor: f32,
    /// In the order of the gradients of the push.
    slices: Vec<Drafted>,
    bytes: usize,
    /// The time spent on the draft.
    took: Duration,
    fault: Option<Fault>,
    /// The credit for the payload of the push.
    _credit: Option<Credit>,
}

/// A gradient that cannot be applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub slice: SliceId,
    /// Whether all elements are finite, so that one of them is too large.
    pub is_finite: bool,
}

impl Plan {
    pub(super) fn new(
        created: Arc<CreateShard>,
        placement_digest: u32,
        (version, rate): (Version, f32),
        members: BTreeMap<u32, (Incarnation, Sequence)>,
        slices: Vec<SliceView>,
        measure: Measure,
    ) -> Self {
        Self(Arc::new(Planned { created, placement_digest, version, rate, members, slices, measure }))
    }

    /// Returns whether an earlier push of the same worker is still to be applied. A draft of this push would
    /// be in vain.
    pub(crate) fn is_early(&self, push: &Push) -> bool {
        let Planned { created, members, .. } = &*self.0;
        let PushId { worker, incarnation, sequence } = push.id;
        created.pipeline > 1
            && members.get(&worker).is_some_and(|&(own, last)| own == incarnation && sequence > last.next())
    }

    /// Begins a draft for a push whose gradients have these lengths in bytes. Returns `None` if the push
    /// would not be applied at once, or does not fit the shard; it is then refused when it has arrived.
    pub(crate) fn begin(&self, push: &Push, lengths: &[u64], pool: &BufferPool) -> Option<DraftWriter> {
        let Planned { created, placement_digest, version, rate, members, slices, .. } = &*self.0;
        let staleness = version.0.checked_sub(push.version.0)?;
        let factor = sync::factor(created.sync, staleness)?;
        let PushId { worker, incarnation, .. } = push.id;
        let fits = members.get(&worker).is_some_and(|&(own, _)| own == incarnation)
            && (push.epoch, push.placement_digest) == (created.placement.epoch, *placement_digest)
            && push.slices.iter().eq(slices.iter().map(|slice| &slice.id))
            && lengths.iter().copied().eq(slices.iter().map(|slice| slice.bytes() as u64));
        let draft = Draft {
            version: *version,
            learning_rate_factor: factor * rate,
            slices: Vec::with_capacity(slices.len()),
            bytes: 0,
            took: Duration::ZERO,
            fault: None,
            _credit: None,
        };
        let is_large = lengths.iter().sum::<u64>() >= LARGE_BYTES;
        let mut writer = DraftWriter {
            plan: self.clone(),
            pool: pool.clone(),
            draft,
            begun: None,
            block: Block::default(),
            block_bytes: if is_large { LARGE_BLOCK_BYTES } else { BLOCK_BYTES },
            is_large,
        };
        writer.begin_slices();
        fits.then_some(writer)
    }
}

impl Draft {
    /// Returns whether the draft leads from `version` with this factor of the learning rate.
    pub(super) fn fits(&self, version: Version, learning_rate_factor: f32) -> bool {
        self.version == version && self.learning_rate_factor.to_bits() == learning_rate_factor.to_bits()
    }

    /// Returns the first gradient that cannot be applied, if there is one.
    pub(super) const fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Returns the size of the drafted slices in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the size in bytes of the gradients that the draft has kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.slices.iter().map(Drafted::kept_bytes).sum()
    }

    /// Returns the time spent on the draft.
    pub(super) const fn took(&self) -> Duration {
        self.took
    }

    /// Returns what the draft has for each slice, in the order of the gradients of the push.
    pub(super) fn into_slices(self) -> Vec<Drafted> {
        self.slices
    }
}

/// Makes a draft from gradients, byte by byte.
pub(crate) struct DraftWriter {
    plan: Plan,
    pool: BufferPool,
    draft: Draft,
    /// What the draft has for the current slice; `None` after the last one.
    begun: Option<Drafted>,
    block: Block,
    /// The number of bytes of a whole block.
    block_bytes: usize,
    is_large: bool,
}

/// The part of the current gradient that arrives.
#[derive(Default)]
struct Block {
    /// The memory for a part of a gradient that is not kept; empty until it is needed.
    memory: Option<Buffer>,
    /// Where the part begins in its gradient, in bytes.
    start: usize,
    /// The number of bytes of the part that have arrived.
    filled: usize,
}

impl DraftWriter {
    /// Returns memory for the next bytes of the current gradient.
    ///
    /// # Panics
    /// After the last gradient.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let slice = &self.plan.0.slices[self.draft.slices.len()];
        let Block { memory, start, filled } = &mut self.block;
        let end = slice.bytes().min(*start + self.block_bytes);
        match self.begun.as_mut().expect("a slice is missing") {
            Drafted::Gradient(gradient) => &mut gradient.as_bytes_mut()[*start + *filled..end],
            Drafted::Next { .. } | Drafted::Nothing => {
                let memory = memory.get_or_insert_with(|| self.pool.take(self.block_bytes));
                &mut memory.as_bytes_mut()[*filled..end - *start]
            }
        }
    }

    /// Takes the first `bytes` bytes of [`space`](Self::space).
    pub(crate) fn filled(&mut self, bytes: usize) {
        let slice = self.plan.0.slices[self.draft.slices.len()].bytes();
        self.block.filled += bytes;
        let end = self.block.start + self.block.filled;
        if self.block.filled == self.block_bytes || end == slice {
            let measure = self.plan.0.measure;
            let took = measure(&mut || self.use_block());
            self.draft.took += took;
            (self.block.start, self.block.filled) = (end, 0);
        }
        if end == slice {
            self.end_slice();
            self.begin_slices();
        }
    }

    /// Keeps the credit for the payload.
    pub(crate) fn hold(&mut self, credit: Credit) {
        self.draft._credit = Some(credit);
    }

    /// Returns the draft, or `None` if gradients are missing.
    pub(crate) fn finish(self) -> Option<Draft> {
        (self.draft.slices.len() == self.plan.0.slices.len()).then_some(self.draft)
    }

    /// Checks the block, and computes the part of the next value that it gives.
    fn use_block(&mut self) {
        let Planned { created, version, slices, .. } = &*self.plan.0;
        let slice = &slices[self.draft.slices.len()];
        let Block { memory, start, filled } = &self.block;
        let place = *start / 4..(*start + *filled) / 4;
        if self.draft.fault.is_some() {
            return;
        }
        let begun = self.begun.as_mut().expect("a block belongs to a slice");
        let arrived = || &memory.as_ref().expect("it has been filled").as_f32()[..place.len()];
        let (gradient, can_be_applied) = match begun {
            Drafted::Gradient(gradient) => {
                let gradient = &gradient.as_f32()[place];
                (gradient, all_below(gradient, GRADIENT_LIMIT))
            }
            Drafted::Nothing => (arrived(), all_below(arrived(), GRADIENT_LIMIT)),
            Drafted::Next { value, average } => {
                let factor = self.draft.learning_rate_factor;
                let update = Update::new(&created.update, *version, created.last_step, factor, 1);
                let average = average.as_mut().map(|average| &mut average.as_f32_mut()[place.clone()]);
                let next = (&mut value.as_f32_mut()[place.clone()], average);
                let gradient = arrived();
                (gradient, slice.draft(place, gradient, &update, next, self.is_large))
            }
        };
        if !can_be_applied {
            self.draft.fault = Some(Fault { slice: slice.id, is_finite: all_finite(gradient) });
        }
    }

    fn end_slice(&mut self) {
        let drafted = self.begun.take().expect("a slice has begun");
        self.draft.bytes += self.plan.0.slices[self.draft.slices.len()].bytes();
        self.draft.slices.push(drafted);
        self.block.start = 0;
    }

    /// Begins the next slice that has bytes.
    fn begin_slices(&mut self) {
        while let Some(slice) = self.plan.0.slices.get(self.draft.slices.len()) {
            self.begun = Some(slice.begin_draft(&self.pool));
            if slice.bytes() > 0 {
                return;
            }
            self.end_slice();
        }
    }
}
