//! A program that overlaps copies with kernels on all streams, as an executor does, and what can be wrong
//! with its order.

use pushpull_cuda::{
    Argument, Driver, DriverError, Event, Graph, Grid, Launch, Memory, Place, Source, Stream,
};

/// The number of elements of each tensor, and of its bytes.
const ELEMENTS: u64 = 40;
const BYTES: u64 = 4 * ELEMENTS;
/// The number of steps.
const STEPS: usize = 5;

/// What the program forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The kernels do not wait for their input.
    NoWaitForTheUpload,
    /// The event of the input is recorded before the upload.
    UploadRecordedTooEarly,
    /// A copy from the device does not wait for the kernel.
    NoWaitForTheKernel,
    /// The event of the output is recorded before its kernel.
    KernelRecordedTooEarly,
    /// An input is overwritten although a kernel may still read it.
    InputUsedAgainTooEarly,
    /// An output is overwritten although it may still be copied.
    OutputUsedAgainTooEarly,
    /// Memory is released although kernels may still use it.
    ReleasedInUse,
    /// The last transfer is dropped.
    TransferNotFinished,
    /// The memory is dropped.
    NotReleased,
    /// A kernel does not declare what it reads.
    ReadNotDeclared,
    /// A kernel declares to read what it writes.
    WriteDeclaredAsRead,
}

/// How the program runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    pub wrong: Option<Wrong>,
    /// Whether the kernels are captured once, and replayed at each step.
    pub captured: bool,
    /// Whether the launches declare what they touch.
    pub declares: bool,
}

/// The memory: two inputs and two outputs, which the steps use in turn, and a state.
struct Places {
    inputs: [Place; 2],
    outputs: [Place; 2],
    state: Place,
}

/// Returns the input of a step.
fn input(step: usize) -> Vec<f32> {
    (0..ELEMENTS).map(|at| (100 * step as u64 + at) as f32).collect()
}

/// Returns the outputs of all steps.
pub(crate) fn expected() -> Vec<Vec<f32>> {
    let before = |step: usize| if step == 0 { vec![0.0; ELEMENTS as usize] } else { input(step - 1) };
    let output =
        |step| before(step).iter().zip(input(step)).map(|(state, input)| 2.0 * state - input).collect();
    (0..STEPS).map(output).collect()
}

impl Plan {
    fn is(self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// Launches `to = 2 a − b`.
    fn combine(self, device: &mut dyn Driver, to: Place, a: Place, b: Place) -> Result<(), DriverError> {
        if self.declares {
            let (reads, writes) = match self.wrong {
                Some(Wrong::ReadNotDeclared) => (vec![a], vec![to]),
                Some(Wrong::WriteDeclaredAsRead) => (vec![a, b, to], vec![]),
                _ => (vec![a, b], vec![to]),
            };
            let sized =
                |places: Vec<Place>| places.into_iter().map(|place| (place, BYTES)).collect::<Vec<_>>();
            device.touches(&sized(reads), &sized(writes));
        }
        let [to, a, b] = [to, a, b].map(Argument::Place);
        let arguments = [to, a, b, Argument::U64(ELEMENTS), Argument::F32(-1.0)];
        device.launch(Launch { kernel: "average", grid: Grid::for_each(ELEMENTS), arguments: &arguments })
    }

    /// Launches the kernels of a step: the output is `2 state − input`, and the new state is the input.
    /// Returns an event behind the output.
    fn compute(self, device: &mut dyn Driver, places: &Places, turn: usize) -> Result<Event, DriverError> {
        let Places { inputs, outputs, state } = *places;
        let early = if self.is(Wrong::KernelRecordedTooEarly) { Some(device.record()?) } else { None };
        self.combine(device, outputs[turn], state, inputs[turn])?;
        let done = device.record()?;
        self.combine(device, state, state, outputs[turn])?;
        Ok(early.unwrap_or(done))
    }

    /// Runs the program, and returns the outputs of all steps.
    pub(crate) fn run(self, device: &mut dyn Driver) -> Result<Vec<Vec<f32>>, DriverError> {
        device.load(&Source::optimizer())?;
        let arena = device.allocate(5 * BYTES)?;
        let outputs = self.run_in(device, &arena)?;
        if !self.is(Wrong::NotReleased) {
            device.release(arena)?;
        }
        Ok(outputs)
    }

    fn run_in(self, device: &mut dyn Driver, arena: &Memory) -> Result<Vec<Vec<f32>>, DriverError> {
        let [a, b, c, d, state] = [0, 1, 2, 3, 4].map(|slot| arena.place().behind(slot * BYTES));
        let places = Places { inputs: [a, b], outputs: [c, d], state };
        device.upload(state, &[0; BYTES as usize])?;
        let mut graphs: Vec<(Graph, Event)> = Vec::new();
        for turn in 0..if self.captured { 2 } else { 0 } {
            device.begin_capture()?;
            let event = self.compute(device, &places, turn)?;
            graphs.push((device.end_capture()?, event));
        }
        let (mut transfers, mut computed, mut downloaded) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..STEPS {
            let turn = step % 2;
            device.select(Stream::Upload);
            if step >= 2 && !self.is(Wrong::InputUsedAgainTooEarly) {
                device.wait(computed[step - 2])?;
            }
            let early = device.record()?;
            device.upload(places.inputs[turn], &bytes(&input(step)))?;
            let uploaded = if self.is(Wrong::UploadRecordedTooEarly) { early } else { device.record()? };
            device.select(Stream::Compute);
            if !self.is(Wrong::NoWaitForTheUpload) {
                device.wait(uploaded)?;
            }
            if step >= 2 && !self.is(Wrong::OutputUsedAgainTooEarly) {
                device.wait(downloaded[step - 2])?;
            }
            let output = match graphs.get(turn) {
                Some((graph, event)) => device.replay(graph).map(|()| *event)?,
                None => self.compute(device, &places, turn)?,
            };
            computed.push(device.record()?);
            device.select(Stream::Download);
            if !self.is(Wrong::NoWaitForTheKernel) {
                device.wait(output)?;
            }
            transfers.push(device.begin_download(places.outputs[turn], BYTES)?);
            downloaded.push(device.record()?);
        }
        if self.is(Wrong::TransferNotFinished) {
            transfers.pop();
        }
        let mut outputs = Vec::new();
        for transfer in transfers {
            let mut bytes = [0; BYTES as usize];
            device.finish(transfer, &mut bytes)?;
            outputs.push(numbers(&bytes));
        }
        // The last kernel of the last step comes after its output, so it may still run.
        if !self.is(Wrong::ReleasedInUse) {
            device.synchronise()?;
        }
        device.select(Stream::Compute);
        graphs.into_iter().try_for_each(|(graph, _)| device.discard(graph))?;
        Ok(outputs)
    }
}

/// Returns numbers as a device keeps them.
pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns the numbers that a device keeps as these bytes.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|one| f32::from_le_bytes(one.try_into().expect("4 bytes"))).collect()
}
