//! Tests of wrong command lines: the status is 2, and one line names the flag or key and the valid values.

use std::fs;
use std::process::Command;

use pushpull_messages::id::JobName;

use crate::harness::{Job, Program, example, role, tool};

const SPEC: &str = "chief|127.0.0.1:1001,ps|127.0.0.1:1002,worker|127.0.0.1:1003;127.0.0.1:1004";

/// Checks that a command ends with status 2 and prints only one line, which contains each text in
/// `expected`.
#[track_caller]
fn refused(command: &mut Command, expected: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let shown = format!("{command:?}");
    let ended = Program::run(dir.path(), "program", command);
    assert_eq!(ended.status, 2, "{shown}\n{}{}", ended.out, ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{shown}\n{}", ended.err);
    assert!(ended.err.starts_with("error: ") && ended.out.is_empty(), "{shown}\n{}{}", ended.out, ended.err);
    for word in expected {
        assert!(ended.err.contains(word), "{shown}\nshould say {word}:\n{}", ended.err);
    }
}

fn as_worker(flags: &[&str]) -> Command {
    let mut command = role(JobName::Worker);
    command.args(flags);
    command
}

#[test]
fn flags_that_do_not_exist() {
    for mut command in [role(JobName::Ps), role(JobName::Worker), role(JobName::Chief), example()] {
        refused(command.arg("--job-nam=ps"), &["--job-nam"]);
    }
    refused(tool().args(["local", "--wrokers=2"]), &["--wrokers", "--workers"]);
    refused(tool().arg("lokal"), &["lokal", "local"]);
    refused(role(JobName::Evaluator).arg("--checkpoint-dirr=x"), &["--checkpoint-dir"]);
    refused(tool().args(["checkpoint", "list"]), &["<DIR>"]);
    refused(tool().args(["checkpoint", "lost", "x"]), &["lost", "list"]);
    refused(tool().args(["checkpoint", "import", "x.safetensors", "."]), &["--job"]);
    refused(tool().args(["checkpoint", "export", ".", "a/.."]), &["'a/..' cannot be used"]);
}

#[test]
fn a_tool_that_is_not_named() {
    refused(&mut tool(), &["local"]);
}

#[test]
fn values_that_are_not_valid() {
    for (flags, expected) in [
        (&["--optimizer=sdg"][..], &["--optimizer", "sdg", "sgd, momentum, adam"][..]),
        (&["--placement=random"], &["--placement", "round_robin, greedy_load_balancing"]),
        (
            &["--partitioner=fixed:0"],
            &["--partitioner", "auto, none, fixed:N, max_slice_bytes:N or min_max:N"],
        ),
        (&["--partitioner=halves"], &["--partitioner", "auto, none, fixed:N"]),
        (&["--model=nonsense"], &["--model", "mlp, cnn"]),
        (&["--schedule=sometimes"], &["--schedule", "constant", "cosine"]),
        (&["--compress=int4"], &["--compress", "'int4'", "fp16, bf16, int8"]),
        (&["--compress=top-k:0.01"], &["--compress", "write gradients=top-k:0.01"]),
        (&["--compress=values=top-k:0.01"], &["--compress", "values cannot be sent as top-k:0.01"]),
        (&["--compress=konv*:int8"], &["pattern 'konv*' selects no variable that is trained"]),
        (&["--steps=0"], &["--steps", "1.."]),
        (&["--steps=ten"], &["--steps", "ten"]),
        (&["--steps=10", "--epochs=2"], &["--steps", "--epochs"]),
        (&["--epochs=0"], &["--epochs", "1..=1000000"]),
        (&["--batch-size=0"], &["--batch-size", "1..=1048576"]),
        (&["--learning-rate=nan"], &["--learning-rate", "greater than 0"]),
        (&["--learning-rate=-0.1"], &["--learning-rate", "greater than 0"]),
        (&["--learning-rate=0"], &["--learning-rate", "greater than 0"]),
        (&["--ps=257"], &["--ps", "0..=256"]),
        (&["--workers=257"], &["--workers", "1..=256"]),
        (&["--threads=0"], &["--threads", "1..=1024"]),
        (&["--shards=0"], &["--shards", "1..=256"]),
        (&["--seed=-1"], &["--seed"]),
        (&["--start-timeout-s=0"], &["--start-timeout-s", "1..=86400"]),
        (&["--retry-after-ms=9"], &["--retry-after-ms", "10..=600000"]),
        (
            &["--tcp-congestion=warp"],
            &["--tcp-congestion", "congestion control 'warp' (this host does not have it)", "auto, host, or"],
        ),
        (&["--report"], &["--report", "value is required"]),
    ] {
        refused(example().args(flags), expected);
    }
}

#[test]
fn values_that_are_not_valid_for_an_evaluator() {
    for (flags, expected) in [
        (&["--best=accuracy:most"][..], &["--best", "METRIC:max or METRIC:min"][..]),
        (&["--poll-every-ms=0"], &["--poll-every-ms", "10..=3600000"]),
        (&["--devices=0"], &["--devices", "from 1 to 64"]),
    ] {
        refused(role(JobName::Evaluator).arg("--checkpoint-dir=x").args(flags), expected);
    }
}

#[test]
fn values_that_are_not_valid_for_a_local_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let job = Job::new(dir.path(), 10);
    for (flag, expected) in [
        ("--workers=0", &["--workers", "1..=256"][..]),
        ("--ps=many", &["--ps", "many"]),
        ("--shards=0", &["--shards", "1..=256"]),
        ("--threads=0", &["--threads", "1..=1024"]),
    ] {
        let flags = ["local", "--start-timeout-s=2", flag, "--job"];
        refused(tool().args(flags).arg(job.path()), expected);
    }
    refused(
        tool().args(["local", "--start-timeout-s=0", "--job"]).arg(job.path()),
        &["start-timeout-s", "1..=86400"],
    );
}

