//! Devices keep the order that streams and events give to requests, and the emulator finds every request that
//! lacks an order.

use pushpull_cuda::{Argument, Driver, DriverError, Emulator, Grid, Launch, Memory, Place, Source, Stream};

use crate::devices::{compiler, devices};
use crate::pipeline::{Plan, Wrong, bytes, expected, numbers};

/// The ways of running the program, whose results are right.
const RIGHT: [Plan; 4] = [
    Plan { wrong: None, captured: false, declares: false },
    Plan { wrong: None, captured: false, declares: true },
    Plan { wrong: None, captured: true, declares: false },
    Plan { wrong: None, captured: true, declares: true },
];

fn emulator(seed: u64) -> Option<Emulator> {
    Some(Emulator::start(&compiler()?, seed).expect("the emulator starts"))
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, DriverError>, expected: &[&str]) {
    match result {
        Err(DriverError::Refused(reason)) => {
            assert!(expected.iter().all(|part| reason.contains(part)), "{reason}: expected {expected:?}");
        }
        other => panic!("expected a refusal with {expected:?}, found {other:?}"),
    }
}

#[test]
fn a_program_with_an_order_is_right_on_every_device() {
    for (name, mut device) in devices(3) {
        for plan in RIGHT {
            assert_eq!(plan.run(&mut *device), Ok(expected()), "{plan:?} on {name}");
        }
    }
}

#[test]
fn a_program_with_an_order_is_right_in_every_order() {
    for seed in 0..24 {
        let Some(mut emulator) = emulator(seed) else { return };
        let plan = RIGHT[seed as usize % 4];
        assert_eq!(plan.run(&mut emulator), Ok(expected()), "{plan:?}, seed {seed}");
        emulator.close().unwrap();
    }
}

/// Checks that a mistake is found under every seed, by an error with these parts.
fn is_found(wrong: Wrong, captured: bool, parts: &[&str]) {
    for seed in 0..4 {
        let Some(mut emulator) = emulator(seed) else { return };
        let plan = Plan { wrong: Some(wrong), captured, declares: true };
        let result = plan.run(&mut emulator).and_then(|_| emulator.close());
        let Err(error) = result else { panic!("not found: {wrong:?}, seed {seed}") };
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{wrong:?}: {text}");
    }
}

#[test]
fn every_mutation_of_the_order_is_found() {
    const KERNEL: &str = "the kernel 'average' (request ";
    const UPLOAD: &str = "the upload of 160 bytes (request ";
    const DOWNLOAD: &str = "the download of 160 bytes (request ";
    for captured in [false, true] {
        let found = |wrong, parts: &[&str]| is_found(wrong, captured, parts);
        found(Wrong::NoWaitForTheUpload, &[KERNEL, ") reads what ", UPLOAD, ") writes, without an order"]);
        found(Wrong::UploadRecordedTooEarly, &[KERNEL, ") reads what ", UPLOAD]);
        found(Wrong::NoWaitForTheKernel, &[DOWNLOAD, ") reads what ", KERNEL, ") writes, without an order"]);
        found(Wrong::KernelRecordedTooEarly, &[DOWNLOAD, ") reads what ", KERNEL]);
        found(
            Wrong::InputUsedAgainTooEarly,
            &[UPLOAD, ") writes what ", KERNEL, ") reads, without an order"],
        );
        found(Wrong::OutputUsedAgainTooEarly, &[KERNEL, ") writes what ", DOWNLOAD, ") reads"]);
        found(Wrong::ReleasedInUse, &["is released, but the kernel 'average'", "may still use it"]);
        found(Wrong::TransferNotFinished, &["not released or finished: transfer"]);
        found(Wrong::NotReleased, &["not released or finished: memory", "of 800 bytes"]);
        found(Wrong::ReadNotDeclared, &[KERNEL, "use-after-poison"]);
        found(Wrong::WriteDeclaredAsRead, &[KERNEL, "which it declares only to read"]);
    }
}

