//! Limits how long a step waits for other workers after this worker was told to leave or has lost the chief.
//! This module must not depend on shards.

use std::time::{Duration, Instant};

use pushpull_messages::id::{LocalStep, Version};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::WorkerError;
use crate::telemetry::StopCause;

/// How long a worker that was told to leave waits for the reply to its current request. A reply that depends
/// on other workers may take longer; the worker then stops waiting for it.
const LAST_REPLY: Duration = Duration::from_secs(1);
/// The constant part of the time for which a step may wait for other workers after the chief was lost. Ten
/// times the duration of the step's computation is added to it.
const DESERTED: Duration = Duration::from_secs(60);

/// Returns how long a step may wait for other workers after the chief was lost. `took` is the duration of the
/// step's computation.
pub(super) fn deserted_after(took: Duration) -> Duration {
    DESERTED + 10 * took
}

/// Measures how long no shard has applied an update. The chief may be lost while it tells the shards at which
/// step to stop. Some shards have then stopped, and the others may need gradients that no worker will push.
/// In this state, the workers still get replies, but no shard applies an update.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    versions: Vec<Version>,
    since: Option<Instant>,
}

impl Standstill {
    /// Returns how long, up to `now`, the versions of the shards have been equal to `versions`; zero if they
    /// have changed since the previous call.
    pub(super) fn lasts(&mut self, versions: &[Version], now: Instant) -> Duration {
        match self.since {
            Some(since) if self.versions == versions => now.saturating_duration_since(since),
            _ => {
                self.versions = versions.to_vec();
                self.since = Some(now);
                Duration::ZERO
            }
        }
    }
}

/// Awaits `reply`, which may depend on other workers. Returns an error if this worker has to leave before the
/// reply arrives.
///
/// After the worker was told to stop or was interrupted, waits at most [`LAST_REPLY`]. If the job has rolled
/// back, does not wait at all, because the reply has no use any more. If the chief is lost, `stop` is closed.
/// This function then waits at most `deserted_after`, because no task is left to inform the shards that
/// another worker is gone.
pub(super) async fn unless_leaving<T>(
    stop: &mut watch::Receiver<Option<StopCause>>,
    interrupt: &CancellationToken,
    local_step: LocalStep,
    deserted_after: Duration,
    reply: impl Future<Output = Result<T, WorkerError>>,
) -> Result<T, WorkerError> {
    let leaving = async {
        let error = tokio::select! {
            biased;
            () = interrupt.cancelled() => WorkerError::Interrupted { local_step },
            stopped = stop.wait_for(Option::is_some) => match stopped {
                Ok(cause) => match cause.clone().expect("it has been waited for") {
                    rolled_back @ StopCause::RolledBack(_) => return rolled_back.into(),
                    ends @ StopCause::JobEnds(_) => ends.into(),
                },
                Err(_) => tokio::select! {
                    biased;
                    () = interrupt.cancelled() => WorkerError::Interrupted { local_step },
                    () = tokio::time::sleep(deserted_after) => {
                        return WorkerError::Deserted(deserted_after.as_secs());
                    }
                },
            },
        };
        tokio::time::sleep(LAST_REPLY).await;
        error
    };
    tokio::select! {
        biased;
        reply = reply => reply,
        error = leaving => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use pushpull_messages::id::TaskId;
    use pushpull_messages::message::{Refusal, RefusalCode};
    use pushpull_transport::CallError;

    use super::*;

    fn enough() -> Option<StopCause> {
        Some(StopCause::JobEnds("enough".to_owned()))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn only_shards_that_apply_nothing_stand_still() {
        let (mut standstill, now) = (Standstill::default(), pushpull_messages::observe::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let versions = |second| [Version(7), Version(second)];
        assert_eq!(standstill.lasts(&versions(1), at(0)), Duration::ZERO);
        assert_eq!(standstill.lasts(&versions(1), at(50)), Duration::from_secs(50));
        assert_eq!(standstill.lasts(&versions(2), at(60)), Duration::ZERO, "a shard goes on");
        assert_eq!(standstill.lasts(&versions(2), at(130)), Duration::from_secs(70));
    }

    #[test]
    fn a_leaving_worker_does_not_wait_for_the_others() {
        let step = LocalStep(3);
        let never = std::future::pending::<Result<(), WorkerError>>;
        block_on(async {
            let (_chief, mut stop) = watch::channel(enough());
            let alone = CancellationToken::new();
            let error = unless_leaving(&mut stop, &alone, step, DESERTED, never()).await.unwrap_err();
            assert!(matches!(error, WorkerError::Stopped(reason) if reason == "enough"));
            // An interrupt has the same effect whether the chief is lost or not.
            let (chief, mut stop) = watch::channel(None);
            drop(chief);
            let interrupt = CancellationToken::new();
            interrupt.cancel();
            let error = unless_leaving(&mut stop, &interrupt, step, DESERTED, never()).await.unwrap_err();
            assert!(matches!(error, WorkerError::Interrupted { local_step } if local_step == step));
            let short = Duration::from_millis(1);
            let error = unless_leaving(&mut stop, &alone, step, short, never()).await.unwrap_err();
            assert!(matches!(error, WorkerError::Deserted(_)), "{error}");
        });
    }

    #[test]
    fn nothing_is_waited_for_once_the_job_has_rolled_back() {
        let refusal = Refusal::new(RefusalCode::RolledBack, "to step 0");
        let refused = CallError::Refused { peer: TaskId::CHIEF, refusal };
        let (_chief, mut stop) = watch::channel(Some(StopCause::RolledBack(refused)));
        let (alone, never) = (CancellationToken::new(), std::future::pending::<Result<(), WorkerError>>());
        let ended = unless_leaving(&mut stop, &alone, LocalStep(3), DESERTED, never).now_or_never();
        let error = ended.expect("at once").unwrap_err();
        assert!(error.is_rolled_back(), "{error}");
    }

    #[test]
    fn a_reply_on_its_way_is_taken() {
        block_on(async {
            let (_chief, mut stop) = watch::channel(enough());
            let reply = async {
                tokio::time::sleep(LAST_REPLY / 2).await;
                Ok(7)
            };
            let alone = CancellationToken::new();
            let taken = unless_leaving(&mut stop, &alone, LocalStep(0), DESERTED, reply).await;
            assert_eq!(taken.unwrap(), 7);
        });
    }
}
