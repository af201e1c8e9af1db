//! The two sides of the line: network namespaces that a pair of virtual interfaces joins. The namespaces have
//! no names, so they disappear with their last process. All processes are in a process namespace whose first
//! process is the benchmark: when it ends for any reason, the system kills the others. This module must not
//! depend on what is measured.

use std::process::Stdio;
use std::str::FromStr;

use anyhow::{Context, bail};
use tokio::process::Command;

use crate::child::{Process, Task};

/// The address of the side of the ps, where the benchmark runs.
pub(crate) const HERE: &str = "10.77.0.1";
/// The address of the side of the workers.
pub(crate) const THERE: &str = "10.77.0.2";
const INTERFACE_HERE: &str = "ps-side";
const INTERFACE_THERE: &str = "worker-side";
/// The bytes that may be sent at once after a pause.
const BURST: &str = "256kb";
/// The longest time that a packet waits until the rate lets it pass; a later one is dropped.
const QUEUE: &str = "50ms";

/// Runs this program again, in namespaces of its own, and waits for its end.
pub(crate) fn run_inside() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("this benchmark makes network namespaces, which only root may do; run it as root");
    }
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).arg("--inside");
    // The benchmark ends when this pipe is closed. This process holds the other end until it ends.
    let mut child = command.stdin(Stdio::piped()).spawn().context("cannot run unshare, of util-linux")?;
    let _input = child.stdin.take();
    let status = child.wait()?;
    if !status.success() {
        bail!("the benchmark in the namespaces ended with {status}");
    }
    Ok(())
}

/// Returns the bits per second of a rate such as `1gbit`.
pub(crate) fn bits_per_second(rate: &str) -> anyhow::Result<f64> {
    let units = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
    let found = units.iter().find_map(|(unit, bits)| {
        let number = f64::from_str(rate.strip_suffix(unit)?).ok()?;
        (number.is_finite() && number > 0.0).then_some(number * bits)
    });
    found.with_context(|| format!("the rate is '{rate}', expected a number and gbit, mbit or kbit"))
}

/// Runs a command to its end.
async fn run(mut command: Command) -> anyhow::Result<()> {
    let shown = format!("{:?}", command.as_std());
    let status = command.status().await.with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("{shown} ended with {status}");
    }
    Ok(())
}

fn in_words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Two joined sides.
pub(crate) struct Sides {
    /// The process that keeps the namespace of the other side.
    holder: Process,
}

impl Sides {
    /// Makes the other side, joins the two, and limits the rate of each direction.
    pub(crate) async fn join(rate: &str) -> anyhow::Result<Self> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--"]);
        let sides = Self { holder: Process::start(Some(unshare), &Task::Hold).await? };
        let holder = sides.holder.id()?;
        let here = |text: String| {
            let words = in_words(&text);
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        };
        let there = |text: String| {
            let mut command = sides.command_there();
            command.args(in_words(&text));
            command
        };
        let join = "ip link add";
        let pair = format!("{INTERFACE_HERE} type veth peer name {INTERFACE_THERE} netns {holder}");
        run(here(format!("{join} {pair}"))).await?;
        let ends: [(&dyn Fn(String) -> Command, _, _); 2] =
            [(&here, INTERFACE_HERE, HERE), (&there, INTERFACE_THERE, THERE)];
        for (command, interface, address) in ends {
            run(command("ip link set lo up".to_owned())).await?;
            run(command(format!("ip addr add {address}/24 dev {interface}"))).await?;
            run(command(format!("ip link set {interface} up"))).await?;
            let limit = format!("tbf rate {rate} burst {BURST} latency {QUEUE}");
            run(command(format!("tc qdisc add dev {interface} root {limit}"))).await?;
        }
        Ok(sides)
    }

    /// Returns the program and the first arguments that run a command on the other side.
    pub(crate) fn prefix_there(&self) -> Vec<String> {
        // The holder lives as long as this value, so its number is not reused.
        let holder = self.holder.id().unwrap_or_default();
        vec!["nsenter".to_owned(), format!("--net=/proc/{holder}/ns/net"), "--".to_owned()]
    }

    fn command_there(&self) -> Command {
        let prefix = self.prefix_there();
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]);
        command
    }

    /// Starts a process on this side, and waits until it is ready.
    pub(crate) async fn start_here(&self, task: &Task) -> anyhow::Result<Process> {
        Process::start(None, task).await
    }

    /// Starts a process on the other side, and waits until it is ready.
    pub(crate) async fn start_there(&self, task: &Task) -> anyhow::Result<Process> {
        Process::start(Some(self.command_there()), task).await
    }
}
