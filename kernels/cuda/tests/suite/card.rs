//! Cards: what a machine without one says, and the suite's programs on a stub of NVIDIA's driver. The
//! programs run on a real card as well, if there is one.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use pushpull_cuda::{Card, CardInfo, Driver, DriverError, Source, Stream, cards};

use crate::devices::{DEVICES, card, folder};
use crate::pipeline::{Plan, expected};

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
    let loaded = Card::open(0).and_then(|mut card| card.load(&Source::optimizer()));
    match loaded {
        Ok(()) => println!("loaded"),
        Err(error) => println!("error: {error}"),
    }
}

#[test]
fn errors_of_the_driver_are_one_line_that_says_what_to_do() {
    let says = |variables: &[(&str, &str)], expected: &str| {
        let Some(text) = run(&["card::alone_opens_and_loads"], variables) else { return };
        assert!(text.lines().any(|line| line.contains(expected)), "{variables:?}: {text}");
    };
    says(&[], "loaded");
    says(&[("STUB_CAPABILITY", "103")], "loaded");
    says(
        &[("STUB_CAPABILITY", "70")],
        "error: the NVRTC of CUDA 13.5 compiles no kernels for Stub 0 (sm_70)",
    );
    says(&[("STUB_FAULT", "no device")], "error: the NVIDIA driver finds no card");
    says(
        &[("STUB_FAULT", "no device"), ("CUDA_VISIBLE_DEVICES", "7")],
        "error: the NVIDIA driver finds no card; CUDA_VISIBLE_DEVICES is '7'",
    );
    says(
        &[("STUB_CARDS", "0"), ("CUDA_VISIBLE_DEVICES", "")],
        "error: there is no card 0: the NVIDIA driver finds 0, counted from 0; CUDA_VISIBLE_DEVICES is ''",
    );
    says(
        &[("STUB_FAULT", "old driver")],
        "error: the NVIDIA driver supports CUDA 11.2, expected at least 11.4; update it",
    );
    says(
        &[("STUB_FAULT", "too new")],
        "error: the NVIDIA driver supports CUDA 12.4 and does not load kernels that the NVRTC of CUDA 13.5 has \
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

#[test]
fn a_card_does_what_the_suite_expects_on_the_stub() {
    let tests = [
        "card::alone_copies_more_than_the_staging_holds",
        "card::the_programs_of_the_suite_run_on_a_card",
        "order::a_capture",
        "order::a_program_with_an_order_is_right_on_every_device",
        "order::a_transfer",
        "order::synchronising",
        "order::the_callers_bytes",
        "order::too_much_memory",
        "order::what_one_device_has",
    ];
    for eager in ["0", "1"] {
        let Some(text) = run(&tests, &[("STUB_EAGER", eager)]) else { return };
        assert!(text.contains("copied") && text.contains("10 passed") && !text.contains("SKIPPED"), "{text}");
    }
}
