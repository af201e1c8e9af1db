//! The cluster spec: the addresses of the tasks of each job, such as `ps` or `worker`.
//! Every task has the same cluster spec. Other modules choose the task that this process runs, and parse the
//! formats in which a user writes a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::address::Address;
use super::addresses::AddressesOf;
use super::error::ClusterError;
use super::{JOBS_MAX, TASKS_MAX, TASKS_PER_JOB_MAX};
use crate::id::{JobName, TaskId};

/// The tasks of a cluster and their addresses.
///
/// A cluster has at least one task, and no two tasks have the same address. A cluster that trains must also
/// pass [`for_training`](Self::for_training).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// The jobs that have a task, in the order of a cluster spec.
    jobs: BTreeMap<JobName, Vec<Address>>,
}

impl ClusterSpec {
    /// Makes a cluster from a list of jobs. Each job comes with the addresses of its tasks, ordered by
    /// index. A job without addresses counts as missing.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn new<A: AsRef<str>>(
        jobs: impl IntoIterator<Item = (JobName, Vec<A>)>,
    ) -> Result<Self, ClusterError> {
        let mut given = BTreeMap::new();
        for (job, addresses) in jobs {
            if given.insert(job, addresses).is_some() {
                return Err(ClusterError::DuplicateJob(job));
            }
        }
        let checked = given.into_iter().map(|(job, addresses)| Ok((job, checked_job(job, addresses)?)));
        Self { jobs: checked.collect::<Result<_, ClusterError>>()? }.checked()
    }

    /// Returns the cluster without empty jobs, if its jobs and addresses fit together.
    fn checked(mut self) -> Result<Self, ClusterError> {
        self.jobs.retain(|_, addresses| !addresses.is_empty());
        check_size(&self.jobs)?;
        if self.jobs.is_empty() {
            return Err(ClusterError::Empty);
        }
        // Sorting puts tasks with the same address next to each other. A task is represented by its position
        // in `tasks`, because an id takes more memory, and a stranger may have sent thousands of tasks.
        let mut owners = Vec::with_capacity(self.jobs.values().map(Vec::len).sum());
        owners.extend(self.tasks().map(|(_, address)| address).zip(0u32..));
        owners.sort_unstable();
        for pair in owners.windows(2) {
            let [(address, first), (other, second)] = [pair[0], pair[1]];
            if address == other {
                let task = |at: u32| self.tasks().nth(at as usize).expect("it was numbered above").0;
                let (address, first, second) = (address.clone(), task(first), task(second));
                return Err(ClusterError::DuplicateAddress { address, first, second });
            }
        }
        Ok(self)
    }

    /// Returns the cluster if it can train: it has at least one worker, at most one chief, and no job that is
    /// not a role of training. Without ps tasks, the workers [host them](Self::ps_addresses). Evaluators may
    /// be left out, because they take no part in the training.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn for_training(self) -> Result<Self, ClusterError> {
        if let Some(job) = self.jobs.keys().find(|job| !job.is_role()) {
            return Err(ClusterError::NotARole(*job));
        }
        let chiefs = self.addresses(JobName::Chief).len();
        if chiefs > 1 {
            return Err(ClusterError::ManyChiefs(chiefs));
        }
        if self.addresses(JobName::Worker).is_empty() {
            return Err(ClusterError::NoWorker);
        }
        Ok(self)
    }

    /// Returns the addresses of one job's tasks in the order of their indices; empty if the cluster does not
    /// have the job.
    pub fn addresses(&self, job: JobName) -> &[Address] {
        self.jobs.get(&job).map_or(&[], Vec::as_slice)
    }

    /// Returns the address of a task, or `None` if the task is not part of the cluster.
    pub fn address(&self, task: TaskId) -> Option<&Address> {
        self.addresses(task.job).get(task.index as usize)
    }

    /// Returns every job that has a task, in the order chief, ps, worker, evaluator, and then all others by
    /// name.
    pub fn jobs(&self) -> impl Iterator<Item = (JobName, &[Address])> {
        self.jobs.iter().map(|(job, addresses)| (*job, addresses.as_slice()))
    }

    /// Returns every task and its address, in the order of [`jobs`](Self::jobs). The tasks of a job are
    /// ordered by index.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &Address)> {
        self.jobs().flat_map(|(job, addresses)| {
            (0u32..).zip(addresses).map(move |(index, address)| (TaskId::new(job, index), address))
        })
    }

    /// Returns the first task, in the order of [`tasks`](Self::tasks).
    pub fn first_task(&self) -> TaskId {
        self.tasks().next().expect("a cluster has a task").0
    }

    /// Returns the task that hosts the chief: the chief task, or worker/0 if the cluster has no chief task.
    pub fn chief_host(&self) -> TaskId {
        if self.addresses(JobName::Chief).is_empty() { TaskId::worker(0) } else { TaskId::CHIEF }
    }

    /// Returns whether the cluster lists ps tasks. If it does not, the process of worker i hosts ps task i.
    pub fn has_ps(&self) -> bool {
        !self.addresses(JobName::Ps).is_empty()
    }

    /// Returns the addresses of the tasks that store variables, in the order of their indices: those of the
    /// ps tasks or, if the cluster lists none, those of the workers that host them.
    pub fn ps_addresses(&self) -> &[Address] {
        self.addresses(if self.has_ps() { JobName::Ps } else { JobName::Worker })
    }

    /// Returns the address at which a task is reached: its own or, if it is a ps task that a worker hosts,
    /// the worker's. `None` if the cluster has neither.
    pub fn reached_at(&self, task: TaskId) -> Option<&Address> {
        match task.job {
            JobName::Ps => self.ps_addresses().get(task.index as usize),
            _ => self.address(task),
        }
    }

    /// Returns every task as [`tasks`](Self::tasks) does, and before them the ps tasks that workers host.
    pub fn tasks_and_hosted(&self) -> impl Iterator<Item = (TaskId, &Address)> {
        let hosted = if self.has_ps() { &[][..] } else { self.addresses(JobName::Worker) };
        (0u32..).map(TaskId::ps).zip(hosted).chain(self.tasks())
    }

    /// Returns the cluster as a value of `--cluster-spec`, such as `chief|c:1,ps|p0:1;p1:1,worker|w0:1`.
    ///
    /// Two clusters have the same text if and only if they are equal.
    pub fn to_flag(&self) -> String {
        let job = |(job, addresses): (JobName, &[Address])| {
            let addresses: Vec<&str> = addresses.iter().map(Address::as_str).collect();
            format!("{job}|{}", addresses.join(";"))
        };
        self.jobs().map(job).collect::<Vec<_>>().join(",")
    }

    /// Returns the digest by which tasks check that their cluster specs are equal: the 64-bit FNV-1a hash of
    /// [`to_flag`](Self::to_flag).
    ///
    /// The digest detects mistakes. It does not protect against attacks, because two clusters with the same
    /// hash are easy to construct.
    pub fn hash(&self) -> u64 {
        const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        self.to_flag().bytes().fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
    }

    /// Returns one line that describes the first difference between this spec and another task's spec, or
    /// `None` if the specs are equal.
    pub fn difference(&self, there: &Self) -> Option<String> {
        let jobs: BTreeSet<JobName> = self.jobs.keys().chain(there.jobs.keys()).copied().collect();
        jobs.into_iter().find_map(|job| {
            let (ours, theirs) = (self.addresses(job), there.addresses(job));
            if ours.len() != theirs.len() {
                let tasks = if ours.len() == 1 { "task" } else { "tasks" };
                let (here, there) = (ours.len(), theirs.len());
                return Some(format!("job '{job}' has {here} {tasks} here and {there} there"));
            }
            let (index, (here, there)) =
                (0u32..).zip(ours.iter().zip(theirs)).find(|(_, (here, there))| here != there)?;
            Some(format!("{} is '{here}' here and '{there}' there", TaskId::new(job, index)))
        })
    }
}

