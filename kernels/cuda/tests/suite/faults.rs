//! Requests that a device cannot carry out are errors that say why.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pushpull_cuda::{Argument, Compiler, Driver, DriverError, Elements, Emulator, Grid, Launch, Source};
use pushpull_kernels::cpu::{AdamStep, GradientTerms, LambStep, OptimizerStep};

use crate::devices::compiler;

fn emulator() -> Option<Emulator> {
    let mut emulator = Emulator::start(&compiler()?, 0).unwrap();
    emulator.load(&Source::optimizer()).unwrap();
    Some(emulator)
}

fn refused(result: Result<(), DriverError>, expected: &str) {
    match result {
        Err(DriverError::Refused(reason)) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("expected a refusal with '{expected}', found {other:?}"),
    }
}

#[test]
fn wrong_launches_are_refused() {
    let Some(mut emulator) = emulator() else { return };
    let grid = Grid { blocks: [1; 3], threads: [1; 3] };
    refused(emulator.launch(Launch { kernel: "none", grid, arguments: &[] }), "no kernel 'none'");
    refused(
        emulator.launch(Launch { kernel: "sgd", grid, arguments: &[Argument::U32(1)] }),
        "other arguments",
    );
    let memory = emulator.allocate(64).unwrap();
    let place = Argument::Place(memory.place());
    let arguments = [place, place, place, Argument::U64(1), Argument::F32(0.1)];
    let average = |grid| Launch { kernel: "average", grid, arguments: &arguments };
    refused(emulator.launch(average(Grid { blocks: [0, 1, 1], ..grid })), "0 blocks");
    refused(emulator.launch(average(Grid { blocks: [1, 1 << 16, 1], ..grid })), "65536 blocks");
    let wrong = [place, place, place, place, Argument::F32(0.1)];
    refused(emulator.launch(Launch { kernel: "average", grid, arguments: &wrong }), "other arguments");
    refused(emulator.launch(average(Grid { threads: [2048, 1, 1], ..grid })), "2048 lanes");
    emulator.launch(average(grid)).unwrap();
}

#[test]
fn a_kernel_that_runs_for_ever_ends_the_device() {
    let Some(compiler) = compiler() else { return };
    let mut emulator = Emulator::start_with_limit(&compiler, 0, 1).unwrap();
    let endless = "while (*(volatile const float*)value != 1.5f) FOR_EACH(at, n) next[at] = averages[at]";
    emulator.load(&Source::optimizer().with("FOR_EACH(at, n) next[at] = averages[at]", endless)).unwrap();
    let memory = emulator.allocate(64).unwrap();
    let place = Argument::Place(memory.place());
    let arguments = [place, place, place, Argument::U64(1), Argument::F32(0.1)];
    let grid = Grid { blocks: [1; 3], threads: [1; 3] };
    let launch = Launch { kernel: "average", grid, arguments: &arguments };
    let error = emulator.launch(launch).and_then(|()| emulator.synchronise()).unwrap_err();
    let DriverError::Failed(reason) = &error else { panic!("{error:?}") };
    assert!(reason.contains("for too long"), "{reason}");
}

#[test]
fn kernels_that_are_loaded_later_replace_earlier_ones() {
    let Some(mut emulator) = emulator() else { return };
    emulator.load(&Source::optimizer().with("averages[at] - share *", "7.0f + share *")).unwrap();
    let memory = emulator.allocate(64).unwrap();
    emulator.upload(memory.place(), &[0; 64]).unwrap();
    // The result lies behind the operands, in the same memory.
    let [operands, result] = [memory.place(), memory.place().behind(32)].map(Argument::Place);
    let arguments = [result, operands, operands, Argument::U64(8), Argument::F32(0.1)];
    emulator.launch(Launch { kernel: "average", grid: Grid::for_each(8), arguments: &arguments }).unwrap();
    let mut bytes = [0xFF; 64];
    emulator.download(memory.place(), &mut bytes).unwrap();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|one| f32::from_le_bytes(one.try_into().unwrap())).collect();
    assert_eq!(numbers, [[0.0f32; 8], [7.0; 8]].concat());
}

#[test]
fn lamb_does_not_replace_its_values() {
    let Some(mut emulator) = emulator() else { return };
    let place = emulator.allocate(64).unwrap().place();
    let adam = AdamStep { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-7, step: 1 };
    let lamb = OptimizerStep::Lamb(LambStep { adam, weight_decay: 0.0 });
    let elements = Elements { next: place, value: place, slots: &[place; 2], gradient: place, count: 1 };
    let update = || elements.apply(&mut emulator, lamb, GradientTerms::PLAIN, Some(place));
    assert!(catch_unwind(AssertUnwindSafe(update)).is_err());
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let error = Compiler::find("/dev/null/folder").unwrap_err().to_string();
    assert!(error.contains("/dev/null/folder"), "{error}");
}

#[test]
fn copies_beyond_memory_are_refused() {
    let Some(mut emulator) = emulator() else { return };
    let memory = emulator.allocate(64).unwrap();
    refused(emulator.upload(memory.place().behind(4), &[0; 61]), "has 64 bytes, but 61 from 4");
    refused(emulator.download(memory.place().behind(65), &mut []), "from 65");
    let place = memory.place();
    emulator.release(memory).unwrap();
    refused(emulator.download(place, &mut [0]), "no memory");
    assert!(matches!(emulator.allocate(1 << 40), Err(DriverError::Refused(_))));
}

#[test]
fn new_memory_holds_no_numbers() {
    let Some(mut emulator) = emulator() else { return };
    let memory = emulator.allocate(8).unwrap();
    let mut bytes = [0; 8];
    emulator.download(memory.place(), &mut bytes).unwrap();
    assert_eq!(bytes, [0xFF; 8]);
}

#[test]
fn an_access_beyond_memory_ends_the_device_with_the_report() {
    let Some(mut emulator) = emulator() else { return };
    let memory = emulator.allocate(64).unwrap();
    let place = Argument::Place(memory.place());
    let arguments = [place, place, place, Argument::U64(17), Argument::F32(0.1)];
    let grid = Grid::for_each(17);
    let launch = Launch { kernel: "average", grid, arguments: &arguments };
    let error = emulator.launch(launch).and_then(|()| emulator.synchronise()).unwrap_err();
    let DriverError::Failed(reason) = &error else { panic!("{error:?}") };
    assert!(reason.contains("heap-buffer-overflow"), "{reason}");
    assert!(emulator.allocate(1).is_err(), "the device has ended");
}

#[test]
fn a_wrong_source_is_an_error_that_names_it() {
    let Some(mut emulator) = emulator() else { return };
    let error = emulator.load(&Source::optimizer().with("sqrtf(second)", "no_such_function(second)"));
    let Err(DriverError::Source { name, reason }) = error else { panic!("{error:?}") };
    assert!(name.contains("optimizer") && reason.contains("no_such_function"), "{name}: {reason}");
}
