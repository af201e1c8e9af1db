//! The interface of a worker's hooks, and hooks that are ready to use. This module must not depend on
//! connections.

mod fetch_every;
mod hook;
mod image_of_batch;
mod log_every;
mod model_summaries;
mod on_gradients;
mod step_gradients;
mod stop_on_nan;

pub use fetch_every::FetchEvery;
pub use hook::{EvaluationInfo, Fetched, Hook, HookError, MakeHook, Start, StepContext, StepInfo};
pub use image_of_batch::ImageOfBatch;
pub use log_every::LogEvery;
pub(crate) use model_summaries::ModelSummaries;
pub use on_gradients::OnGradients;
pub use step_gradients::{GradientMut, StepGradients};
pub use stop_on_nan::StopOnNan;

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use pushpull_input::Batch;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::id::{GlobalStep, LocalStep};
    use pushpull_messages::input::{DatasetSpec, InputSpec};
    use pushpull_messages::job::JobSpec;
    use pushpull_messages::message::Verdict;

    use super::*;
    use crate::client::Values;
    use crate::telemetry::Plots;

    pub(super) fn job() -> JobSpec {
        let mut g = GraphBuilder::new("one");
        let x = g.input("features", [2]);
        let loss = g.mean_squared_error(x, x);
        let digits = |seed| DatasetSpec::Digits { seed, examples: 10 };
        JobSpec::new(g.finish(loss, &[]).unwrap(), InputSpec::new(digits(1), digits(2)), 10)
    }

    pub(super) fn step(batch: &Batch, local_step: LocalStep, loss: f32) -> StepInfo<'_> {
        static NONE: LazyLock<Values> = LazyLock::new(|| Values::new(Vec::new()));
        StepInfo {
            local_step,
            global_step: GlobalStep(7),
            loss,
            batch,
            values: &NONE,
            gradient_norm: None,
            seconds: 0.1,
            verdicts: &[Verdict::Applied],
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_ends_the_worker() {
        let (batch, plots) = (Batch::default(), Plots::default());
        let mut hook = StopOnNan;
        assert!(hook.after_step(&step(&batch, LocalStep(1), 1e30), &plots).is_ok());
        for loss in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = hook.after_step(&step(&batch, LocalStep(3), loss), &plots).unwrap_err();
            assert_eq!(error.to_string(), format!("the loss is {loss} at step 3 of this worker"));
        }
    }
}
