//! A case of the suite: an operation, what it reads, and what it must write. Every device runs every case.

use pushpull_cuda::{Driver, DriverError, Memory, Operation, Places, Source, StepNumbers};

use crate::devices::devices;
use crate::numbers::assert_close;

/// A tensor.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
    U8(Vec<u8>),
}

/// An operation with its inputs and its outputs.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub name: String,
    pub operation: Operation,
    pub inputs: Vec<Data>,
    /// The outputs that the processor's kernels compute.
    pub outputs: Vec<Data>,
    /// The outputs in `f64`, if the suite has a reference of its own; the processor must agree with it as
    /// well.
    pub reference: Option<Vec<Vec<f64>>>,
    /// Whether the first output may replace the first input. Then half of the devices do it.
    pub in_place: bool,
    pub step: StepNumbers,
    /// How far an element may be from the expected one, relative to it if it is large.
    pub tolerance: f64,
}

impl Case {
    /// Returns a case with a tolerance of 10⁻⁵.
    pub(crate) fn new(
        name: impl Into<String>,
        operation: Operation,
        inputs: Vec<Data>,
        outputs: Vec<Data>,
    ) -> Self {
        let step = StepNumbers::default();
        let name = name.into();
        Self { name, operation, inputs, outputs, reference: None, in_place: false, step, tolerance: 1e-5 }
    }

    /// Runs the case on a device to which the operation's kernels were loaded.
    pub(crate) fn run(&self, driver: &mut dyn Driver, in_place: bool) -> Result<Vec<Data>, DriverError> {
        let upload = |driver: &mut dyn Driver, bytes: &[u8]| {
            let memory = driver.allocate(bytes.len() as u64)?;
            driver.upload(memory.place(), bytes)?;
            Ok::<Memory, DriverError>(memory)
        };
        let step = upload(driver, &self.step.bytes())?;
        let inputs =
            self.inputs.iter().map(|data| upload(driver, &data.bytes())).collect::<Result<Vec<_>, _>>()?;
        let mut outputs = Vec::new();
        for output in &self.outputs {
            outputs.push(driver.allocate(output.bytes().len() as u64)?);
        }
        let scratch = match self.operation.scratch_bytes() {
            0 => None,
            bytes => Some(driver.allocate(bytes)?),
        };
        let span = |memory: &Memory| (memory.place(), memory.bytes());
        let mut to: Vec<_> = outputs.iter().map(span).collect();
        let from: Vec<_> = inputs.iter().map(span).collect();
        if in_place {
            to[0] = from[0];
        }
        let places = Places {
            outputs: &to,
            inputs: &from,
            scratch: scratch.as_ref().map(Memory::place),
            step: step.place(),
        };
        self.operation.run(driver, places)?;
        let mut results = Vec::new();
        for ((place, _), output) in to.into_iter().zip(&self.outputs) {
            let mut bytes = vec![0; output.bytes().len()];
            driver.download(place, &mut bytes)?;
            results.push(output.like(&bytes));
        }
        for memory in inputs.into_iter().chain(outputs).chain(scratch).chain([step]) {
            driver.release(memory)?;
        }
        Ok(results)
    }

    /// Checks outputs.
    ///
    /// # Panics
    /// If they are wrong.
    fn check(&self, device: &str, outputs: &[Data]) {
        for (at, (got, expected)) in outputs.iter().zip(&self.outputs).enumerate() {
            let what = format!("{} on {device}, output {at}", self.name);
            match (got, expected) {
                (Data::F32(got), Data::F32(expected)) => {
                    let wide: Vec<f64> = expected.iter().map(|&number| number.into()).collect();
                    let expected = self.reference.as_ref().map_or(&wide, |reference| &reference[at]);
                    assert_close(&what, got, expected, self.tolerance);
                }
                (got, expected) => assert_eq!(got.bytes(), expected.bytes(), "{what}"),
            }
        }
    }
}

impl Data {
    /// Returns the tensor as a device keeps it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::F32(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Self::I32(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Self::U8(bytes) => bytes.clone(),
        }
    }

    /// Returns a tensor of the same type with these bytes.
    fn like(&self, bytes: &[u8]) -> Self {
        let words = bytes.chunks_exact(4).map(|word| word.try_into().expect("4 bytes"));
        match self {
            Self::F32(_) => Self::F32(words.map(f32::from_le_bytes).collect()),
            Self::I32(_) => Self::I32(words.map(i32::from_le_bytes).collect()),
            Self::U8(_) => Self::U8(bytes.to_vec()),
        }
    }
}

/// Returns the kernels of all cases.
pub(crate) fn source_of(cases: &[Case]) -> Source {
    Operation::source("cases", cases.iter().map(|case| &case.operation))
}

/// Checks that the processor and every device agree on all cases. `seed` decides the order of threads.
#[track_caller]
pub(crate) fn agree(cases: &[Case], seed: u64) {
    agree_on(devices(seed), cases);
}

/// Checks that the processor and these devices agree on all cases.
#[track_caller]
pub(crate) fn agree_on(devices: Vec<(&'static str, Box<dyn Driver>)>, cases: &[Case]) {
    for case in cases {
        case.check("cpu", &case.outputs);
    }
    for (name, mut device) in devices {
        let fault = |case: &Case, error: DriverError| panic!("{} on {name}: {error}", case.name);
        device.load(&source_of(cases)).expect("our kernels compile");
        for (number, case) in cases.iter().enumerate() {
            // Blocks that are fewer than the items must work on several of them.
            let mut case = case.clone();
            if number % 2 == 1 {
                case.operation = case.operation.with_blocks_at_most(1 + number as u32 % 3);
            }
            let in_place = case.in_place && number % 4 < 2;
            let outputs = case.run(&mut *device, in_place).unwrap_or_else(|error| fault(&case, error));
            case.check(name, &outputs);
        }
        println!("CASES: {} on {name}.", cases.len());
    }
}

/// Returns whether a device with these kernels agrees on all cases. The device may fail.
pub(crate) fn agrees(device: &mut dyn Driver, kernels: &Source, cases: &[Case]) -> bool {
    if let Err(error) = device.load(kernels) {
        panic!("the kernels cannot be compiled: {error}");
    }
    let close = |got: &f32, expected: f64, tolerance: f64| match expected.is_nan() {
        true => got.is_nan(),
        false => (f64::from(*got) - expected).abs() <= tolerance * expected.abs().max(1.0),
    };
    cases.iter().all(|case| {
        let Ok(outputs) = case.run(device, false) else { return false };
        outputs.iter().zip(&case.outputs).all(|(got, expected)| match (got, expected) {
            (Data::F32(got), Data::F32(expected)) => {
                got.iter().zip(expected).all(|(got, &expected)| close(got, expected.into(), case.tolerance))
            }
            (got, expected) => got.bytes() == expected.bytes(),
        })
    })
}
