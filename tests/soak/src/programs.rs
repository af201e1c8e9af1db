//! The programs of pushpull. They are built first, because nothing else does: the soak does not depend on
//! them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use pushpull_messages::id::JobName;

/// Where the programs of pushpull lie.
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Builds the programs, with the profile of this one.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn build() -> anyhow::Result<Self> {
        let this = std::env::current_exe().context("cannot find the path of this program")?;
        let dir = this.parent().context("this program lies in no directory")?.to_owned();
        let profile = match dir.file_name().and_then(OsStr::to_str) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        let target = dir.parent().context("this program lies in no target directory")?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--package=pushpull", "--bins", "--locked", "--profile", profile])
            .arg("--target-dir")
            .arg(target)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .status()
            .context("cannot run cargo")?;
        ensure!(status.success(), "the programs could not be built: cargo ended with {status}");
        Ok(Self { dir })
    }

    /// Returns the command of the program that runs tasks of a job.
    pub fn role(&self, job: JobName) -> Command {
        self.command(&format!("pushpull-{job}"))
    }

    /// Returns the command of the program `pushpull`.
    pub fn tool(&self) -> Command {
        self.command("pushpull")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.dir.join(name));
        // Nothing of the user's environment may change a job.
        for variable in ["TF_CONFIG", "RUST_LOG", "LISTEN_FDS", "LISTEN_PID"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null());
        command
    }
}
