//! A job as a program describes it: a model, its data and how it is trained.

use pushpull_chief::checkpoint::CheckpointConfig;
use pushpull_input::describe;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::input::InputSpec;
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::{DecaySpec, GroupSpec, OptimizerSpec, ScheduleSpec};
use pushpull_messages::placement::PlacementSpec;
use pushpull_messages::sync::SyncSpec;

use crate::error::Error;
use crate::hooks::Hooks;

/// How long a job trains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Steps(u64),
    Epochs(u64),
}

impl Length {
    /// Returns the number of updates of a job on `workers` workers. A synchronous update uses the batches of
    /// several workers, so an epoch takes fewer updates.
    ///
    /// # Errors
    /// Returns an error if the training set cannot be read.
    pub(crate) fn steps(self, job: &JobSpec, workers: u32) -> Result<u64, Error> {
        match self {
            Self::Steps(steps) => Ok(steps),
            Self::Epochs(epochs) => {
                let examples = describe(&job.input.train, &job.input.map)?.examples.saturating_mul(epochs);
                let batches = u64::from(job.sync.gradients_per_update(workers));
                // A wrong number of examples or workers is reported when the whole job is checked.
                Ok(examples.div_ceil((u64::from(job.batch_size) * batches).max(1)))
            }
        }
    }
}

/// A model, its data and how it is trained. Without further settings, a job makes one pass over the training
/// data in batches of 64 examples, by asynchronous gradient descent with the learning rate 0.1.
#[derive(Clone)]
#[must_use = "a job does nothing until it is trained"]
pub struct Job {
    spec: JobSpec,
    length: Length,
    pub(crate) hooks: Hooks,
    pub(crate) checkpoints: Option<CheckpointConfig>,
}

impl Job {
    /// Starts the description of a job that trains `graph` on the training set of `input`, and evaluates it
    /// on the test set.
    pub fn new(graph: GraphSpec, input: InputSpec) -> Self {
        // The number of steps is set when the number of workers is known.
        let spec = JobSpec::new(graph, input, 1);
        Self { spec, length: Length::Epochs(1), hooks: Hooks::new(), checkpoints: None }
    }

    /// Sets the optimizer and its learning rate.
    pub fn optimizer(mut self, optimizer: OptimizerSpec) -> Self {
        self.spec.optimizer = optimizer;
        self
    }

    /// Adds a group of variables that are updated in another way, such as
    /// `GroupSpec::new("embedding/*").learning_rate_factor(0.1)`. The first group that matches a variable
    /// decides about it. A group that decides about no variable is an error when the job is trained.
    pub fn group(mut self, group: GroupSpec) -> Self {
        self.spec.groups.push(group);
        self
    }

    /// Sets the variables to which the weight decay of the job or of its optimizer applies.
    pub const fn weight_decay_on(mut self, variables: DecaySpec) -> Self {
        self.spec.weight_decay_on = variables;
        self
    }

    /// Sets the schedule of the learning rate.
    pub const fn schedule(mut self, schedule: ScheduleSpec) -> Self {
        self.spec.schedule = schedule;
        self
    }

    /// Sets the synchronisation policy, such as [`SyncSpec::SYNC`].
    pub const fn sync(mut self, sync: SyncSpec) -> Self {
        self.spec.sync = sync;
        self
    }

    /// Makes two runs of the job end with the same bits. This requires the policy [`SyncSpec::SYNC`].
    pub const fn deterministic(mut self) -> Self {
        self.spec.deterministic = true;
        self
    }

    /// Sets the number of examples in one worker's batch.
    pub const fn batch_size(mut self, examples: u32) -> Self {
        self.spec.batch_size = examples;
        self
    }

    /// Trains for this number of passes over the training data.
    pub const fn epochs(mut self, epochs: u64) -> Self {
        self.length = Length::Epochs(epochs);
        self
    }

    /// Trains for exactly this number of updates.
    pub const fn steps(mut self, steps: u64) -> Self {
        self.length = Length::Steps(steps);
        self
    }

    /// Sets the seed of all random choices, such as initial values and the order of examples.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.spec.seed = seed;
        self
    }

    /// Keeps exponential moving averages of the trained variables, with this decay per update, such as
    /// 0.999. Evaluations and predictions then use the averages.
    pub const fn averages(mut self, decay: f32) -> Self {
        self.spec.average = Some(decay);
        self
    }

    /// Keeps averages only of the trained variables whose names match one of these patterns, such as
    /// `["dense*/kernel"]`. Evaluations and predictions use the values of the others. It needs
    /// [`averages`](Self::averages).
    pub fn averages_of(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.spec.average_variables = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how variables are split and placed on shards.
    pub const fn placement(mut self, placement: PlacementSpec) -> Self {
        self.spec.placement = placement;
        self
    }

    /// Adds hooks of the chief and of the workers.
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = hooks;
        self
    }

    /// Saves checkpoints of the job, and resumes from the newest one if there is any.
    pub fn checkpoints(mut self, config: CheckpointConfig) -> Self {
        self.checkpoints = Some(config);
        self
    }

    /// Returns the description that all tasks of a cluster share, for `workers` workers.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, or if the number of training examples is needed and
    /// cannot be read.
    pub fn spec(&self, workers: u32) -> Result<JobSpec, Error> {
        let last_step = GlobalStep(self.length.steps(&self.spec, workers)?);
        let job = JobSpec { last_step, ..self.spec.clone() };
        job.validate()?;
        Ok(job)
    }

    /// Returns the graph.
    pub const fn graph(&self) -> &GraphSpec {
        &self.spec.graph
    }
}

/// Makes a job that trains to the spec's last step.
impl From<JobSpec> for Job {
    fn from(spec: JobSpec) -> Self {
        let length = Length::Steps(spec.last_step.0);
        Self { spec, length, hooks: Hooks::new(), checkpoints: None }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job('{}', {:?})", self.spec.graph.name, self.length)
    }
}
