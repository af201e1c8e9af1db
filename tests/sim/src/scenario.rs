//! A scenario: the size of a cluster, its job, and the faults that happen to it. All of it follows from a
//! seed.

use std::fmt;
use std::time::Duration;

use pushpull_messages::communication::CommunicationSpec;
use pushpull_messages::compression::{CompressionSpec, EncodingSpec};
use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::placement::PartitionerSpec;
use pushpull_messages::sync::SyncSpec;

use crate::layout::Layout;
use crate::random::Random;
use crate::store::Trouble;

/// The host of a second chief. It has the identity of the chief, but a nonce of its own.
pub const SECOND_CHIEF: TaskId = TaskId::new(JobName::Chief, 1);
/// The task that evaluates checkpoints.
pub const EVALUATOR: TaskId = TaskId::new(JobName::Evaluator, 0);

/// A fault of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kills a task. It is started again after a time, if there is one.
    Kill(TaskId, Option<Duration>),
    /// Breaks the links between two tasks.
    Cut(TaskId, TaskId),
    /// Holds everything that the first task sends to the second for a time.
    Block(TaskId, TaskId, Duration),
    /// Holds everything between two tasks for a time.
    Partition(TaskId, TaskId, Duration),
    /// Stops the machine of a task for a time, as SIGSTOP does. If there is a second time, the task is
    /// started on another machine after it, and the stopped one then runs on beside it.
    Stop(TaskId, Duration, Option<Duration>),
    /// Makes a shard of a ps task hang for ever, while the task lives.
    Hang(TaskId, u32),
    /// Disturbs the store of the checkpoints for a time.
    Store(Trouble, Duration),
    /// Starts a second chief of the same job. If the first one runs, it listens at an address of its own.
    SecondChief,
    /// Starts a worker a second time, beside the first start.
    Twin(TaskId),
    /// Starts a worker that the cluster does not list.
    Join(TaskId),
    /// A stranger joins the shards as a worker, without having registered with the chief.
    Stranger(TaskId),
    /// Sets the wall clock of a task's machine to a time since 1970.
    Clock(TaskId, Duration),
    /// Tells the chief to end the job early, as SIGTERM does.
    Interrupt,
}

/// The time that correct wall clocks show at the start, since 1970.
pub const NOON: Duration = Duration::from_secs(1_767_268_800);
/// The largest error of a wall clock.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The time for which a block or a stop harms nothing, whatever else happens.
const HARMLESS: Duration = Duration::from_secs(2);
/// The time for which a stop harms nothing if nothing else happens: shorter than the silence after which a
/// connection counts as broken.
const UNNOTICED: Duration = Duration::from_secs(15);
/// The time for which the store may fail before the last step cannot be saved. The last of the attempts to
/// save it come later.
const SOON: Duration = Duration::from_secs(5);
/// The number of steps of a job that is told to end early, and the least latency of its network.
const LONG_STEPS: u64 = 50;
const LONG_LATENCY: Duration = Duration::from_millis(8);
/// The time after which a partition makes a task give up its peer: the silence after which a connection
/// counts as broken, and the time for which it is dialled again.
const LOST_AFTER: Duration = Duration::from_secs(30);

impl Fault {
    /// Returns whether the fault separates two tasks for so long that one of them gives up the other.
    fn is_long(&self) -> bool {
        match self {
            Self::Block(.., time) | Self::Partition(.., time) => *time >= LOST_AFTER,
            Self::Stop(_, time, back) => *time > UNNOTICED || back.is_some(),
            Self::Kill(..) | Self::Cut(..) | Self::Hang(..) | Self::Store(..) | Self::SecondChief => false,
            Self::Twin(_) | Self::Join(_) | Self::Stranger(_) | Self::Clock(..) | Self::Interrupt => false,
        }
    }

    /// Returns whether a job that is told to end can end in order in spite of the fault: no task is lost, and
    /// the store works.
    fn lets_drain(&self) -> bool {
        match self {
            Self::Block(.., time) | Self::Partition(.., time) => *time <= HARMLESS,
            Self::Stop(_, time, back) => *time <= HARMLESS && back.is_none(),
            Self::Kill(..) | Self::Hang(..) | Self::Store(..) | Self::SecondChief => false,
            Self::Twin(_) | Self::Join(_) | Self::Stranger(_) => false,
            Self::Cut(..) | Self::Clock(..) | Self::Interrupt => true,
        }
    }