/// Checks that there are not too many jobs and tasks.
fn check_size(jobs: &BTreeMap<JobName, Vec<Address>>) -> Result<(), ClusterError> {
    if jobs.len() > JOBS_MAX {
        return Err(ClusterError::ManyJobs(jobs.len()));
    }
    let tasks = jobs.values().map(Vec::len).sum();
    if tasks > TASKS_MAX {
        return Err(ClusterError::ManyTasksInAll(tasks));
    }
    Ok(())
}

fn checked_job<A: AsRef<str>>(job: JobName, addresses: Vec<A>) -> Result<Vec<Address>, ClusterError> {
    if addresses.len() > TASKS_PER_JOB_MAX {
        return Err(ClusterError::ManyTasks { job, tasks: addresses.len() });
    }
    let parse = |(index, address): (u32, A)| {
        let task = TaskId::new(job, index);
        address.as_ref().trim().parse().map_err(|error| ClusterError::Address { task, error })
    };
    (0u32..).zip(addresses).map(parse).collect()
}

impl Serialize for ClusterSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.jobs.len()))?;
        for (job, addresses) in self.jobs() {
            map.serialize_entry(&job, addresses)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ClusterSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Jobs)
    }
}

/// Reads the jobs of a cluster and checks them.
struct Jobs;

impl<'de> Visitor<'de> for Jobs {
    type Value = ClusterSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cluster spec: the addresses of each job")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut jobs: A) -> Result<ClusterSpec, A::Error> {
        let mut given = BTreeMap::new();
        while let Some(job) = jobs.next_key::<JobName>()? {
            if given.contains_key(&job) {
                return Err(de::Error::custom(ClusterError::DuplicateJob(job)));
            }
            given.insert(job, jobs.next_value_seed(AddressesOf(job))?);
            // The sender may be a stranger, so reading ends as soon as there are too many.
            check_size(&given).map_err(de::Error::custom)?;
        }
        ClusterSpec { jobs: given }.checked().map_err(de::Error::custom)
    }
}
