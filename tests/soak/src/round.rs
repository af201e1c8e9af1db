//! One job: it is disturbed by faults, started again when it has ended early, and checked when it is trained.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use pushpull_messages::id::{JobName, TaskId};
use rustix::process::{Pid, Signal, kill_process};

use crate::again::{Again, started_again};
use crate::cluster::{Cluster, log_of};
use crate::fault::Fault;
use crate::losses::{
    Counts, check_checkpoints, check_orphans, check_report, kill_processes_of, processes_of,
};
use crate::plan::Plan;
use crate::program::{memory_of, shown};
use crate::programs::Programs;
use crate::random::Random;
use crate::signals::Signals;
use crate::tally::Happened;

/// The time between two looks at the processes.
const LOOK: Duration = Duration::from_millis(5);
/// The time between two measurements of the memory.
const MEASURE: Duration = Duration::from_millis(200);
/// The time within which a job must be trained, with everything that happens to it.
const TRAINED_WITHIN: Duration = Duration::from_secs(300);
/// The time within which all tasks must end after the chief or a ps has ended. The longest wait is the one
/// of a worker without a chief and without replies, 60 s after it has given up the chief, and then that of
/// its ps tasks. A chief that waits for a ps task, and a ps task without a chief, end earlier.
const END_WITHIN: Duration = Duration::from_secs(150);
/// The time within which the processes that `pushpull local` has started must end after it.
const ORPHANS_END_WITHIN: Duration = Duration::from_secs(60);
/// The shortest and the longest time between two faults, in milliseconds.
const PAUSE_MS: [u64; 2] = [20, 900];
/// The longest time after which a task is started again alone, in milliseconds.
const BACK_MS_MAX: u64 = 800;

/// A job that is disturbed.
pub struct Round<'a> {
    plan: Plan,
    programs: &'a Programs,
    signals: &'a Signals,
    dir: PathBuf,
    random: Random,
    verbose: bool,
    began: Instant,
    told: Vec<String>,
    /// What has happened so far.
    pub happened: Happened,
    /// The counts of the trained job.
    pub counts: Counts,
}

/// One life of a job: from the start of all its tasks until all have ended.
struct Life<'a> {
    cluster: Cluster<'a>,
    /// The tasks to start again, and when.
    returning: Vec<(Instant, TaskId)>,
    /// When the next fault happens.
    next: Instant,
    /// When the memory is measured next.
    measured: Instant,
    /// Whether nothing has happened in this life.
    quiet: bool,
}

impl<'a> Round<'a> {
    /// Prepares a job in a directory of its own.
    pub fn new(plan: Plan, programs: &'a Programs, signals: &'a Signals, dir: &Path, verbose: bool) -> Self {
        // The plan has used the first numbers of the seed.
        let random = Random::new(!plan.seed);
        let (dir, began) = (dir.to_owned(), Instant::now());
        let (happened, counts) = (Happened::default(), Counts::default());
        Self { plan, programs, signals, dir, random, verbose, began, told: Vec::new(), happened, counts }
    }

    /// Returns what has happened, a line each.
    pub fn story(&self) -> String {
        format!("{}{}", self.told.concat(), self.plan)
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        let line = format!("{:>10.3} s  {what}\n", self.began.elapsed().as_secs_f64());
        if self.verbose {
            print!("{line}");
        }
        self.told.push(line);
    }

    /// Trains the job, and checks that nothing is lost. When it returns, no process of the job is left.
    ///
    /// # Errors
    /// Returns the first loss, or an error if this process was told to end.
    pub fn run(&mut self, memory_mib_max: u64) -> anyhow::Result<()> {
        if self.verbose {
            println!("{}", self.plan);
        }
        let held = self.train_and_check(memory_mib_max);
        kill_processes_of(&self.dir);
        // A chief that never started has no log.
        let log = fs::read(log_of(&self.dir, TaskId::CHIEF)).unwrap_or_default();
        self.happened.count_survived(&String::from_utf8_lossy(&log));
        held
    }

