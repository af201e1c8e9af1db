//! Cards: what a machine without one says, and the suite's programs on a stub of NVIDIA's driver. The
//! programs run on a real card as well, if there is one.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use pushpull_cuda::{
    Argument, Card, CardInfo, Driver, DriverError, Grid, Launch, Place, Source, Stream, Worked, cards,
};

use crate::devices::{DEVICES, card, folder};
use crate::pipeline::{Plan, bytes, expected, numbers};

const STUB: &str = include_str!("stub.cpp");

/// A variable of processes with the stub. Some tests do something only there.
const ALONE: &str = "PUSHPULL_TEST_ALONE";

/// Returns the folder with the libraries of the stub; `None`, after a warning, if they cannot be compiled.
fn stub() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let mut hasher = DefaultHasher::new();
        STUB.hash(&mut hasher);
        let tmp = folder();
        let folder = tmp.join(format!("stub-{:016x}", hasher.finish()));
        if folder.exists() {
            return Some(folder);
        }
        // Others may compile the same at the same time, so the folder gets its name when it is whole.
        let own = tmp.join(format!("stub.{}", std::process::id()));
        fs::create_dir_all(&own).unwrap();
        let (text, library) = (own.join("stub.cpp"), own.join("libcuda.so"));
        fs::write(&text, STUB).unwrap();
        let mut command = Command::new("c++");
        command
            .args(["-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(text);
        let Ok(output) = command.stdin(Stdio::null()).output() else {
            println!("SKIPPED: there is no c++, so cards are NOT tested with a stub of their driver.");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::copy(&library, own.join("libnvrtc.so")).unwrap();
        if fs::rename(&own, &folder).is_err() {
            fs::remove_dir_all(&own).unwrap();
        }
        Some(folder)
    };
    FOLDER.get_or_init(compile).as_deref()
}

/// Runs tests of this program in another process, with the stub and these variables. Returns what they print.
fn run(tests: &[&str], variables: &[(&str, &str)]) -> Option<String> {
    let folder = stub()?;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(tests).args(["--nocapture", "--test-threads=1"]);
    command
        .env(ALONE, "1")
        .env("LD_LIBRARY_PATH", folder)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove(DEVICES)
        .envs(variables.iter().copied());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{tests:?} {variables:?}: {text}");
    Some(text)
}

#[test]
fn a_machine_without_a_driver_says_so() {
    match Card::open(0) {
        Ok(card) => println!("SKIPPED: this machine has the card {}.", card.name()),
        Err(DriverError::Unavailable(reason)) => {
            let no_driver = reason == "this machine has no NVIDIA driver: libcuda.so.1 was not found";
            // A machine may have a driver without a card, or a card without a compiler.
            assert!(no_driver || reason.contains("NVIDIA") || reason.contains("card"), "{reason}");
            assert!(!no_driver || cards() == Err(DriverError::Unavailable(reason)));
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn the_programs_of_the_suite_run_on_a_card() {
    let Some(mut card) = card() else { return };
    for (captured, declares) in [(false, false), (true, true)] {
        let plan = Plan { wrong: None, captured, declares };
        assert_eq!(plan.run(&mut card), Ok(expected()), "{plan:?} on {}", card.name());
    }
}

#[test]
fn a_card_may_move_to_another_thread() {
    fn moves<T: Send>() {}
    moves::<Card>();
}

#[test]
fn alone_opens_and_loads() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let index = std::env::var("PUSHPULL_TEST_CARD").map_or(0, |index| index.parse().unwrap());
    let uploaded = Card::open(index).and_then(|mut card| {
        card.load(&Source::optimizer())?;
        let memory = card.allocate(16)?;
        card.upload(memory.place(), &[0; 16])?;
        Ok(card.name().to_owned())
    });
    match uploaded {
        Ok(name) => println!("loaded and uploaded to {name}"),
        Err(error) => println!("error: {error}"),
    }
}

#[test]
fn alone_rounds_factors() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    match Card::open(0).and_then(|card| card.rounds_factors()) {
        Ok(()) => println!("rounds factors"),
        Err(error) => println!("error: {error}"),
    }
}

#[test]
fn cards_before_ampere_do_not_round_factors() {
    let expected = [
        ("90", "rounds factors"),
        ("80", "rounds factors"),
        (
            "75",
            "error: Stub 0 is of sm_75, but tf32, bf16 and fp16 need a card of sm_80 (Ampere) or later; use fp32",
        ),
    ];
    for (capability, expected) in expected {
        let Some(text) = run(&["card::alone_rounds_factors"], &[("STUB_CAPABILITY", capability)]) else {
            return;
        };
        assert!(text.lines().any(|line| line.contains(expected)), "{capability}: {text}");
    }
}

#[test]
fn errors_of_the_driver_are_one_line_that_says_what_to_do() {
    let says = |variables: &[(&str, &str)], expected: &str| {
        let Some(text) = run(&["card::alone_opens_and_loads"], variables) else { return };
        assert!(text.lines().any(|line| line.contains(expected)), "{variables:?}: {text}");
    };
    says(&[], "loaded and uploaded to cuda:0 (Stub 0)");
    says(&[("STUB_CAPABILITY", "103")], "loaded and uploaded");
    says(&[("STUB_CARDS", "2"), ("PUSHPULL_TEST_CARD", "1")], "loaded and uploaded to cuda:1 (Stub 1)");
    says(
        &[("STUB_CAPABILITY", "70")],
        "error: the NVRTC of CUDA 13.5 compiles no kernels for Stub 0 (sm_70)",
    );
    says(&[("STUB_FAULT", "no device")], "error: the NVIDIA driver finds no card; see what nvidia-smi says");
    says(
        &[("STUB_FAULT", "no memory of the host")],
        "error: cannot upload 16 bytes: cannot pin 67108864 bytes of the host's memory: \
         CUDA_ERROR_OUT_OF_MEMORY: what the driver says",
    );
    says(
        &[("STUB_FAULT", "no device"), ("CUDA_VISIBLE_DEVICES", "7")],
        "error: the NVIDIA driver finds no card; see what nvidia-smi says; CUDA_VISIBLE_DEVICES is '7'",
    );
    says(
        &[("STUB_CARDS", "0"), ("CUDA_VISIBLE_DEVICES", "")],
        "error: the NVIDIA driver finds no card; see what nvidia-smi says; CUDA_VISIBLE_DEVICES is ''",
    );
    says(
        &[("PUSHPULL_TEST_CARD", "1"), ("CUDA_VISIBLE_DEVICES", "7")],
        "error: there is no card 1: the NVIDIA driver finds 1, counted from 0; CUDA_VISIBLE_DEVICES is '7'",
    );
    says(
        &[("STUB_FAULT", "old driver")],
        "error: the NVIDIA driver supports CUDA 11.2, expected at least 11.4; update it",
    );
    says(
        &[("STUB_FAULT", "too new")],
        "error: the NVIDIA driver supports CUDA 12.8 and does not load kernels that the NVRTC of CUDA 13.5 has \
         compiled (CUDA_ERROR_PTX: what the driver says); update the driver",
    );
}

/// Returns bytes that differ from each other.
fn drawn(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

#[test]
fn alone_copies_more_than_the_staging_holds() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let mut card = Card::open(0).unwrap();
    let architecture = card.info().architecture;
    assert_eq!(
        cards(),
        Ok(vec![CardInfo { name: "Stub 0".to_owned(), architecture, memory_bytes: 1 << 30 }])
    );
    assert_eq!(architecture.to_string(), "sm_90");
    let bytes = drawn((150 << 20) + 5);
    let memory = card.allocate(bytes.len() as u64 + 3).unwrap();
    card.select(Stream::Upload);
    card.upload(memory.place().behind(3), &bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    card.download(memory.place().behind(3), &mut got).unwrap();
    assert!(got == bytes);
    for number in 0..2000 {
        card.upload(memory.place().behind(4 * number), &(number as u32).to_le_bytes()).unwrap();
        let event = card.record().unwrap();
        card.select(Stream::Compute);
        card.wait(event).unwrap();
        card.select(Stream::Upload);
    }
    let transfers: Vec<_> = (0..2).map(|_| card.begin_download(memory.place(), 8000).unwrap()).collect();
    for transfer in transfers {
        let mut got = [0; 8000];
        card.finish(transfer, &mut got).unwrap();
        let numbers = got.chunks_exact(4).map(|one| u32::from_le_bytes(one.try_into().unwrap()));
        assert!(numbers.eq(0..2000));
    }
    card.release(memory).unwrap();
    let empty = card.allocate(0).unwrap();
    card.download(empty.place(), &mut []).unwrap();
    let lost = card.begin_download(empty.place(), 0).unwrap();
    assert_eq!(lost.bytes(), 0);
    println!("copied");
}

/// Launches `to = a − share (a − b)` with one element.
fn average(card: &mut Card, [to, a, b]: [Place; 3], share: f32) -> Result<(), DriverError> {
    let [to, a, b] = [to, a, b].map(Argument::Place);
    let arguments = [to, a, b, Argument::U64(1), Argument::F32(share)];
    card.launch(Launch { kernel: "average", grid: Grid::for_each(1), arguments: &arguments })
}

/// Opens the card, with kernels.
fn opened() -> Card {
    let mut card = Card::open(0).unwrap();
    card.load(&Source::optimizer()).unwrap();
    card
}

#[test]
fn alone_cards_that_share_a_context() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let (mut captures, mut other, mut dropped) = (opened(), opened(), opened());
    let memory = captures.allocate(4).unwrap();
    let place = memory.place();
    captures.upload(place, &bytes(&[3.0])).unwrap();
    for card in [&mut captures, &mut dropped] {
        let own = card.allocate(4).unwrap().place();
        card.upload(own, &bytes(&[1.0])).unwrap();
        card.begin_capture().unwrap();
        average(card, [own; 3], 1.0).unwrap();
    }
    average(&mut captures, [place; 3], 0.0).unwrap();
    // All that may wait, while two other cards of the context capture.
    drop(dropped);
    other.load(&Source::optimizer()).unwrap();
    let memories = [0; 2].map(|_| other.allocate(4).unwrap());
    let [a, b] = [0, 1].map(|at: usize| memories[at].place());
    other.upload(a, &bytes(&[5.0])).unwrap();
    other.upload(b, &bytes(&[2.0])).unwrap();
    average(&mut other, [a, a, b], -1.0).unwrap();
    let mut got = [0; 4];
    other.download(a, &mut got).unwrap();
    assert_eq!(numbers(&got), [8.0]);
    let (finished, abandoned) = (other.begin_download(a, 4).unwrap(), other.begin_download(b, 4).unwrap());
    other.finish(finished, &mut got).unwrap();
    other.abandon(abandoned).unwrap();
    other.begin_capture().unwrap();
    average(&mut other, [a, a, b], -1.0).unwrap();
    let graph = other.end_capture().unwrap();
    other.replay(&graph).unwrap();
    other.synchronise().unwrap();
    other.discard(graph).unwrap();
    other.memory_info().unwrap();
    for memory in memories {
        other.upload(memory.place(), &[0; 4]).unwrap();
        other.release(memory).unwrap();
    }
    let lost = other.allocate(4).unwrap();
    other.upload(lost.place(), &[0; 4]).unwrap();
    assert_eq!(other.begin_download(lost.place(), 4).unwrap().bytes(), 4);
    drop(other);
    let graph = captures.end_capture().unwrap();
    captures.replay(&graph).unwrap();
    captures.download(place, &mut got).unwrap();
    assert_eq!(numbers(&got), [3.0]);
    captures.discard(graph).unwrap();
    captures.release(memory).unwrap();
}

#[test]
fn alone_ends_while_a_card_is_open() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let (opens, opened) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut card = self::opened();
        let memory = card.allocate(4).unwrap();
        opens.send(()).unwrap();
        for _ in 0..50 {
            card.upload(memory.place(), &[0; 4]).unwrap();
            card.download(memory.place(), &mut [0; 4]).unwrap();
        }
        card.release(memory).unwrap();
        println!("all was done");
    });
    opened.recv().unwrap();
    std::process::exit(0);
}

