//! Trains a job on a cluster. This module exists because the module of the job must not depend on clusters.

use crate::attached::Attached;
use crate::best::BestKeeper;
use crate::cluster::{Cluster, Kind};
use crate::collector::Collector;
use crate::embedded::Embedded;
use crate::error::Error;
use crate::job::Job;
use crate::progress::Watcher;
use crate::trained::Trained;

impl Job {
    /// Trains the job on a cluster, and returns its report and its variables. Blocks until the job has
    /// ended.
    ///
    /// # Errors
    /// Returns an error if the job cannot start or fails, or if it was stopped before its last step and
    /// saved.
    pub fn train(self, cluster: Cluster) -> Result<Trained, Error> {
        match cluster.0 {
            Kind::Embedded(embedded) => self.train_embedded(*embedded),
            #[cfg(feature = "programs")]
            Kind::Env => on_own_thread(|| crate::programs::train_from_env(&self)),
        }
    }

    /// Starts the thread that calls the job's progress function, if the job has such a function.
    pub(crate) fn watcher(&self) -> Result<Option<Watcher>, Error> {
        let start = |call| Watcher::start(call).map_err(|error| Error::Training(error.to_string()));
        self.on_progress.clone().map(start).transpose()
    }

    fn train_embedded(self, mut embedded: Embedded) -> Result<Trained, Error> {
        let cluster = embedded.cluster().map_err(|error| Error::Cluster(format!("{error:#}")))?;
        let job = self.spec(embedded.workers)?;
        let watcher = self.watcher()?;
        let best = self.best.clone().map(BestKeeper::new);
        embedded.hooks.extend(self.stopping_hook());
        embedded.hooks.extend(self.hooks.chief);
        embedded.hooks.extend(watcher.as_ref().map(Watcher::hook));
        embedded.worker_config.hooks.extend(self.hooks.worker);
        embedded.worker_config.hooks.extend(best.as_ref().map(BestKeeper::hook));
        embedded.worker_config.datasets = self.datasets;
        embedded.chief_config.checkpoint = self.checkpoints.or(embedded.chief_config.checkpoint);
        let (collector, spec) = (Collector::default(), job.clone());
        let attached = Attached { collector: Some(collector.clone()), stop: Some(self.stop) };
        let ended =
            on_own_thread(move || actix_rt::System::new().block_on(embedded.run_attached(spec, &attached)));
        drop(watcher);
        ended.or_else(|error| match collector.is_complete() {
            true => {
                tracing::warn!("a task failed after the job was trained: {error:#}");
                Ok(())
            }
            false => Err(Error::Training(format!("{error:#}"))),
        })?;
        Trained::new(&job, &cluster, collector, best.as_ref())
    }
}