#[test]
fn clusters_that_cannot_be() {
    let hosts = |ps, worker| vec!["--ps-hosts", ps, "--worker-hosts", worker];
    for (flags, expected) in [
        (hosts("127.0.0.1", "b:1"), &["ps/0", "'127.0.0.1' is not host:port", "expected a port"][..]),
        (hosts("a:0", "b:1"), &["ps/0", "a:0", "from 1 to 65535"]),
        (hosts("a:1", "b:1,b:99999"), &["worker/1", "b:99999", "from 1 to 65535"]),
        (hosts("a b:1", "c:1"), &["ps/0", "a b:1"]),
        (hosts("10.0.0.256:1", "c:1"), &["10.0.0.256:1", "0 to 255"]),
        (hosts("::1:5", "c:1"), &["::1:5", "brackets"]),
        (hosts("a:1,c:2", "c:2"), &["c:2", "ps/1", "worker/0", "a different address"]),
        (hosts("", "c:2"), &["ps/0", "host:port"]),
        (vec!["--ps-hosts=a:1"], &["worker", "expected at least one", "add the address of a worker"]),
        (vec!["--cluster-spec", "ps:a:1,worker|b:1"], &["--cluster-spec", "job|host:port;host:port"]),
        (vec!["--cluster-spec", "pss|a:1,worker|b:1"], &["pss", "chief, ps, worker or evaluator"]),
        (vec!["--cluster-spec", "ps|a:1,worker|b:1,ps|c:1"], &["ps", "twice"]),
        (vec!["--cluster-spec", "ps|a:1,worker|b:1,chief|c:1;d:1"], &["chief", "one chief"]),
    ] {
        refused(&mut as_worker(&flags), expected);
        refused(example().args(&flags), expected);
    }
}

#[test]
fn workers_that_cannot_have_a_core() {
    let spec = format!("--cluster-spec={SPEC}");
    for (flags, expected) in [
        (&["--dedicated"][..], &["--core"][..]),
        (&["--core=x", "--dedicated"], &["--core", "x"]),
        (&["--core=0", "--threads=2"], &["--core", "--threads 1"]),
    ] {
        refused(as_worker(flags).args([&spec, "--task-index=0"]), expected);
    }
}

