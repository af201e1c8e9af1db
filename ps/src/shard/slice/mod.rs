//! A slice in the memory of its shard. While its value or its moving average may have readers, an update
//! computes the next one into another buffer; otherwise it changes them in place. It changes slots in place.
//! If a save still reads a slot, the update changes a copy of it. The slots may be on a device, which then
//! applies the updates.

#[cfg(test)]
pub(super) mod tests;

use std::ops::Range;
use std::sync::Arc;

use pushpull_cuda::DriverError;
use pushpull_kernels::cpu::{
    OptimizerStep, Threads, accumulate, add_into, all_below, average, sgd_past_caches,
};
use pushpull_messages::gradient::GRADIENT_LIMIT;
use pushpull_messages::id::{GlobalStep, SliceId, Version};
use pushpull_messages::optimizer::{UpdateSpec, VariableRule};
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::variable::VariableSpec;
use pushpull_transport::buffer::{Buffer, BufferPool, Parts, Promise, Segment};

use super::blocks::{Change, SLOTS_MAX, SliceWork};
use super::cut::SliceState;
use super::on_device::{Device, GradientPlace, OnDevice, Uploads};
use super::update::Update;
use super::{initial, optimizer};

/// A slice: its value, its moving average and the optimizer's slots.
pub(super) struct Slice {
    id: SliceId,
    /// The variable's name, for error messages.
    variable: String,
    value: Arc<Buffer>,
    /// The moving average, if the job keeps a moving average of the variable.
    average: Option<Arc<Buffer>>,
    treatment: Arc<Treatment>,
    slots: Slots,
    /// The update that has begun on a device.
    begun: Option<Begun>,
}

/// The memory for the results of an update that has begun on a device, as far as they have memory of their
/// own.
struct Begun {
    next: Option<Buffer>,
    average: Option<Buffer>,
}

/// The optimizer's slots of a slice.
enum Slots {
    /// In the memory of the host.
    Host(Vec<Arc<Buffer>>),
    /// In the memory of a device, which applies the updates.
    Device(Box<OnDevice>),
}

/// What a draft has for one slice.
pub(super) enum Drafted {
    /// The next value and the next moving average.
    Next { value: Parts, average: Option<Buffer> },
    /// The same, when all of the next value is made. It may have readers.
    Whole { value: Arc<Buffer>, average: Option<Buffer> },
    /// Nothing, because the slice is frozen.
    Nothing,
    /// The gradient, for an optimizer with slots, or for a device. The slots and the memory of the device
    /// change in place, so the update is computed later. While the gradient arrives, nothing shares it.
    Gradient(Arc<Buffer>),
}

impl Drafted {
    /// Returns the size in bytes of the gradient, if this is one.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Self::Gradient(gradient) => gradient.len(),
            Self::Next { .. } | Self::Whole { .. } | Self::Nothing => 0,
        }
    }

    /// Returns this with its next value as a whole, and the value.
    ///
    /// # Panics
    /// If there is no next value, or if a thread still works on it.
    pub(super) fn made_whole(self) -> (Self, Arc<Buffer>) {
        let Self::Next { value, average } = self else { unreachable!("a next value is promised") };
        let value = Arc::new(value.into_buffer().expect("no thread works on a value that is made"));
        (Self::Whole { value: Arc::clone(&value), average }, value)
    }
}

/// What a draft must know of a slice. The contents of its buffers never change.
pub(super) struct SliceView {
    pub id: SliceId,
    value: Arc<Buffer>,
    average: Option<Arc<Buffer>>,
    treatment: Arc<Treatment>,
    /// Whether the update is computed later from the gradient, because it changes slots or a device's memory.
    keeps_gradient: bool,
    /// The memory of the gradient on a device.
    gradient_place: Option<GradientPlace>,
}

impl SliceView {
    pub(super) fn bytes(&self) -> usize {
        self.value.len()
    }