#[test]
fn a_missing_wait_shows_without_declarations() {
    for wrong in [Wrong::NoWaitForTheUpload, Wrong::InputUsedAgainTooEarly, Wrong::KernelRecordedTooEarly] {
        let plan = Plan { wrong: Some(wrong), captured: false, declares: false };
        let shows = (0..24).any(|seed| {
            let Some(mut emulator) = emulator(seed) else { return true };
            plan.run(&mut emulator) != Ok(expected())
        });
        assert!(shows, "{wrong:?}");
    }
}

/// Launches `to = 2 a − b` with one element, after declaring it.
fn combine(device: &mut dyn Driver, to: Place, a: Place, b: Place) -> Result<(), DriverError> {
    device.touches(&[(a, 4), (b, 4)], &[(to, 4)]);
    let [to, a, b] = [to, a, b].map(Argument::Place);
    let arguments = [to, a, b, Argument::U64(1), Argument::F32(-1.0)];
    device.launch(Launch { kernel: "average", grid: Grid::for_each(1), arguments: &arguments })
}

/// Returns every device with kernels and memory of 16 bytes.
fn with_memory() -> Vec<(&'static str, Box<dyn Driver>, Memory)> {
    let with = |(name, mut device): (_, Box<dyn Driver>)| {
        device.load(&Source::optimizer()).unwrap();
        let memory = device.allocate(16).unwrap();
        (name, device, memory)
    };
    devices(5).into_iter().map(with).collect()
}

#[test]
fn synchronising_orders_all_streams() {
    for (name, mut device, memory) in with_memory() {
        let place = memory.place();
        device.select(Stream::Upload);
        device.upload(place, &bytes(&[1.0, 2.0, 3.0, 4.0])).unwrap();
        device.synchronise().unwrap();
        device.select(Stream::Compute);
        combine(&mut *device, place, place, place.behind(4)).unwrap();
        device.synchronise().unwrap();
        device.select(Stream::Download);
        let mut got = [0; 16];
        device.download(place, &mut got).unwrap();
        assert_eq!(numbers(&got), [0.0, 2.0, 3.0, 4.0], "{name}");
        device.release(memory).unwrap();
    }
}

#[test]
fn a_copy_within_the_device_keeps_the_order_of_its_stream() {
    for (name, mut device) in devices(3) {
        let (first, second) = (device.allocate(64).unwrap(), device.allocate(32).unwrap());
        let [old, new]: [[u8; 64]; 2] = [std::array::from_fn(|at| at as u8), [9; 64]];
        device.select(Stream::Upload);
        device.upload(first.place(), &old).unwrap();
        device.copy(first.place().behind(24), second.place(), 32).unwrap();
        device.copy(second.place(), first.place().behind(8), 0).unwrap();
        device.upload(first.place(), &new).unwrap();
        device.copy(second.place(), first.place().behind(32), 32).unwrap();
        let mut bytes = [0; 64];
        device.download(first.place(), &mut bytes).unwrap();
        assert_eq!(bytes[..32], new[..32], "{name}");
        assert_eq!(bytes[32..], old[24..56], "{name}");
        refused(
            device.copy(first.place(), first.place().behind(16), 32),
            &["a copy of 32 bytes", "overlaps itself"],
        );
        refused(device.copy(first.place().behind(40), second.place(), 32), &["has 64 bytes"]);
        refused(device.copy(first.place(), second.place(), 33), &["has 32 bytes"]);
        // Places that touch do not overlap.
        device.copy(first.place(), first.place().behind(32), 32).unwrap();
        device.download(first.place(), &mut bytes).unwrap();
        assert_eq!(bytes[32..], new[..32], "{name}");
        device.release(first).unwrap();
        device.release(second).unwrap();
    }
}

#[test]
fn a_copy_beside_another_stream_is_found() {
    for seed in 0..4 {
        let Some(mut emulator) = emulator(seed) else { return };
        let (first, second) = (emulator.allocate(32).unwrap(), emulator.allocate(32).unwrap());
        emulator.select(Stream::Upload);
        emulator.upload(first.place(), &[1; 32]).unwrap();
        emulator.select(Stream::Compute);
        refused(
            emulator.copy(first.place(), second.place(), 32),
            &["the copy of 32 bytes (request ", ") reads what the upload of 32 bytes", "without an order"],
        );
    }
}