#[test]
fn updates_that_cannot_be_made() {
    for (flag, value, valid) in [
        ("--optimizer", "adamax", "rmsprop"),
        ("--schedule", "stairs", "step:EVERY:FACTOR"),
        ("--weight-decay", "-1", "at least 0"),
        ("--ema-decay", "1.5", "less than 1"),
        ("--clip-global-norm", "0", "greater than 0"),
        ("--not-finite", "ignore", "skip"),
        ("--sync", "bogus", "async, async:staleness-lr, bounded:S"),
        ("--sync", "sync:0", "sync:K with K of at least 1"),
        ("--when-worker-leaves", "wait", "continue"),
    ] {
        refused(example().args([flag, value]), &[flag, value, valid]);
    }
    for policy in ["async", "bounded:1", "sync:1"] {
        let command = &mut example();
        refused(
            command.args(["--deterministic", "--sync", policy]),
            &["deterministic needs the policy sync", policy],
        );
    }
    for policy in ["bounded:1", "sync", "sync:2"] {
        let command = &mut example();
        refused(
            command.args(["--pipeline=2", "--sync", policy]),
            &["--pipeline 2 needs the policy async", policy],
        );
    }
    refused(example().arg("--learning-rate=0"), &["--learning-rate", "greater than 0"]);
}

#[test]
fn tasks_that_are_not_there() {
    for (flags, expected) in [
        (&["--task-index=2"][..], &["--task-index", "2", "from 0 to 1"][..]),
        (&["--task-index=-1"], &["--task-index"]),
        (&["--task-index=one"], &["--task-index", "one"]),
        (&[], &["worker", "--task-index", "from 0 to 1"]),
        (&["--job-name=wroker", "--task-index=0"], &["--job-name", "wroker", "chief, ps, worker"]),
        (&["--job-name=ps"], &["worker", "ps/0"]),
    ] {
        refused(as_worker(&["--cluster-spec", SPEC]).args(flags), expected);
    }
    refused(example().args(["--cluster-spec", SPEC]), &["--job-name", "chief, ps, worker", "--task-index"]);
    refused(example().args(["--job-name=ps"]), &["--job-name", "without a cluster", "--cluster-spec"]);
    refused(example().args(["--task-index=0"]), &["--task-index", "without a cluster"]);
    let no_chief = "ps|a:1,worker|b:1";
    refused(role(JobName::Chief).args(["--cluster-spec", no_chief]), &["chief", "ps, worker"]);
    for job in [JobName::Ps, JobName::Worker, JobName::Chief] {
        refused(&mut role(job), &["TF_CONFIG", "--cluster-spec", "--ps-hosts"]);
    }
}

#[test]
fn one_cluster_in_two_spellings() {
    let config = r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}"#;
    let spec = "ps|a:1,worker|b:1";
    let twice = |second: &str| vec!["is given by both".to_owned(), second.to_owned()];
    for (flags, config, expected) in [
        (vec!["--cluster-spec", spec], Some(config), twice("TF_CONFIG")),
        (vec!["--ps-hosts=a:1", "--worker-hosts=b:1"], Some(config), twice("TF_CONFIG")),
        (vec!["--cluster-spec", spec, "--ps-hosts=a:1"], None, twice("--ps-hosts")),
        (vec!["--task-index=1"], Some(config), vec!["--task-index".into(), "says 0".into()]),
        (vec!["--job-name=ps"], Some(config), vec!["--job-name".into(), "says worker".into()]),
    ] {
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        let mut command = as_worker(&flags);
        refused(command.envs(config.map(|config| ("TF_CONFIG", config))), &expected);
    }
    let embedded_too = ["--cluster-spec", spec, "--job-name=worker", "--workers=2"];
    refused(example().args(embedded_too), &["--ps and --workers", "leave them out"]);
}

#[test]
fn a_tf_config_that_cannot_be_read() {
    for (config, expected) in [
        ("{", &["TF_CONFIG", "JSON"][..]),
        ("[]", &["TF_CONFIG", "JSON object"]),
        (r#"{"cluster": {"ps": ["a:1"], "worker": "b:1"}}"#, &["TF_CONFIG", "cluster.worker", "list"]),
        (r#"{"cluster": {"ps": ["a:1"], "worker": [7]}}"#, &["cluster.worker.0", "host:port"]),
        (r#"{"cluster": {"ps": ["a"], "worker": ["b:1"]}}"#, &["ps/0", "'a' is not host:port"]),
        (
            r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 1}}"#,
            &["index 1", "from 0 to 0"],
        ),
        (
            r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "boss"}}"#,
            &["boss", "chief, ps, worker"],
        ),
        (
            r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 1.5}}"#,
            &["task.index", "whole number"],
        ),
    ] {
        refused(role(JobName::Worker).env("TF_CONFIG", config), expected);
        refused(example().env("TF_CONFIG", config), expected);
    }
}

