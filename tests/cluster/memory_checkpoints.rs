//! Tests with checkpoints in the memory of the ps tasks: a job without a directory outlives the loss of one
//! ps task at a time, with exact counts and bits, and says so if it cannot.

use pushpull_messages::id::TaskId;
use pushpull_messages::message::{AccessFiles, FileAccess, FilesAccessed, FilesResult};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{Connection, Identity};

use crate::harness::{Cluster, ENDLESS, Job, PATIENCE, Running, all_end_well, wait_until, whisper};

/// With a constant learning rate, a job that is stopped early has the bits of one that ends there.
const FLAGS: [&str; 5] =
    ["--sync=sync", "--deterministic", "--schedule=constant", "--optimizer=adam", "--learning-rate=0.001"];
/// The number of updates between two checkpoints in memory.
const EVERY: u64 = 20;

fn cluster(ps: u32, steps: u64, flags: &[&str]) -> Cluster {
    let mut cluster = Cluster::with(1, ps, 2, |dir| Job::with(dir, steps, flags));
    cluster.chief_lost_after_s = 60;
    cluster
}

/// Starts a cluster that keeps checkpoints in memory. Returns when there is one.
fn keeping(ps: u32, flags: &[&str], more: &[String]) -> Running {
    let mut cluster = cluster(ps, ENDLESS, flags);
    cluster.chief_flags = vec![format!("--memory-checkpoint-every={EVERY}"), "--ps-lost-after-s=60".into()];
    cluster.chief_flags.extend_from_slice(more);
    let running = Running::of(cluster, &["--lost-after-s=3"]);
    running.wait_for_kept(&[]);
    running
}

/// Returns the checkpoints in the memory of a ps task: the names of the folders that have a manifest.
async fn kept_on(client: Connection) -> Vec<String> {
    let list = AccessFiles { access: FileAccess::List { folder: String::new() } };
    let (FilesAccessed { result }, _) = client.call(list, Payload::EMPTY).await.expect("ps tasks may ask");
    let FilesResult::Listed(files) = result else { panic!("{result:?}") };
    let manifests = files.iter().filter_map(|file| file.name.strip_suffix("/manifest.json"));
    manifests.map(str::to_owned).collect()
}

impl Running {
    /// Returns the checkpoints in memory, whose manifests are on the first two ps tasks.
    fn kept(&self) -> Vec<String> {
        let on = |ps: u32| {
            let asker = Identity { task: TaskId::ps(1 - ps), ..self.cluster.impostor() };
            whisper(&self.cluster, TaskId::ps(ps), &asker, kept_on).expect("a ps can be reached")
        };
        let (first, second) = (on(0), on(1));
        first.into_iter().filter(|name| second.contains(name)).collect()
    }

    /// Waits until there is a checkpoint in memory. It must be of a later life than all of these: until it is
    /// there, the job cannot lose another ps task.
    fn wait_for_kept(&self, others: &[String]) {
        let life = |name: &String| name.rsplit('-').next().map(str::to_owned);
        let is_new = |name: &String| others.iter().all(|other| life(name) != life(other));
        wait_until("a checkpoint in memory", PATIENCE, || self.kept().iter().any(is_new).then_some(()));
    }

    /// Kills a ps task and starts it again. Waits until the job has rolled back and has made a checkpoint.
    fn lose(&mut self, ps: usize) {
        let (earlier, restored) = (self.kept(), self.restored());
        self.ps[ps].kill();
        self.ps[ps] = self.cluster.start(TaskId::ps(ps as u32));
        wait_until("a rollback", PATIENCE, || (self.restored() > restored).then_some(()));
        let began = self.wait_for_version(1)[0].began.0;
        let newest = earlier.iter().filter_map(|name| name.split('-').nth(1)?.parse().ok()).max();
        assert!(Some(began) >= newest, "it began again at {began}, and {earlier:?} were there");
        self.wait_for_kept(&earlier);
    }

    /// Returns how often the shards have been restored.
    fn restored(&self) -> usize {
        self.chief.err().matches("restored step-").count()
    }

