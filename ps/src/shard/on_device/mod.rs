//! The state of a slice in the memory of a device: its slots, and copies of its value and of its moving
//! average. An update is applied there, and the new value comes back to the host, where it is read.
//!
//! Wanted properties: (A) a slice on a device has the values and slots of one on the host, up to rounding;
//! (B) a state that leaves a device for a checkpoint has the same bits on any device.

#[cfg(test)]
mod tests;
mod uploader;

use std::sync::Arc;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use pushpull_cuda::{
    Driver, DriverError, Elements, Memory, Place, Source, Transfer, average, optimizer_scratch_bytes,
};
use pushpull_kernels::cpu::OptimizerStep;
use pushpull_transport::buffer::Buffer;

use super::optimizer;
use super::update::Update;
use crate::device::MakeDevice;

use self::uploader::Uploader;
pub(super) use self::uploader::{GradientPlace, Uploads};

/// The number of bytes of the largest value that comes back as a whole while other updates go on. A larger
/// one comes in pieces when the update is finished, which needs less memory.
const WHOLE_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// The number of bytes of the smallest piece of memory through which a value comes back.
const PINNED_BYTES_MIN: usize = 64 << 10;

/// The device of a shard, which all slices of the shard share. The last of them closes it, and thereby frees
/// its memory.
#[derive(Clone)]
pub(super) struct Device(Arc<Open>);

/// Closes the device when it is dropped.
struct Open(Arc<Shared>);

/// What the thread that copies gradients shares with the slices.
struct Shared {
    /// `None` once the device is closed.
    driver: Mutex<Option<Box<dyn Driver + Send>>>,
    uploader: Uploader,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Waits for the copy that is under way.
        let driver = self.0.driver.lock().take();
        drop(driver);
    }
}

impl Device {
    /// Opens a device that can apply optimizers.
    ///
    /// # Errors
    /// If the device cannot be used.
    pub(super) fn open(make: &MakeDevice) -> Result<Self, DriverError> {
        let mut driver = make.open()?;
        driver.load(&Source::optimizer())?;
        let shared = Shared { driver: Mutex::new(Some(driver)), uploader: Uploader::default() };
        Ok(Self(Arc::new(Open(Arc::new(shared)))))
    }

    fn driver(&self) -> MappedMutexGuard<'_, Box<dyn Driver + Send>> {
        MutexGuard::map(self.0.0.driver.lock(), |driver| {
            driver.as_mut().expect("it is open while a slice has it")
        })
    }
}

/// The state of a slice on a device. After an error, the device and the host may differ, so the slice must
/// not be used again.
pub(super) struct OnDevice {
    device: Device,
    value: Memory,
    average: Option<Memory>,
    slots: Vec<Memory>,
    gradient: Memory,
    /// What the optimizer needs if it does not change values in place.
    beside: Option<Beside>,
    /// The copies of the next value and of the next average that have begun.
    begun: [Option<Transfer>; 2],
}

/// The memory of an optimizer that needs all elements before it changes one.
struct Beside {
    next: Memory,
    scratch: Memory,
}

impl OnDevice {
    /// Copies the state of a slice to a device. `step` is any step of the slice's optimizer.
    ///
    /// # Errors
    /// If the device has too little memory, or has failed.
    pub(super) fn new(
        device: &Device,
        step: OptimizerStep,
        value: &Buffer,
        average: Option<&Buffer>,
        slots: &[Arc<Buffer>],
    ) -> Result<Self, DriverError> {
        let driver = &mut **device.driver();
        let mut uploaded = |buffer: &Buffer| {
            let memory = driver.allocate(buffer.len() as u64)?;
            driver.upload(memory.place(), buffer.as_bytes())?;
            Ok(memory)
        };
        let (on_device, average) = (uploaded(value)?, average.map(&mut uploaded).transpose()?);
        let slots = slots.iter().map(|slot| uploaded(slot)).collect::<Result<_, DriverError>>()?;
        let bytes = on_device.bytes();
        let beside = match optimizer_scratch_bytes(step, bytes / 4) {
            0 => None,
            scratch => Some(Beside { next: driver.allocate(bytes)?, scratch: driver.allocate(scratch)? }),
        };
        let gradient = driver.allocate(bytes)?;
        Ok(Self {
            device: device.clone(),
            value: on_device,
            average,
            slots,
            gradient,
            beside,
            begun: [None, None],
        })
    }

