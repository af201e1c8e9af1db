//! What runs the operations of the suite: the processor, or a device with a driver.

use pushpull_cuda::{
    Argument, Chain, Compiler, Driver, DriverError, Elements, Emulator, Grid, Launch, Memory, Optimizer,
    RowOperation, Source, average,
};
use pushpull_kernels::cpu::{self, GradientTerms, Step, Threads};

/// What a device has computed, or why it could not.
pub(crate) type Ran<T> = Result<T, DriverError>;

/// A variable with the slots of its optimizer.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub value: Vec<f32>,
    pub slots: Vec<Vec<f32>>,
}

/// A chain of element-wise operations, and what it is applied to.
pub(crate) struct ChainCase {
    pub steps: Vec<Step>,
    pub first: Vec<f32>,
    pub operands: Vec<Vec<f32>>,
}

/// Runs operations.
pub(crate) trait Runner {
    /// Applies one step of an optimizer. If `in_place` is true, the new values replace the old ones.
    fn update(
        &mut self,
        optimizer: Optimizer,
        terms: GradientTerms,
        state: &State,
        gradient: &[f32],
        in_place: bool,
    ) -> Ran<State>;

    /// Updates moving averages.
    fn average(&mut self, averages: &[f32], value: &[f32], decay: f32) -> Ran<Vec<f32>>;

    /// Computes an operation on rows of `n` elements.
    fn rows(&mut self, operation: RowOperation, inputs: &[Vec<f32>], n: usize) -> Ran<Vec<f32>>;

    /// Computes chains.
    fn chains(&mut self, cases: &[ChainCase]) -> Ran<Vec<Vec<f32>>>;
}

/// Runs operations with the processor's own kernels.
pub(crate) struct Cpu;

impl Runner for Cpu {
    fn update(
        &mut self,
        optimizer: Optimizer,
        terms: GradientTerms,
        state: &State,
        gradient: &[f32],
        _: bool,
    ) -> Ran<State> {
        let (value, mut slots) = (&state.value[..], state.slots.clone());
        let mut next = vec![f32::NAN; value.len()];
        let mut parts: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        match (optimizer, &mut parts[..]) {
            (Optimizer::Sgd(rate), []) => cpu::sgd(&mut next, value, gradient, terms, rate),
            (Optimizer::Momentum(step), [a]) => cpu::momentum(&mut next, value, a, gradient, terms, step),
            (Optimizer::Adam(step), [a, b]) => cpu::adam(&mut next, value, a, b, gradient, terms, step),
            (Optimizer::AdamW(step), [a, b]) => cpu::adamw(&mut next, value, a, b, gradient, terms, step),
            (Optimizer::Adagrad(step), [a]) => cpu::adagrad(&mut next, value, a, gradient, terms, step),
            (Optimizer::RmsProp(step), [a]) => cpu::rmsprop(&mut next, value, a, None, gradient, terms, step),
            (Optimizer::RmsProp(step), [a, b]) => {
                cpu::rmsprop(&mut next, value, a, Some(b), gradient, terms, step);
            }
            (Optimizer::Ftrl(step), [a, b]) => cpu::ftrl(&mut next, value, a, b, gradient, terms, step),
            (Optimizer::Lamb(step), [a, b]) => cpu::lamb(&mut next, value, a, b, gradient, terms, step),
            (Optimizer::Lion(step), [a]) => cpu::lion(&mut next, value, a, gradient, terms, step),
            (optimizer, slots) => panic!("{optimizer:?} with {} slots", slots.len()),
        }
        Ok(State { value: next, slots })
    }

    fn average(&mut self, averages: &[f32], value: &[f32], decay: f32) -> Ran<Vec<f32>> {
        let mut next = vec![f32::NAN; value.len()];
        cpu::average(&mut next, averages, value, decay);
        Ok(next)
    }