    /// Returns the tasks that may end with an error because of the fault.
    pub fn excused(&self, layout: Layout) -> Vec<TaskId> {
        let all_on = |task| layout.tasks_on(layout.host_of(task));
        match *self {
            // Each of the two processes has a worker that cannot reach a ps task.
            Self::Block(one, other, _) | Self::Partition(one, other, _)
                if self.is_long() && layout.workers_host_ps =>
            {
                [one, other].into_iter().flat_map(all_on).filter(|task| task.job != JobName::Chief).collect()
            }
            Self::Block(one, other, _) | Self::Partition(one, other, _) if self.is_long() => {
                vec![if one.job == JobName::Worker { one } else { other }]
            }
            Self::Stop(task, time, _) if time > UNNOTICED => all_on(task),
            _ => Vec::new(),
        }
    }
}

/// What a fault waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The start of the job.
    Start,
    /// The beginning of the training, when all workers are ready.
    Begin,
    /// The report of the workers that they have reached a step.
    Step(u64),
    /// The nth checkpoint since the job was started.
    Save(u64),
}

/// When a fault happens: a time after the event that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// The event.
    pub after: After,
    /// The time after that.
    pub delay: Duration,
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after ", self.delay)?;
        match self.after {
            After::Start => f.write_str("the start"),
            After::Begin => f.write_str("the training has begun"),
            After::Step(step) => write!(f, "step {step}"),
            After::Save(number) => write!(f, "save {number}"),
        }
    }
}

/// What the end of a scenario must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The job is trained to its last step.
    Trained,
    /// All tasks end, with or without a trained job. If the job makes checkpoints, it is then started again,
    /// and trained to its last step.
    Ended,
}

/// A simulated job with its faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed from which everything follows.
    pub seed: u64,
    /// Which tasks share a process.
    pub layout: Layout,
    /// The number of ps tasks.
    pub ps: u32,
    /// The number of shards of each ps task.
    pub shards: u32,
    /// The number of workers that the cluster lists.
    pub workers: u32,
    /// The number of workers that may join besides.
    pub joiners: u32,
    /// The synchronisation policy.
    pub sync: SyncSpec,
    /// The number of steps that a worker may have in flight.
    pub pipeline: u32,
    /// The number of updates.
    pub steps: u64,
    /// Whether two runs must end with the same bits.
    pub deterministic: bool,
    /// How variables are split into slices.
    pub partitioner: PartitionerSpec,
    /// What is compressed, as a job has it.
    pub compression: Vec<CompressionSpec>,
    /// How gradients travel.
    pub communication: CommunicationSpec,
    /// The number of steps between two checkpoints; `None` if the job makes none.
    pub save_steps: Option<u64>,
    /// The number of checkpoints that are kept.
    pub keep: usize,
    /// The number of steps between two checkpoints in the memory of the ps tasks; `None` if the job keeps
    /// none.
    pub memory_steps: Option<u64>,
    /// The least and the greatest latency of the network.
    pub latency: [Duration; 2],
    /// Whether an evaluator evaluates the checkpoints.
    pub evaluator: bool,
    /// The faults, each with its time.
    pub faults: Vec<(When, Fault)>,
    /// The faults after the job was started again. If there are any, it may have to be started a third time.
    pub second: Vec<(When, Fault)>,
    /// What must come of it.
    pub expected: Expected,
    /// Whether the wall clock of every machine is wrong, by up to a year.
    pub wrong_clocks: bool,
}

/// Returns the least and the greatest latency of a job.
fn latency(random: &mut Random) -> [Duration; 2] {
    let least = Duration::from_micros(random.between(20, 5000));
    [least, least * random.between(1, 8) as u32]
}

