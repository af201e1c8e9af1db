//! A draft of an update: the next values of all slices, computed from the gradients of a push while they
//! arrive. When the push has passed every check, all slices change at once.
//!
//! Wanted properties: (A) an update that was drafted has the same bits as one that was not; (B) a draft that
//! is dropped changes nothing; (C) a draft becomes an update only of the version from which it leads; (D) the
//! values that a draft shows while it is made are those of its update.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pushpull_kernels::cpu::{all_below, all_finite};
use pushpull_messages::gradient::GRADIENT_LIMIT;
use pushpull_messages::id::{Incarnation, Sequence, SliceId, Version};
use pushpull_messages::message::{CreateShard, Push, PushId};
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Credit, Payload, Promise};

use super::on_device::{GradientPlace, Uploads};
use super::outcome::{Fault, Outcome};
use super::shared_work::SharedWork;
use super::slice::{Drafted, SliceView};
use super::threads::UpdateThreads;
use super::timer::Measure;
use super::update::Update;
use crate::sync;

/// The number of bytes of a gradient that are used at a time. They stay in the processor's caches between
/// their arrival and their use.
const BLOCK_BYTES: usize = 128 << 10;
/// The same for a large draft, which leaves its results out of the caches. Larger blocks arrive with fewer
/// waits for the socket.
const LARGE_BLOCK_BYTES: usize = 512 << 10;
/// The number of bytes of the largest gradient that is checked as a whole before it is copied to a device.
/// The blocks of a larger one are checked as they arrive, because that takes less time after the last of
/// them.
const CHECKED_WHOLE_MAX: usize = if cfg!(test) { 1 << 20 } else { 16 << 20 };
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
    /// Whether replies to pushes carry the values in encodings.
    encodes: bool,
    /// The incarnation of each worker that is a member, and the number of its last push.
    members: BTreeMap<u32, (Incarnation, Sequence)>,
    /// In the order of the gradients of a push.
    slices: Vec<SliceView>,
    /// Measures the work on a draft.
    measure: Measure,
    /// The threads that help with a large draft.
    threads: UpdateThreads,
}

/// The next values of all slices.
pub(crate) struct Draft {
    made: Box<Made>,
    /// What came of the blocks.
    outcome: Outcome,
}

/// A draft whose gradients have all arrived. Other threads may still work on its last blocks or gradients.
pub(crate) struct ArrivedDraft {
    made: Box<Made>,
    outcome: Outcome,
    shared: Option<SharedWork>,
}

/// What a draft consists of.
struct Made {
    /// The version from which the draft leads to the next one.
    version: Version,
    learning_rate_factor: f32,
    /// Whether the values are sent while they are made.
    is_shown: bool,
    /// In the order of the gradients of the push.
    slices: Vec<Drafted>,
    bytes: usize,
    /// The copies of the gradients to a device.
    uploads: Option<Uploads>,
    /// The credit for the payload of the push.
    _credit: Option<Credit>,
}

impl Plan {
    pub(super) fn new(
        created: Arc<CreateShard>,
        placement_digest: u32,
        (version, rate, encodes): (Version, f32, bool),
        members: BTreeMap<u32, (Incarnation, Sequence)>,
        slices: Vec<SliceView>,
        (measure, threads): (Measure, UpdateThreads),
    ) -> Self {
        let planned =
            Planned { created, placement_digest, version, rate, encodes, members, slices, measure, threads };
        Self(Arc::new(planned))
    }

    /// Returns the version from which drafts lead to the next one.
    pub(crate) fn version(&self) -> Version {
        self.0.version
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
        if !fits {
            return None;
        }
        let is_large = lengths.iter().sum::<u64>() >= LARGE_BYTES;
        let place = slices.iter().find_map(SliceView::gradient_place);
        let place = place.filter(|_| is_large && self.0.threads.are_there());
        let made = Made {
            version: *version,
            learning_rate_factor: factor * rate,
            is_shown: false,
            slices: Vec::with_capacity(slices.len()),
            bytes: 0,
            uploads: place.and_then(GradientPlace::begin),
            _credit: None,
        };
        let mut writer = DraftWriter {
            plan: self.clone(),
            pool: pool.clone(),
            made: Box::new(made),
            outcome: Outcome::default(),
            begun: None,
            promises: VecDeque::new(),
            block: Block::default(),
            block_bytes: if is_large { LARGE_BLOCK_BYTES } else { BLOCK_BYTES },
            shared: is_large.then(|| SharedWork::new(self.0.threads.clone())),
        };
        writer.begin_slices();
        Some(writer)
    }
}