    fn rows(&mut self, operation: RowOperation, inputs: &[Vec<f32>], n: usize) -> Ran<Vec<f32>> {
        let mut to = vec![f32::NAN; inputs[0].len()];
        match (operation, inputs) {
            (RowOperation::Softmax, [x]) => cpu::softmax(&mut to, x, n, Threads::One),
            (RowOperation::CausalSoftmax, [x]) => cpu::causal_softmax(&mut to, x, n, Threads::One),
            (RowOperation::SoftmaxGrad, [y, dy]) => cpu::softmax_grad(&mut to, y, dy, n, Threads::One),
            (RowOperation::LogSoftmax, [x]) => cpu::log_softmax(&mut to, x, n, Threads::One),
            (RowOperation::LogSoftmaxGrad, [y, dy]) => {
                cpu::log_softmax_grad(&mut to, y, dy, n, Threads::One);
            }
            (operation, inputs) => panic!("{operation:?} of {} matrices", inputs.len()),
        }
        Ok(to)
    }

    fn chains(&mut self, cases: &[ChainCase]) -> Ran<Vec<Vec<f32>>> {
        let run = |case: &ChainCase| {
            let mut to = vec![f32::NAN; case.first.len()];
            let operands: Vec<&[f32]> = case.operands.iter().map(Vec::as_slice).collect();
            cpu::chain(&mut to, Some(&case.first), &case.steps, &operands, Threads::One);
            to
        };
        Ok(cases.iter().map(run).collect())
    }
}

/// Runs operations on a device.
pub(crate) struct OnDevice<D>(D);