impl Scenario {
    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let (ps, shards) = (random.between(1, 3) as u32, random.between(1, 2) as u32);
        let (workers, steps) = (random.between(1, 4) as u32, random.between(3, 25));
        let (layout, mirrored) = layout(seed, workers);
        let (ps, sync) = (if layout.workers_host_ps { workers } else { ps }, any_sync(random, workers));
        let sync = if mirrored { SyncSpec::SYNC } else { sync };
        let latency = latency(random);
        let deterministic = sync == SyncSpec::SYNC && random.one_in(2);
        let save_steps = random.one_in(2).then(|| random.between(1, 5));
        let (keep, evaluator) = (random.between(1, 3) as usize, save_steps.is_some() && random.one_in(3));
        let (faults, second, expected) = (Vec::new(), Vec::new(), Expected::Trained);
        let mut scenario = Self {
            seed,
            layout,
            ps,
            shards,
            workers,
            joiners: 0,
            sync,
            pipeline: 1,
            steps,
            deterministic,
            partitioner: partitioner(seed, ps),
            compression: compression(seed),
            communication: communication(seed, sync),
            save_steps,
            keep,
            memory_steps: memory_steps(seed, ps),
            latency,
            evaluator,
            faults,
            second,
            expected,
            wrong_clocks: false,
        };
        // One worker stays, so that the job has a worker at any time.
        let survivor = random.between(0, u64::from(workers) - 1) as u32;
        for _ in 0..random.between(0, 4) {
            let fault = scenario.fault(random, survivor);
            scenario.faults.push(fault);
        }
        if random.one_in(4) {
            let faults = scenario.combination(random, survivor);
            scenario.faults.extend(faults);
        }
        if scenario.faults.is_empty() && random.one_in(3) {
            let (when, task) = (scenario.when(random, false), scenario.any_task(random));
            let stop = Fault::Stop(task, between(random, HARMLESS, UNNOTICED), None);
            scenario.faults.push((when, stop));
        }
        // One scenario in four loses a task that the job cannot do without.
        if random.one_in(4) {
            scenario.lose(random, survivor);
        }
        scenario.calm_store();
        if scenario.all_faults().any(|fault| *fault == Fault::Interrupt) {
            scenario.train_for_long();
        }
        let second = scenario.second_chief(random);
        scenario.faults.extend(second.map(|when| (when, Fault::SecondChief)));
        scenario.hang(random);
        scenario.add_strays(random);
        scenario.pipeline = pipeline(random, sync);
        scenario.lose_without_directory();
        scenario.add_joiners();
        scenario
    }

    /// Lets one or two workers join that the cluster does not list, in one scenario out of four. Half of them
    /// are killed, and may come again.
    fn add_joiners(&mut self) {
        let random = &mut Random::new(self.seed ^ 0x006a_6f69_6e65_7273);
        if !random.one_in(4) {
            return;
        }
        self.joiners = random.between(1, 2) as u32;
        for worker in (self.workers..self.workers + self.joiners).map(TaskId::worker) {
            let when = self.when(random, false);
            self.faults.push((when, Fault::Join(worker)));
            if random.one_in(2) {
                let back = random.one_in(2).then(|| Duration::from_millis(random.between(1, 5_000)));
                let when = self.when(random, false);
                self.faults.push((when, Fault::Kill(worker, back)));
            }
        }
    }

    /// Returns whether the task is a worker that the cluster does not list.
    pub fn joins(&self, task: TaskId) -> bool {
        task.job == JobName::Worker && task.index >= self.workers
    }

    /// Returns the largest number of workers; `None` if none may join.
    pub fn workers_max(&self) -> Option<u32> {
        (self.joiners > 0).then_some(self.workers + self.joiners)
    }

    /// Lets the job lose a task that it cannot do without.
    fn lose(&mut self, random: &mut Random, survivor: u32) {
        let lost = self.loss(random, false);
        self.faults.push(lost);
        self.expected = Expected::Ended;
        if self.save_steps.is_some() && !random.one_in(3) {
            self.second = self.second_life(random, survivor);
        }
    }

    /// Makes a shard hang in place of some losses of its ps task, which is then lost, too.
    fn hang(&mut self, random: &mut Random) {
        for (_, fault) in self.faults.iter_mut().chain(&mut self.second) {
            if let Fault::Kill(ps @ TaskId { job: JobName::Ps, .. }, None) = *fault
                && random.one_in(3)
            {
                *fault = Fault::Hang(ps, random.between(0, u64::from(self.shards) - 1) as u32);
            }
        }
    }

    /// Lets a ps be killed and started again, in half of the scenarios without a directory and with
    /// checkpoints in memory. No other fault may keep the job from rolling back to them.
    fn lose_without_directory(&mut self) {
        let random = &mut Random::new(self.seed ^ 0x105e);
        let rolls_back = self.memory_steps.is_some() && self.save_steps.is_none();
        let calm = |fault: &Fault| !fault.is_long() && !matches!(fault, Fault::Hang(..) | Fault::SecondChief);
        let survives =
            self.expected == Expected::Trained && self.keeps_chief() && self.all_faults().all(calm);
        if rolls_back && survives && random.one_in(2) {
            let ps = TaskId::ps(random.between(0, u64::from(self.ps) - 1) as u32);
            let back = Some(Duration::from_millis(random.between(1, 20_000)));
            let when = self.when(random, true);
            // A chief that dies with the ps before a checkpoint in memory is whole cannot begin anew.
            if !self.kills(ps, &[JobName::Chief]) {
                self.faults.push((when, Fault::Kill(ps, back)));
            }
        }
    }

    /// Shortens the troubles of the store if the chief or a ps is started again: it must find a store that
    /// responds, as at its first start.
    fn calm_store(&mut self) {
        let needs_store = |(_, fault): &(When, Fault)| match fault {
            Fault::Kill(task, Some(_)) => self.kills(*task, &[JobName::Chief, JobName::Ps]),
            // It is started again on another machine.
            Fault::Stop(task, _, Some(_)) => self.kills(*task, &[JobName::Ps]),
            // A deterministic job rolls back.
            Fault::Partition(TaskId::CHIEF, ..) => fault.is_long(),
            _ => false,
        };
        let is_short =
            |(_, fault): &(When, Fault)| !matches!(fault, Fault::Store(_, time) if *time > 10 * SOON);
        let needed = [&self.faults, &self.second].map(|faults| faults.iter().any(needs_store));
        for (faults, _) in
            [&mut self.faults, &mut self.second].into_iter().zip(needed).filter(|(_, needed)| *needed)
        {
            faults.retain(is_short);
        }
    }

    /// Returns whether the death of a task's process ends a task of one of these jobs.
    fn kills(&self, task: TaskId, jobs: &[JobName]) -> bool {
        self.layout.tasks_on(self.layout.host_of(task)).iter().any(|task| jobs.contains(&task.job))
    }

    /// Returns whether a task's process also runs a task without which the job cannot go on.
    fn is_vital(&self, task: TaskId) -> bool {
        self.kills(task, &[JobName::Chief, JobName::Ps])
    }

    /// Makes the wall clocks wrong in one scenario out of three, and lets a second start of a worker or a
    /// stranger come in one out of five.
    fn add_strays(&mut self, random: &mut Random) {
        self.wrong_clocks = random.one_in(3);
        let jumps = if self.wrong_clocks { random.between(0, 3) } else { 0 };
        for _ in 0..jumps {
            let (when, task) = (self.when(random, false), self.any_task(random));
            self.faults.push((when, Fault::Clock(task, wrong_time(random))));
        }
        if random.one_in(5) {
            let worker = TaskId::worker(random.between(0, u64::from(self.workers) - 1) as u32);
            let (fault, begun) = match random.one_in(2) {
                // A second process for the same ps task is not simulated.
                true if !self.layout.workers_host_ps && !self.layout.worker_hosts_chief => {
                    (Fault::Twin(worker), false)
                }
                _ => (Fault::Stranger(worker), true),
            };
            let when = self.when(random, begun);
            self.faults.push((when, fault));
        }
    }

    /// Returns the time that the wall clock of a task's machine shows when the task is started for the
    /// `start`th time and `elapsed` has passed since the beginning.
    pub fn time_at(&self, task: TaskId, start: u64, elapsed: Duration) -> Duration {
        if !self.wrong_clocks {
            return NOON + elapsed;
        }
        wrong_time(&mut self.random_of(task, start))
    }

    /// Returns random numbers that belong to one start of a task.
    pub fn random_of(&self, task: TaskId, start: u64) -> Random {
        let mut random = Random::new(self.seed);
        let role = JobName::ROLES.iter().position(|&role| role == task.job).expect("a task that trains");
        for number in [role as u64, u64::from(task.index), start] {
            random = Random::new(random.bits() ^ number);
        }
        random
    }

    /// Makes the job so long and so slow that it can end early: the shards agree on a step that is some steps
    /// ahead.
    fn train_for_long(&mut self) {
        self.steps = LONG_STEPS;
        self.latency = self.latency.map(|time| time.max(LONG_LATENCY));
        self.save_steps = self.save_steps.map(|steps| 2 * steps);
    }

    /// Returns a large cluster without faults.
    pub fn large(seed: u64) -> Self {
        let sync = [SyncSpec::SYNC, SyncSpec::ASYNC, SyncSpec::Bounded { staleness: 1 }];
        Self {
            layout: Layout::apart(200),
            ps: 20,
            shards: 1,
            workers: 200,
            sync: sync[(seed % 3) as usize],
            steps: if seed.is_multiple_of(3) { 5 } else { 1000 },
            communication: CommunicationSpec::Direct,
            pipeline: 1,
            deterministic: false,
            save_steps: None,
            memory_steps: None,
            latency: [Duration::from_micros(100), Duration::from_micros(500)],
            evaluator: false,
            ..Self::of(seed).undisturbed()
        }
    }

    /// Returns the same scenario without its faults, and with a process for each task.
    #[must_use]
    pub fn undisturbed(&self) -> Self {
        let (faults, second, expected) = (Vec::new(), Vec::new(), Expected::Trained);
        let (layout, evaluator, wrong_clocks) = (Layout::apart(self.workers), false, false);
        Self { layout, faults, second, evaluator, expected, wrong_clocks, joiners: 0, ..self.clone() }
    }

    /// Returns whether the job must end with the bits of the undisturbed job: all of its workers push
    /// gradients from the first step to the last. A job with compression that goes on from a checkpoint does
    /// not: its residuals are lost, and its first values are exact. Neither does one with a worker that
    /// pushes directly after a fault.
    pub fn keeps_bits(&self) -> bool {
        self.deterministic
            && self.keeps_workers()
            && self.compression.is_empty()
            && !self.communication.has_routes()
    }

    /// Returns whether no worker leaves before the last step, except together with all others.
    pub fn keeps_workers(&self) -> bool {
        let leaves = |fault: &Fault| match fault {
            // If the worker hosts a ps task and comes back, the job rolls back.
            Fault::Kill(task, back) => {
                let worker = self.kills(*task, &[JobName::Worker]);
                let rolls_back = self.layout.workers_host_ps && self.save_steps.is_some();
                worker && !(rolls_back && back.is_some())
            }
            // It takes the worker's place if that one is away for a moment.
            Fault::Twin(_) => true,
            // The updates also take its gradients.
            Fault::Join(_) => true,
            other => other.is_long(),
        };
        !self.all_faults().any(leaves)
    }

    /// Returns whether the troubles of the store, the stops of the chief and the losses of ps tasks, if there
    /// are any, are over so soon that the last step is saved and evaluated nevertheless.
    pub fn saves_last(&self) -> bool {
        let time = |fault: &Fault| match fault {
            Fault::Store(_, time) => *time,
            Fault::Stop(task, time, _) if self.kills(*task, &[JobName::Chief]) => *time,
            // The last save waits for a ps that the chief has lost.
            Fault::Stop(task, time, _) if fault.is_long() && self.kills(*task, &[JobName::Ps]) => *time,
            Fault::Partition(TaskId::CHIEF, _, time) if fault.is_long() => *time,
            _ => Duration::ZERO,
        };
        self.all_faults().map(time).sum::<Duration>() <= SOON
    }

    /// Returns the faults of all lives of the job.
    pub fn all_faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter().chain(&self.second).map(|(_, fault)| fault)
    }

    /// Returns a random task that is not the evaluator.
    fn any_task(&self, random: &mut Random) -> TaskId {
        match random.between(0, 2) {
            0 => TaskId::CHIEF,
            1 => TaskId::ps(random.between(0, u64::from(self.ps) - 1) as u32),
            _ => TaskId::worker(random.between(0, u64::from(self.workers) - 1) as u32),
        }
    }

    /// Returns the loss of a task that the job cannot do without: it is killed, or stopped until it is lost.
    /// Or the job is told to end.
    fn loss(&self, random: &mut Random, begun: bool) -> (When, Fault) {
        let lost = match random.between(0, u64::from(self.ps)) {
            0 => TaskId::CHIEF,
            index => TaskId::ps(index as u32 - 1),
        };
        let mut when = self.when(random, begun);
        // Just after a save, many pushes of the saved updates have not been answered yet.
        if self.save_steps.is_some() && random.one_in(3) {
            when = When { after: After::Save(random.between(1, 4)), delay: self.soon(random, 2) };
        }
        match random.between(0, 5) {
            0 => (when, Fault::Interrupt),
            1 | 2 => (when, Fault::Stop(lost, between(random, LOST_AFTER, 3 * LOST_AFTER), None)),
            _ => (when, Fault::Kill(lost, None)),
        }
    }

    /// Returns faults that matter most together: a worker is started again while a message of another task
    /// is still on its way to a ps task.
    fn combination(&self, random: &mut Random, survivor: u32) -> Vec<(When, Fault)> {
        let worker = TaskId::worker(random.between(0, u64::from(self.workers) - 1) as u32);
        if worker.index == survivor || (self.is_vital(worker) && self.save_steps.is_none()) {
            return Vec::new();
        }
        let when = self.when(random, true);
        let back = self.latency[1] * random.between(0, 4) as u32;
        let held = (self.latency[1] * random.between(8, 40) as u32).min(HARMLESS);
        // The ps task learns late that the earlier incarnation has left, or another worker keeps the update
        // open that has a gradient of the earlier incarnation.
        let late = if random.one_in(2) { TaskId::CHIEF } else { TaskId::worker(survivor) };
        let blocks = (0..self.ps).map(|ps| (when, Fault::Block(late, TaskId::ps(ps), held)));
        blocks.chain([(when, Fault::Kill(worker, Some(back)))]).collect()
    }

    /// Returns the faults of a job that was started again. The last one ends it, as a rule.
    fn second_life(&self, random: &mut Random, survivor: u32) -> Vec<(When, Fault)> {
        let mut faults: Vec<_> = (0..random.between(0, 2)).map(|_| self.fault(random, survivor)).collect();
        // The store may fail at the start already, because this life usually fails anyway.
        if random.one_in(2) {
            let trouble = match random.one_in(2) {
                true => self.trouble(random),
                // So long that the newest checkpoint cannot be read, and an older one perhaps can.
                false => Fault::Store(Trouble::Unreadable, between(random, SOON / 2, 2 * SOON)),
            };
            faults.push((When { after: After::Start, delay: Duration::ZERO }, trouble));
        }
        // A worker gives nothing to the first checkpoints, which must contain what it gave before.
        if self.sync != SyncSpec::SYNC {
            let held = (self.latency[1] * random.between(30, 80) as u32).min(HARMLESS);
            let worker = TaskId::worker(random.between(0, u64::from(self.workers) - 1) as u32);
            let when = When { after: After::Begin, delay: Duration::ZERO };
            faults.extend((0..self.ps).map(|ps| (when, Fault::Block(worker, TaskId::ps(ps), held))));
        }
        let (when, loss) = self.loss(random, true);
        let after = match random.one_in(2) {
            true => After::Save(random.between(1, 3)),
            false => After::Step(random.between(self.steps.div_ceil(2), self.steps)),
        };
        faults.push((When { after, ..when }, loss));
        faults
    }

    /// Returns a random trouble of the store: one that is over soon, one that outlasts a save, or one that
    /// would outlast the job if it waited.
    fn trouble(&self, random: &mut Random) -> Fault {
        let troubles =
            [Trouble::Slow, Trouble::Failing, Trouble::Full, Trouble::Unreadable, Trouble::Hanging];
        let trouble = troubles[random.between(0, 4) as usize];
        let most = [SOON, 10 * SOON, 2000 * SOON][random.between(0, 2) as usize];
        Fault::Store(trouble, between(random, Duration::from_millis(1), most))
    }

    /// Returns the ps task that a job without checkpoints loses with the process of a worker, if nothing else
    /// ends the job.
    pub fn loses_host(&self) -> Option<TaskId> {
        let mut harmful = self.faults.iter().map(|(_, fault)| fault).filter(|fault| !fault.lets_drain());
        match (harmful.next(), harmful.next()) {
            (Some(Fault::Kill(task, None)), None)
                if self.save_steps.is_none() && !self.kills(*task, &[JobName::Chief]) =>
            {
                let host = self.layout.host_of(*task);
                (self.layout.tasks_on(host).len() > 1).then(|| TaskId::ps(host.index))
            }
            _ => None,
        }
    }

    /// Returns whether the job may go on without a worker that hosts a ps task, because the chief cannot
    /// reach it for too long.
    pub fn may_leave_out(&self) -> bool {
        let for_good = |fault: &Fault| matches!(fault, Fault::Kill(_, None)) || fault.is_long();
        self.layout.workers_host_ps && self.all_faults().any(for_good)
    }

    /// Returns whether some shards may own no slices.
    pub const fn has_few_slices(&self) -> bool {
        !matches!(self.partitioner, PartitionerSpec::Fixed { .. })
    }

    /// Returns whether a job that is told to end while it trains must be saved, in the given life.
    pub fn drains(&self, life: u32) -> bool {
        let faults = if life == 1 { &self.faults } else { &self.second };
        self.save_steps.is_some() && faults.iter().all(|(_, fault)| fault.lets_drain())
    }

    /// Returns whether the chief is never killed and never stopped for long.
    pub fn keeps_chief(&self) -> bool {
        !self.all_faults().any(|fault| match fault {
            Fault::Kill(task, _) => self.kills(*task, &[JobName::Chief]),
            Fault::Stop(task, time, _) => self.kills(*task, &[JobName::Chief]) && *time > HARMLESS,
            _ => false,
        })
    }

    /// Returns a random fault that the job must survive.
    fn fault(&self, random: &mut Random, survivor: u32) -> (When, Fault) {
        let worker = TaskId::worker(random.between(0, u64::from(self.workers) - 1) as u32);
        let ps = TaskId::ps(random.between(0, u64::from(self.ps) - 1) as u32);
        let pairs = [(worker, ps), (worker, TaskId::CHIEF), (TaskId::CHIEF, ps)];
        let (mut one, mut other) = pairs[random.between(0, 2) as usize];
        if random.one_in(2) {
            (one, other) = (other, one);
        }
        let time = between(random, Duration::from_millis(1), HARMLESS);
        let saves = self.save_steps.is_some();
        let vital = self.is_vital(worker);
        let fault = match random.between(0, 13) {
            0 if worker.index != survivor && vital && saves => {
                Fault::Kill(worker, Some(Duration::from_millis(random.between(1, 5000))))
            }
            0 if worker.index != survivor && !vital => {
                let back = (!random.one_in(3)).then(|| Duration::from_millis(random.between(1, 5000)));
                Fault::Kill(worker, back)
            }
            1 => Fault::Block(one, other, time),
            2 => Fault::Partition(one, other, time),
            // The worker leaves when it can no longer reach its ps task, and the others finish the job.
            // If the ps task is on a worker's machine, that worker leaves, too.
            3 if worker.index != survivor
                && !self.layout.are_together(worker, ps)
                && self.layout.host_of(ps) != TaskId::worker(survivor)
                // The chief then loses a ps task, too.
                && !(vital && [worker, ps].iter().any(|task| self.kills(*task, &[JobName::Chief]))) =>
            {
                Fault::Partition(worker, ps, between(random, LOST_AFTER, 3 * LOST_AFTER))
            }
            4 => Fault::Stop(one, time, None),
            5 if worker.index != survivor && !self.kills(worker, &[JobName::Chief]) && (!vital || saves) => {
                let time = between(random, UNNOTICED, 3 * LOST_AFTER);
                let back = random.one_in(2).then(|| between(random, Duration::from_millis(1), time));
                // The book says what goes wrong if the process hosts a ps task.
                Fault::Stop(worker, time, back.filter(|_| !vital))
            }
            6 if self.evaluator => {
                let back = (!random.one_in(3)).then(|| Duration::from_millis(random.between(1, 5000)));
                Fault::Kill(EVALUATOR, back)
            }
            7 | 8 if saves => self.trouble(random),
            // The job rolls back to its latest checkpoint.
            11 | 12 if saves => Fault::Kill(ps, Some(Duration::from_millis(random.between(1, 20_000)))),
            // The chief loses a ps that has its variables.
            13 if saves => {
                Fault::Partition(TaskId::CHIEF, ps, between(random, LOST_AFTER, 3 * LOST_AFTER / 2))
            }
            9 | 10 if saves || !self.layout.worker_hosts_chief => {
                Fault::Kill(TaskId::CHIEF, Some(Duration::from_millis(random.between(1, 20_000))))
            }
            _ => Fault::Cut(one, other),
        };
        // A worker that is killed for good before the job begins is missed, and the job then fails. So it
        // does if its store fails at its start.
        let begun = matches!(fault, Fault::Kill(_, None) | Fault::Store(..)) || fault.is_long();
        (self.when(random, begun), fault)
    }

    /// Returns when a second chief is started beside the first one, if it is.
    fn second_chief(&self, random: &mut Random) -> Option<When> {
        // A ps that was started again belongs to the chief that claims it first.
        let killed = |(_, fault): &(When, Fault)| match fault {
            Fault::Kill(task, _) => self.is_vital(*task),
            Fault::Stop(task, _, Some(_)) => self.is_vital(*task),
            // A ps that the chief has lost belongs to the other chief after a time.
            Fault::Partition(TaskId::CHIEF, ..) => fault.is_long(),
            _ => false,
        };
        let killed = self.layout.worker_hosts_chief || self.faults.iter().any(killed);
        (!killed && random.one_in(8)).then(|| self.when(random, true))
    }

    /// Returns a random time: one after the job has begun if `begun` is true.
    fn when(&self, random: &mut Random, begun: bool) -> When {
        let after = match begun || random.one_in(2) {
            true => After::Step(random.between(1, self.steps)),
            false => After::Start,
        };
        When { after, delay: self.soon(random, if after == After::Start { 40 } else { 6 }) }
    }

    /// Returns a random time of at most so many latencies and a millisecond.
    fn soon(&self, random: &mut Random, latencies: u64) -> Duration {
        self.latency[1] * random.between(0, latencies) as u32 + Duration::from_micros(random.between(0, 999))
    }
}