#[test]
fn the_end_of_a_process_waits_for_open_cards() {
    let Some(text) = run(&["card::alone_ends_while_a_card_is_open"], &[("STUB_TRACE", "1")]) else { return };
    for expected in ["all was done", "STUB: the library is taken down"] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn alone_says_when_its_streams_work() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let mut card = opened();
    let memory = card.allocate(4).unwrap();
    let places = [memory.place(); 3];
    card.upload(places[0], &bytes(&[3.0])).unwrap();
    assert_eq!(card.watched(), Ok(Vec::new()), "nothing was recorded");
    card.begin_capture().unwrap();
    average(&mut card, places, 0.0).unwrap();
    let graph = card.end_capture().unwrap();
    let before = Instant::now();
    card.watch().unwrap();
    let began = Instant::now();
    card.select(Stream::Upload);
    card.upload(places[0], &bytes(&[3.0])).unwrap();
    let arrived = card.record().unwrap();
    card.select(Stream::Compute);
    card.wait(arrived).unwrap();
    average(&mut card, places, 0.0).unwrap();
    card.replay(&graph).unwrap();
    let computed = card.record().unwrap();
    card.select(Stream::Download);
    card.wait(computed).unwrap();
    let transfer = card.begin_download(places[0], 4).unwrap();
    card.finish(transfer, &mut [0; 4]).unwrap();
    let worked = card.watched().unwrap();
    let streams: Vec<Stream> = worked.iter().map(|worked| worked.stream).collect();
    assert_eq!(streams, [Stream::Upload, Stream::Compute, Stream::Compute, Stream::Download]);
    let mut last = before;
    for Worked { began, ended, .. } in worked {
        assert!(last <= began && began < ended, "each request begins after the one for which it waits");
        last = ended;
    }
    // Each request of the stub takes a millisecond.
    assert!(last >= began + Duration::from_millis(4) && last < began + Duration::from_secs(1));
    assert_eq!(card.watched(), Ok(Vec::new()), "the record has ended");
    card.select(Stream::Compute);
    card.discard(graph).unwrap();
    card.release(memory).unwrap();
}

