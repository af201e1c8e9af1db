//! Tests with `kill -9` while checkpoints are written, at more than a hundred seeded points in time.
//! Committed checkpoints stay valid, unfinished ones do not count, and the next start resumes (C1). The
//! simulator kills tasks at many more points, but its store is no real file system.

use std::time::Duration;

use pushpull_messages::id::TaskId;

use crate::harness::{Program, Running, linear_regression};

use super::{directory, list, saving, steps, verify, whole};

/// The number of times that a whole embedded cluster is killed, each time at a different moment.
const KILLS: u32 = 100;
/// The number of times that one task of a cluster of processes is killed.
const TASK_KILLS: u64 = 8;

/// A generator of pseudorandom points in time, with a seed. A linear congruential generator is good enough
/// for this.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_killed_job_loses_no_valid_checkpoint() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let saved = directory(dir.path());
    let mut random = Random(2016);
    let (mut last, mut during) = (0, 0);
    for kill in 0..KILLS {
        // One worker makes enough updates: there is a checkpoint of each.
        let mut command = linear_regression();
        command.args(["--steps=1000000000", "--batch-size=2", "--ps=2", "--workers=1", "--threads=1"]);
        command.arg(format!("--checkpoint-dir={}", saved.display()));
        command.args(["--save-steps=1", "--keep-checkpoints=2"]);
        let mut program = Program::start(dir.path(), "linear", &mut command);
        // The program has begun to save checkpoints. It is killed at a random moment after that.
        program.wait_for("saved step-");
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        program.kill();
        let listed = list(&saved);
        let newest = *whole(&listed).last().unwrap_or_else(|| panic!("kill {kill}: nothing is left"));
        assert!(newest >= last, "kill {kill}: step {newest}, and {last} was there");
        if kill > 0 {
            let started_at = restored(&program.err());
            assert_eq!(started_at, Some(last), "kill {kill}: it goes on from the newest");
        }
        last = newest;
        // A save was interrupted if there is an unfinished checkpoint.
        during += u32::from(listed.iter().any(|entry| entry["state"] == "unfinished"));
        if kill % 10 == 0 {
            verify(&saved);
        }
    }
    verify(&saved);
    assert!(during > 0, "none of {KILLS} kills came in the middle of a save");
}

/// Returns the step of the checkpoint that was restored, according to the log.
fn restored(log: &str) -> Option<u64> {
    log.split("restored step-").nth(1)?.split('-').next()?.parse().ok()
}

#[test]
fn a_job_resumes_whichever_task_was_killed() {
    let mut random = Random(7);
    for victim in [TaskId::ps(1), TaskId::CHIEF] {
        let cluster = saving(2, 1, 1_000_000, &[], &["--save-steps=1", "--keep-checkpoints=2"]);
        let saved = directory(cluster.dir());
        let mut running = Running::of(cluster, &[]);
        let mut last = 0;
        for kill in 0..TASK_KILLS {
            running.chief.wait_for("saved step-");
            std::thread::sleep(Duration::from_micros(random.below(100_000)));
            match victim {
                TaskId::CHIEF => running.chief.kill(),
                _ => running.ps[1].kill(),
            }
            running.kill_all();
            let newest =
                *steps(&saved).last().unwrap_or_else(|| panic!("{victim}, kill {kill}: nothing is left"));
            assert!(newest >= last, "{victim}, kill {kill}: step {newest}, and {last} was there");
            verify(&saved);
            last = newest;
            running = running.all_again();
            running.chief.wait_for(&format!("restored step-{last}-"));
        }
        running.kill_all();
    }
}
