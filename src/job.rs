//! A job as a program describes it: a model, its data and how it is trained.

use std::sync::{Arc, Mutex};

use pushpull_chief::MakeHook;
use pushpull_chief::checkpoint::CheckpointConfig;
use pushpull_chief::hooks::{Better, EarlyStopping};
use pushpull_input::{Dataset, Datasets, Reading, describe};
use pushpull_messages::cadence::EvalEverySpec;
use pushpull_messages::communication::CommunicationSpec;
use pushpull_messages::compression::CompressionSpec;
use pushpull_messages::distribution::DistributionSpec;
use pushpull_messages::gradient::GradientSpec;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::input::{
    DatasetSpec, InputSpec, MapSpec, RepeatSpec, ShardSpec, ShuffleSpec, StageSpec, StreamSpec,
};
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::{DecaySpec, GroupSpec, OptimizerSpec, ScheduleSpec};
use pushpull_messages::out_of_range::OutOfRange;
use pushpull_messages::placement::PlacementSpec;
use pushpull_messages::sync::{LeaveSpec, SyncSpec};
use pushpull_worker::BestSpec;

use crate::error::Error;
use crate::hooks::{Fetched, Hooks, OnGradients, StepGradients};
use crate::progress::{OnProgress, Progress};
use crate::stop::StopHandle;

/// How long a job trains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Steps(u64),
    Epochs(u64),
}

impl Length {
    /// Converts this length to updates of `workers` workers, and returns `job` with that last step. If the
    /// length or `job.eval_every` is given in epochs, the number of examples in an epoch is needed. If `job`
    /// does not state that number, counts the examples and sets it. A synchronous update uses the batches of
    /// several workers, so an epoch takes fewer updates.
    ///
    /// # Errors
    /// Returns an error if the job is invalid, or if the examples must be counted and the training set
    /// cannot be read or has no end.
    pub(crate) fn set(self, mut job: JobSpec, workers: u32, datasets: &Datasets) -> Result<JobSpec, Error> {
        // The settings are checked first, because counting the examples may take long. `eval_every` is put
        // back after the count, because a cadence of epochs is valid only once the examples are counted.
        let counts = matches!(self, Self::Epochs(_)) || job.eval_every == Some(EvalEverySpec::Epoch);
        let by_epoch = |every: &mut EvalEverySpec| *every == EvalEverySpec::Epoch;
        let eval_every = match job.epoch_examples {
            None => job.eval_every.take_if(by_epoch),
            Some(_) => None,
        };
        job.validate()?;
        job.validate_start(workers)?;
        if counts && job.epoch_examples.is_none() {
            // Each worker may skip some records, and here one reader reads for all workers.
            let skip_bad_records = job.input.skip_bad_records.saturating_mul(workers.into());
            let reading = Reading { skip_bad_records, ..Reading::of(&job.input, datasets) };
            job.epoch_examples = Some(describe(&job.input.train, &job.input.map, &reading)?.examples);
        }
        job.eval_every = job.eval_every.or(eval_every);
        job.last_step = GlobalStep(match self {
            Self::Steps(steps) => steps,
            Self::Epochs(epochs) => job.epochs(job.replicas(workers)).map_or(0, |each| each.updates(epochs)),
        });
        job.validate()?;
        Ok(job)
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
    pub(crate) datasets: Datasets,
    pub(crate) on_progress: Option<OnProgress>,
    pub(crate) stop: StopHandle,
    early_stopping: Option<EarlyStopping>,
    pub(crate) best: Option<BestSpec>,
}

impl Job {
    /// Starts the description of a job that trains `graph` on the training set of `input`, and evaluates it
    /// on the test set.
    pub fn new(graph: GraphSpec, input: InputSpec) -> Self {
        // The number of steps is set when the number of workers is known.
        Self::with(JobSpec::new(graph, input, 1), Length::Epochs(1))
    }