    fn train_and_check(&mut self, memory_mib_max: u64) -> anyhow::Result<()> {
        let mut cluster = Cluster::new(&self.plan, self.programs, &self.dir)?;
        let report = self.dir.join("report.json");
        while !report.exists() {
            ensure!(self.began.elapsed() < TRAINED_WITHIN, "not trained within {TRAINED_WITHIN:?}");
            self.happened.lives += 1;
            self.tell("all tasks start");
            cluster = self.live(cluster)?;
            self.check_ended(&self.dir.clone())?;
        }
        drop(cluster);
        self.counts = check_report(&self.plan, &report)?;
        let tool = || self.programs.tool();
        check_checkpoints(&self.plan, tool(), tool(), &self.dir.join("checkpoints"))?;
        let mib = self.happened.memory_bytes.div_ceil(1024 * 1024);
        ensure!(mib <= memory_mib_max, "a process used {mib} MiB, expected at most {memory_mib_max} MiB");
        self.check_bits()
    }

    /// Checks that a deterministic job has the bits that it has if nothing happens to it.
    fn check_bits(&mut self) -> anyhow::Result<()> {
        if !self.plan.deterministic || self.plan.faults == 0 {
            return Ok(());
        }
        let dir = self.dir.join("undisturbed");
        fs::create_dir(&dir)?;
        let mut quiet = Round::new(self.plan.undisturbed(), self.programs, self.signals, &dir, false);
        quiet.run(u64::MAX).context("the undisturbed job")?;
        let (found, expected) = (self.counts.variables_crc32c, quiet.counts.variables_crc32c);
        ensure!(found == expected, "the variables are {found:08x}, undisturbed {expected:08x}");
        self.happened.bits += 1;
        Ok(())
    }

