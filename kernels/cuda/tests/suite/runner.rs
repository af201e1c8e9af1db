//! What runs the optimizers of the suite: the processor, or a device with a driver.

use pushpull_cuda::{Driver, DriverError, Elements, Memory, Source, average, optimizer_scratch_bytes};
use pushpull_kernels::cpu::{self, GradientTerms, OptimizerStep};

use crate::devices::devices;

/// What a device has computed, or why it could not.
pub(crate) type Ran<T> = Result<T, DriverError>;

/// A variable with the slots of its optimizer.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub value: Vec<f32>,
    pub slots: Vec<Vec<f32>>,
}

/// Runs optimizers.
pub(crate) trait Runner {
    /// Applies one step of an optimizer. If `in_place` is true, the new values replace the old ones.
    fn update(
        &mut self,
        optimizer: OptimizerStep,
        terms: GradientTerms,
        state: &State,
        gradient: &[f32],
        in_place: bool,
    ) -> Ran<State>;

    /// Updates moving averages.
    fn average(&mut self, averages: &[f32], value: &[f32], decay: f32) -> Ran<Vec<f32>>;
}

/// Runs optimizers with the processor's own kernels.
pub(crate) struct Cpu;

impl Runner for Cpu {
    fn update(
        &mut self,
        optimizer: OptimizerStep,
        terms: GradientTerms,
        state: &State,
        gradient: &[f32],
        _: bool,
    ) -> Ran<State> {
        let (value, mut slots) = (&state.value[..], state.slots.clone());
        let mut next = vec![f32::NAN; value.len()];
        let mut parts: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        optimizer.apply(&mut next, Some(value), &mut parts, gradient, terms);
        Ok(State { value: next, slots })
    }

    fn average(&mut self, averages: &[f32], value: &[f32], decay: f32) -> Ran<Vec<f32>> {
        let mut next = vec![f32::NAN; value.len()];
        cpu::average(&mut next, Some(averages), value, decay);
        Ok(next)
    }
}

/// Runs optimizers on a device.
pub(crate) struct OnDevice(Box<dyn Driver>);

impl OnDevice {
    /// Loads kernels, which may be other ones than ours.
    pub(crate) fn new(mut driver: Box<dyn Driver>, sources: &[Source]) -> Ran<Self> {
        sources.iter().try_for_each(|source| driver.load(source))?;
        Ok(Self(driver))
    }

    pub(crate) fn upload(&mut self, numbers: &[f32]) -> Ran<Memory> {
        let memory = self.0.allocate(4 * numbers.len() as u64)?;
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.0.upload(memory.place(), &bytes)?;
        Ok(memory)
    }

    /// Returns the numbers in memory, and releases it.
    fn take(&mut self, memory: Memory) -> Ran<Vec<f32>> {
        let mut bytes = vec![0; memory.bytes() as usize];
        self.0.download(memory.place(), &mut bytes)?;
        self.0.release(memory)?;
        let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        Ok(bytes.chunks_exact(4).map(number).collect())
    }
}

impl Runner for OnDevice {
    fn update(
        &mut self,
        optimizer: OptimizerStep,
        terms: GradientTerms,
        state: &State,
        gradient: &[f32],
        in_place: bool,
    ) -> Ran<State> {
        let count = gradient.len() as u64;
        let (value, gradient) = (self.upload(&state.value)?, self.upload(gradient)?);
        let slots = state.slots.iter().map(|slot| self.upload(slot)).collect::<Result<Vec<_>, _>>()?;
        let places: Vec<_> = slots.iter().map(Memory::place).collect();
        let in_place = in_place && !matches!(optimizer, OptimizerStep::Lamb(_));
        let beside = if in_place { None } else { Some(self.0.allocate(value.bytes())?) };
        let scratch = match optimizer_scratch_bytes(optimizer, count) {
            0 => None,
            bytes => Some(self.0.allocate(bytes)?),
        };
        let elements = Elements {
            next: beside.as_ref().unwrap_or(&value).place(),
            value: value.place(),
            slots: &places,
            gradient: gradient.place(),
            count,
        };
        elements.apply(&mut *self.0, optimizer, terms, scratch.as_ref().map(Memory::place))?;
        let (next, old) = match beside {
            Some(next) => (next, Some(value)),
            None => (value, None),
        };
        let slots = slots.into_iter().map(|slot| self.take(slot)).collect::<Result<_, _>>()?;
        let value = self.take(next)?;
        for unused in old.into_iter().chain(scratch).chain([gradient]) {
            self.0.release(unused)?;
        }
        Ok(State { value, slots })
    }

    fn average(&mut self, averages: &[f32], value: &[f32], decay: f32) -> Ran<Vec<f32>> {
        let (averages, value) = (self.upload(averages)?, self.upload(value)?);
        let count = value.bytes() / 4;
        average(&mut *self.0, averages.place(), averages.place(), value.place(), count, decay)?;
        let taken = self.take(averages)?;
        self.0.release(value)?;
        Ok(taken)
    }
}

/// Returns everything that can run optimizers here, with its name.
pub(crate) fn runners(seed: u64) -> Vec<(&'static str, Box<dyn Runner>)> {
    let on_device = |(name, device): (_, Box<dyn Driver>)| {
        let runner: Box<dyn Runner> =
            Box::new(OnDevice::new(device, &[Source::optimizer()]).expect("our kernels compile"));
        (name, runner)
    };
    let cpu: (_, Box<dyn Runner>) = ("cpu", Box::new(Cpu));
    std::iter::once(cpu).chain(devices(seed).into_iter().map(on_device)).collect()
}