    /// Stops the job, and checks that it has the bits of one that nothing has disturbed.
    fn ends_like_a_quiet_job(&mut self, rollbacks: u64) {
        let ps = self.ps.len() as u32;
        let report = self.stop_well_without(&[]);
        assert_eq!(report.count("rollbacks"), rollbacks);
        let quiet = cluster(ps, report.count("updates_applied"), &FLAGS);
        quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
        assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
    }
}

/// Returns the next of a sequence of numbers that begins with a seed.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

#[test]
fn a_job_without_directory_outlives_any_of_its_ps() {
    let mut running = keeping(3, &FLAGS, &[]);
    let mut random = 7;
    for _ in 0..4 {
        running.wait_for_more(1 + next(&mut random) % (2 * EVERY));
        let lost = next(&mut random) as usize % 3;
        running.lose(lost);
    }
    running.ends_like_a_quiet_job(4);
}

#[test]
fn a_rollback_loses_only_the_steps_after_the_last_checkpoint() {
    let mut running = keeping(2, &FLAGS, &[]);
    let seen = running.wait_for_version(5 * EVERY)[0].version.0;
    running.lose(1);
    let began = running.wait_for_version(1).into_iter().map(|shard| shard.began.0).min();
    // A checkpoint of every interval may be left out while the one before it is made.
    assert!(began.is_some_and(|began| began + 4 * EVERY >= seen), "{began:?} of {seen}");
    running.lose(0);
    running.ends_like_a_quiet_job(2);
}

#[test]
fn a_chief_that_comes_back_finds_checkpoints_in_memory() {
    let mut running = keeping(2, &FLAGS, &[]);
    running.wait_for_more(2 * EVERY);
    running.chief.kill();
    running.ps[0].kill();
    running.ps[0] = running.cluster.start(TaskId::ps(0));
    running.chief = running.cluster.start(TaskId::CHIEF);
    running.chief.wait_for("rolling the job back to its latest checkpoint");
    running.chief.wait_for("restored step-");
    running.wait_for_more(20);
    let report = running.stop_well_without(&[]);
    let quiet = cluster(2, report.count("updates_applied"), &FLAGS);
    quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
    assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
}

#[test]
fn an_asynchronous_job_outlives_a_ps_with_exact_counts() {
    let mut running = keeping(2, &["--sync=async"], &[]);
    running.wait_for_more(EVERY);
    running.lose(0);
    // The harness checks the counts of the report.
    assert_eq!(running.stop_well_without(&[]).count("rollbacks"), 1);
}

#[test]
fn a_job_that_loses_two_ps_at_once_goes_back_to_its_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let more = [format!("--checkpoint-dir={}", directory.path().display()), "--save-steps=50".to_owned()];
    let mut running = keeping(2, &FLAGS, &more);
    let later = |line: &str| line.split("saved step-").skip(1).any(|name| !name.starts_with("0-"));
    wait_until("a checkpoint after step 0", PATIENCE, || later(&running.chief.err()).then_some(()));
    for ps in 0..2 {
        running.ps[ps].kill();
    }
    for ps in 0..2 {
        running.ps[ps] = running.cluster.start(TaskId::ps(ps as u32));
    }
    running.chief.wait_for("restored step-");
    running.wait_for_kept(&[]);
    // The checkpoints in memory are newer than those of the directory again.
    running.wait_for_more(2 * EVERY);
    running.lose(1);
    running.ends_like_a_quiet_job(2);
}

#[test]
fn a_job_without_directory_says_why_it_cannot_go_on() {
    let mut running = keeping(3, &FLAGS, &[]);
    for ps in 0..2 {
        running.ps[ps].kill();
    }
    for ps in 0..2 {
        running.ps[ps] = running.cluster.start(TaskId::ps(ps as u32));
    }
    let ended = running.chief.wait().expect_failure();
    assert!(
        ended.last_line().contains("the job's variables are lost: no checkpoint in the memory"),
        "{ended:?}"
    );
    assert!(ended.last_line().contains("with a --checkpoint-dir to survive this"), "{ended:?}");
    running.kill_all();
}