#[test]
fn alone_a_failed_capture_ends() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let mut card = opened();
    let memory = card.allocate(4).unwrap();
    let places = [memory.place(); 3];
    card.upload(places[0], &bytes(&[3.0])).unwrap();
    card.begin_capture().unwrap();
    average(&mut card, places, 0.0).unwrap();
    let before = card.record().unwrap();
    average(&mut card, places, 0.0).unwrap();
    let error = average(&mut card, places, 0.25).unwrap_err();
    assert!(error.to_string().contains("cannot launch the kernel 'average'"), "{error}");
    assert!(average(&mut card, places, 0.0).is_err());
    assert_eq!(card.end_capture(), Err(error));
    assert!(card.wait(before).is_err(), "its graph does not exist");
    card.begin_capture().unwrap();
    average(&mut card, places, 0.0).unwrap();
    let graph = card.end_capture().unwrap();
    card.replay(&graph).unwrap();
    let mut got = [0; 4];
    card.download(places[0], &mut got).unwrap();
    assert_eq!(numbers(&got), [3.0]);
    card.discard(graph).unwrap();
    card.release(memory).unwrap();
}

#[test]
fn alone_takes_steps_with_many_downloads() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let (mut card, _shares_the_programs) = (opened(), opened());
    card.load(&Source::optimizer()).unwrap();
    let memory = card.allocate(100 << 20).unwrap();
    let place = memory.place();
    card.upload(place, &[0; 16]).unwrap();
    for step in 0..4 {
        if step == 1 {
            eprintln!("the steady state begins");
        }
        let sizes = [100 << 20, 4, 70_000, 100 << 20, 4, 100 << 20];
        let transfers = sizes.map(|bytes| card.begin_download(place, bytes).unwrap());
        for transfer in transfers {
            card.abandon(transfer).unwrap();
        }
        // At another time than all others, and of another size.
        card.download(place, &mut [0; 1 << 20]).unwrap();
    }
    eprintln!("the steady state ends");
    card.release(memory).unwrap();
}

