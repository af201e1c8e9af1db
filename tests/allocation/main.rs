//! Checks that pushes and pulls take no memory of the size of a payload once they have been warmed up,
//! neither in the ps nor in a worker. The allocations are counted in the allocator, so all threads of both
//! are included; memory that tasks share is counted by its pools.

mod cluster;

use std::alloc::System;

use pushpull::{CompressionSpec, EncodingSpec, OptimizerSpec, SyncSpec};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::cluster::{Cluster, Wire};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The number of exchanges that fill the pools.
const WARM_UP: u64 = 60;
/// The number of exchanges in a row in which nothing large may be allocated.
const COUNTED: u64 = 200;
/// How often these exchanges are made before the test fails. When a thread is late, it keeps a buffer longer
/// than ever before, and a pool grows once more; a pool that grows all the time is what the test finds.
const ROUNDS: u32 = 4;
/// The size, in bytes, of the smallest allocation that counts as large. The allocator counts no sizes, but
/// all small allocations of one exchange together have less than this number of bytes for each worker.
const LARGE_BYTES: usize = 64 << 10;

/// What the exchanges of one cluster have allocated.
#[derive(Debug, Default)]
#[expect(dead_code, reason = "the test prints the fields")]
struct Found {
    wire: Wire,
    sync: String,
    optimizer: &'static str,
    workers: u32,
    /// The encoding of the gradients; the values of such a job are sent as `int8`.
    gradients: Option<EncodingSpec>,
    /// The number of rounds so far. The following numbers are those of the last round.
    rounds: u32,
    /// The smallest and the largest number of bytes that one exchange allocated.
    least_bytes: usize,
    most_bytes: usize,
    /// The number of bytes by which the pools have grown.
    grown_bytes: usize,
}

impl Found {
    /// Counts what the exchanges of one round allocate.
    async fn count(&mut self, cluster: &mut Cluster, round: u32) {
        let before = cluster.pooled_bytes();
        (self.rounds, self.least_bytes, self.most_bytes) = (round, usize::MAX, 0);
        for _ in 0..COUNTED {
            let region = Region::new(ALLOCATOR);
            cluster.exchange().await;
            let bytes = region.change().bytes_allocated;
            self.least_bytes = self.least_bytes.min(bytes);
            self.most_bytes = self.most_bytes.max(bytes);
        }
        self.grown_bytes = cluster.pooled_bytes().saturating_sub(before);
    }

    /// Returns whether no exchange allocated anything large: neither each of them, nor any one.
    const fn is_fine(&self) -> bool {
        let none = self.least_bytes < LARGE_BYTES * self.workers as usize;
        none && self.most_bytes < self.least_bytes + LARGE_BYTES && self.grown_bytes == 0
    }
}

async fn exchanges(
    wire: Wire,
    sync: SyncSpec,
    optimizer: OptimizerSpec,
    workers: u32,
    gradients: Option<EncodingSpec>,
) -> Found {
    let name = optimizer.name();
    let compress = |gradients| CompressionSpec::new("*").gradients(gradients).values(EncodingSpec::Int8);
    let compression = gradients.map(compress).into_iter().collect();
    let mut cluster = Cluster::start(wire, sync, optimizer, workers, compression).await;
    for _ in 0..WARM_UP {
        cluster.exchange().await;
    }
    let sync = sync.to_string();
    let mut found = Found { wire, sync, optimizer: name, workers, gradients, ..Found::default() };
    for round in 1..=ROUNDS {
        found.count(&mut cluster, round).await;
        if found.is_fine() {
            break;
        }
    }
    cluster.end().await;
    found
}

/// This file contains a single test, because a second test would allocate concurrently.
#[test]
fn pushes_and_pulls_allocate_nothing_large() {
    let mut found = Vec::new();
    actix_rt::System::new().block_on(async {
        for wire in Wire::ALL {
            // A ps drafts pushes with SGD while they arrive, keeps those with Adam until they are complete,
            // and adds up those of a synchronous job. It decodes compressed ones before that.
            let top = EncodingSpec::TopK { fraction: 0.1 };
            for (sync, optimizer, workers, gradients) in [
                (SyncSpec::ASYNC, OptimizerSpec::sgd(1e-3), 1, None),
                (SyncSpec::ASYNC, OptimizerSpec::adam(1e-3), 1, None),
                (SyncSpec::SYNC, OptimizerSpec::adam(1e-3), 2, None),
                (SyncSpec::ASYNC, OptimizerSpec::sgd(1e-3), 1, Some(EncodingSpec::Int8)),
                (SyncSpec::SYNC, OptimizerSpec::sgd(1e-3), 2, Some(top)),
            ] {
                found.push(exchanges(wire, sync, optimizer, workers, gradients).await);
            }
        }
    });
    let text: Vec<String> = found.iter().map(|found| format!("{found:?}")).collect();
    assert!(found.iter().all(Found::is_fine), "after {WARM_UP} exchanges:\n{}", text.join("\n"));
}