    /// Returns the memory of the gradient on a device, if the slice is on one.
    pub(super) const fn gradient_place(&self) -> Option<&GradientPlace> {
        self.gradient_place.as_ref()
    }

    /// Returns whether a draft has the gradient instead of the next value.
    pub(super) const fn is_later(&self) -> bool {
        self.keeps_gradient
    }

    /// Returns the promise of the next value, and the value. A frozen slice keeps its value.
    pub(super) fn promise(&self) -> (Option<Promise>, Segment) {
        if matches!(*self.treatment, Treatment::Frozen) {
            return (None, Segment::whole(Arc::clone(&self.value)));
        }
        let promise = Promise::new(self.bytes());
        let value = promise.segment(0, self.bytes());
        (Some(promise), value)
    }

    /// Returns the memory for what a draft has for the slice.
    pub(super) fn begin_draft(&self, pool: &BufferPool) -> Drafted {
        if matches!(*self.treatment, Treatment::Frozen) {
            return Drafted::Nothing;
        }
        if self.keeps_gradient {
            return Drafted::Gradient(Arc::new(pool.take(self.bytes())));
        }
        let average = self.average.as_ref().map(|average| pool.take(average.len()));
        Drafted::Next { value: Parts::new(pool.take(self.bytes())), average }
    }

    /// Computes the elements `place` of the next value and of the next moving average, from the same elements
    /// of a gradient. If the draft `is_large`, they may be written past the caches. Returns whether the
    /// gradient can be applied; otherwise the caller must discard the results.
    ///
    /// # Panics
    /// If the slice is frozen.
    pub(super) fn draft(
        &self,
        place: Range<usize>,
        gradient: &[f32],
        update: &Update<'_>,
        (next, mean): (&mut [f32], Option<&mut [f32]>),
        is_large: bool,
    ) -> bool {
        let value = &self.value.as_f32()[place.clone()];
        let old = self.average.as_ref().map(|average| &average.as_f32()[place]);
        let update = self.treatment.of(update).expect("a frozen slice has no next value");
        if is_large
            && mean.is_none()
            && let OptimizerStep::Sgd(rate) = optimizer::step(&update)
        {
            return sgd_past_caches(next, value, gradient, update.terms, rate, GRADIENT_LIMIT);
        }
        optimizer::apply(&update, next, Some(value), gradient, &mut []);
        if let (Some(mean), Some(old)) = (mean, old) {
            average(mean, Some(old), next, update.average_decay);
        }
        all_below(gradient, GRADIENT_LIMIT)
    }
}

/// What a push does to a slice.
enum Treatment {
    /// The slice is updated by the rule of the job.
    Usual,
    /// The slice is updated by a rule of its own.
    Special(Box<VariableRule>),
    /// The variable is not trained. The pushed value is subtracted from the variable's value, without an
    /// optimizer.
    Untrained,
    /// The variable is frozen. The pushed value is ignored.
    Frozen,
}

impl Treatment {
    fn new(update: &UpdateSpec, variable: &VariableSpec) -> Self {
        let rule = update.rule(variable);
        if rule.frozen {
            Self::Frozen
        } else if !variable.trainable {
            Self::Untrained
        } else if rule == update.usual_rule() {
            Self::Usual
        } else {
            Self::Special(Box::new(rule))
        }
    }

    /// Returns the update of a slice that is treated in this way; `None` if the slice does not change.
    fn of<'u>(&'u self, update: &Update<'u>) -> Option<Update<'u>> {
        match self {
            Self::Usual => Some(*update),
            Self::Special(rule) => Some(update.by(rule)),
            Self::Untrained => Some(update.untrained()),
            Self::Frozen => None,
        }
    }
}