#[test]
fn a_steady_state_pins_and_compiles_nothing() {
    let Some(text) = run(&["card::alone_takes_steps"], &[("STUB_TRACE", "1")]) else { return };
    let (before, steady) = text.split_once("the steady state begins").unwrap();
    let (steady, _) = steady.split_once("the steady state ends").unwrap();
    assert_eq!(before.matches("STUB: compiled").count(), 1, "{text}");
    // One piece for uploads, and one for each download that is in flight at once or has a size of its own.
    assert_eq!(before.matches("STUB: pinned memory").count(), 1 + 6 + 1, "{text}");
    assert!(!steady.contains("STUB"), "{text}");
}

#[test]
fn a_card_does_what_the_suite_expects_on_the_stub() {
    let tests = [
        "card::alone_copies_more_than_the_staging_holds",
        "card::alone_a_failed_capture_ends",
        "card::alone_says_when_its_streams_work",
        "card::alone_cards_that_share_a_context",
        "card::the_programs_of_the_suite_run_on_a_card",
        "order::a_capture",
        "order::a_program_with_an_order_is_right_on_every_device",
        "order::a_transfer",
        "order::an_abandoned_transfer",
        "order::synchronising",
        "order::the_callers_bytes",
        "order::too_much_memory",
        "order::what_one_device_has",
    ];
    for eager in ["0", "1"] {
        let variables = [("STUB_EAGER", eager), ("STUB_FAULT", "a captured launch")];
        let Some(text) = run(&tests, &variables) else { return };
        assert!(text.contains("copied") && text.contains("16 passed") && !text.contains("SKIPPED"), "{text}");
    }
}