#[test]
fn an_address_to_bind_that_is_none() {
    for (bind, valid) in [("nonsense", "host:port"), ("127.0.0.1:99999", "65535")] {
        let mut command = role(JobName::Ps);
        refused(command.args(["--cluster-spec", SPEC, "--bind", bind]), &["--bind", bind, valid]);
    }
}

#[test]
fn a_chief_without_a_job() {
    refused(role(JobName::Chief).args(["--cluster-spec", SPEC]), &["the chief", "--job FILE"]);
    let flags = ["--cluster-spec", "ps|a:1,worker|b:1"];
    refused(&mut as_worker(&flags), &["worker/0 hosts it", "--job FILE"]);
    refused(tool().arg("local"), &["--job"]);
}

#[test]
fn a_job_file_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read_to_string(Job::new(dir.path(), 10).path()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let changed = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = json.clone();
        change(&mut json);
        Some(json.to_string())
    };
    for (name, text, expected) in [
        ("missing.json", None, "No such file"),
        ("empty.json", Some(String::new()), "not a job file"),
        ("text.json", Some("steps: 10".into()), "not a job file"),
        ("half.json", Some(whole[..whole.len() / 2].to_owned()), "not a job file"),
        ("large.json", Some(" ".repeat(17 << 20)), "at most 16777216"),
        ("extra.json", changed(&|job| job["last_stepp"] = 10.into()), "last_stepp"),
        ("steps.json", changed(&|job| job["last_step"] = 0.into()), "last_step must be at least 1"),
        ("batch.json", changed(&|job| job["batch_size"] = 0.into()), "batch_size must be from 1"),
        (
            "rate.json",
            changed(&|job| job["optimizer"]["sgd"]["learning_rate"] = (-1).into()),
            "learning_rate",
        ),
        (
            "policy.json",
            changed(&|job| job["sync"] = "sync:0".into()),
            "sync, or sync:K with K of at least 1",
        ),
        (
            "order.json",
            changed(&|job| job["deterministic"] = true.into()),
            "deterministic needs the policy sync",
        ),
        (
            "pipeline.json",
            changed(&|job| {
                job["sync"] = "sync".into();
                job["pipeline"] = 2.into();
            }),
            "pipeline is 2, which needs the policy async",
        ),
        ("leave.json", changed(&|job| job["when_worker_leaves"] = "wait".into()), "`continue` or `fail`"),
        ("dangling.json", changed(&|job| job["graph"]["nodes"][17]["inputs"] = [16, 99].into()), "99"),
        ("shape.json", changed(&|job| job["graph"]["variables"][0]["shape"] = [783, 512].into()), "783"),
        ("unknown.json", changed(&|job| job["graph"]["nodes"][7]["op"] = "gelu".into()), "gelu"),
    ] {
        let path = dir.path().join(name);
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let by_worker = ["--cluster-spec", "ps|a:1,worker|b:1"];
        for mut command in [tool(), role(JobName::Chief), as_worker(&by_worker)] {
            if command.get_program() == tool().get_program() {
                command.arg("local");
            } else if command.get_args().len() == 0 {
                command.args(["--cluster-spec", SPEC]);
            }
            let ended = Program::run(dir.path(), name, command.arg("--job").arg(&path));
            let ended = ended.expect_failure().says(name).says(expected);
            assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        }
    }
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("missing").join("report.json");
    for path in [nowhere.as_path(), dir.path()] {
        // The job is so long that the test would time out if it started to train.
        let program =
            Program::run(dir.path(), "mnist", example().arg("--steps=1000000000").arg("--report").arg(path));
        let program = program.expect(1);
        assert!(program.err.contains("cannot write the report to"), "{}", program.err);
    }
}