#[test]
fn the_callers_bytes_may_change_after_an_upload() {
    for (name, mut device, memory) in with_memory() {
        device.select(Stream::Upload);
        let mut bytes = [7; 16];
        device.upload(memory.place(), &bytes).unwrap();
        bytes.fill(8);
        let mut got = [0; 16];
        device.download(memory.place(), &mut got).unwrap();
        assert_eq!(got, [7; 16], "{name}");
        device.release(memory).unwrap();
    }
}

#[test]
fn a_capture_runs_nothing_until_it_is_replayed() {
    for (name, mut device, memory) in with_memory() {
        let place = memory.place();
        device.upload(place, &bytes(&[1.0, 2.0, 3.0, 4.0])).unwrap();
        device.begin_capture().unwrap();
        combine(&mut *device, place, place, place.behind(4)).unwrap();
        let graph = device.end_capture().unwrap();
        let mut got = [0; 4];
        device.download(place, &mut got).unwrap();
        assert_eq!(numbers(&got), [1.0], "{name}");
        // From 1 to 2 · 1 − 2, and from there to 2 · 0 − 2.
        for expected in [0.0, -2.0] {
            device.replay(&graph).unwrap();
            device.download(place, &mut got).unwrap();
            assert_eq!(numbers(&got), [expected], "{name}");
        }
        device.release(memory).unwrap();
        refused(device.replay(&graph), &["no memory"]);
        device.discard(graph).unwrap();
    }
}

#[test]
fn a_capture_refuses_all_but_launches_and_events() {
    for (_, mut device, memory) in with_memory() {
        let place = memory.place();
        device.begin_capture().unwrap();
        refused(device.begin_capture(), &["while a capture is under way"]);
        refused(device.allocate(4), &["cannot allocate memory while a capture is under way"]);
        refused(device.release(memory), &["cannot release memory while"]);
        refused(device.upload(place, &[0]), &["cannot upload while"]);
        refused(device.download(place, &mut [0]), &["cannot download while"]);
        refused(device.synchronise(), &["cannot synchronise while"]);
        refused(device.load(&Source::optimizer()), &["cannot load kernels while"]);
        let within = device.record().unwrap();
        device.wait(within).unwrap();
        let graph = device.end_capture().unwrap();
        refused(device.end_capture(), &["none is under way"]);
        refused(device.wait(within), &["never recorded"]);
        device.select(Stream::Download);
        refused(device.replay(&graph), &["on the stream Download"]);
        device.select(Stream::Compute);
        device.replay(&graph).unwrap();
        device.wait(within).unwrap();
        device.discard(graph).unwrap();
        refused(device.wait(within), &["whose graph was discarded"]);
    }
}

#[test]
fn a_capture_with_an_error_ends_with_it() {
    for (name, mut device, memory) in with_memory() {
        let place = memory.place();
        device.upload(place, &bytes(&[1.0, 2.0, 3.0, 4.0])).unwrap();
        let before = device.record().unwrap();
        for wrong in 0..4 {
            device.begin_capture().unwrap();
            combine(&mut *device, place, place, place.behind(4)).unwrap();
            let within = device.record().unwrap();
            let reason = match wrong {
                0 => {
                    let launch = Launch { kernel: "none", grid: Grid::for_each(1), arguments: &[] };
                    refused(device.launch(launch), &["no kernel 'none'"]);
                    "no kernel 'none'"
                }
                1 => {
                    refused(device.wait(before), &["the capture does not contain", "wait before the replay"]);
                    "the capture does not contain"
                }
                2 => {
                    device.select(Stream::Upload);
                    refused(combine(&mut *device, place, place, place), &["on the stream Upload"]);
                    device.select(Stream::Compute);
                    "on the stream Upload"
                }
                _ => {
                    device.select(Stream::Download);
                    "on the stream Download"
                }
            };
            // A later error does not replace the first one.
            if wrong == 0 {
                refused(device.wait(before), &["the capture does not contain"]);
            }
            refused(device.end_capture(), &[reason]);
            refused(device.end_capture(), &["none is under way"]);
            device.select(Stream::Compute);
            refused(device.wait(within), &["whose graph was discarded"]);
        }
        device.begin_capture().unwrap();
        combine(&mut *device, place, place, place.behind(4)).unwrap();
        let graph = device.end_capture().unwrap();
        device.replay(&graph).unwrap();
        let mut got = [0; 4];
        device.download(place, &mut got).unwrap();
        // From 1 to 2 · 1 − 2, and only once.
        assert_eq!(numbers(&got), [0.0], "{name}");
        device.discard(graph).unwrap();
        device.release(memory).unwrap();
    }
}

