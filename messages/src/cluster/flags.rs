//! Determines the cluster and the task of this process from the user's settings. The caller reads the
//! command line and the environment, and passes the values.

use super::config::{ClusterConfig, job_names, task_of};
use super::error::ClusterError;
use super::known_jobs::KnownJobs;
use super::quote::quote;
use super::spec::ClusterSpec;
use super::tf_config::TfConfig;
use crate::id::{JobName, TaskId};

/// The user's settings. They give the cluster in one of three ways: `TF_CONFIG`, `--cluster-spec`, or one
/// flag for the hosts of each role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterFlags {
    /// The environment variable `TF_CONFIG`, in JSON; an empty text counts as unset.
    pub tf_config: Option<String>,
    /// `--cluster-spec`: `worker|w0:2222;w1:2222,ps|p0:2222`.
    pub cluster_spec: Option<String>,
    /// `--ps-hosts`: `p0:2222,p1:2222`.
    pub ps_hosts: Option<String>,
    /// `--worker-hosts`: `w0:2222,w1:2222`.
    pub worker_hosts: Option<String>,
    /// `--chief-host`, or `--chief-hosts`: `c0:2222`.
    pub chief_hosts: Option<String>,
    /// `--job-name`: the role of this process's task, such as `ps`.
    pub job_name: Option<String>,
    /// `--task-index`: the index of this process's task among the tasks of this role.
    pub task_index: Option<u32>,
    /// `--workers-max`: the largest number of workers, if workers may join that the cluster does not list.
    pub workers_max: Option<u32>,
}

/// The settings after parsing.
struct Given {
    cluster: ClusterSpec,
    job: Option<JobName>,
    index: Option<u32>,
}

impl ClusterFlags {
    /// Returns the cluster and the task of this process, which trains; `None` if no cluster is given.
    ///
    /// Flags may add a role or an index that `TF_CONFIG` leaves out, but must not contradict it.
    ///
    /// # Errors
    /// If a setting is invalid, missing or given twice, or if the cluster cannot train; the error names the
    /// first such setting.
    pub fn resolve(&self) -> Result<Option<ClusterConfig>, ClusterError> {
        let Some(Given { cluster, job, index }) = self.parse(KnownJobs::Roles)? else { return Ok(None) };
        // A fault of the cluster is reported before a missing task.
        let cluster = cluster.for_training()?;
        let job = job.ok_or_else(|| ClusterError::NoJobName { valid: job_names(&cluster) })?;
        ClusterConfig::elastic(cluster, job, index, self.workers_max).map(Some)
    }

    /// Returns the cluster and the task of this process, which runs sessions; `None` if no cluster is given.
    /// Jobs may have any names. The job may be left out if the cluster has only one, and the index may be
    /// left out if the job has only one task.
    ///
    /// # Errors
    /// If a setting is invalid, missing or given twice; the error names the first such setting.
    pub fn resolve_server(&self) -> Result<Option<(ClusterSpec, TaskId)>, ClusterError> {
        let Some(Given { cluster, job, index }) = self.parse(KnownJobs::All)? else { return Ok(None) };
        let mut jobs = cluster.jobs().map(|(job, _)| job);
        let only = jobs.next().filter(|_| jobs.next().is_none());
        drop(jobs);
        let job = job.or(only).ok_or_else(|| ClusterError::NoJobName { valid: job_names(&cluster) })?;
        let task = task_of(&cluster, job, index)?;
        Ok(Some((cluster, task)))
    }

    /// Parses all settings. Returns `None` if no cluster is given.
    fn parse(&self, known: KnownJobs) -> Result<Option<Given>, ClusterError> {
        let tf_config = TfConfig::parse(self.tf_config.as_deref().unwrap_or_default(), known)?;
        self.check_one_spelling(&tf_config)?;
        let by_flags = match &self.cluster_spec {
            Some(text) => Some(parse_cluster_spec(text, known)?),
            None => self.parse_hosts()?,
        };
        let Some(cluster) = tf_config.cluster.or(by_flags) else {
            return match (&self.job_name, self.task_index) {
                (Some(_), _) => Err(ClusterError::NoCluster("--job-name")),
                (None, Some(_)) => Err(ClusterError::NoCluster("--task-index")),
                (None, None) => Ok(None),
            };
        };
        let job_name = self.job_name.as_deref().map(|name| known.parse("--job-name", name));
        let job = agreed("--job-name", tf_config.job, job_name.transpose()?)?;
        let index = agreed("--task-index", tf_config.index, self.task_index)?;
        Ok(Some(Given { cluster, job, index }))
    }

    /// Checks that the cluster is given in only one way, because two descriptions could contradict each
    /// other.
    fn check_one_spelling(&self, tf_config: &TfConfig) -> Result<(), ClusterError> {
        let mut given = [
            ("TF_CONFIG", tf_config.cluster.is_some()),
            ("--cluster-spec", self.cluster_spec.is_some()),
            self.first_hosts().map_or(("--ps-hosts", false), |flag| (flag, true)),
        ]
        .into_iter()
        .filter_map(|(key, is_given)| is_given.then_some(key));
        match (given.next(), given.next()) {
            (Some(first), Some(second)) => Err(ClusterError::TwoClusters { first, second }),
            _ => Ok(()),
        }
    }

    fn hosts(&self) -> impl Iterator<Item = (JobName, &'static str, &str)> {
        [
            (JobName::Ps, "--ps-hosts", &self.ps_hosts),
            (JobName::Worker, "--worker-hosts", &self.worker_hosts),
            (JobName::Chief, "--chief-host", &self.chief_hosts),
        ]
        .into_iter()
        .filter_map(|(job, flag, hosts)| Some((job, flag, hosts.as_deref()?)))
    }

    fn first_hosts(&self) -> Option<&'static str> {
        self.hosts().next().map(|(_, flag, _)| flag)
    }

    fn parse_hosts(&self) -> Result<Option<ClusterSpec>, ClusterError> {
        if self.first_hosts().is_none() {
            return Ok(None);
        }
        ClusterSpec::new(self.hosts().map(|(job, _, hosts)| (job, hosts.split(',').collect()))).map(Some)
    }
}

fn agreed<T: PartialEq + ToString>(
    key: &'static str,
    tf_config: Option<T>,
    flag: Option<T>,
) -> Result<Option<T>, ClusterError> {
    match (tf_config, flag) {
        (Some(tf_config), Some(flag)) if tf_config != flag => {
            Err(ClusterError::TwoTasks { key, tf_config: tf_config.to_string(), flag: flag.to_string() })
        }
        (tf_config, flag) => Ok(tf_config.or(flag)),
    }
}

fn parse_cluster_spec(text: &str, known: KnownJobs) -> Result<ClusterSpec, ClusterError> {
    let job = |part: &str| {
        let (name, addresses) = part.split_once('|').ok_or_else(|| ClusterError::ClusterFlag(quote(part)))?;
        let job = known.parse("--cluster-spec", name.trim())?;
        Ok((job, addresses.split(';').map(str::to_owned).collect()))
    };
    ClusterSpec::new(text.split(',').map(job).collect::<Result<Vec<(_, Vec<_>)>, ClusterError>>()?)
}