    fn with(spec: JobSpec, length: Length) -> Self {
        let (hooks, datasets, stop) = (Hooks::new(), Datasets::default(), StopHandle::default());
        let (checkpoints, on_progress, early_stopping, best) = (None, None, None, None);
        Self { spec, length, hooks, checkpoints, datasets, on_progress, stop, early_stopping, best }
    }

    /// Starts the description of a job that trains `graph` on `train` and evaluates it on `test`, two data
    /// sets of this program. In a cluster, every process runs the same program and so has the same data
    /// sets.
    pub fn with_data(graph: GraphSpec, train: impl Dataset + 'static, test: impl Dataset + 'static) -> Self {
        let custom = |name: &str| DatasetSpec::Custom(name.to_owned());
        let job = Self::new(graph, InputSpec::new(custom("train"), custom("test")));
        job.dataset("train", train).dataset("test", test)
    }

    /// Adds a data set of this program under `name`. The input of the job refers to it with
    /// [`DatasetSpec::Custom`].
    pub fn dataset(mut self, name: &str, set: impl Dataset + 'static) -> Self {
        self.datasets.insert(name, Arc::new(set));
        self
    }

    /// Sets the optimizer and its learning rate.
    pub fn optimizer(mut self, optimizer: OptimizerSpec) -> Self {
        self.spec.optimizer = optimizer;
        self
    }

    /// Adds a group of variables that are updated with settings of their own, such as
    /// `GroupSpec::new("embedding/*").learning_rate_factor(0.1)`. If several groups match a variable, the
    /// first one applies. A group that applies to no variable is an error when the job is trained.
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

    /// Makes the learning rate rise linearly over this many updates at the start of the job.
    pub const fn warm_up(mut self, updates: u64) -> Self {
        self.spec.warm_up = updates;
        self
    }

    /// Sets the weight decay: each variable's value, multiplied by this factor, is added to its gradient. For
    /// decoupled weight decay, use [`OptimizerSpec::adamw`].
    pub const fn weight_decay(mut self, factor: f32) -> Self {
        self.spec.weight_decay = factor;
        self
    }

    /// Clips the gradients of each worker by their common Euclidean norm (Pascanu et al., ICML 2013).
    pub const fn clip_norm(mut self, norm_max: f32) -> Self {
        self.spec.gradient.clip_global_norm = Some(norm_max);
        self
    }

    /// Sets how workers check and clip their gradients.
    pub const fn gradient(mut self, gradient: GradientSpec) -> Self {
        self.spec.gradient = gradient;
        self
    }

    /// Sends the gradients and values of some variables in fewer bytes, such as
    /// `CompressionSpec::new("*").gradients(EncodingSpec::Int8)`. If several patterns match a variable, the
    /// first one applies. A pattern that selects no trained variable is an error when the job is trained.
    pub fn compress(mut self, compression: CompressionSpec) -> Self {
        self.spec.compression.push(compression);
        self
    }

    /// Sets the distribution strategy, and its usual policy: `sync` for a strategy other than
    /// [`DistributionSpec::ParameterServer`], which has `async`. The [cluster](crate::Cluster) must have the
    /// tasks of the strategy.
    pub const fn strategy(mut self, strategy: DistributionSpec) -> Self {
        self.spec.strategy = Some(strategy);
        self.spec.sync = strategy.default_sync();
        self
    }

    /// Sets how gradients travel to the shards. A ring, and halving and doubling, need the policy
    /// [`SyncSpec::SYNC`].
    pub const fn communication(mut self, communication: CommunicationSpec) -> Self {
        self.spec.communication = communication;
        self
    }

    /// Sets the synchronisation policy, such as [`SyncSpec::SYNC`].
    pub const fn sync(mut self, sync: SyncSpec) -> Self {
        self.spec.sync = sync;
        self
    }

    /// Makes two runs of the job end with the same values, bit for bit. This requires the policy
    /// [`SyncSpec::SYNC`], or `sync:K` with K of at least the number of workers.
    pub const fn deterministic(mut self) -> Self {
        self.spec.deterministic = true;
        self
    }

