//! Says what is known of a card, and adds two vectors on it.
//!
//! `cargo run -p pushpull-cuda --example card -- [INDEX|emulated]` prints one JSON object on one line.

use std::process::ExitCode;
use std::time::Instant;

use pushpull_cuda::{
    Card, Compiler, Driver, DriverError, Emulator, Memory, Nvrtc, Operation, Places, StepNumbers, cards,
};
use pushpull_kernels::cpu::{Binary, Extent, Operand, Side, Step};

/// The number of elements of the vectors.
const ELEMENTS: usize = 100_000;

fn main() -> ExitCode {
    let index = std::env::args().nth(1).unwrap_or_else(|| "0".to_owned());
    match describe(&index) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn describe(index: &str) -> Result<String, DriverError> {
    let known = match index.parse::<usize>() {
        Ok(index) => {
            let all = cards()?;
            let mut card = Card::open(index)?;
            let [major, minor] = card.driver_version();
            let [nvrtc_major, nvrtc_minor] = Nvrtc::find()?.version();
            let [free, _] = card.memory_info()?;
            let info = card.info().clone();
            let known = format!(
                "\"name\": {:?}, \"cards\": {}, \"architecture\": \"{}\", \"memory_bytes\": {}, \"free_bytes\": {free}, \
                 \"driver_cuda\": \"{major}.{minor}\", \"nvrtc_cuda\": \"{nvrtc_major}.{nvrtc_minor}\"",
                info.name,
                all.len(),
                info.architecture,
                info.memory_bytes,
            );
            format!("{known}, {}", add(&mut card)?)
        }
        Err(_) => {
            let folder = std::env::temp_dir().join("pushpull-emulator-card");
            let mut emulator = Emulator::start(&Compiler::find(folder)?, 0)?;
            let added = add(&mut emulator)?;
            format!("\"name\": {:?}, {added}", emulator.name())
        }
    };
    Ok(format!("{{{known}}}"))
}

/// Adds two vectors, and returns how long it took.
///
/// # Errors
/// If the device fails, or if a sum is wrong.
fn add(driver: &mut dyn Driver) -> Result<String, DriverError> {
    let step = Step::Binary(Binary::Add, Operand { index: 0, extent: Extent::Whole }, Side::B);
    let operation = Operation::chain(&[step], &[ELEMENTS], ELEMENTS);
    let began = Instant::now();
    driver.load(&Operation::source("addition", [&operation]))?;
    let loaded = began.elapsed();
    let began = Instant::now();
    let mut memory = || driver.allocate(4 * ELEMENTS as u64);
    let [a, b, sum] = [memory()?, memory()?, memory()?];
    let numbers = driver.allocate(StepNumbers::BYTES)?;
    let number = |at: usize, factor: f32| at as f32 * factor;
    for (memory, factor) in [(&a, 1.0), (&b, 2.0)] {
        let bytes: Vec<u8> = (0..ELEMENTS).flat_map(|at| number(at, factor).to_le_bytes()).collect();
        driver.upload(memory.place(), &bytes)?;
    }
    let span = |memory: &Memory| (memory.place(), memory.bytes());
    let places = Places {
        outputs: &[span(&sum)],
        inputs: &[span(&a), span(&b)],
        scratch: None,
        step: numbers.place(),
    };
    operation.run(driver, places)?;
    let mut bytes = vec![0; 4 * ELEMENTS];
    driver.download(sum.place(), &mut bytes)?;
    let added = began.elapsed();
    for memory in [a, b, sum, numbers] {
        driver.release(memory)?;
    }
    let expected = (0..ELEMENTS).flat_map(|at| number(at, 3.0).to_le_bytes());
    if !bytes.into_iter().eq(expected) {
        return Err(DriverError::Failed("a sum of two vectors is wrong".to_owned()));
    }
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Ok(format!(
        "\"compile_ms\": {:.3}, \"addition_ms\": {:.3}, \"addition\": \"right\"",
        ms(loaded),
        ms(added)
    ))
}
