//! Requests that a device cannot carry out are errors that say why.

use pushpull_cuda::{Argument, Driver, DriverError, Emulator, Grid, Launch, Source};

use crate::runner::compiler;

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
    let error = emulator.launch(Launch { kernel: "average", grid, arguments: &arguments }).unwrap_err();
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