    /// Returns the memory of the gradient, for drafts.
    pub(super) fn gradient_place(&self) -> GradientPlace {
        GradientPlace::new(&self.device, self.gradient.place())
    }

    /// Returns the number of bytes of the slots.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.bytes() as usize).sum()
    }

    /// Returns the number of bytes of memory through which the results of an update come back.
    pub(super) fn in_flight_bytes(&self) -> usize {
        let results = [Some(&self.value), self.average.as_ref()].into_iter().flatten();
        let whole = results.map(Memory::bytes).filter(|&bytes| bytes <= WHOLE_BYTES_MAX);
        whole.map(|bytes| (bytes as usize).max(PINNED_BYTES_MIN)).sum()
    }

    /// Begins to apply a gradient. [`finish`](Self::finish) must follow. If `uploads` were made to this
    /// device, it has the gradient already.
    ///
    /// # Errors
    /// If the device fails. The slots are then lost.
    pub(super) fn begin(
        &mut self,
        gradient: &[f32],
        uploads: Option<&Uploads>,
        update: &Update<'_>,
    ) -> Result<(), DriverError> {
        let Self { device, value, average: mean, slots, gradient: gradient_memory, beside, begun } = self;
        let is_there = uploads.is_some_and(|uploads| uploads.are_on(device));
        let driver = &mut **device.driver();
        if !is_there {
            driver.upload(gradient_memory.place(), bytemuck::cast_slice(gradient))?;
        }
        let slots: Vec<Place> = slots.iter().map(Memory::place).collect();
        let elements = Elements {
            next: beside.as_ref().map_or(value.place(), |beside| beside.next.place()),
            value: value.place(),
            slots: &slots,
            gradient: gradient_memory.place(),
            count: gradient.len() as u64,
        };
        let scratch = beside.as_ref().map(|beside| beside.scratch.place());
        elements.apply(driver, optimizer::step(update), update.terms, scratch)?;
        if let Some(beside) = beside {
            std::mem::swap(&mut beside.next, value);
        }
        if let Some(mean) = mean {
            let place = mean.place();
            average(driver, place, place, value.place(), elements.count, update.average_decay)?;
        }
        for (memory, begun) in [Some(value), mean.as_mut()].into_iter().zip(begun) {
            if let Some(memory) = memory.filter(|memory| memory.bytes() <= WHOLE_BYTES_MAX) {
                *begun = Some(driver.begin_download(memory.place(), memory.bytes())?);
            }
        }
        Ok(())
    }

    /// Waits until a gradient is applied. Writes the next value to `next` and, if the slice has a moving
    /// average, the next average to `mean`.
    ///
    /// # Errors
    /// If the device fails. The slots are then lost, and the elements of `next` and `mean` have no meaning.
    pub(super) fn finish(&mut self, next: &mut [f32], mean: Option<&mut [f32]>) -> Result<(), DriverError> {
        let Self { device, value, average, begun, .. } = self;
        let driver = &mut **device.driver();
        let all = [(Some(value), Some(next)), (average.as_mut(), mean)];
        for ((memory, elements), begun) in all.into_iter().zip(begun) {
            let (Some(memory), Some(elements)) = (memory, elements) else { continue };
            let bytes = bytemuck::cast_slice_mut(elements);
            match begun.take() {
                Some(begun) => driver.finish(begun, bytes)?,
                None => driver.download(memory.place(), bytes)?,
            }
        }
        Ok(())
    }

    /// Returns copies of the slots.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn slots(&self) -> Result<Vec<Arc<Buffer>>, DriverError> {
        let driver = &mut **self.device.driver();
        let download = |memory: &Memory| {
            let mut slot = Buffer::zeroed(memory.bytes() as usize);
            driver.download(memory.place(), slot.as_bytes_mut())?;
            Ok(Arc::new(slot))
        };
        self.slots.iter().map(download).collect()
    }
}