impl Slice {
    /// Returns a slice with the state `found`, which was read from a checkpoint. If `found` is `None`, the
    /// slice has its initial value.
    pub(super) fn new(
        id: SliceId,
        slice: &SliceSpec,
        variable: &VariableSpec,
        update: &UpdateSpec,
        seed: u64,
        found: Option<SliceState>,
        pool: &BufferPool,
    ) -> Self {
        let bytes = slice.elements(variable) * 4;
        let (value, average, mut slots) = match found {
            Some(SliceState { value, average, slots, .. }) => (value, average, slots),
            None => {
                let mut value = pool.take(bytes);
                initial::fill(value.as_f32_mut(), variable, slice, seed);
                (Arc::new(value), None, Vec::new())
            }
        };
        if slots.is_empty() {
            let slot = |(_, initial): (&str, f32)| {
                let mut slot = Buffer::zeroed(bytes);
                if initial != 0.0 {
                    slot.as_f32_mut().fill(initial);
                }
                Arc::new(slot)
            };
            slots = optimizer::initial_slots(update, variable).into_iter().map(slot).collect();
        }
        Self {
            id,
            variable: variable.name.clone(),
            average: update.averages(variable).then(|| average.unwrap_or_else(|| Arc::clone(&value))),
            value,
            treatment: Arc::new(Treatment::new(update, variable)),
            slots: Slots::Host(slots),
            begun: None,
        }
    }

    /// Moves the slots to a device, where updates are applied from now on. A slice that no optimizer updates
    /// stays on the host. `update` is that with which the slice was made.
    ///
    /// # Errors
    /// If the device has too little memory, or has failed.
    pub(super) fn moved_to(self, device: &Device, update: &UpdateSpec) -> Result<Self, DriverError> {
        let any = Update::new(update, Version(0), GlobalStep(1), 1.0, 1);
        let step = match &*self.treatment {
            Treatment::Usual => optimizer::step(&any),
            Treatment::Special(rule) => optimizer::step(&any.by(rule)),
            Treatment::Untrained | Treatment::Frozen => return Ok(self),
        };
        let Slots::Host(slots) = &self.slots else { unreachable!("a slice moves once") };
        if self.value.is_empty() {
            return Ok(self);
        }
        let on_device = OnDevice::new(device, step, &self.value, self.average.as_deref(), slots)?;
        Ok(Self { slots: Slots::Device(Box::new(on_device)), ..self })
    }

    pub(super) const fn id(&self) -> SliceId {
        self.id
    }

    pub(super) fn variable(&self) -> &str {
        &self.variable
    }

    pub(super) fn bytes(&self) -> usize {
        self.value.len()
    }

    /// Returns the number of bytes that the slots and the moving average take.
    pub(super) fn slot_bytes(&self) -> usize {
        let slots = match &self.slots {
            Slots::Host(slots) => slots.iter().map(|slot| slot.len()).sum(),
            Slots::Device(on_device) => on_device.slot_bytes(),
        };
        slots + self.average.as_ref().map_or(0, |average| average.len())
    }

    /// Returns the current value. The segment's content never changes, even when updates are applied later.
    pub(super) fn snapshot(&self) -> Segment {
        Segment::whole(Arc::clone(&self.value))
    }

    /// Returns the current moving average, or the value if the slice has no average. The segment's content
    /// never changes.
    pub(super) fn averaged(&self) -> Segment {
        Segment::whole(Arc::clone(self.average.as_ref().unwrap_or(&self.value)))
    }

    /// Returns the slice's current state. The contents of the returned buffers never change.
    ///
    /// # Errors
    /// If the slots are on a device that has failed.
    pub(super) fn state(&self) -> Result<SliceState, DriverError> {
        let Self { id, value, average, slots, .. } = self;
        let slots = match slots {
            Slots::Host(slots) => slots.clone(),
            Slots::Device(on_device) => on_device.slots()?,
        };
        Ok(SliceState { id: *id, value: Arc::clone(value), average: average.clone(), slots })
    }