/// Returns which tasks of a seed share a process, and whether the job must be synchronous because of that. In
/// one scenario out of three, the workers host the ps tasks. The random numbers are of its own, so that the
/// other seeds do not depend on it.
fn layout(seed: u64, workers: u32) -> (Layout, bool) {
    let random = &mut Random::new(seed ^ 0x6d69_7272_6f72_6564);
    if !random.one_in(3) {
        return (Layout::apart(workers), false);
    }
    (
        Layout { listed: workers, workers_host_ps: true, worker_hosts_chief: random.one_in(3) },
        !random.one_in(4),
    )
}

/// Returns a random synchronisation policy for this number of workers.
fn any_sync(random: &mut Random, workers: u32) -> SyncSpec {
    match random.between(0, 4) {
        0 => SyncSpec::ASYNC,
        1 => SyncSpec::Bounded { staleness: random.between(0, 3) as u32 },
        2 => SyncSpec::Sync { aggregate: Some(random.between(1, u64::from(workers) + 2) as u32) },
        _ => SyncSpec::SYNC,
    }
}

/// Returns what the job of a seed compresses. It has random numbers of its own, so that the faults of a seed
/// do not depend on it.
fn compression(seed: u64) -> Vec<CompressionSpec> {
    let random = &mut Random::new(seed ^ 0x636f_6d70_7265_7373);
    if !random.one_in(4) {
        return Vec::new();
    }
    let dense = [None, Some(EncodingSpec::Fp16), Some(EncodingSpec::Bf16), Some(EncodingSpec::Int8)];
    let values = dense[random.between(0, 3) as usize];
    let gradients = match random.between(0, 4) {
        4 => Some(EncodingSpec::TopK { fraction: 0.3 }),
        index => dense[index as usize],
    };
    let pattern = if random.one_in(3) { "hidden/*" } else { "*" };
    vec![CompressionSpec { variables: pattern.to_owned(), gradients, values }]
}