impl Draft {
    /// Returns whether the draft leads from `version` with this factor of the learning rate.
    pub(super) fn fits(&self, version: Version, learning_rate_factor: f32) -> bool {
        let Made { version: own, learning_rate_factor: factor, .. } = &*self.made;
        *own == version && factor.to_bits() == learning_rate_factor.to_bits()
    }

    /// Returns the first gradient that cannot be applied, if there is one.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.outcome.fault.map(|(_, fault)| fault)
    }

    /// Returns the size of the drafted slices in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.made.bytes
    }

    /// Returns the size in bytes of the gradients that the draft has kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.made.slices.iter().map(Drafted::kept_bytes).sum()
    }

    /// Returns the time that all threads together have spent on the draft, without copies to a device.
    pub(super) const fn took(&self) -> Duration {
        self.outcome.took
    }

    /// Returns whether the gradients have been copied to a device.
    #[cfg(test)]
    pub(super) fn is_uploaded(&self) -> bool {
        self.made.uploads.is_some() && !self.is_torn()
    }

    /// Returns whether a gradient could not be checked, or not be copied to a device.
    pub(super) fn is_torn(&self) -> bool {
        self.made.uploads.as_ref().is_some_and(|uploads| uploads.wait().is_none())
    }

    /// Returns what the draft has for each slice, in the order of the gradients of the push, and the copies
    /// of the gradients to a device.
    pub(super) fn into_slices(self) -> (Vec<Drafted>, Option<Uploads>) {
        let Made { slices, uploads, .. } = *self.made;
        (slices, uploads)
    }
}

impl ArrivedDraft {
    /// Returns the version that the draft makes, if its values were sent while they were made.
    pub(crate) fn sent_ahead(&self) -> Option<Version> {
        self.made.is_shown.then(|| self.made.version.next())
    }

    /// Waits until the last blocks are done, which takes about as long as the work on one block, and until
    /// the last gradients have been copied to a device.
    ///
    /// # Panics
    /// If the work on a block or a copy has.
    pub(crate) fn wait(self) -> Draft {
        let Self { made, mut outcome, shared } = self;
        if let Some(shared) = shared {
            outcome.add(shared.wait());
        }
        if let Some(uploaded) = made.uploads.as_ref().and_then(Uploads::wait) {
            outcome.add(uploaded);
        }
        Draft { made, outcome }
    }
}

/// Makes a draft from gradients, byte by byte.
pub(crate) struct DraftWriter {
    plan: Plan,
    pool: BufferPool,
    made: Box<Made>,
    /// What came of the blocks on which this thread has worked.
    outcome: Outcome,
    /// What the draft has for the current slice; `None` after the last one.
    begun: Option<Drafted>,
    /// The promises of the values that are sent while they are made: those that are not made yet.
    promises: VecDeque<Option<Promise>>,
    block: Block,
    /// The number of bytes of a whole block.
    block_bytes: usize,
    /// The threads that help; `None` if the draft is not large.
    shared: Option<SharedWork>,
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

impl Block {
    /// Returns the elements of the gradient that the block has.
    const fn place(&self) -> Range<usize> {
        self.start / 4..(self.start + self.filled) / 4
    }

