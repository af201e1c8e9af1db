//! A supervised process. Its output is kept in files and shown when a test fails. The process never outlives
//! its test.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pushpull_messages::id::JobName;
use rustix::process::{Pid, Signal, kill_process};

use super::wait::{PATIENCE, wait_until};

/// A process that was started.
pub(crate) struct Program {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
    ended: Option<i32>,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    name: String,
    /// The exit status, or minus the number of the signal that killed the process.
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Returns the command of the role binary for one job.
pub(crate) fn role(job: JobName) -> Command {
    clean(match job {
        JobName::Ps => env!("CARGO_BIN_EXE_pushpull-ps"),
        JobName::Worker => env!("CARGO_BIN_EXE_pushpull-worker"),
        JobName::Chief => env!("CARGO_BIN_EXE_pushpull-chief"),
        JobName::Evaluator => env!("CARGO_BIN_EXE_pushpull-evaluator"),
        JobName::Other(_) => unreachable!("every role binary runs a role of training"),
    })
}

/// Returns the command of the program `pushpull`.
pub(crate) fn tool() -> Command {
    clean(env!("CARGO_BIN_EXE_pushpull"))
}

/// The width of the model in most tests. Its variables are 220 KB instead of 2.7 MB, and what the tests check
/// does not depend on that.
pub(crate) const WIDTH: &str = "--width=64";

/// Returns the command of the example `mnist`, with a narrow model.
pub(crate) fn example() -> Command {
    let mut command = mnist();
    command.arg(WIDTH);
    command
}

/// Returns the command of the example `mnist`, with its usual model.
pub(crate) fn mnist() -> Command {
    example_called("mnist")
}

/// Returns the command of the smallest example, `linear_regression`.
pub(crate) fn linear_regression() -> Command {
    example_called("linear_regression")
}

/// Returns the command of an example.
pub(crate) fn example_called(name: &str) -> Command {
    let programs = Path::new(env!("CARGO_BIN_EXE_pushpull")).parent().expect("a program lies in a directory");
    let example = programs.join("examples").join(name);
    assert!(
        example.exists(),
        "{} is missing. `cargo test` builds it, `cargo test --test cluster` does not: run \
         `cargo build --examples` first, with the same profile",
        example.display()
    );
    clean(example.to_str().expect("the path of the build is UTF-8"))
}

/// Returns a command without the environment variables that could influence a test.
pub(crate) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    let tasks = ["PUSHPULL_LOG_PREFIXED", "PUSHPULL_ENDS_WITH_PARENT"];
    let secrets = ["PUSHPULL_JOIN", "PUSHPULL_AUTHORITY", "PUSHPULL_CLIENT", "PUSHPULL_INSECURE"];
    let files = ["PUSHPULL_TLS_CA", "PUSHPULL_TLS_CERT", "PUSHPULL_TLS_KEY"];
    let system = ["TF_CONFIG", "RUST_LOG", "LISTEN_FDS", "LISTEN_PID"];
    for variable in system.iter().chain(&tasks).chain(&secrets).chain(&files) {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// Returns the path of a new file for the output of a command.
fn output(dir: &Path, name: &str, end: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!("{}-{number}.{end}", name.replace('/', "-")))
}

impl Program {
    /// Starts a command, whose output goes to files in `dir`.
    #[track_caller]
    pub(crate) fn start(dir: &Path, name: &str, command: &mut Command) -> Self {
        let out = output(dir, name, "out");
        let stdout = File::create(&out).expect("the test's directory can be written");
        let mut program = Self::start_writing(dir, name, command, stdout.into());
        program.out = out;
        program
    }

    /// Starts a command with this standard output, which is not shown when a test fails.
    #[track_caller]
    pub(crate) fn start_writing(dir: &Path, name: &str, command: &mut Command, stdout: Stdio) -> Self {
        let (out, err) = (PathBuf::new(), output(dir, name, "err"));
        command.stdout(stdout).stderr(File::create(&err).expect("the test's directory can be written"));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { name: name.to_owned(), child, out, err, ended: None }
    }

    /// Starts a command, and waits until it has ended.
    #[track_caller]
    pub(crate) fn run(dir: &Path, name: &str, command: &mut Command) -> Ended {
        Self::start(dir, name, command).wait()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the peak memory of the process, in bytes.
    #[track_caller]
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("Linux says so");
        let kilobytes: u64 =
            line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
        kilobytes << 10
    }

    pub(crate) fn out(&self) -> String {
        read(&self.out)
    }

    pub(crate) fn err(&self) -> String {
        read(&self.err)
    }

    fn status(&mut self) -> Option<i32> {
        if self.ended.is_none() {
            let status = self.child.try_wait().expect("a child can be waited for")?;
            self.ended = status.code().or_else(|| status.signal().map(|signal| -signal));
        }
        self.ended
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    /// Waits until the process ends by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Ended {
        self.wait_within(PATIENCE)
    }

    /// Waits until the process ends by itself. Panics if this takes longer than `limit`.
    #[track_caller]
    pub(crate) fn wait_within(&mut self, limit: Duration) -> Ended {
        let what = format!("the end of {}", self.name);
        let status = wait_until(&what, limit, || self.status());
        Ended { name: self.name.clone(), status, out: self.out(), err: self.err() }
    }

    /// Waits until the process has logged a text.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait_for_line("", text);
    }

    /// Waits until the process has logged a line that begins with `begin` and contains a text. Returns the
    /// rest of the line.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, begin: &str, text: &str) -> String {
        let what = format!("'{text}' from {}", self.name);
        wait_until(&what, PATIENCE, || {
            let running = self.is_running();
            let log = self.err();
            let mut lines = log.lines().filter(|line| line.starts_with(begin));
            let rest = lines.find_map(|line| line.split_once(text)).map(|(_, rest)| rest.to_owned());
            assert!(running || rest.is_some(), "{} ended without '{text}'", self.name);
            rest
        })
    }

    /// Kills the process if it is still running, and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        // An error here means that the process has already ended.
        let _ = self.child.kill();
        self.wait();
    }

    /// Sends a signal to the process.
    #[track_caller]
    pub(crate) fn signal(&mut self, signal: Signal) {
        assert!(self.is_running(), "{} has ended before the signal", self.name);
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).expect("a running child takes signals");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error here means that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}: status {:?}\n{}{}", self.name, self.ended, self.out(), self.err());
        }
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{} said:\n{}{}", self.name, self.out, self.err);
        self
    }

    /// Checks that the program failed with status 1, so it was not killed by a signal or called with wrong
    /// flags.
    #[track_caller]
    pub(crate) fn expect_failure(self) -> Self {
        self.expect(1)
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.err.contains(text), "{} should say '{text}', and said:\n{}", self.name, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn does_not_say(self, text: &str) -> Self {
        assert!(!self.err.contains(text), "{} should not say '{text}', and said:\n{}", self.name, self.err);
        self
    }

    /// Returns the last line of the standard error.
    pub(crate) fn last_line(&self) -> &str {
        self.err.lines().last().unwrap_or_default()
    }
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
