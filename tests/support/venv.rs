//! A Python environment with the packages that read our files. It is created once in each target folder. If
//! it cannot be created, the skipped tests are reported on stderr. This module must not depend on the files.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The packages of the environment.
const PACKAGES: &[&str] =
    &["tensorboard==2.21.0", "safetensors==0.8.0", "numpy", "pillow", "kubernetes-validate==1.34.1"];
/// The time limit for each command that creates the environment.
const INSTALL: Duration = Duration::from_secs(300);

/// A Python environment.
pub(crate) struct Venv {
    python: PathBuf,
}

impl Venv {
    /// Returns the environment of this target folder, and creates it if necessary. Returns `None` and prints
    /// the reason on stderr if there is no Python or no package registry.
    pub(crate) fn find(test: &str) -> Option<Self> {
        match Self::make() {
            Ok(venv) => Some(venv),
            Err(reason) => {
                eprintln!(
                    "!!! SKIPPED: {test} is NOT tested, because its Python packages cannot be installed: {reason} !!!"
                );
                None
            }
        }
    }

    fn make() -> Result<Self, String> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder of the target folder");
        let name = format!("pushpull-venv-{}", PACKAGES.join("-").replace("==", "-"));
        let (place, making) = (target.join(&name), target.join(format!("{name}.new")));
        let text = |error: std::io::Error| error.to_string();
        // If several processes need the environment, the first one creates it and the others wait.
        let lock = File::create(target.join(format!("{name}.lock"))).map_err(text)?;
        lock.lock().map_err(text)?;
        let venv = Self { python: place.join("bin/python") };
        if place.exists() {
            return Ok(venv);
        }
        if making.exists() {
            std::fs::remove_dir_all(&making).map_err(text)?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&making))?;
        let install =
            ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=20"];
        run(Command::new(making.join("bin/python")).args(install).args(PACKAGES))?;
        std::fs::rename(&making, &place).map_err(text)?;
        Ok(venv)
    }

    /// Runs a script, and returns its output.
    ///
    /// # Panics
    /// Panics if the script fails.
    pub(crate) fn run(&self, script: &str, arguments: &[&OsStr]) -> String {
        let Output { status, stdout, stderr } = Command::new(&self.python)
            .args(["-c", script])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the environment's Python can be run");
        assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).expect("the script prints UTF-8")
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let begun = Instant::now();
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{command:?}: {status}")),
            None if begun.elapsed() < INSTALL => std::thread::sleep(Duration::from_millis(50)),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{command:?} did not end within {} s", INSTALL.as_secs()));
            }
        }
    }
}
