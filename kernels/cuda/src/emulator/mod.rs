//! A device without a card: kernels compiled as C++, run by a process of their own, under the address and
//! undefined-behaviour sanitizers. The threads of a block run one after the other, in an order that depends
//! on a seed, and change only where they wait for each other. So a missing barrier, an access beyond a piece
//! of memory or a wait without end fails here. Of shared memory, only accesses through the name of an array
//! are checked.

mod compiler;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

pub use compiler::Compiler;

use crate::driver::{Argument, Driver, DriverError, Launch, Memory, Place};
use crate::source::Source;

/// The largest part of the report that is read, in bytes.
const FAULT_BYTES_MAX: u64 = 64 << 10;

/// The longest time that a kernel may run, in seconds.
const KERNEL_SECONDS_MAX: u32 = 60;

/// An emulated device. Its process ends when this value is dropped.
#[derive(Debug)]
pub struct Emulator {
    compiler: Compiler,
    process: Child,
    orders: BufWriter<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The file that has what the sanitizers report.
    report: PathBuf,
}

impl Emulator {
    /// Starts an emulated device. `seed` decides the order in which threads run. A kernel may run for a
    /// minute.
    ///
    /// # Errors
    /// If the emulator cannot be compiled or started.
    pub fn start(compiler: &Compiler, seed: u64) -> Result<Self, DriverError> {
        Self::start_with_limit(compiler, seed, KERNEL_SECONDS_MAX)
    }

    /// Starts an emulated device whose kernels may run for this number of seconds. A kernel that runs for
    /// longer ends the device.
    ///
    /// # Errors
    /// If the emulator cannot be compiled or started.
    pub fn start_with_limit(compiler: &Compiler, seed: u64, seconds: u32) -> Result<Self, DriverError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let program = compiler.emulator()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let report = compiler.folder().join(format!("report.{}.{number}", std::process::id()));
        let unavailable =
            |error: io::Error| DriverError::Unavailable(format!("cannot start the emulator: {error}"));
        let errors = File::create(&report).map_err(unavailable)?;
        let mut command = Command::new(program);
        // The process exits when its input ends. Memory that it still holds is no leak.
        command.args([seed.to_string(), seconds.to_string()]).env("ASAN_OPTIONS", "detect_leaks=0");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut process = command.spawn().map_err(unavailable)?;
        let (orders, answers) = (process.stdin.take(), process.stdout.take());
        let orders = BufWriter::new(orders.expect("a pipe"));
        let answers = BufReader::new(answers.expect("a pipe"));
        Ok(Self { compiler: compiler.clone(), process, orders, answers, report })
    }

    /// Sends what has been written, and returns the bytes of the answer.
    fn answer(&mut self) -> Result<Vec<u8>, DriverError> {
        let (mut status, mut length) = ([0], [0; 8]);
        let read = self.orders.flush().and_then(|()| {
            self.answers.read_exact(&mut status)?;
            self.answers.read_exact(&mut length)?;
            let mut bytes = Vec::new();
            let length = u64::from_le_bytes(length);
            self.answers.by_ref().take(length).read_to_end(&mut bytes)?;
            match bytes.len() as u64 == length {
                true => Ok(bytes),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        });
        let bytes = read.map_err(|error| self.fault(&error))?;
        match status {
            [0] => Ok(bytes),
            _ => Err(DriverError::Refused(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// Returns the reason why the process has ended, which a sanitizer may have reported.
    fn fault(&mut self, error: &io::Error) -> DriverError {
        let _ = self.process.wait();
        let mut text = Vec::new();
        let read =
            File::open(&self.report).and_then(|file| file.take(FAULT_BYTES_MAX).read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text).into_owned();
        let says = |line: &&str| line.contains("ERROR: ") || line.contains("runtime error: ");
        let line = read.ok().and_then(|_| text.lines().find(says));
        DriverError::Failed(line.map_or_else(|| error.to_string(), |line| line.trim().to_owned()))
    }

    /// Writes a part of an order. An error shows when the answer is read.
    fn put(&mut self, bytes: &[u8]) {
        let _ = self.orders.write_all(bytes);
    }

    fn put_text(&mut self, text: &str) {
        self.put(&(text.len() as u64).to_le_bytes());
        self.put(text.as_bytes());
    }

    fn put_place(&mut self, Place { id, offset }: Place) {
        self.put(&id.to_le_bytes());
        self.put(&offset.to_le_bytes());
    }
}

impl Driver for Emulator {
    fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        let library = self.compiler.library(source)?;
        self.put(b"l");
        self.put_text(&library.display().to_string());
        self.answer().map(drop)
    }

    fn allocate(&mut self, bytes: u64) -> Result<Memory, DriverError> {
        self.put(b"a");
        self.put(&bytes.to_le_bytes());
        let id = self.answer()?.try_into().map_err(|_| DriverError::Failed("a wrong answer".to_owned()))?;
        Ok(Memory { id: u64::from_le_bytes(id), bytes })
    }

    fn release(&mut self, memory: Memory) -> Result<(), DriverError> {
        self.put(b"f");
        self.put(&memory.id.to_le_bytes());
        self.answer().map(drop)
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError> {
        self.put(b"u");
        self.put_place(to);
        self.put(&(bytes.len() as u64).to_le_bytes());
        self.put(bytes);
        self.answer().map(drop)
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.put(b"d");
        self.put_place(from);
        self.put(&(bytes.len() as u64).to_le_bytes());
        let answer = self.answer()?;
        if answer.len() != bytes.len() {
            return Err(DriverError::Failed("an answer of another length".to_owned()));
        }
        bytes.copy_from_slice(&answer);
        Ok(())
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        self.put(b"r");
        self.put_text(launch.kernel);
        for size in launch.grid.blocks.into_iter().chain(launch.grid.threads) {
            self.put(&size.to_le_bytes());
        }
        self.put(&(launch.arguments.len() as u32).to_le_bytes());
        for argument in launch.arguments {
            match *argument {
                Argument::Place(place) => {
                    self.put(b"m");
                    self.put_place(place);
                }
                Argument::U32(number) => {
                    self.put(b"i");
                    self.put(&number.to_le_bytes());
                }
                Argument::U64(number) => {
                    self.put(b"l");
                    self.put(&number.to_le_bytes());
                }
                Argument::F32(number) => {
                    self.put(b"f");
                    self.put(&number.to_le_bytes());
                }
            }
        }
        self.answer().map(drop)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.report);
    }
}
