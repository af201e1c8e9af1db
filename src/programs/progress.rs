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

/// Shows the job's progress until the sender is dropped. A gradient is computed from
/// `step_examples` examples.
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
        let loss = now.loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}"));
        match &bar {
            Some(bar) => {
                bar.set_position(now.global_step.0);
                bar.set_message(format!("{rate:.0} examples/s  loss {loss}"));
            }
            None => tracing::info!(
                "step {} of {}, {rate:.0} examples/s, loss {loss}, {} worker(s)",
                now.global_step,
                now.last_step,
                now.workers
            ),
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

fn bar(last_step: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} steps  {msg}  {eta} left");
    ProgressBar::new(last_step).with_style(style.expect("the template is a constant"))
}
