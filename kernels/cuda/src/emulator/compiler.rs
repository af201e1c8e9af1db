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
/// The flags of every compilation. Products are not fused with sums, so that results do not depend on the
/// processor. Not every compiler knows the pragma that unrolls loops.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-Wall",
    "-Wno-unused-function",
    "-Wno-unknown-pragmas",
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
    /// The compiler's description of itself.
    version: String,
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
        fs::create_dir_all(&folder).map_err(|error| {
            DriverError::Unavailable(format!("cannot use the folder {}: {error}", folder.display()))
        })?;
        let version = |program: &'static str| {
            let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
            let version = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success().then_some((program, version))
        };
        let (program, version) = NAMES.into_iter().find_map(version).ok_or_else(|| {
            let reason = format!("there is no C++ compiler, expected one of {}", NAMES.join(", "));
            DriverError::Unavailable(reason)
        })?;
        let compiler = Self { program, version, folder };
        let runs = compiler.compile("probe", "int main() { return 0; }\n", &[]).is_ok_and(|probe| {
            Command::new(probe).stdin(Stdio::null()).status().is_ok_and(|status| status.success())
        });
        match runs {
            true => Ok(compiler),
            false => Err(DriverError::Unavailable(format!("{program} has no address sanitizer"))),
        }
    }

    /// Returns the folder for what the compiler makes.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the emulator's program.
    pub(super) fn emulator(&self) -> Result<PathBuf, DriverError> {
        self.compile(
            "emulator",
            &format!("{HEADER}\n#line 1 \"main.cpp\"\n{MAIN}"),
            &["-O2", "-rdynamic", "-ldl"],
        )
    }

    /// Returns the path of a library with the kernels of a source.
    pub(super) fn library(&self, source: &Source) -> Result<PathBuf, DriverError> {
        let stand_ins = source.stand_ins().iter().map(|own| &*own.kernel);
        let kernels = source.kernels().chain(stand_ins);
        let kernels: String = kernels.map(|kernel| format!("EMULATE({kernel})\n")).collect();
        let (name, text) = (source.name(), source.whole_text());
        let text = format!("{HEADER}\n#line 1 \"{name}.cu\"\n{text}\n{kernels}");
        // Without the last flag, a kernel with the name of a function of the C library would not be called.
        self.compile(name, &text, &["-shared", "-fPIC", "-Wl,-Bsymbolic"])
    }

    fn compile(&self, name: &str, text: &str, flags: &[&str]) -> Result<PathBuf, DriverError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut hasher = DefaultHasher::new();
        (&self.version, FLAGS, text, flags).hash(&mut hasher);
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
        command.args(FLAGS).arg(&input);
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