#[test]
fn an_abandoned_transfer_is_done() {
    for (_, mut device, memory) in with_memory() {
        device.upload(memory.place(), &[7; 16]).unwrap();
        let [one, other, last] = [0; 3].map(|_| device.begin_download(memory.place(), 16).unwrap());
        device.abandon(one).unwrap();
        let mut got = [0; 16];
        device.finish(other, &mut got).unwrap();
        assert_eq!(got, [7; 16]);
        device.begin_capture().unwrap();
        device.abandon(last).unwrap();
        let graph = device.end_capture().unwrap();
        device.discard(graph).unwrap();
        // Nothing else tells the emulator that the copies are done.
        device.release(memory).unwrap();
    }
}

#[test]
fn an_abandoned_transfer_does_not_leak() {
    let Some(mut emulator) = emulator(0) else { return };
    let memory = emulator.allocate(4).unwrap();
    let transfer = emulator.begin_download(memory.place(), 4).unwrap();
    emulator.abandon(transfer).unwrap();
    emulator.release(memory).unwrap();
    emulator.close().unwrap();
}

#[test]
fn what_one_device_has_is_unknown_to_another() {
    let mut devices = with_memory();
    devices.extend(with_memory());
    let (mut all, mut memories) = (Vec::new(), Vec::new());
    for (_, device, memory) in devices {
        all.push(device);
        memories.push(memory);
    }
    let [first, .., last] = &mut all[..] else { return };
    let event = first.record().unwrap();
    refused(last.wait(event), &["of another device"]);
    let place = memories[0].place();
    refused(last.upload(place, &[0]), &["no memory"]);
    let transfer = first.begin_download(place, 4).unwrap();
    refused(last.finish(transfer, &mut [0; 4]), &["no transfer"]);
    let transfer = first.begin_download(place, 4).unwrap();
    refused(last.abandon(transfer), &["no transfer"]);
}

#[test]
fn a_transfer_of_another_length_is_refused() {
    for (_, mut device, memory) in with_memory() {
        let transfer = device.begin_download(memory.place(), 8).unwrap();
        assert_eq!(transfer.bytes(), 8);
        refused(device.finish(transfer, &mut [0; 7]), &["has 8 bytes, expected 7"]);
        device.release(memory).unwrap();
    }
}

#[test]
fn too_much_memory_is_an_error_with_the_sizes() {
    for (name, mut device, memory) in with_memory() {
        let [free, total] = device.memory_info().unwrap();
        assert!(free < total, "{name}");
        refused(device.allocate(1 << 50), &["out of memory", "1125899906842624", &total.to_string()]);
        device.release(memory).unwrap();
    }
}

#[test]
fn a_declaration_needs_a_pointer_that_is_not_const() {
    let Some(mut emulator) = emulator(0) else { return };
    emulator.load(&Source::optimizer()).unwrap();
    let [to, from] = [0; 2].map(|_| emulator.allocate(16).unwrap());
    emulator.touches(&[], &[(to.place(), 4), (from.place(), 4)]);
    let [to, from] = [&to, &from].map(|memory| Argument::Place(memory.place()));
    let arguments = [to, from, from, Argument::U64(1), Argument::F32(0.5)];
    let launch = Launch { kernel: "average", grid: Grid::for_each(1), arguments: &arguments };
    refused(
        emulator.launch(launch),
        &["'average' is declared to write", "no pointer there that is not const"],
    );
    emulator.launch(launch).unwrap();
}
