//! Tests of hooks that change gradients before they are pushed.

use std::sync::Mutex;

use pushpull_messages::id::VariableId;

use super::fake_cluster::job;
use super::*;
use crate::devices::DeviceList;
use crate::hooks::{OnGradients, StepGradients};

type Seen = Arc<Mutex<Vec<[Vec<f32>; 2]>>>;

/// A hook that records the variables' values after every step.
struct Recorder(Seen);

impl Hook for Recorder {
    fn after_step(&mut self, info: &StepInfo<'_>, _: &Plots) -> Result<(), HookError> {
        let values = [0, 1].map(|variable| info.values.variable(VariableId(variable)).to_vec());
        self.0.lock().unwrap().push(values);
        Ok(())
    }
}

/// Runs a worker that has the given hooks until it ends. The shards apply plain gradient descent. Returns
/// the variables' values after every step, and the worker's final snapshot.
fn train(
    job: JobSpec,
    learning_rate: f32,
    devices: usize,
    mut hooks: Vec<MakeHook>,
) -> (Vec<[Vec<f32>; 2]>, Box<WorkerSnapshot>) {
    let seen = Seen::default();
    let recorder = Arc::clone(&seen);
    hooks.push(Arc::new(move || Box::new(Recorder(Arc::clone(&recorder)))));
    let script = Script { job, learning_rate, tcp: true, ..Default::default() };
    let config = WorkerConfig { devices: DeviceList::cpus(devices), hooks, ..script.config };
    let last = Arc::new(Mutex::new(None));
    let told = Arc::clone(&last);
    play(Script { config, ..script }, |mut play| async move {
        play.end().await.unwrap();
        *told.lock().unwrap() = Some(Box::new(worker_of(&play.view.observe().await).clone()));
    });
    let values = std::mem::take(&mut *seen.lock().unwrap());
    let last = last.lock().unwrap().take();
    (values, last.expect("it has ended"))
}

fn change(change: fn(&mut StepGradients<'_>)) -> Vec<MakeHook> {
    vec![Arc::new(move || Box::new(OnGradients::new(change)) as Box<dyn Hook>)]
}

#[test]
fn changed_gradients_are_those_that_are_pushed() {
    for (devices, accumulate) in [(1, 1), (2, 1), (1, 3)] {
        let job = JobSpec { accumulate, ..job(7) };
        let (plain, worker) = train(job.clone(), 0.25, devices, Vec::new());
        let begun_early = devices == 1;
        assert_eq!(worker.phases.filter.count() < 7, begun_early, "without a hook, pushes begin early");
        let doubled = change(|gradients| {
            gradients.for_each(|gradient| gradient.values.iter_mut().for_each(|value| *value *= 2.0));
        });
        let (values, worker) = train(job.clone(), 0.125, devices, doubled);
        assert_eq!(values, plain, "twice the gradient, at half the learning rate");
        assert_eq!(worker.phases.filter.count(), 7);
        let frozen = change(|gradients| {
            let gradient = gradients.get_mut("bias").expect("such a variable");
            assert_eq!((gradient.name, &gradient.shape.0[..]), ("bias", &[1][..]));
            gradient.values.fill(0.0);
            assert!(gradients.get_mut("labels").is_none());
        });
        let (values, _) = train(job, 0.25, devices, frozen);
        assert!(values.iter().all(|[_, bias]| *bias == [0.0]));
        assert!(values.windows(2).all(|pair| pair[0][0] != pair[1][0]), "the kernel moves");
    }
}

#[test]
fn changed_gradients_are_clipped_and_checked() {
    let mut clipped = job(7);
    clipped.gradient.clip_value = Some(0.5);
    let huge = change(|gradients| {
        let step = gradients.local_step().0;
        assert_eq!(gradients.global_step().0, step);
        gradients.for_each(|gradient| gradient.values.fill(1e9));
    });
    let (values, _) = train(clipped, 1.0, 1, huge);
    for (step, [kernel, bias]) in (1u8..).zip(&values) {
        let expected = -0.5 * f32::from(step);
        assert!(kernel.iter().chain(bias).all(|value| *value == expected), "{values:?}");
    }
}

/// A hook that refuses the gradients of the third step.
struct Refusing;

impl Hook for Refusing {
    fn changes_gradients(&self) -> bool {
        true
    }

    fn change_gradients(&mut self, gradients: &mut StepGradients<'_>) -> Result<(), HookError> {
        match gradients.local_step() {
            LocalStep(2) => Err(HookError::new("the third step")),
            _ => Ok(()),
        }
    }
}

#[test]
fn an_error_of_a_gradient_hook_ends_the_worker() {
    let hooks: Vec<MakeHook> = vec![Arc::new(|| Box::new(Refusing) as Box<dyn Hook>)];
    let script = Script::default();
    let config = WorkerConfig { hooks, ..script.config };
    play(Script { config, ..script }, |mut play| async move {
        let error = play.end().await.unwrap_err().to_string();
        assert!(error.contains("the third step"), "{error}");
        assert_eq!(play.drawn().len(), 2);
    });
}