    /// Computes the graph's metrics on the training batches once every `steps` steps of each worker; 0 for
    /// never. Without this call, workers compute cheap metrics in every step, and all other metrics in every
    /// tenth step.
    pub const fn metrics_every(mut self, steps: u64) -> Self {
        self.spec.metrics_every = Some(steps);
        self
    }

    /// Sets the number of examples in one worker's batch.
    pub const fn batch_size(mut self, examples: u32) -> Self {
        self.spec.batch_size = examples;
        self
    }

    /// Computes the gradients of this number of batches in each step of a worker, all from the same values,
    /// and pushes their mean. The result is the gradient of one large batch that contains all these batches,
    /// but a step needs only the memory for one of them.
    pub const fn accumulate(mut self, batches: u32) -> Self {
        self.spec.accumulate = batches;
        self
    }

    /// Lets a worker have this number of steps in flight, 1 to 16. With more than 1, it computes a step while
    /// the pushes of earlier steps are unanswered, which hides the round trip to the ps tasks. This requires
    /// [`SyncSpec::ASYNC`], or `async` with `staleness_lr`.
    pub const fn pipeline(mut self, steps: u32) -> Self {
        self.spec.pipeline = steps;
        self
    }

    /// Sets the number of equal parts of a batch that pass through the stages of a replica one after another;
    /// the default is 1. More than 1 needs a graph with operations on several worker tasks.
    pub const fn micro_batches(mut self, parts: u32) -> Self {
        self.spec.micro_batches = parts;
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
    /// `["dense*/kernel"]`. For all other variables, evaluations and predictions use the current values.
    /// This setting needs [`averages`](Self::averages).
    pub fn averages_of(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.spec.average_variables = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how variables are split and placed on shards.
    pub const fn placement(mut self, placement: PlacementSpec) -> Self {
        self.spec.placement = placement;
        self
    }

    /// Sets what happens if a worker leaves before the last step.
    pub const fn when_worker_leaves(mut self, leave: LeaveSpec) -> Self {
        self.spec.when_worker_leaves = leave;
        self
    }

    /// Sets how the training set is divided among the workers.
    pub const fn shard(mut self, shard: ShardSpec) -> Self {
        self.spec.input.shard = shard;
        self
    }

    /// Sets the order in which each worker reads its part of the training set.
    pub const fn shuffle(mut self, shuffle: ShuffleSpec) -> Self {
        self.spec.input.shuffle = shuffle;
        self
    }

    /// Sets how many times each worker reads its part of the training set.
    pub const fn repeat(mut self, repeat: RepeatSpec) -> Self {
        self.spec.input.repeat = repeat;
        self
    }

    /// Adds a map stage for the column called `column`, after the stages that the input already has.
    pub fn map(mut self, column: &str, stage: StageSpec) -> Self {
        self.spec.input.map.push(MapSpec::new(column, stage));
        self
    }

    /// Sets the number of batches that each worker keeps ready for its next steps.
    pub const fn prefetch(mut self, batches: u32) -> Self {
        self.spec.input.prefetch = batches;
        self
    }

    /// Sets whether workers read the training set from its files in each epoch, or hold it in memory.
    pub const fn stream(mut self, stream: StreamSpec) -> Self {
        self.spec.input.stream = stream;
        self
    }

    /// Sets the number of files that a worker reads at a time. The worker takes one example from each of
    /// these files in turn.
    pub const fn interleave(mut self, files: u32) -> Self {
        self.spec.input.interleave = files;
        self
    }

    /// Sets the number of damaged records of the training set that each worker may skip.
    pub const fn skip_bad_records(mut self, records: u64) -> Self {
        self.spec.input.skip_bad_records = records;
        self
    }

    /// Lets workers continue from a checkpoint although the names or sizes of the training files have changed
    /// since it was saved. Without this call, such a change is an error.
    pub const fn accept_changed_files(mut self) -> Self {
        self.spec.input.accept_changed_files = true;
        self
    }

    /// Adds hooks of the chief and of the workers.
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks.extend(hooks);
        self
    }

    /// Calls a function with the named tensors of a training step: in the first step of each worker, and
    /// then once every `every` steps. `job.fetch(["logits", "dense1/kernel:grad_norm"], 100, |fetched| ..)`
    /// passes the output of the layer `logits` for the worker's batch, and the norm of a gradient. See
    /// [`Hooks::fetch`]; a name that the graph does not have is an error when the job is trained.
    pub fn fetch(
        mut self,
        names: impl IntoIterator<Item = impl Into<String>>,
        every: u64,
        call: impl FnMut(&Fetched<'_>) + Send + 'static,
    ) -> Self {
        self.hooks = self.hooks.fetch(names, every, call);
        self
    }

    /// Calls a function with the gradients of every step of every worker, before the worker checks, clips and
    /// pushes them. The function may change them. In a cluster, every worker process runs the same program,
    /// and so calls the same function.
    pub fn on_gradients(mut self, change: impl Fn(&mut StepGradients<'_>) + Send + Sync + 'static) -> Self {
        let change = Arc::new(change);
        self.hooks = self.hooks.worker(move || {
            let change = Arc::clone(&change);
            OnGradients::new(move |gradients: &mut StepGradients<'_>| change(gradients))
        });
        self
    }

    /// Saves checkpoints of the job, and resumes from the newest one if there is any.
    pub fn checkpoints(mut self, config: CheckpointConfig) -> Self {
        self.checkpoints = Some(config);
        self
    }

    /// Evaluates the model on the test set while the job trains: at the end of each epoch with
    /// [`EvalEverySpec::Epoch`], or once every n updates with [`EvalEverySpec::Steps`]. The log then shows
    /// the results, and hooks receive them. Worker 0 evaluates on its devices: between one of its steps and
    /// the next, it computes one batch of the test set. If the job is deterministic, the final values of the
    /// variables have the same bits with and without evaluations. Worker 0 holds the test set in memory, or
    /// streams it if it is large.
    pub const fn eval_every(mut self, every: EvalEverySpec) -> Self {
        self.spec.eval_every = Some(every);
        self
    }

    /// Ends the training successfully when `patience` evaluations in a row did not improve `metric`: `loss`
    /// or a metric of the model. Lower is better if the name of the metric contains `loss` or `error`, and
    /// higher otherwise; use the hook [`EarlyStopping`] for another rule. This setting needs
    /// [`eval_every`](Self::eval_every), or checkpoints and an evaluator.
    pub fn early_stopping(mut self, metric: &str, patience: u32) -> Self {
        self.early_stopping = Some(EarlyStopping::new(metric, Better::usual(metric), patience, 0.0));
        self
    }

    /// Keeps the best evaluation, and the values of the variables that were evaluated.
    /// [`Trained::best`](crate::Trained::best) returns them. `by` chooses the metric, such as
    /// `"accuracy:max".parse()?`. Worker 0 keeps the values in memory. This setting needs
    /// [`eval_every`](Self::eval_every): without it, the model is evaluated only at the end, so the values at
    /// the end are the best.
    pub fn keep_best(mut self, by: BestSpec) -> Self {
        self.best = Some(by);
        self
    }

    /// Calls a function with the progress of the training: about once a second, and once more when the
    /// training has ended successfully. The calls come from a thread of their own, in the process that hosts
    /// the chief, so a slow function delays no step: it is only called less often. [`train`](Self::train)
    /// returns after the last call has returned. If the function panics, it is not called again.
    pub fn on_progress(mut self, call: impl FnMut(&Progress) + Send + 'static) -> Self {
        self.on_progress = Some(Arc::new(Mutex::new(call)));
        self
    }

    /// Returns the handle that ends the training of this job early, for example when the user presses a
    /// button. A clone of the job has the same handle. A handle cannot be reset: after [`StopHandle::stop`],
    /// each further training of the job ends at its first step.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns the description that all tasks of a cluster share, for `workers` workers.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, or if the training examples must be counted and cannot
    /// be read.
    pub fn spec(&self, workers: u32) -> Result<JobSpec, Error> {
        self.hooks.check(&self.spec)?;
        if self.early_stopping.is_some() && self.spec.eval_every.is_none() && self.checkpoints.is_none() {
            let expected = "used with eval_every, or with checkpoints and an evaluator";
            return Err(refused("early_stopping", expected, "used without them"));
        }
        if self.best.is_some() && self.spec.graph.stages().count() > 1 {
            return Err(refused(
                "keep_best",
                "left out, because the graph has operations on several worker tasks, and no worker has all values",
                "set",
            ));
        }
        if let Some(best) = self.best.as_ref().filter(|best| best.check(&self.spec.graph).is_err()) {
            return Err(refused("keep_best", "loss or a metric of the model", best));
        }
        self.length.set(self.spec.clone(), workers, &self.datasets)
    }

    /// Returns the constructor of the hook that stops the job early, if there is one.
    pub(crate) fn stopping_hook(&self) -> Option<MakeHook> {
        let stopping = self.early_stopping.clone()?;
        Some(Arc::new(move || Box::new(stopping.clone())))
    }

    /// Returns the graph.
    pub const fn graph(&self) -> &GraphSpec {
        &self.spec.graph
    }
}

/// Returns the error for a wrong setting that exists only in the library, and not in the job file.
fn refused(key: &'static str, expected: &str, got: impl std::fmt::Display) -> Error {
    Error::Job(OutOfRange::new(key, expected, got).into())
}

/// Makes a job that trains to the spec's last step.
impl From<JobSpec> for Job {
    fn from(spec: JobSpec) -> Self {
        let length = Length::Steps(spec.last_step.0);
        Self::with(spec, length)
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job('{}', {:?})", self.spec.graph.name, self.length)
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::input::DatasetSpec;
    use pushpull_messages::placement::PartitionerSpec;

    use super::*;
    use crate::NotFiniteSpec;

    fn job() -> Job {
        let mut g = GraphBuilder::new("plane");
        let x = g.input("features", [1]);
        let loss = g.l2_loss(x);
        let points =
            || DatasetSpec::Linear { seed: 0, examples: 640, weights: vec![1.0], bias: 0.0, noise: 0.0 };
        Job::new(g.finish(loss, &[]).unwrap(), InputSpec::new(points(), points()))
    }

    /// Returns the input that `every_setting_of_a_job_can_be_set` expects, with the data sets of `of`.
    fn changed_input(of: &InputSpec, scale: StageSpec) -> InputSpec {
        InputSpec {
            shard: ShardSpec::Off,
            shuffle: ShuffleSpec::Buffer(10),
            repeat: RepeatSpec::Epochs(9),
            map: vec![MapSpec::new("features", scale)],
            prefetch: 4,
            stream: StreamSpec::Always,
            interleave: 3,
            skip_bad_records: 8,
            accept_changed_files: true,
            ..InputSpec::new(of.train.clone(), of.test.clone())
        }
    }

    #[test]
    fn every_setting_of_a_job_can_be_set() {
        let partitioner = PartitionerSpec::Fixed { slices: 2 };
        let placement = PlacementSpec { partitioner, ..Default::default() };
        let not_finite = NotFiniteSpec::Skip;
        let gradient = GradientSpec { clip_value: Some(1.0), clip_global_norm: None, not_finite };
        let (communication, last_step) = (CommunicationSpec::Ring, GlobalStep(90));
        let scale = StageSpec::Scale { factor: 2.0, offset: 1.0 };
        let made = job()
            .optimizer(OptimizerSpec::adam(0.5))
            .schedule(ScheduleSpec::Cosine)
            .warm_up(7)
            .weight_decay(0.01)
            .averages(0.9)
            .gradient(gradient)
            .clip_norm(3.0)
            .sync(SyncSpec::SYNC)
            .communication(communication)
            .deterministic()
            .when_worker_leaves(LeaveSpec::Fail)
            .placement(placement.clone())
            .metrics_every(8)
            .batch_size(32)
            .accumulate(3)
            .steps(90)
            .seed(5)
            .shard(ShardSpec::Off)
            .shuffle(ShuffleSpec::Buffer(10))
            .repeat(RepeatSpec::Epochs(9))
            .map("features", scale.clone())
            .prefetch(4)
            .stream(StreamSpec::Always)
            .interleave(3)
            .skip_bad_records(8)
            .accept_changed_files()
            .eval_every(EvalEverySpec::Steps(30))
            .spec(2)
            .unwrap();
        let plain = job().spec(1).unwrap();
        let expected = JobSpec {
            input: changed_input(&made.input, scale),
            batch_size: 32,
            accumulate: 3,
            metrics_every: Some(8),
            optimizer: OptimizerSpec::adam(0.5),
            schedule: ScheduleSpec::Cosine,
            warm_up: 7,
            weight_decay: 0.01,
            average: Some(0.9),
            gradient: GradientSpec { clip_global_norm: Some(3.0), ..gradient },
            communication,
            sync: SyncSpec::SYNC,
            deterministic: true,
            when_worker_leaves: LeaveSpec::Fail,
            placement,
            last_step,
            seed: 5,
            eval_every: Some(EvalEverySpec::Steps(30)),
            epoch_examples: None,
            ..plain
        };
        assert_eq!(made, expected);
    }

    #[test]
    fn an_epoch_is_counted_if_it_is_needed() {
        let made = |job: Job| {
            let JobSpec { last_step, epoch_examples, .. } = job.batch_size(100).spec(2).unwrap();
            (last_step.0, epoch_examples)
        };
        assert_eq!(made(job().epochs(3)), (20, Some(640)));
        assert_eq!(made(job().epochs(3).sync(SyncSpec::SYNC)), (10, Some(640)));
        assert_eq!(made(job().steps(5)), (5, None));
        assert_eq!(made(job().steps(5).eval_every(EvalEverySpec::Epoch)), (5, Some(640)));
        assert_eq!(made(job().steps(5).eval_every(EvalEverySpec::Steps(2))), (5, None));
        // What a job file says is not counted again.
        let told = JobSpec { epoch_examples: Some(7), ..job().spec(1).unwrap() };
        assert_eq!(made(Job::from(told)), (10, Some(7)));
    }

    #[test]
    fn a_setting_out_of_range_is_refused() {
        for (job, expected) in [
            (job().eval_every(EvalEverySpec::Steps(0)), "eval_every"),
            (job().early_stopping("loss", 3), "early_stopping must be used with eval_every"),
            (job().keep_best("auc".parse().unwrap()), "keep_best must be loss or a metric"),
            (job().clip_norm(0.0), "clip_global_norm"),
            (job().accumulate(0), "accumulate"),
            (job().pipeline(0), "pipeline"),
            (job().pipeline(2).sync(SyncSpec::SYNC), "pipeline is 2"),
            (job().weight_decay(f32::NAN), "weight_decay"),
            (job().prefetch(0), "prefetch"),
            (job().shuffle(ShuffleSpec::Buffer(0)), "shuffle buffer"),
            (job().sync(SyncSpec::Sync { aggregate: Some(0) }), "sync:0"),
        ] {
            let error = job.spec(1).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let mut staged = job().keep_best("loss".parse().unwrap());
        staged.spec.graph.nodes.last_mut().unwrap().device = Some("/job:worker/task:1".parse().unwrap());
        let error = staged.spec(2).unwrap_err().to_string();
        assert!(
            error.contains("keep_best must be left out, because the graph has operations on several"),
            "{error}"
        );
    }
}
