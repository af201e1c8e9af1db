//! The process that runs kernels. It carries out one order at a time; this module must not depend on why an
//! order comes before another one.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use super::compiler::Compiler;
use super::work::{Call, Touch};
use crate::driver::{Argument, DriverError, Place};
use crate::signature::Parameter;
use crate::source::Source;

/// The largest part of the report that is read, in bytes.
const FAULT_BYTES_MAX: u64 = 64 << 10;

/// The process. It ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Process {
    compiler: Compiler,
    child: Child,
    orders: BufWriter<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The file that has what the sanitizers report.
    report: PathBuf,
}

impl Process {
    /// Starts the process. `seed` decides the order in which threads run, and `seconds` is the longest time
    /// that a kernel may run.
    pub fn start(compiler: &Compiler, seed: u64, seconds: u32) -> Result<Self, DriverError> {
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
        let mut child = command.spawn().map_err(unavailable)?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let orders = BufWriter::new(orders.expect("a pipe"));
        let answers = BufReader::new(answers.expect("a pipe"));
        Ok(Self { compiler: compiler.clone(), child, orders, answers, report })
    }

    /// Loads kernels. Their index is the number of sources that were loaded before.
    pub fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        let library = self.compiler.library(source)?;
        self.put(b"l");
        self.put_text(&library.display().to_string());
        self.answer().map(drop)
    }

    pub fn allocate(&mut self, id: u64, bytes: u64) -> Result<(), DriverError> {
        self.put(b"a");
        self.put_numbers([id, bytes]);
        self.answer().map(drop)
    }

    pub fn release(&mut self, id: u64) -> Result<(), DriverError> {
        self.put(b"f");
        self.put_numbers([id]);
        self.answer().map(drop)
    }

    pub fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError> {
        self.put(b"u");
        self.put_numbers([to.id, to.offset, bytes.len() as u64]);
        self.put(bytes);
        self.answer().map(drop)
    }

    pub fn download(&mut self, from: Place, bytes: u64) -> Result<Vec<u8>, DriverError> {
        self.put(b"d");
        self.put_numbers([from.id, from.offset, bytes]);
        let answer = self.answer()?;
        match answer.len() as u64 == bytes {
            true => Ok(answer),
            false => Err(DriverError::Failed("an answer of another length".to_owned())),
        }
    }

    pub fn launch(&mut self, call: &Call) -> Result<(), DriverError> {
        self.put(b"r");
        self.put_text(&call.kernel);
        self.put_numbers([call.module as u64]);
        for size in call.grid.blocks.into_iter().chain(call.grid.threads) {
            self.put(&size.to_le_bytes());
        }
        self.put(&(call.arguments.len() as u32).to_le_bytes());
        for (parameter, argument) in call.parameters.iter().zip(&call.arguments) {
            match *argument {
                Argument::Place(place) => {
                    self.put(if *parameter == Parameter::Read { b"r" } else { b"w" });
                    self.put_numbers([place.id, place.offset]);
                }
                Argument::U32(number) => {
                    self.put(b"i");
                    self.put(&number.to_le_bytes());
                }
                Argument::U64(number) => {
                    self.put(b"l");
                    self.put_numbers([number]);
                }
                Argument::F32(number) => {
                    self.put(b"f");
                    self.put(&number.to_le_bytes());
                }
            }
        }
        let touched = call.touched.as_deref().unwrap_or_default();
        self.put(&[call.touched.is_some().into()]);
        self.put(&(touched.len() as u32).to_le_bytes());
        for Touch { memory, bytes, written } in touched {
            self.put_numbers([*memory, bytes.start, bytes.end - bytes.start]);
            self.put(&[(*written).into()]);
        }
        self.answer().map(drop)
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
        let _ = self.child.wait();
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
        self.put_numbers([text.len() as u64]);
        self.put(text.as_bytes());
    }

    fn put_numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        numbers.iter().for_each(|number| self.put(&number.to_le_bytes()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.report);
    }
}
