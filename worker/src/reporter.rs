//! Tells the chief about once a second how far the worker is, beside the training: a chief that is slow or gone
//! holds no step up.

use std::sync::Arc;
use std::time::Duration;

use messages::buffer::Payload;
use messages::id::{GlobalStep, LocalStep};
use messages::message::{Report, Reported};
use messages::transport::Caller;
use tokio::sync::watch;

/// How far a worker is; sums from the start on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub global_step: GlobalStep,
    pub local_step: LocalStep,
    pub loss_sum: f64,
}

/// Reports until the trainer has gone, and sets `stop` when the chief wants the worker to stop.
pub(crate) async fn report(
    chief: Arc<Caller>,
    progress: watch::Receiver<Progress>,
    stop: watch::Sender<Option<String>>,
    every: Duration,
) {
    let mut reported = *progress.borrow();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.closed() => return,
        }
        let now = *progress.borrow();
        let steps = now.local_step.0 - reported.local_step.0;
        let loss = ((now.loss_sum - reported.loss_sum) / steps as f64) as f32;
        reported = now;
        let report = Report { global_step: now.global_step, local_step: now.local_step, loss };
        let reported = tokio::select! {
            reported = chief.call::<Reported>(report, Payload::EMPTY) => reported,
            () = stop.closed() => return,
        };
        match reported {
            Ok((Reported { stop: None }, _)) => {}
            Ok((Reported { stop: Some(reason) }, _)) => {
                stop.send_replace(Some(reason));
                return;
            }
            Err(error) => {
                tracing::warn!("cannot report to the chief; training goes on: {error}");
                return;
            }
        }
    }
}