    /// Returns what has arrived of a gradient that is not kept.
    fn arrived(&self) -> &[f32] {
        &self.memory.as_ref().expect("it has been filled").as_f32()[..self.filled / 4]
    }
}

/// The work on one block of a gradient.
struct BlockWork {
    plan: Plan,
    /// The position of the slice in the push.
    position: usize,
    /// The elements of the slice that the block has.
    place: Range<usize>,
    learning_rate_factor: f32,
    /// Whether the draft is large.
    is_large: bool,
}

impl BlockWork {
    /// Checks the elements of the gradient, and computes the same ones of the next value and of the next
    /// moving average, if the draft has them.
    fn run(&self, gradient: &[f32], mut next: Option<(&mut [f32], Option<&mut [f32]>)>) -> Outcome {
        let Planned { created, version, slices, measure, .. } = &*self.plan.0;
        let (slice, mut can_be_applied) = (&slices[self.position], true);
        let took = measure(&mut || {
            can_be_applied = match &mut next {
                None => all_below(gradient, GRADIENT_LIMIT),
                Some((value, average)) => {
                    let (spec, last_step, factor) =
                        (&created.update, created.last_step, self.learning_rate_factor);
                    let update = Update::new(spec, *version, last_step, factor, 1);
                    let next = (&mut **value, average.as_deref_mut());
                    slice.draft(self.place.clone(), gradient, &update, next, self.is_large)
                }
            };
        });
        let fault = || Fault { slice: slice.id, is_finite: all_finite(gradient) };
        Outcome { took, fault: (!can_be_applied).then(|| ([self.position, self.place.start], fault())) }
    }
}

impl DraftWriter {
    /// Returns the version that the draft makes, if its values may be sent while they are made: they are the
    /// values that the reply to the push has if the push is applied.
    pub(crate) fn may_show(&self) -> Option<Version> {
        let Planned { created, version, slices, encodes, .. } = &*self.plan.0;
        let may_show = matches!(created.sync, SyncSpec::Async { .. })
            && !encodes
            && !slices.iter().any(SliceView::is_later);
        may_show.then(|| version.next())
    }

    /// Passes the slices and the values that the draft makes to `send`, which returns whether it sends them.
    /// Each value is promised until it is made. Must be called before the first byte arrives.
    pub(crate) fn show(&mut self, send: impl FnOnce(Vec<SliceId>, Payload) -> bool) {
        let slices = &self.plan.0.slices;
        let (promises, values): (VecDeque<_>, Vec<_>) = slices.iter().map(SliceView::promise).unzip();
        if send(slices.iter().map(|slice| slice.id).collect(), Payload::new(values)) {
            (self.promises, self.made.is_shown) = (promises, true);
            // Slices without bytes have ended already.
            let ended = std::mem::take(&mut self.made.slices);
            let ended = ended.into_iter().map(|drafted| keep_next(&mut self.promises, drafted));
            self.made.slices = ended.collect();
        }
    }

    /// Returns memory for the next bytes of the current gradient.
    ///
    /// # Panics
    /// After the last gradient.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let slice = &self.plan.0.slices[self.made.slices.len()];
        let Block { memory, start, filled } = &mut self.block;
        let end = slice.bytes().min(*start + self.block_bytes);
        match self.begun.as_mut().expect("a slice is missing") {
            Drafted::Gradient(gradient) => {
                let gradient = Arc::get_mut(gradient).expect("nothing shares what arrives");
                &mut gradient.as_bytes_mut()[*start + *filled..end]
            }
            Drafted::Next { .. } | Drafted::Whole { .. } | Drafted::Nothing => {
                let memory = memory.get_or_insert_with(|| self.pool.take(self.block_bytes));
                &mut memory.as_bytes_mut()[*filled..end - *start]
            }
        }
    }

    /// Takes the first `bytes` bytes of [`space`](Self::space).
    pub(crate) fn filled(&mut self, bytes: usize) {
        let slice = self.plan.0.slices[self.made.slices.len()].bytes();
        self.block.filled += bytes;
        let end = self.block.start + self.block.filled;
        if self.block.filled == self.block_bytes || end == slice {
            self.use_block();
            (self.block.start, self.block.filled) = (end, 0);
        }
        if end == slice {
            self.end_slice();
            self.begin_slices();
        }
    }

    /// Keeps the credit for the payload.
    pub(crate) fn hold(&mut self, credit: Credit) {
        self.made._credit = Some(credit);
    }

    /// Returns the draft, or `None` if gradients are missing.
    pub(crate) fn finish(self) -> Option<ArrivedDraft> {
        let Self { plan, made, outcome, shared, .. } = self;
        (made.slices.len() == plan.0.slices.len()).then_some(ArrivedDraft { made, outcome, shared })
    }