    /// Applies the sum of `gradients`. A value that has another reference stays as it is; the next value is
    /// then computed into another buffer, and the current buffer goes back to the pool when its last reader
    /// drops it. A value without other references changes in place.
    ///
    /// If the slots are on a device, the update has only begun: [`finish`](Self::finish) must follow before
    /// the slice is read. `uploads` has the gradient if the device has it already.
    ///
    /// # Errors
    /// If the slots are on a device that fails. The slice must not be used again.
    pub(super) fn apply(
        &mut self,
        gradients: &[&[f32]],
        uploads: Option<&Uploads>,
        update: &Update<'_>,
        pool: &BufferPool,
        threads: Threads,
    ) -> Result<(), DriverError> {
        let treatment = Arc::clone(&self.treatment);
        let Some(update) = treatment.of(update) else { return Ok(()) };
        let whole = update.optimizer.needs_whole_variables();
        let on_device = matches!(self.slots, Slots::Device(_));
        let needs_sum = gradients.len() > 1 && (whole || on_device);
        let sum = needs_sum.then(|| sum_of(gradients, pool, threads));
        let sum = sum.as_ref().map(|sum| [sum.as_f32()]);
        let gradients = sum.as_ref().map_or(gradients, |sum| sum);
        let beside = |buffer: &mut Arc<Buffer>| {
            let keeps_old = (whole && !on_device) || Arc::get_mut(buffer).is_none();
            keeps_old.then(|| pool.take(buffer.len()))
        };
        let mut next = beside(&mut self.value);
        let mut next_average = self.average.as_mut().and_then(beside);
        match &mut self.slots {
            Slots::Device(on_device) => {
                on_device.begin(gradients[0], uploads, &update)?;
                self.begun = Some(Begun { next, average: next_average });
                return Ok(());
            }
            Slots::Host(slots) => {
                slots.iter_mut().for_each(|slot| make_own(slot, pool));
                let mut slots = slots.iter_mut().map(elements_of);
                let slots_used = slots.len();
                let work = SliceWork {
                    value: change(&mut self.value, next.as_mut()),
                    average: self.average.as_mut().map(|average| change(average, next_average.as_mut())),
                    slots: [(); SLOTS_MAX].map(|()| slots.next().unwrap_or_default()),
                    slots_used,
                    gradients,
                    start: 0,
                };
                drop(slots);
                if whole { work.run_whole(&update) } else { work.run(&update, threads) }
            }
        }
        self.replace(next, next_average);
        Ok(())
    }

    /// Returns whether an update has begun on a device and is not finished.
    pub(super) const fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns the number of bytes of memory through which the results of an update come back from a device;
    /// 0 for a slice on the host.
    pub(super) fn in_flight_bytes(&self) -> usize {
        match &self.slots {
            Slots::Host(_) => 0,
            Slots::Device(on_device) => on_device.in_flight_bytes(),
        }
    }

    /// Waits until the update that has begun on a device is done. Does nothing if none has begun.
    ///
    /// # Errors
    /// If the device fails. The slice must not be used again.
    pub(super) fn finish(&mut self) -> Result<(), DriverError> {
        let (Some(Begun { mut next, mut average }), Slots::Device(on_device)) =
            (self.begun.take(), &mut self.slots)
        else {
            return Ok(());
        };
        let value = new_elements(&mut self.value, next.as_mut());
        let mean = self.average.as_mut().map(|mean| new_elements(mean, average.as_mut()));
        on_device.finish(value, mean)?;
        self.replace(next, average);
        Ok(())
    }

    /// Replaces the value and the average, as far as the next ones are not in their memory.
    fn replace(&mut self, next: Option<Buffer>, average: Option<Buffer>) {
        next.into_iter().for_each(|next| self.value = Arc::new(next));
        average.into_iter().for_each(|next| self.average = Some(Arc::new(next)));
    }