#[test]
fn checkpoints_in_memory_need_two_ps() {
    let mut cluster = cluster(1, 10, &FLAGS);
    cluster.chief_flags = vec!["--memory-checkpoint-every=10".into()];
    let ended = cluster.start(TaskId::CHIEF).wait().expect_failure();
    let expected = "memory_checkpoint must be left out in a cluster with fewer than 2 ps tasks";
    ended.says(expected);
}

#[test]
fn files_that_do_not_fit_fail_a_save_and_nothing_else() {
    let mut cluster = cluster(2, 200, &FLAGS);
    cluster.chief_flags = vec![format!("--memory-checkpoint-every={EVERY}")];
    let mut programs: Vec<_> = cluster
        .spec
        .tasks()
        .map(|(task, _)| match task.job {
            pushpull_messages::id::JobName::Ps => cluster.start_with(task, &["--memory-checkpoint-mib=1"]),
            _ => cluster.start(task),
        })
        .collect();
    let mut ended: Vec<_> = programs.iter_mut().map(|program| program.wait().expect(0)).collect();
    ended.swap_remove(0).says("raise --memory-checkpoint-mib");
    cluster.finished();
}

/// Worker 0 hosts the chief and stores all variables of the small model. The others know that the job has
/// begun, although no worker has used their shards.
#[test]
fn a_worker_with_the_chief_and_all_variables_comes_back() {
    let flags = ["--strategy=multi_worker_mirrored", "--deterministic", "--schedule=constant"];
    let job = |chiefs, steps| Cluster::with(chiefs, 0, 3, |dir| Job::with(dir, steps, &flags));
    let mut cluster = job(0, ENDLESS);
    cluster.chief_lost_after_s = 60;
    cluster.chief_flags = vec![format!("--memory-checkpoint-every={EVERY}"), "--ps-lost-after-s=60".into()];
    let mut workers = cluster.start_all();
    let asker = Identity { task: TaskId::ps(0), ..cluster.impostor() };
    let kept = |least: u64| {
        let names = whisper(&cluster, TaskId::ps(1), &asker, kept_on).unwrap_or_default();
        let steps = names.iter().filter_map(|name| name.split('-').nth(1)?.parse::<u64>().ok());
        steps.max().filter(|&newest| newest >= least)
    };
    let newest = wait_until("a checkpoint after the first", PATIENCE, || kept(2 * EVERY));
    workers[0].kill();
    workers[0] = cluster.start(TaskId::worker(0));
    workers[0].wait_for("rolling the job back to its latest checkpoint");
    wait_until("a later checkpoint", PATIENCE, || kept(newest + 5 * EVERY));
    all_end_well(&cluster, &mut workers);
    let report = cluster.finished();
    assert!(report.count("began") >= newest, "{} of {newest}", report.count("began"));
    let quiet = job(1, report.count("updates_applied"));
    quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
    assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
}

#[test]
fn workers_that_store_the_variables_outlive_any_of_them() {
    let flags =
        ["--strategy=multi_worker_mirrored", "--partitioner=none", "--deterministic", "--schedule=constant"];
    let job = |steps| Cluster::with(1, 0, 3, |dir| Job::with(dir, steps, &flags));
    let mut cluster = job(ENDLESS);
    cluster.chief_lost_after_s = 60;
    cluster.chief_flags = vec![format!("--memory-checkpoint-every={EVERY}"), "--ps-lost-after-s=60".into()];
    let mut running = Running::of(cluster, &["--lost-after-s=3"]);
    running.wait_for_kept(&[]);
    for lost in [2, 0, 1] {
        let (earlier, restored) = (running.kept(), running.restored());
        running.workers[lost].kill();
        running.start_again(lost as u32);
        wait_until("a rollback", PATIENCE, || (running.restored() > restored).then_some(()));
        running.wait_for_version(1);
        running.wait_for_kept(&earlier);
    }
    let report = running.stop_well_without(&[]);
    assert_eq!(report.count("rollbacks"), 3);
    let quiet = job(report.count("updates_applied"));
    quiet.start_all().into_iter().for_each(|mut program| drop(program.wait().expect(0)));
    assert_eq!(report.variables_crc32c(), quiet.finished().variables_crc32c());
}