    /// Checks the block, and computes the part of the next value that it gives. Another thread may do so.
    fn use_block(&mut self) {
        let has_fault =
            self.outcome.fault.is_some() || self.shared.as_ref().is_some_and(SharedWork::has_fault);
        // What is shown must not have what the memory had before.
        if (has_fault && !self.made.is_shown) || self.is_checked_later() {
            return;
        }
        let place = self.block.place();
        let elements = place.len();
        let work = self.work(place.clone());
        let outcome = match self.begun.as_mut().expect("a block belongs to a slice") {
            Drafted::Gradient(gradient) => work.run(&gradient.as_f32()[place], None),
            Drafted::Nothing => work.run(self.block.arrived(), None),
            Drafted::Whole { .. } => unreachable!("a value is whole when its slice has ended"),
            Drafted::Next { value, average } => {
                assert_eq!(value.given(), place.start, "the blocks of a slice come in order");
                let mut next = value.next_part(elements);
                // To wake a thread takes longer than the work on a small block.
                let may_share =
                    !self.made.is_shown && average.is_none() && elements * 4 >= self.block_bytes / 4;
                let free = self.shared.as_ref().filter(|shared| may_share && shared.may_begin());
                if let Some(shared) = free {
                    // The next block gets memory of its own.
                    let memory = self.block.memory.take().expect("it has been filled");
                    let run = move || work.run(&memory.as_f32()[..elements], Some((next.as_f32_mut(), None)));
                    return shared.begin(run);
                }
                let average = average.as_mut().map(|average| &mut average.as_f32_mut()[place]);
                work.run(self.block.arrived(), Some((next.as_f32_mut(), average)))
            }
        };
        self.outcome.add(outcome);
    }

    /// Returns the work on some elements of the current slice.
    fn work(&self, place: Range<usize>) -> BlockWork {
        BlockWork {
            plan: self.plan.clone(),
            position: self.made.slices.len(),
            place,
            learning_rate_factor: self.made.learning_rate_factor,
            is_large: self.shared.is_some(),
        }
    }

    /// Returns the memory of the current gradient on a device, and what copies it there.
    fn upload(&self) -> Option<(&GradientPlace, &Uploads)> {
        let slice = self.plan.0.slices.get(self.made.slices.len())?;
        slice.gradient_place().zip(self.made.uploads.as_ref())
    }

    /// Returns whether the current gradient is checked just before it is copied to a device.
    fn is_checked_later(&self) -> bool {
        let bytes = || self.plan.0.slices[self.made.slices.len()].bytes();
        self.upload().is_some() && bytes() <= CHECKED_WHOLE_MAX
    }

    fn end_slice(&mut self) {
        let drafted = keep_next(&mut self.promises, self.begun.take().expect("a slice has begun"));
        if let (Drafted::Gradient(gradient), Some((to, uploads))) = (&drafted, self.upload()) {
            let check = self.is_checked_later().then(|| self.work(0..gradient.len() / 4));
            uploads.add(to, gradient, move |gradient| {
                check.as_ref().map_or_else(Outcome::default, |work| work.run(gradient, None))
            });
        }
        self.made.bytes += self.plan.0.slices[self.made.slices.len()].bytes();
        self.made.slices.push(drafted);
        self.block.start = 0;
    }

    /// Begins the next slice that has bytes.
    fn begin_slices(&mut self) {
        while let Some(slice) = self.plan.0.slices.get(self.made.slices.len()) {
            self.begun = Some(slice.begin_draft(&self.pool));
            if slice.bytes() > 0 {
                return;
            }
            self.end_slice();
        }
    }
}

/// Keeps the promise of the next slice's value, if there is one, with the value that a draft has for it.
/// Returns what the draft has then.
fn keep_next(promises: &mut VecDeque<Option<Promise>>, drafted: Drafted) -> Drafted {
    let Some(promise) = promises.pop_front().flatten() else { return drafted };
    let (drafted, value) = drafted.made_whole();
    promise.keep(value);
    drafted
}