/// Returns how the job of a seed splits its variables. Most jobs have a slice for each shard. The others have
/// few slices, so that shards of a large cluster have none. It has random numbers of its own, too.
fn partitioner(seed: u64, ps: u32) -> PartitionerSpec {
    let random = &mut Random::new(seed ^ 0x736c_6963_6573);
    match random.between(0, 5) {
        0 => PartitionerSpec::None,
        1 => PartitionerSpec::Auto,
        _ => PartitionerSpec::Fixed { slices: ps.max(3) },
    }
}

/// Returns the number of steps between two checkpoints in memory: half of the jobs with several ps tasks keep
/// some.
fn memory_steps(seed: u64, ps: u32) -> Option<u64> {
    let random = &mut Random::new(seed ^ 0x3e3);
    (ps > 1 && random.one_in(2)).then(|| random.between(1, 4))
}

/// Returns how the gradients of the job of a seed travel. It has random numbers of its own, too.
fn communication(seed: u64, sync: SyncSpec) -> CommunicationSpec {
    let random = &mut Random::new(seed ^ 0x726f_7574_6573);
    match random.between(0, 3) {
        _ if sync != SyncSpec::SYNC || !compression(seed).is_empty() => CommunicationSpec::Direct,
        0 => CommunicationSpec::Direct,
        1 => CommunicationSpec::HalvingDoubling,
        _ => CommunicationSpec::Ring,
    }
}

