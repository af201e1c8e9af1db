//! Compiles the emulator and the source of kernels with the C++ compiler of this machine. What was compiled
//! before is used again.

use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::DriverError;
use crate::source::Source;

/// The compilers to look for, in this order.
const NAMES: [&str; 3] = ["c++", "g++", "clang++"];
/// What every compilation has. Products are not fused with sums, so that results do not depend on the
/// processor.
const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-Wall",
    "-Wno-unused-function",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];
const HEADER: &str = include_str!("cuda.h");
const MAIN: &str = include_str!("main.cpp");

/// A C++ compiler, and the folder for what it makes.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: &'static str,
    folder: PathBuf,
}

impl Compiler {
    /// Returns the compiler of this machine. What it makes is kept in `folder`, which is made if it does not
    /// exist.
    ///
    /// # Errors
    /// If there is no compiler with the address and undefined-behaviour sanitizers, or the folder cannot be
    /// used.
    pub fn find(folder: impl Into<PathBuf>) -> Result<Self, DriverError> {
        let folder = folder.into();
        let unavailable = |reason: String| DriverError::Unavailable(reason);
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("cuda.h"), HEADER))
            .map_err(|error| unavailable(format!("cannot use the folder {}: {error}", folder.display())))?;
        let runs = |name: &&str| {
            let mut command = Command::new(name);
            command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let program = NAMES.into_iter().find(runs).ok_or_else(|| {
            unavailable(format!("there is no C++ compiler, expected one of {}", NAMES.join(", ")))
        })?;
        Ok(Self { program, folder })
    }

    /// Returns the folder for what the compiler makes.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the emulator's program.
    pub(super) fn emulator(&self) -> Result<PathBuf, DriverError> {
        self.compile("emulator", MAIN, &["-rdynamic", "-ldl"])
    }

    /// Returns the path of a library with the kernels of a source.
    pub(super) fn library(&self, source: &Source) -> Result<PathBuf, DriverError> {
        let kernels: String = source.kernels().map(|kernel| format!("EMULATE({kernel})\n")).collect();
        let text =
            format!("#include \"cuda.h\"\n#line 1 \"{}.cu\"\n{}\n{kernels}", source.name(), source.text());
        self.compile(source.name(), &text, &["-shared", "-fPIC"])
    }

    fn compile(&self, name: &str, text: &str, flags: &[&str]) -> Result<PathBuf, DriverError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut hasher = DefaultHasher::new();
        (self.program, FLAGS, HEADER, text, flags).hash(&mut hasher);
        let stem = format!("{name}-{:016x}", hasher.finish());
        let made = self.folder.join(&stem);
        if made.exists() {
            return Ok(made);
        }
        // Others may compile the same at the same time, so the result gets its name when it is whole.
        let own = format!("{stem}.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (input, output) = (self.folder.join(format!("{own}.cpp")), self.folder.join(&own));
        let failed = |reason: String| DriverError::Source { name: name.to_owned(), reason };
        let io = |error: std::io::Error| failed(format!("{}: {error}", self.folder.display()));
        fs::write(&input, text).map_err(io)?;
        let mut command = Command::new(self.program);
        command.args(FLAGS).arg("-I").arg(&self.folder).arg(&input);
        command.args([OsStr::new("-o"), output.as_os_str()]).args(flags).stdin(Stdio::null());
        let compiled = command.output().map_err(io)?;
        fs::remove_file(&input).map_err(io)?;
        if !compiled.status.success() {
            return Err(failed(String::from_utf8_lossy(&compiled.stderr).trim().to_owned()));
        }
        fs::rename(&output, &made).map_err(io)?;
        Ok(made)
    }
}
