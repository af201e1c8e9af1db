//! The cluster that a job is trained on.

use pushpull_worker::DeviceList;

use crate::embedded::Embedded;

/// The cluster that a [`Job`](crate::Job) is trained on.
#[derive(Clone)]
pub struct Cluster(pub(crate) Kind);

#[derive(Clone)]
pub(crate) enum Kind {
    Embedded(Box<Embedded>),
    #[cfg(feature = "programs")]
    Env,
}

impl Cluster {
    /// Returns a cluster in this process, with `ps` ps tasks and `workers` workers that share the machine's
    /// cores. With 0 ps tasks, the workers store the variables, as the strategy
    /// `multi_worker_mirrored` needs. To change more settings, convert an [`Embedded`] into a cluster. A
    /// signal ends the process as usual. If the job saves checkpoints, its next run resumes from the last one
    /// that was saved before the signal.
    pub fn embedded(ps: u32, workers: u32) -> Self {
        Embedded::new(ps, workers).into()
    }

    /// Returns a cluster in this process with one worker, which has these devices and stores the variables.
    /// It suits the strategies `mirrored` and `central_storage` and, with one device, `one_device`.
    pub fn mirrored(devices: DeviceList) -> Self {
        let mut embedded = Embedded::new(0, 1);
        embedded.worker_config.devices = devices;
        embedded.into()
    }

    /// Returns the cluster that the environment variable `TF_CONFIG` describes, in which this process is one
    /// task. All processes of the cluster run the same program, which calls this function.
    ///
    /// Only the process that hosts the chief gets a [`Trained`](crate::Trained) back: the task `chief`, or
    /// worker 0 if the cluster has no chief. All other processes train or serve **and end within
    /// [`Job::train`](crate::Job::train)**, with the exit status of the role programs. Like these programs,
    /// each process logs to standard error, handles signals, and can be observed over HTTP on a free port of
    /// loopback. If the cluster's description is missing or wrong, no process knows its task, and `train`
    /// returns an error in all of them; [`Error::exit_code`](crate::Error::exit_code) returns the exit
    /// status for this error.
    ///
    /// Once `train` has returned, SIGINT ends the process again, with the exit status 128 + the signal's
    /// number, unless the program handled or ignored SIGINT when it called `train`. The same holds for
    /// SIGTERM. A program that handles these signals itself must install its handlers before it calls
    /// `train`. During the training, these handlers are called in addition to the library's own. After the
    /// training, only the program's handlers are called.
    #[cfg(feature = "programs")]
    pub const fn from_env() -> Self {
        Self(Kind::Env)
    }
}

impl From<Embedded> for Cluster {
    fn from(embedded: Embedded) -> Self {
        Self(Kind::Embedded(Box::new(embedded)))
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Kind::Embedded(embedded) => {
                write!(f, "Cluster::embedded({}, {})", embedded.ps, embedded.workers)
            }
            #[cfg(feature = "programs")]
            Kind::Env => f.write_str("Cluster::from_env()"),
        }
    }
}
