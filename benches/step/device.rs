//! The device on which steps run. This module must not depend on models.

use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, anyhow};
use pushpull_cuda::{Card, Compiler, Driver, Emulator, Epilogue, Operation, Places, Precision, StepNumbers};
use pushpull_engine::{CudaDevice, Target};
use pushpull_kernels::cpu::Product;

/// The number of rows and columns of the matrices whose product is the measure of a card.
const MATRIX: usize = 4096;
const MATRIX_TINY: usize = 32;
/// The number of products before the measurement, and the number of measured products.
const PRODUCTS: [usize; 2] = [3, 20];

/// A device, as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    Cpu,
    /// The card with this index.
    Cuda(usize),
    Emulated,
}

impl FromStr for DeviceName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "emulated" => Ok(Self::Emulated),
            _ => {
                let index = text.strip_prefix("cuda:").and_then(|index| index.parse().ok());
                index.map(Self::Cuda).ok_or_else(|| anyhow!("expected cpu, cuda:N or emulated"))
            }
        }
    }
}

/// A device.
pub(crate) enum Device {
    /// The processor, with this number of threads.
    Cpu(usize),
    /// A device that runs CUDA kernels.
    Cuda(Box<CudaDevice>),
}

impl Device {
    /// Opens a device. `threads` is the number of threads of the processor.
    pub(crate) fn open(name: DeviceName, threads: usize, precision: Precision) -> anyhow::Result<Self> {
        Ok(match name {
            DeviceName::Cpu => Self::Cpu(threads),
            DeviceName::Cuda(index) => Self::cuda(Box::new(Card::open(index)?), precision)?,
            DeviceName::Emulated => {
                let folder = std::env::temp_dir().join("pushpull-emulator-bench");
                Self::cuda(Box::new(Emulator::start(&Compiler::find(folder)?, 1)?.with_library()), precision)?
            }
        })
    }

    fn cuda(driver: Box<dyn Driver + Send>, precision: Precision) -> anyhow::Result<Self> {
        Ok(Self::Cuda(Box::new(CudaDevice::new(driver, 1.0, precision)?)))
    }

    /// Returns the device with programs whose attention consists of separate operations.
    pub(crate) fn without_attention(self) -> Self {
        match self {
            Self::Cuda(device) => Self::Cuda(Box::new(device.without_attention())),
            other => other,
        }
    }

    /// Returns what the device calls itself.
    pub(crate) fn name(&mut self) -> String {
        match self {
            Self::Cpu(1) => "cpu, 1 thread".to_owned(),
            Self::Cpu(threads) => format!("cpu, {threads} threads"),
            Self::Cuda(device) => device.driver().name().to_owned(),
        }
    }

    /// Returns the rate of a product of square matrices that are on the device already; `None` for the
    /// processor, which `cargo bench --bench kernels` measures.
    pub(crate) fn matrix_tflop_s(&mut self, tiny: bool) -> anyhow::Result<Option<f64>> {
        let Self::Cuda(device) = self else { return Ok(None) };
        let Target::Cuda { multiplier, .. } = device.target() else {
            unreachable!("the target of a CUDA device")
        };
        let driver = device.driver();
        let size = if tiny { MATRIX_TINY } else { MATRIX };
        let product = Product::new([size; 3], false, false).context("a product of square matrices")?;
        let operation = Operation::product(&product, Epilogue::Bare, multiplier);
        driver.load(&Operation::source("matrix", [&operation]))?;
        // The halves of a matrix in `fp16` have a float behind them.
        let number = |at: usize| if at == size * size / 2 { 1.0 } else { (at % 7) as f32 - 3.0 };
        let numbers: Vec<u8> = (0..size * size).flat_map(|at| number(at).to_le_bytes()).collect();
        let matrices = [(); 3].map(|()| driver.allocate(numbers.len() as u64));
        let [a, b, c] = matrices;
        let (a, b, c, step) = (a?, b?, c?, driver.allocate(StepNumbers::BYTES)?);
        let scratch = match operation.scratch_bytes() {
            0 => None,
            bytes => Some(driver.allocate(bytes)?),
        };
        driver.upload(a.place(), &numbers)?;
        driver.upload(b.place(), &numbers)?;
        let span = |memory: &pushpull_cuda::Memory| (memory.place(), memory.bytes());
        let places = Places {
            outputs: &[span(&c)],
            inputs: &[span(&a), span(&b)],
            scratch: scratch.as_ref().map(pushpull_cuda::Memory::place),
            step: step.place(),
        };
        let mut seconds = 0.0;
        for products in PRODUCTS {
            driver.synchronise()?;
            let began = Instant::now();
            for _ in 0..products {
                operation.run(driver, places)?;
            }
            driver.synchronise()?;
            seconds = began.elapsed().as_secs_f64() / products as f64;
        }
        for memory in [a, b, c, step].into_iter().chain(scratch) {
            driver.release(memory)?;
        }
        Ok(Some(2.0 * (size as f64).powi(3) / seconds / 1e12))
    }
}
