//! Shows the progress of a job to a person: as a bar on a terminal, otherwise as a log line every few
//! seconds.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use pushpull_chief::JobProgress;
use tokio::sync::watch;
use tokio::time::Instant;

use super::logging;

/// The time between two log lines.
const LINE_EVERY: Duration = Duration::from_secs(3);
/// The time between two changes of the bar.
const BAR_EVERY: Duration = Duration::from_millis(200);

/// Shows the job's progress until the sender is dropped. Each gradient is computed from `step_examples`
/// examples; the number of examples per second follows from this.
pub(crate) async fn show(mut progress: watch::Receiver<JobProgress>, step_examples: u64) {
    let terminal = std::io::stderr().is_terminal() && !logging::is_json();
    if progress.wait_for(|now| now.running).await.is_err() {
        return;
    }
    // The rate does not count the steps in the checkpoint from which the job resumed, because an earlier run
    // made them.
    let (started, began) = (Instant::now(), progress.borrow().global_step.0);
    let bar = terminal.then(|| bar(progress.borrow().last_step.0));
    let mut ticks = tokio::time::interval(if terminal { BAR_EVERY } else { LINE_EVERY });
    ticks.tick().await;
    loop {
        let gone = async { while progress.changed().await.is_ok() {} };
        tokio::select! {
            _ = ticks.tick() => {}
            () = gone => break,
        }
        let now = progress.borrow().clone();
        if !now.running {
            continue;
        }
        let gradients = now.global_step.0.saturating_sub(began) as f64 * f64::from(now.gradients_per_update);
        let examples = gradients * step_examples as f64;
        let rate = examples / started.elapsed().as_secs_f64();
        let scores = scores(&now);
        match &bar {
            Some(bar) => {
                bar.set_position(now.global_step.0);
                bar.set_message(format!("{rate:.0} examples/s  {}", scores.join("  ")));
            }
            None => tracing::info!(
                "step {} of {}, {rate:.0} examples/s, {}, {} worker(s)",
                now.global_step,
                now.last_step,
                scores.join(", "),
                now.workers
            ),
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// The maximum number of metrics in a line.
const METRICS_MAX: usize = 4;

/// Returns the loss and the metrics on the training batches, each with its name.
fn scores(now: &JobProgress) -> Vec<String> {
    let loss = now.loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"));
    let metrics = now.metrics.iter().take(METRICS_MAX);
    let metrics = metrics.map(|metric| format!("{} {:.4}", metric.name, metric.value));
    std::iter::once(format!("loss {loss}")).chain(metrics).collect()
}

fn bar(last_step: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} steps  {msg}  {eta} left");
    ProgressBar::new(last_step).with_style(style.expect("the template is a constant"))
}

#[cfg(test)]
mod tests {
    use pushpull_messages::message::MetricValue;

    use super::*;

    #[test]
    fn a_line_has_the_loss_and_the_first_metrics() {
        let metric = |number: u8| MetricValue { name: format!("m{number}"), value: f32::from(number) };
        let metrics = (0..9).map(metric).collect();
        let now = JobProgress { loss: Some(0.5), metrics, ..JobProgress::default() };
        assert_eq!(scores(&now), ["loss 0.5000", "m0 0.0000", "m1 1.0000", "m2 2.0000", "m3 3.0000"]);
        assert_eq!(scores(&JobProgress::default()), ["loss -"]);
    }
}
