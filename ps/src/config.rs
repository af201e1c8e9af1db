//! The settings of a ps task.

use std::time::Duration;

use pushpull_messages::out_of_range::OutOfRange;
use pushpull_messages::placement::SHARDS_PER_TASK_MAX;
use pushpull_storage::Stores;
use pushpull_transport::ServerConfig;

use crate::device::MakeDevice;
use crate::files::PeerTransport;
use crate::shard::UpdateThreads;
use crate::threads;

/// The default number of threads that share a large update, on a machine with at least as many cores. An
/// update is limited by the memory's speed, so more threads gain little.
const UPDATE_THREADS: usize = 4;

/// The default of [`PsConfig::memory_checkpoint_bytes_max`]. The task takes this memory only as checkpoints
/// need it, so the bound is far above what most jobs need.
const MEMORY_CHECKPOINT_BYTES_MAX: u64 = 64 << 30;

/// The settings of one ps task.
#[derive(Clone, Debug)]
pub struct PsConfig {
    /// The number of shards.
    pub shards: u32,
    /// Whether each large shard, and the reading and writing of checkpoints, has a thread of its own. If
    /// false, the whole task runs on the thread that starts it; a simulation of many tasks needs this.
    pub own_threads: bool,
    /// How long to wait for the chief to connect for the first time.
    pub start_timeout: Duration,
    /// How long the chief may be disconnected before another run of the chief may claim the task.
    pub chief_lease: Duration,
    /// How long the task waits for a new connection if no peer is connected any more and the chief has not
    /// ended the job. If `chief_lease` is longer, the task waits for that time instead. After the wait,
    /// the task ends with an error.
    pub chief_lost_after: Duration,
    /// How long the task keeps serving after a signal to stop, so that the chief can save the job. The task
    /// ends earlier if the chief stays disconnected for `chief_lease`. The chief has its own time limit
    /// for that save, which can be at most one hour. The default here is longer, so that the chief's limit
    /// always expires first.
    pub drain_timeout: Duration,
    /// The largest total size, in bytes, of the values that replies keep in memory while they are written.
    /// Each shard gets an equal part of it, and each shard beyond `shards` a smaller one. Asynchronous
    /// workers may each read a different version of the values. If the versions that a shard's replies keep
    /// exceed its part, further replies wait until a version is released, and then get the newest values. A
    /// shard may always keep two versions. One of them is for connections that read fast, so that those that
    /// read slowly do not hold them up.
    pub reply_bytes_max: u64,
    /// The size, in bytes, of the smallest shard that turns a push into its next values while the push
    /// arrives. A smaller shard does so when all of the push has arrived.
    pub drafted_bytes_min: u64,
    /// The size, in bytes, of the smallest shard that works on a thread of its own, if `own_threads` allows
    /// it. A smaller shard works on the thread of the task's connections: to wake another thread would take
    /// longer than its updates.
    pub own_thread_bytes_min: u64,
    /// The number of threads that share a large addition, update or draft, if `own_threads` allows it. All
    /// shards of the task use the same threads. With a `device`, there are at least as many as the host has
    /// cores, because they copy the values that come back from it.
    pub update_threads: usize,
    /// The cores that the threads of large shards and of large updates may use; empty for those of the thread
    /// that starts the task. A task in the process of a worker that is bound to one core needs this. Linux
    /// only.
    pub cores: Vec<usize>,
    /// Opens the device on which each shard keeps the slots of its optimizers and applies updates; `None` for
    /// the host's processor.
    pub device: Option<MakeDevice>,
    /// Dials the other ps tasks, each of which keeps a copy of the files that this task has in its memory;
    /// `None` if the job keeps no checkpoints in the memory of the ps tasks.
    pub peers: Option<PeerTransport>,
    /// The largest total size, in bytes, of the files of checkpoints that the task keeps in its memory: its
    /// own ones, and copies of those of other ps tasks.
    pub memory_checkpoint_bytes_max: u64,
    /// Opens the stores that contain checkpoints, each by its location.
    pub stores: Stores,
    /// The limits on connections and requests.
    pub server: ServerConfig,
}

impl Default for PsConfig {
    fn default() -> Self {
        Self {
            shards: 1,
            own_threads: true,
            start_timeout: Duration::from_secs(300),
            chief_lease: Duration::from_secs(10),
            chief_lost_after: Duration::from_secs(300),
            drain_timeout: Duration::from_secs(2 * 3600),
            reply_bytes_max: 1 << 30,
            drafted_bytes_min: 256 << 10,
            own_thread_bytes_min: 1 << 20,
            update_threads: cores().min(UPDATE_THREADS),
            cores: Vec::new(),
            device: None,
            peers: None,
            memory_checkpoint_bytes_max: MEMORY_CHECKPOINT_BYTES_MAX,
            stores: Stores::default(),
            server: ServerConfig::default(),
        }
    }
}

/// Returns the number of cores of the host.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl PsConfig {
    /// Returns the threads that share a large update.
    pub(crate) fn update_threads(&self) -> UpdateThreads {
        let all = if self.cores.is_empty() { cores() } else { self.cores.len() };
        let least = self.device.as_ref().map_or(1, |_| all);
        let threads = if self.own_threads { self.update_threads.max(least) } else { 1 };
        let cores = self.cores.clone();
        UpdateThreads::new(threads, move |threads| threads::updates(threads, cores.clone()))
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// If a setting is out of range; the error names it.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        if !(1..=SHARDS_PER_TASK_MAX).contains(&self.shards) {
            return Err(OutOfRange::new("shards", format!("1 to {SHARDS_PER_TASK_MAX}"), self.shards));
        }
        // The gradients that shards hold may take half of the bytes in flight, and may all come from one
        // worker.
        let (one, half) = (self.server.connection_bytes_max, self.server.in_flight_bytes_max / 2);
        if one < half {
            let expected = format!("at least half of in_flight_bytes_max, {half}");
            return Err(OutOfRange::new("server.connection_bytes_max", expected, one));
        }
        Ok(())
    }
}