/// Runs `work` on a thread of its own, because the caller may be in an asynchronous runtime, within which no
/// other runtime can run.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::data::{Column, Dataset, from_fn};
    use crate::hooks::{ChiefHook, HookContext, HookError, Hooks, StepContext, SummaryEvery, WorkerHook};
    use crate::nn::{Layer, dense};
    use crate::{
        ChiefError, ColumnSpec, DatasetSpec, DistributionSpec, EvalEverySpec, Evaluation, Examples,
        GlobalStep, GraphBuilder, InputSpec, JobEnd, OptimizerSpec, Progress, ShuffleSpec, StreamSpec,
        SummaryConfig, SyncSpec, TensorSpec,
    };

    /// The number of steps of a job that must end early: a test cannot wait until all of them are done.
    const ENDLESS: u64 = 1_000_000_000;

    fn points(seed: u64) -> DatasetSpec {
        DatasetSpec::Linear { seed, examples: 400, weights: vec![1.0, 2.0], bias: 0.0, noise: 0.1 }
    }

    fn job(steps: u64) -> Job {
        let mut g = GraphBuilder::new("plane");
        let features = g.input("features", [2]);
        let labels = g.input("labels", []);
        let x = dense("plane", 1).apply(&mut g, features);
        let x = g.reshape(x, []);
        let loss = g.mean_squared_error(x, labels);
        let input = InputSpec::new(points(0), points(1));
        Job::new(g.finish(loss, &[]).unwrap(), input).batch_size(10).steps(steps)
    }

    #[test]
    fn a_program_chooses_its_strategy() {
        let job = |strategy| job(30).strategy(strategy);
        let of = |devices| Cluster::mirrored(crate::DeviceList::cpus(devices));
        let one = job(DistributionSpec::OneDevice).train(of(1)).unwrap();
        let (report, several) = (one.report, job(DistributionSpec::Mirrored).train(of(2)).unwrap().report);
        assert_eq!((report.ps, report.workers, report.sync.as_str()), (1, 1, "sync"));
        assert!((report.test_loss - several.test_loss).abs() < 1e-5 * report.test_loss);
        let many = job(DistributionSpec::MultiWorkerMirrored).train(Cluster::embedded(0, 3)).unwrap().report;
        assert_eq!((many.ps, many.workers, many.gradients), (3, 3, 90));
        let refused = job(DistributionSpec::ParameterServer).train(Cluster::embedded(0, 1)).unwrap_err();
        assert!(refused.to_string().contains("needs ps tasks, but the cluster has none"), "{refused}");
    }

    #[test]
    fn a_stopped_job_is_evaluated_and_returned() {
        let job = job(ENDLESS);
        let stop = job.stop_handle();
        let seen = Arc::new(Mutex::new(Vec::<Progress>::new()));
        let (all, handle) = (Arc::clone(&seen), stop.clone());
        let job = job.on_progress(move |progress| {
            all.lock().unwrap().push(progress.clone());
            if progress.step > 0 {
                handle.stop("enough");
                handle.stop("another reason");
            }
        });
        let trained = job.train(Cluster::embedded(2, 2)).unwrap();
        assert!(stop.is_stopped());
        let report = &trained.report;
        assert_eq!((report.stopped.as_deref(), report.steps), (Some("enough"), ENDLESS));
        assert!(report.updates_applied < ENDLESS && report.shards.iter().all(|own| own.version > 0));
        let again = trained.evaluate(&Examples::read(&points(1)).unwrap()).unwrap();
        assert_eq!(again.loss.to_bits(), report.test_loss.to_bits());
        assert_eq!(again.variables_crc32c, report.variables_crc32c);
        let seen = seen.lock().unwrap();
        assert!(seen.is_sorted_by_key(|progress| progress.step));
        let last = seen.last().unwrap();
        assert_eq!((last.step, last.last_step), (report.updates_applied, report.updates_applied));
        assert!(last.examples_per_second > 0.0 && last.examples_per_second.is_finite(), "{last:?}");
        assert!(last.loss.is_some() && !last.elapsed.is_zero(), "{last:?}");
    }

    /// A hook that sends each evaluation and its step to the test.
    struct TellEvaluations(Sender<(u64, Evaluation)>);

    impl ChiefHook for TellEvaluations {
        fn evaluated(&mut self, step: GlobalStep, evaluation: &Evaluation, _: &mut HookContext) {
            let _ = self.0.send((step.0, evaluation.clone()));
        }
    }

    /// Trains a job, and returns the result, and all evaluations with their steps.
    fn evaluations(job: Job, workers: u32) -> (Trained, Vec<(u64, Evaluation)>) {
        let (sender, received) = channel();
        let sender = Mutex::new(sender);
        let hooks = Hooks::new().chief(move || TellEvaluations(sender.lock().unwrap().clone()));
        let trained = job.hooks(hooks).train(Cluster::embedded(2, workers)).unwrap();
        (trained, received.try_iter().collect())
    }

    #[test]
    fn evaluations_are_exact_and_change_no_bit() {
        for averages in [false, true] {
            let job = |steps| {
                let job = job(steps).sync(SyncSpec::SYNC).deterministic();
                if averages { job.averages(0.9) } else { job }
            };
            let (plain, _) = evaluations(job(60), 2);
            let (short, _) = evaluations(job(20), 2);
            let (trained, all) = evaluations(job(60).eval_every(EvalEverySpec::Steps(20)), 2);
            assert_eq!(trained.report.variables_crc32c, plain.report.variables_crc32c);
            assert!(trained.values().eq(plain.values()), "the same bits");
            // The first evaluation is due when no other runs, so its step is exact.
            let (step, first) = &all[0];
            assert_eq!((*step, first.loss.to_bits()), (20, short.report.test_loss.to_bits()));
            assert_eq!(first.variables_crc32c, short.report.variables_crc32c);
            assert!(all.is_sorted_by_key(|(step, _)| *step), "{all:?}");
            assert_eq!(all.last().unwrap().0, 60, "the end is evaluated once, as ever");
        }
    }

    /// A hook that records the threads on which a worker runs its steps.
    struct RecordThread(Arc<Mutex<HashSet<ThreadId>>>);

    impl WorkerHook for RecordThread {
        fn before_step(&mut self, _: &StepContext<'_>) -> Result<(), HookError> {
            self.0.lock().unwrap().insert(thread::current().id());
            Ok(())
        }
    }

    #[test]
    fn a_streamed_test_set_is_read_beside_the_training() {
        let run = |stream| {
            let [readers, trainers] = [(); 2].map(|()| Arc::<Mutex<HashSet<ThreadId>>>::default());
            let (seen, hooked) = (Arc::clone(&readers), Arc::clone(&trainers));
            let columns = vec![
                ColumnSpec::new("features", TensorSpec::f32([2])),
                ColumnSpec::new("labels", TensorSpec::f32([])),
            ];
            let set = from_fn(columns, Some(50), |index| {
                let x = index as f32 / 50.0;
                vec![Column::F32(vec![x, 1.0 - x]), Column::F32(vec![2.0 * x])]
            });
            let test = set.clone().filter(move |_| {
                seen.lock().unwrap().insert(thread::current().id());
                true
            });
            let job = Job::with_data(job(1).spec(1).unwrap().graph, set, test).batch_size(10).steps(40);
            let job = job.shuffle(ShuffleSpec::Buffer(5)).stream(stream).eval_every(EvalEverySpec::Steps(10));
            let hooks = Hooks::new().worker(move || RecordThread(Arc::clone(&hooked)));
            let trained = job.hooks(hooks).train(Cluster::embedded(1, 1)).unwrap();
            let (readers, trainers) = (readers.lock().unwrap(), trainers.lock().unwrap());
            assert!(!readers.is_empty() && !trainers.is_empty() && readers.is_disjoint(&trainers));
            trained.report.test_loss
        };
        let [held, streamed] = [StreamSpec::Never, StreamSpec::Always].map(run);
        assert_eq!(held.to_bits(), streamed.to_bits());
    }

    #[test]
    fn a_job_that_gets_no_better_ends_early() {
        let slow = job(ENDLESS).optimizer(OptimizerSpec::sgd(1e-30));
        let slow = slow.eval_every(EvalEverySpec::Steps(5)).early_stopping("loss", 2);
        let (trained, all) = evaluations(slow, 2);
        let stopped = trained.report.stopped.unwrap();
        assert!(stopped.starts_with("loss is ") && all.len() >= 3, "{stopped}: {all:?}");
    }

    #[test]
    fn the_best_values_are_returned() {
        // The learning rate is so large that the loss rises.
        let bad = || job(40).optimizer(OptimizerSpec::sgd(1.2)).eval_every(EvalEverySpec::Steps(1));
        let (trained, all) = evaluations(bad().keep_best("loss".parse().unwrap()), 1);
        let best = trained.best().unwrap();
        assert_eq!((best.step, &best.evaluation), (all[0].0, &all[0].1));
        assert!(best.evaluation.loss < trained.report.test_loss);
        let again = best.model.evaluate(&Examples::read(&points(1)).unwrap()).unwrap();
        assert_eq!(again, best.evaluation);
        // The values at the end may be the best.
        let (trained, _) = evaluations(bad().keep_best("loss:max".parse().unwrap()), 1);
        let best = trained.best().unwrap();
        assert_eq!((best.step, best.evaluation.loss), (40, trained.report.test_loss));
        let (trained, _) = evaluations(bad(), 1);
        assert!(trained.best().is_none());
    }

    #[test]
    fn training_metrics_reach_the_function_and_change_no_bit() {
        let run = |metrics: bool, every: Option<u64>| {
            let mut g = GraphBuilder::new("plane");
            let features = g.input("features", [2]);
            let labels = g.input("labels", []);
            let x = dense("plane", 1).apply(&mut g, features);
            let x = g.reshape(x, []);
            let loss = g.mean_squared_error(x, labels);
            let rest = g.sub(x, labels);
            let half = g.l2_loss(rest);
            let all = [("half", half), ("error", loss)];
            let graph = g.finish(loss, if metrics { &all } else { &[] }).unwrap();
            let last = Arc::new(Mutex::new(None));
            let seen = Arc::clone(&last);
            let job = Job::new(graph, InputSpec::new(points(0), points(1))).batch_size(10).steps(40);
            let job = job.sync(crate::SyncSpec::SYNC).deterministic();
            let job = every.into_iter().fold(job, Job::metrics_every);
            let job = job.on_progress(move |progress| *seen.lock().unwrap() = Some(progress.clone()));
            let trained = job.train(Cluster::embedded(2, 2)).unwrap();
            let last: Option<Progress> = last.lock().unwrap().take();
            (trained.report.variables_crc32c, last.unwrap())
        };
        let (plain, none) = run(false, None);
        let (with, progress) = run(true, None);
        assert!(with == plain && none.metrics.is_empty());
        let [error, half] = ["error", "half"].map(|name| progress.metrics[name]);
        // The mean of squares of 10 examples is a fifth of half of their sum.
        assert!(error > 0.0 && (half - 5.0 * error).abs() < 1e-4 * half, "{progress:?}");
        let (never, progress) = run(true, Some(0));
        assert!(never == plain && progress.metrics.is_empty());
    }

    #[test]
    fn fetched_tensors_reach_the_function() {
        type Seen = (u64, Vec<usize>, f32, f32, f32);
        let run = |fetches: bool| {
            let seen = Arc::new(Mutex::new(Vec::<Seen>::new()));
            let mut cluster = crate::Embedded::new(2, 1);
            // The rows of a tensor come from several devices.
            cluster.worker_config.devices = crate::DeviceList::cpus(3);
            let mut job = job(12).sync(crate::SyncSpec::SYNC).deterministic();
            if fetches {
                let all = Arc::clone(&seen);
                job = job.fetch(["plane", "loss", "plane/kernel:grad_norm", "labels"], 5, move |fetched| {
                    let [rows, labels] = ["plane", "labels"].map(|name| fetched.get(name).unwrap());
                    let squares = rows.values.iter().zip(&labels.values).map(|(x, y)| (x - y) * (x - y));
                    let mean = squares.sum::<f32>() / 10.0;
                    let [loss, norm] =
                        ["loss", "plane/kernel:grad_norm"].map(|name| fetched.scalar(name).unwrap());
                    let shape = rows.shape.0.clone();
                    all.lock().unwrap().push((fetched.local_step.0, shape, mean, loss, norm));
                });
            }
            let trained = job.hooks(Hooks::new()).train(cluster.into()).unwrap();
            let seen = std::mem::take(&mut *seen.lock().unwrap());
            (trained.report.variables_crc32c, seen)
        };
        let ((plain, _), (with, seen)) = (run(false), run(true));
        assert_eq!(plain, with);
        let steps: Vec<u64> = seen.iter().map(|(step, ..)| *step).collect();
        assert_eq!(steps, [0, 5, 10]);
        for (_, shape, mean, loss, norm) in seen {
            assert_eq!(shape, [10, 1]);
            assert!(
                (mean - loss).abs() < 1e-4 * loss && norm > 0.0 && norm.is_finite(),
                "{mean} {loss} {norm}"
            );
        }
    }

    #[test]
    fn a_step_of_several_batches_fetches_the_last_one() {
        const GRADIENT: &str = "plane/kernel:grad";
        const NORM: &str = "plane/kernel:grad_norm";
        // The learning rate is so small that all batches see the same values.
        let run = |accumulate: u32, steps: u64| {
            let fetched = Arc::new(Mutex::new(Vec::<([f32; 2], Vec<f32>)>::new()));
            let gradients = Arc::new(Mutex::new(Vec::<Vec<f32>>::new()));
            let (all, means) = (Arc::clone(&fetched), Arc::clone(&gradients));
            let job = job(steps).shuffle(ShuffleSpec::None).optimizer(OptimizerSpec::sgd(1e-30));
            let job = job.accumulate(accumulate).fetch(["loss", NORM, GRADIENT], 1, move |fetched| {
                let gradient = fetched.get(GRADIENT).unwrap();
                assert_eq!(gradient.shape.0, [2, 1]);
                let scalars = ["loss", NORM].map(|name| fetched.scalar(name).unwrap());
                all.lock().unwrap().push((scalars, gradient.values.clone()));
            });
            let job = job.on_gradients(move |gradients| {
                let mean = gradients.get_mut("plane/kernel").unwrap();
                means.lock().unwrap().push(mean.values.to_vec());
            });
            job.train(Cluster::embedded(1, 1)).unwrap();
            let (fetched, gradients) = (fetched.lock().unwrap().clone(), gradients.lock().unwrap().clone());
            (fetched, gradients)
        };
        let ((single, _), (several, means)) = (run(1, 12), run(3, 4));
        assert_eq!((single.len(), several.len(), means.len()), (12, 4, 4));
        for (step, (([loss, norm], gradient), mean)) in several.into_iter().zip(means).enumerate() {
            let ([last, last_norm], _) = single[3 * step + 2];
            assert_eq!(loss, last, "the loss of the last batch");
            assert_eq!(gradient, mean, "the mean gradient");
            let expected = mean.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((norm - expected).abs() < 1e-5 * expected, "step {step}: {norm}, not {expected}");
            assert!((norm - last_norm).abs() > 1e-4 * norm, "step {step}: {norm} and {last_norm}");
        }
    }

    #[test]
    fn a_name_that_the_graph_lacks_is_told_at_once() {
        let error = |name: &str| {
            let job = job(1).group(crate::GroupSpec::new("plane/bias").frozen());
            job.fetch([name], 1, |_| {}).train(Cluster::embedded(1, 1)).unwrap_err().to_string()
        };
        let unknown = error("plane/kernal");
        assert!(
            unknown.contains("'plane/kernal'") && unknown.contains("did you mean 'plane/kernel'"),
            "{unknown}"
        );
        assert!(error("plane/bias:grad_norm").contains("the variable is not trained"));
    }

    #[test]
    fn summaries_of_a_graph_are_written_at_their_steps() {
        let written = |plots: bool| {
            let mut g = GraphBuilder::new("plane");
            let features = g.input("features", [2]);
            let labels = g.input("labels", []);
            let x = dense("plane", 1).apply(&mut g, features);
            let kernel = g.named("plane/kernel");
            g.summary_histogram("own/weights", kernel);
            let x = g.reshape(x, []);
            let loss = g.mean_squared_error(x, labels);
            g.scope("own", |g| g.summary_scalar("error", loss));
            let folder = tempfile::tempdir().unwrap();
            let config = SummaryConfig { every_steps: Some(5), ..SummaryConfig::new(folder.path()) };
            let hooks = match plots {
                true => Hooks::new().chief(move || SummaryEvery::new(config.clone())),
                false => Hooks::new(),
            };
            let input = InputSpec::new(points(0), points(1));
            let job = Job::new(g.finish(loss, &[]).unwrap(), input).batch_size(10).steps(12).hooks(hooks);
            let crc = job.train(Cluster::embedded(1, 1)).unwrap().report.variables_crc32c;
            let files = std::fs::read_dir(folder.path()).unwrap();
            let bytes: Vec<u8> =
                files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
            let count = |tag: &[u8]| bytes.windows(tag.len()).filter(|own| *own == tag).count();
            (crc, [count(b"own/weights"), count(b"own/error")])
        };
        let ((with, counts), (without, none)) = (written(true), written(false));
        // One worker plots in its steps 0, 5 and 10.
        assert_eq!((with, counts, none), (without, [3, 3], [0, 0]));
    }

    #[test]
    fn a_job_can_be_stopped_before_it_begins() {
        let job = job(ENDLESS);
        job.stop_handle().stop("never mind");
        let trained = job.train(Cluster::embedded(1, 1)).unwrap();
        assert_eq!(trained.report.stopped.as_deref(), Some("never mind"));
        assert!(trained.values().all(|(_, tensor)| tensor.values.iter().all(|value| value.is_finite())));
    }

    /// A hook that sends a message when the job has ended.
    struct TellEnd(Sender<()>);

    impl ChiefHook for TellEnd {
        fn end(&mut self, _: Result<&JobEnd, &ChiefError>) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn a_function_that_blocks_delays_no_step() {
        let (sender, ended): (_, Receiver<()>) = channel();
        let sender = Mutex::new(sender);
        let hooks = Hooks::new().chief(move || TellEnd(sender.lock().unwrap().clone()));
        let (calls, counted) = channel();
        let job = job(50).hooks(hooks).on_progress(move |progress| {
            // The first call returns only when the job has ended. It would wait forever if the job waited for
            // it.
            let waited = ended.recv_timeout(std::time::Duration::from_secs(60));
            calls.send((progress.step, waited.is_ok())).unwrap();
        });
        job.train(Cluster::embedded(1, 1)).unwrap();
        assert_eq!(counted.try_iter().next().map(|(_, ended)| ended), Some(true));
    }

    #[test]
    fn a_function_that_panics_does_not_harm_the_job() {
        let mut calls = 0;
        let job = job(50).on_progress(move |_| {
            calls += 1;
            panic!("call {calls}");
        });
        let trained = job.train(Cluster::embedded(1, 1)).unwrap();
        assert_eq!((trained.report.updates_applied, trained.report.stopped), (50, None));
    }
}
