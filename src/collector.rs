//! Records how a job ended, and reads the variables of a trained job before its ps tasks stop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pushpull_chief::{BeforeStop, JobEnd, JobReport, TrainedJob};
use pushpull_messages::id::TaskId;
use pushpull_messages::job::JobSpec;
use pushpull_transport::buffer::BufferPool;
use pushpull_transport::{Identity, Transport};
use pushpull_worker::{ClientConfig, Parameters, Values, WorkerConfig};

use crate::error::Error;

/// How long to wait for a connection to a ps task when the variables are read.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// The values of all variables of a trained job.
#[derive(Clone)]
pub(crate) struct Collected {
    /// The values after the last update.
    pub values: Arc<Values>,
    /// The moving averages, if the job keeps them. Untrained variables have no average; `averages` contains
    /// their values instead.
    pub averages: Option<Arc<Values>>,
}

#[derive(Default)]
struct Contents {
    end: Option<JobEnd>,
    values: Option<Result<Collected, String>>,
}

/// Collects the results of a run: how its job ended, and the job's variables. All clones share the results.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Contents>>);

impl Collector {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how the job ended.
    pub(crate) fn ended(&self, end: JobEnd) {
        self.contents().end = Some(end);
    }

    /// Returns true if the job was trained and its variables were read. In this case, an error of another
    /// task no longer matters.
    pub(crate) fn is_complete(&self) -> bool {
        let contents = self.contents();
        matches!((&contents.end, &contents.values), (Some(JobEnd::Completed(_)), Some(Ok(_))))
    }

    /// Returns the function that the chief of `identity`'s cluster calls before it stops the ps tasks. The
    /// function reads the variables from these tasks.
    pub(crate) fn before_stop(
        &self,
        job: &JobSpec,
        identity: &Identity,
        transport: Arc<dyn Transport>,
        pool: BufferPool,
    ) -> BeforeStop {
        let (collector, job) = (self.clone(), job.clone());
        let identity = Identity { task: TaskId::CHIEF, ..identity.clone() };
        Box::new(move |trained| {
            Box::pin(async move {
                let collected = collect(&job, &identity, &transport, &pool, trained).await;
                collector.contents().values = Some(collected);
            })
        })
    }

    /// Returns the report and the variables of the trained job.
    ///
    /// # Errors
    /// Returns an error if the job was stopped before it was trained, or if its variables could not be read.
    pub(crate) fn take(self) -> Result<(JobReport, Collected), Error> {
        let mut contents = self.contents();
        let report = match contents.end.take() {
            Some(JobEnd::Completed(report)) => report,
            Some(JobEnd::Saved { step, checkpoint, reason }) => {
                return Err(Error::Saved { step: step.0, checkpoint: checkpoint.to_string(), reason });
            }
            None => return Err(Error::Training("the job ended without a report: see the log".into())),
        };
        match contents.values.take() {
            Some(Ok(collected)) => Ok((report, collected)),
            Some(Err(reason)) => Err(Error::Training(format!(
                "the job was trained, but its variables cannot be read: {reason}"
            ))),
            None => Err(Error::Training("the job was trained, but its variables were not read".into())),
        }
    }
}

async fn collect(
    job: &JobSpec,
    identity: &Identity,
    transport: &Arc<dyn Transport>,
    pool: &BufferPool,
    trained: TrainedJob,
) -> Result<Collected, String> {
    let TrainedJob { placement, step } = trained;
    let variables = &job.graph.variables;
    // The ps tasks have just been in use. If one is gone now, it does not come back with its values.
    let config = ClientConfig { start_timeout: REACHED_WITHIN, ..WorkerConfig::default().client() };
    let parameters = Parameters::connect(transport, identity, &placement, variables, pool, config)
        .await
        .map_err(|error| error.to_string())?;
    let pull = async |averages| {
        let exchange = parameters.pull(averages).await.map_err(|error| error.to_string())?;
        match exchange.versions.iter().find(|version| version.0 != step.0) {
            Some(version) => Err(format!("a shard is at version {version} after the job, expected {step}")),
            None => Ok(exchange.values),
        }
    };
    let values = pull(false).await?;
    let averages = match job.average {
        Some(_) => Some(pull(true).await?),
        None => None,
    };
    Ok(Collected { values, averages })
}