    /// Starts all tasks, lets faults happen to them, and returns when all have ended.
    fn live(&mut self, cluster: Cluster<'a>) -> anyhow::Result<Cluster<'a>> {
        let now = Instant::now();
        let mut life = Life { cluster, returning: Vec::new(), next: now, measured: now, quiet: true };
        for task in life.cluster.tasks() {
            life.cluster.start(task)?;
        }
        life.next = self.next_fault();
        loop {
            ensure!(self.began.elapsed() < TRAINED_WITHIN, "not trained within {TRAINED_WITHIN:?}");
            self.look(&mut life)?;
            let mut first = None;
            for (task, status) in life.cluster.take_ended()? {
                self.tell(format!("{task} ended with {}", shown(status)));
                // With `pushpull local`, all tasks end with the chief.
                let killed = status.signal().is_some() && !self.plan.local;
                match started_again(task.job, killed, self.plan.save_steps.is_some()) {
                    Again::All => {
                        first = first.filter(|first: &ExitStatus| !first.success()).or(Some(status))
                    }
                    Again::Itself if status.success() => {}
                    Again::Itself => {
                        let back = Duration::from_millis(self.random.between(0, BACK_MS_MAX));
                        life.returning.push((Instant::now() + back, task));
                    }
                }
            }
            if let Some(first) = first {
                return self.end(life, first);
            }
            let now = Instant::now();
            let back: Vec<_> = life.returning.extract_if(.., |(at, _)| *at <= now).collect();
            for (_, task) in back {
                self.happened.returned(task);
                self.tell(format!("{task} starts"));
                life.cluster.start(task)?;
            }
            if self.happened.faults() < self.plan.faults && life.next <= now {
                self.strike(&mut life);
                life.next = self.next_fault();
            }
        }
    }

    fn next_fault(&mut self) -> Instant {
        Instant::now() + Duration::from_millis(self.random.between(PAUSE_MS[0], PAUSE_MS[1]))
    }

    /// Waits a moment. Ends the pauses that are over, and measures the memory.
    ///
    /// # Errors
    /// If this process was told to end.
    fn look(&mut self, life: &mut Life<'_>) -> anyhow::Result<()> {
        std::thread::sleep(LOOK);
        ensure!(self.signals.received().is_none(), "the soak was told to end");
        let measures = life.measured.elapsed() >= MEASURE;
        if measures {
            life.measured = Instant::now();
            // `pushpull local` has children of its own.
            let children = if self.plan.local { processes_of(&self.dir) } else { Vec::new() };
            let most = children.into_iter().map(|(process, _)| memory_of(process)).max();
            self.happened.memory_bytes = self.happened.memory_bytes.max(most.unwrap_or(0));
        }
        for (_, program) in life.cluster.all_running() {
            program.run_on(false);
            if measures {
                self.happened.memory_bytes = self.happened.memory_bytes.max(program.memory_bytes());
            }
        }
        Ok(())
    }

    /// Waits until all tasks have ended, after the chief or a ps has ended with `first`. A scheduler may tell
    /// the others to end, or wait until they notice.
    fn end(&mut self, mut life: Life<'a>, first: ExitStatus) -> anyhow::Result<Cluster<'a>> {
        let (since, mut all_ended_well) = (Instant::now(), first.success());
        if !first.success() && self.random.one_in(2) {
            self.tell("the others are told to end");
            for (_, program) in life.cluster.all_running() {
                program.signal(Signal::TERM);
                program.run_on(true);
            }
        }
        while life.cluster.all_running().next().is_some() {
            if since.elapsed() > END_WITHIN {
                let names: Vec<_> = life.cluster.all_running().map(|(task, _)| task.to_string()).collect();
                bail!("still running {END_WITHIN:?} after the job has ended: {}", names.join(", "));
            }
            self.look(&mut life)?;
            for (task, status) in life.cluster.take_ended()? {
                self.tell(format!("{task} ended with {}", shown(status)));
                all_ended_well &= status.success();
            }
        }
        ensure!(
            all_ended_well || !life.quiet,
            "a task failed, although nothing has happened since its start"
        );
        Ok(life.cluster)
    }

    /// Checks that no process of a job is left. Those that `pushpull local` has started have some time to
    /// end.
    fn check_ended(&self, dir: &Path) -> anyhow::Result<()> {
        let since = Instant::now();
        let waits = || since.elapsed() < ORPHANS_END_WITHIN && self.signals.received().is_none();
        while self.plan.local && waits() && !processes_of(dir).is_empty() {
            std::thread::sleep(LOOK);
        }
        check_orphans(dir)
    }

    fn strike(&mut self, life: &mut Life<'_>) {
        let fault = Fault::draw(&self.plan, &mut self.random);
        self.tell(format!("FAULT {fault}"));
        life.quiet = false;
        self.happened.count(&fault);
        if self.plan.local {
            return self.strike_local(life, &fault);
        }
        match fault {
            Fault::Kill(task) => signal(&mut life.cluster, task, Signal::KILL),
            Fault::Terminate(task) => signal(&mut life.cluster, task, Signal::TERM),
            Fault::Pause(task, time) => {
                if let Some(program) = life.cluster.running(task) {
                    program.pause(time);
                }
            }
            Fault::Cut(task) => {
                let cut = life.cluster.proxy(task).map_or(0, |proxy| proxy.cut());
                self.tell(format!("{cut} connection(s) cut"));
            }
            Fault::Stall(task, way, time) => {
                if let Some(proxy) = life.cluster.proxy(task) {
                    proxy.hold(way, time);
                }
            }
        }
    }

    /// Does to `pushpull local` what a fault does to the chief, and to its children what it does to other
    /// tasks. A pause concerns `pushpull local` itself.
    fn strike_local(&mut self, life: &mut Life<'_>, fault: &Fault) {
        let (task, sent) = match *fault {
            Fault::Kill(task) => (task, Signal::KILL),
            Fault::Terminate(task) => (task, Signal::TERM),
            Fault::Pause(_, time) | Fault::Stall(_, _, time) => {
                if let Some(program) = life.cluster.running(TaskId::CHIEF) {
                    program.pause(time);
                }
                return;
            }
            Fault::Cut(_) => return,
        };
        if task == TaskId::CHIEF {
            return signal(&mut life.cluster, task, sent);
        }
        let name = format!("pushpull-{}", if task.job == JobName::Worker { "worker" } else { "ps" });
        let children = processes_of(&self.dir).into_iter().filter(|(_, line)| line.contains(&name));
        let children: Vec<_> = children.map(|(id, _)| id).collect();
        if let Some(process) =
            children.get(task.index as usize).and_then(|&id| Pid::from_raw(id.cast_signed()))
        {
            // An error means that it has just ended.
            let _ = kill_process(process, sent);
        }
    }
}

/// Sends a signal to a task. One that is stopped runs on, or it would not notice.
fn signal(cluster: &mut Cluster<'_>, task: TaskId, signal: Signal) {
    if let Some(program) = cluster.running(task) {
        program.signal(signal);
        program.run_on(true);
    }
}