impl<D: Driver> OnDevice<D> {
    /// Loads kernels, which may be other ones than ours.
    pub(crate) fn new(mut driver: D, sources: &[Source]) -> Ran<Self> {
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

impl<D: Driver> OnDevice<D> {
    /// Computes the gradient of the softmax of rows of `n` elements with this number of blocks.
    pub(crate) fn softmax_grad_by(&mut self, blocks: u32, [y, dy]: [&[f32]; 2], n: usize) -> Ran<Vec<f32>> {
        let (outputs, gradients) = (self.upload(y)?, self.upload(dy)?);
        let to = self.0.allocate(outputs.bytes())?;
        let places = [&to, &outputs, &gradients].map(|memory| Argument::Place(memory.place()));
        let sizes = [y.len() / n, n].map(|size| Argument::U64(size as u64));
        let grid = Grid { blocks: [blocks, 1, 1], threads: [256, 1, 1] };
        let arguments = [&places[..], &sizes].concat();
        self.0.launch(Launch { kernel: "softmax_grad", grid, arguments: &arguments })?;
        self.0.release(outputs)?;
        self.0.release(gradients)?;
        self.take(to)
    }

    /// Computes chains with these kernels. Every other chain replaces its first operand.
    pub(crate) fn chains_with(&mut self, kernels: &Source, cases: &[ChainCase]) -> Ran<Vec<Vec<f32>>> {
        self.0.load(kernels)?;
        let chains = chains_of(cases);
        let mut all = Vec::new();
        for (number, (chain, case)) in chains.iter().zip(cases).enumerate() {
            let (first, count) = (self.upload(&case.first)?, case.first.len() as u64);
            let used = &case.operands[..chain.operands()];
            let operands = used.iter().map(|one| self.upload(one)).collect::<Result<Vec<_>, _>>()?;
            let places: Vec<_> = operands.iter().map(|one| (one.place(), one.bytes() / 4)).collect();
            let beside = if number % 2 == 0 { Some(self.0.allocate(first.bytes())?) } else { None };
            let to = beside.as_ref().unwrap_or(&first).place();
            chain.run(&mut self.0, to, first.place(), &places, count)?;
            let (result, unused) = match beside {
                Some(to) => (to, Some(first)),
                None => (first, None),
            };
            all.push(self.take(result)?);
            for unused in operands.into_iter().chain(unused) {
                self.0.release(unused)?;
            }
        }
        Ok(all)
    }
}

impl<D: Driver> Runner for OnDevice<D> {
    fn update(
        &mut self,
        optimizer: Optimizer,
        terms: GradientTerms,
        state: &State,
        gradient: &[f32],
        in_place: bool,
    ) -> Ran<State> {
        let count = gradient.len() as u64;
        let (value, gradient) = (self.upload(&state.value)?, self.upload(gradient)?);
        let slots = state.slots.iter().map(|slot| self.upload(slot)).collect::<Result<Vec<_>, _>>()?;
        let places: Vec<_> = slots.iter().map(Memory::place).collect();
        let in_place = in_place && !matches!(optimizer, Optimizer::Lamb(_));
        let beside = if in_place { None } else { Some(self.0.allocate(value.bytes())?) };
        let scratch = match optimizer.scratch_bytes(count) {
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
        optimizer.apply(&mut self.0, elements, terms, scratch.as_ref().map(Memory::place))?;
        let (next, old) = match beside {
            Some(next) => (next, Some(value)),
            None => (value, None),
        };
        let slots = slots.into_iter().map(|slot| self.take(slot)).collect::<Result<_, _>>()?;
        for unused in old.into_iter().chain(scratch).chain([gradient]) {
            self.0.release(unused)?;
        }
        Ok(State { value: self.take(next)?, slots })
    }

    fn average(&mut self, averages: &[f32], value: &[f32], decay: f32) -> Ran<Vec<f32>> {
        let (averages, value) = (self.upload(averages)?, self.upload(value)?);
        let count = value.bytes() / 4;
        average(&mut self.0, averages.place(), averages.place(), value.place(), count, decay)?;
        self.0.release(value)?;
        self.take(averages)
    }

    fn rows(&mut self, operation: RowOperation, inputs: &[Vec<f32>], n: usize) -> Ran<Vec<f32>> {
        let inputs = inputs.iter().map(|one| self.upload(one)).collect::<Result<Vec<_>, _>>()?;
        let places: Vec<_> = inputs.iter().map(Memory::place).collect();
        let to = self.0.allocate(inputs[0].bytes())?;
        let rows = (inputs[0].bytes() / 4).checked_div(n as u64).unwrap_or(0);
        operation.run(&mut self.0, to.place(), &places, rows, n as u64)?;
        for unused in inputs {
            self.0.release(unused)?;
        }
        self.take(to)
    }

    fn chains(&mut self, cases: &[ChainCase]) -> Ran<Vec<Vec<f32>>> {
        self.chains_with(&Chain::source("chains", &chains_of(cases)), cases)
    }
}

/// Returns the chains of these cases.
pub(crate) fn chains_of(cases: &[ChainCase]) -> Vec<Chain> {
    let chain = |(number, case): (usize, &ChainCase)| Chain::new(number, case.steps.clone());
    cases.iter().enumerate().map(chain).collect()
}

/// Returns the compiler for the emulator; `None`, after a warning, if this machine has none.
pub(crate) fn compiler() -> Option<Compiler> {
    match Compiler::find(concat!(env!("CARGO_TARGET_TMPDIR"), "/emulator")) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("SKIPPED: {error}, so CUDA kernels are NOT tested.");
            None
        }
    }
}

/// Returns everything that can run operations here, with its name.
pub(crate) fn runners(seed: u64) -> Vec<(&'static str, Box<dyn Runner>)> {
    let mut all: Vec<(_, Box<dyn Runner>)> = vec![("cpu", Box::new(Cpu))];
    if let Some(compiler) = compiler() {
        let emulator = Emulator::start(&compiler, seed).expect("the emulator starts");
        let sources = [Source::optimizer(), Source::rows()];
        all.push(("emulated", Box::new(OnDevice::new(emulator, &sources).expect("our kernels compile"))));
    }
    all
}