/// Returns how many steps a worker may have in flight: several in two of three scenarios that allow it.
fn pipeline(random: &mut Random, sync: SyncSpec) -> u32 {
    let several = matches!(sync, SyncSpec::Async { .. }) && !random.one_in(3);
    if several { random.between(2, 5) as u32 } else { 1 }
}

/// Returns what a wall clock shows that is wrong by up to a year.
fn wrong_time(random: &mut Random) -> Duration {
    between(random, NOON - YEAR, NOON + YEAR)
}

/// Returns a random time.
fn between(random: &mut Random, least: Duration, most: Duration) -> Duration {
    Duration::from_millis(random.between(least.as_millis() as u64, most.as_millis() as u64))
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, ps, shards, workers, sync, steps, latency: [least, most], .. } = self;
        writeln!(
            f,
            "seed {seed}: {ps} ps with {shards} shard(s), {workers} worker(s), {sync}, {steps} updates, latency {least:?} to {most:?}"
        )?;
        if self.layout.workers_host_ps {
            let chief = if self.layout.worker_hosts_chief { ", and worker/0 hosts the chief" } else { "" };
            writeln!(f, "  each worker hosts a ps{chief}")?;
        }
        if self.deterministic {
            writeln!(f, "  deterministic")?;
        }
        if self.communication.has_routes() {
            writeln!(f, "  gradients travel: {}", self.communication)?;
        }
        if self.pipeline > 1 {
            writeln!(f, "  {} steps of a worker in flight", self.pipeline)?;
        }
        if self.has_few_slices() {
            writeln!(f, "  few slices: the partitioner is {:?}", self.partitioner)?;
        }
        for CompressionSpec { variables, gradients, values } in &self.compression {
            let told = |encoding: &Option<EncodingSpec>| encoding.map_or("exact".to_owned(), String::from);
            writeln!(f, "  {variables}: gradients {}, values {}", told(gradients), told(values))?;
        }
        if let Some(steps) = self.save_steps {
            writeln!(f, "  a checkpoint every {steps} step(s), of which {} are kept", self.keep)?;
        }
        if let Some(steps) = self.memory_steps {
            writeln!(f, "  a checkpoint in memory every {steps} step(s)")?;
        }
        if self.evaluator {
            writeln!(f, "  an evaluator")?;
        }
        if self.wrong_clocks {
            writeln!(f, "  wrong wall clocks")?;
        }
        let again = self.second.iter().map(|(when, fault)| ("when started again, ", when, fault));
        let faults = self.faults.iter().map(|(when, fault)| ("", when, fault)).chain(again);
        for (life, when, fault) in faults {
            writeln!(f, "  {life}{when}: {fault:?}")?;
        }
        write!(f, "  expected: {:?}", self.expected)
    }
}
