//! Shows user-defined hooks: one hook ends the job as soon as the loss is low enough, and another plots how
//! a variable changes.
//!
//! `cargo run --release --example hooks -- --summary-dir events` fits a plane, as the example
//! `linear_regression` does. The job stops long before its last step. `tensorboard --logdir events` shows
//! the plots.

use std::process::ExitCode;

use pushpull::hooks::{ChiefHook, HookContext, HookError, Hooks, Plots, StepInfo, SummarySpec, WorkerHook};
use pushpull::nn::{Layer, dense};
use pushpull::{DatasetSpec, Defaults, GraphBuilder, InputSpec, TrainArgs, TrainingSnapshot, VariableId};

/// A hook that is called about once a second. It ends the job when the mean loss of the workers is below a
/// bound.
struct StopWhenGood {
    loss_max: f32,
}

impl ChiefHook for StopWhenGood {
    fn progress(&mut self, snapshot: &TrainingSnapshot, context: &mut HookContext) {
        if let Some(loss) = snapshot.progress.loss.filter(|&loss| loss < self.loss_max) {
            context.stop(format!("the loss {loss:.4} is below the bound {}", self.loss_max));
        }
    }
}

/// A hook that every worker calls after each step. It plots the first weight every 100 steps, and ends the
/// job if the weight diverges.
struct FirstWeight;

impl WorkerHook for FirstWeight {
    fn after_step(&mut self, step: &StepInfo<'_>, plots: &Plots) -> Result<(), HookError> {
        let weight = step.values.variable(VariableId(0))[0];
        if weight.abs() > 1e6 {
            return Err(HookError::new(format!("the first weight is {weight}")));
        }
        if step.local_step.0.is_multiple_of(100) {
            plots.plot(SummarySpec::scalar("plane/first_weight", step.global_step, weight));
        }
        Ok(())
    }
}

fn points(seed: u64, examples: u64) -> DatasetSpec {
    DatasetSpec::Linear { seed, examples, weights: vec![3.0, -2.0, 0.5], bias: 1.0, noise: 0.1 }
}

fn main() -> ExitCode {
    pushpull::main_with(Defaults::epochs(10_000).batch_size(32).sgd(0.1), |args: TrainArgs| {
        let mut g = GraphBuilder::new("hooks");
        let features = g.input("features", [3]);
        let labels = g.input("labels", []);
        let x = dense("plane", 1).apply(&mut g, features);
        let x = g.reshape(x, []);
        let loss = g.mean_squared_error(x, labels);
        let input = InputSpec::new(points(0, 10_000), points(1, 1_000));
        let hooks = Hooks::new().chief(|| StopWhenGood { loss_max: 0.02 }).worker(|| FirstWeight);
        args.run_with(g.finish(loss, &[])?, input, &hooks)
    })
}