    /// Returns what a draft must know of the slice.
    pub(super) fn view(&self) -> SliceView {
        SliceView {
            id: self.id,
            value: Arc::clone(&self.value),
            average: self.average.clone(),
            treatment: Arc::clone(&self.treatment),
            keeps_gradient: match &self.slots {
                Slots::Host(slots) => !slots.is_empty(),
                Slots::Device(_) => true,
            },
            gradient_place: match &self.slots {
                Slots::Host(_) => None,
                Slots::Device(on_device) => Some(on_device.gradient_place()),
            },
        }
    }

    /// Applies what a draft has for the slice, as [`apply`](Self::apply) does.
    ///
    /// # Errors
    /// Returns the errors of [`apply`](Self::apply).
    ///
    /// # Panics
    /// If a thread still works on the draft.
    pub(super) fn apply_drafted(
        &mut self,
        drafted: Drafted,
        uploads: Option<&Uploads>,
        update: &Update<'_>,
        pool: &BufferPool,
        threads: Threads,
    ) -> Result<(), DriverError> {
        match drafted {
            Drafted::Nothing => {}
            Drafted::Gradient(gradient) => {
                self.apply(&[gradient.as_f32()], uploads, update, pool, threads)?;
            }
            Drafted::Next { value, average } => {
                self.value = Arc::new(value.into_buffer().expect("no thread works on a draft that is made"));
                self.average = average.map(Arc::new);
            }
            Drafted::Whole { value, average } => {
                self.value = value;
                self.average = average.map(Arc::new);
            }
        }
        Ok(())
    }
}

/// Returns the threads that share the slices of an update: all of `threads`, unless a slice needs them
/// itself. A thread that waits inside a device or for a sum must not begin another slice: that one would lock
/// the same device, or take memory for another sum.
pub(super) fn among_slices(slices: &[Slice], update: &Update<'_>, threads: Threads) -> Threads {
    let needs_threads = |slice: &Slice| {
        let needs_whole = |update: Update<'_>| update.optimizer.needs_whole_variables();
        matches!(slice.slots, Slots::Device(_)) || slice.treatment.of(update).is_some_and(needs_whole)
    };
    if slices.iter().any(needs_threads) { Threads::One } else { threads }
}

/// Returns a buffer's elements for writing. The caller has made sure that nothing else shares the buffer.
fn elements_of(buffer: &mut Arc<Buffer>) -> &mut [f32] {
    Arc::get_mut(buffer).expect("a buffer that changes in place has one owner").as_f32_mut()
}

/// Returns the memory for the new elements of a buffer: those of `next`, or of the buffer itself.
fn new_elements<'a>(buffer: &'a mut Arc<Buffer>, next: Option<&'a mut Buffer>) -> &'a mut [f32] {
    match next {
        Some(next) => next.as_f32_mut(),
        None => elements_of(buffer),
    }
}

/// Replaces a buffer that something else shares with a copy.
fn make_own(buffer: &mut Arc<Buffer>, pool: &BufferPool) {
    if Arc::get_mut(buffer).is_none() {
        let mut copy = pool.take(buffer.len());
        copy.as_bytes_mut().copy_from_slice(buffer.as_bytes());
        *buffer = Arc::new(copy);
    }
}

/// Returns the change of a buffer's elements: in place, or into `next`.
fn change<'a>(buffer: &'a mut Arc<Buffer>, next: Option<&'a mut Buffer>) -> Change<'a> {
    match next {
        Some(next) => Change::Beside { old: buffer.as_f32(), next: next.as_f32_mut() },
        None => Change::InPlace(elements_of(buffer)),
    }
}

/// Returns the sum of at least two gradients.
fn sum_of(gradients: &[&[f32]], pool: &BufferPool, threads: Threads) -> Buffer {
    let mut sum = pool.take(4 * gradients[0].len());
    add_into(sum.as_f32_mut(), gradients[0], gradients[1], threads);
    gradients[2..].iter().for_each(|other| accumulate(sum.as_f32_mut(), other, threads));
    sum
}
