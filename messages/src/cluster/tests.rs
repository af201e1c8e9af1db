//! Tests of cluster specs: `TF_CONFIG`, `--cluster-spec` and lists of hosts give equal specs for the same
//! cluster, and every mistake gives an error of one line.

use proptest::prelude::*;

use super::*;
use crate::id::{JobName, TaskId};

fn cluster(flag: &str) -> ClusterSpec {
    let flags = ClusterFlags {
        cluster_spec: Some(flag.into()),
        job_name: Some("worker".into()),
        task_index: Some(0),
        ..ClusterFlags::default()
    };
    flags.resolve().unwrap().unwrap().cluster().clone()
}

fn tf_config(text: &str) -> ClusterFlags {
    ClusterFlags { tf_config: Some(text.into()), ..ClusterFlags::default() }
}

fn of_spec(flag: &str, job: &str, index: Option<u32>) -> ClusterFlags {
    ClusterFlags {
        cluster_spec: Some(flag.into()),
        job_name: Some(job.into()),
        task_index: index,
        ..ClusterFlags::default()
    }
}

fn refused(flags: &ClusterFlags) -> String {
    let text = flags.resolve().unwrap_err().to_string();
    assert!(!text.contains('\n') && !text.ends_with('.'), "not one line without a full stop: {text}");
    text
}

#[test]
fn addresses_have_one_canonical_spelling() {
    for (given, canonical, host, port) in [
        ("ps0:2222", "ps0:2222", "ps0", 2222),
        ("PS-0.Train.svc.:00080", "ps-0.train.svc.:80", "ps-0.train.svc.", 80),
        ("my_host:1", "my_host:1", "my_host", 1),
        ("10.0.0.1:65535", "10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:7", "[::1]:7", "::1", 7),
        ("[0:0:0:0:0:0:0:A]:7", "[::a]:7", "::a", 7),
    ] {
        let address: Address = given.parse().unwrap();
        assert_eq!((address.as_str(), address.host(), address.port()), (canonical, host, port));
        assert_eq!(
            serde_json::from_str::<Address>(&serde_json::to_string(&address).unwrap()).unwrap(),
            address
        );
    }
    assert_eq!(format!("{:>6}|", "a:1".parse::<Address>().unwrap()), "   a:1|");
}

#[test]
fn an_invalid_address_is_refused() {
    let long_label = format!("{}:1", "a".repeat(64));
    let long = format!("{}:1", "a.".repeat(127));
    assert!(long.len() > ADDRESS_BYTES_MAX);
    for (given, why) in [
        ("", "a port"),
        ("host", "a port"),
        (":1", "a host before"),
        ("host:", "1 to 65535"),
        ("host:0", "1 to 65535"),
        ("host:65536", "1 to 65535"),
        ("host:+1", "1 to 65535"),
        ("host:1 ", "1 to 65535"),
        ("::1:2222", "in brackets"),
        ("[::1:2222", "in brackets"),
        ("[::g]:1", "within the brackets"),
        ("[10.0.0.1]:1", "within the brackets"),
        ("10.0.0.256:1", "from 0 to 255"),
        ("10.1:1", "from 0 to 255"),
        (".:1", "from 0 to 255"),
        ("a..b:1", "single dots"),
        ("-a:1", "letters"),
        ("a-:1", "letters"),
        ("a b:1", "letters"),
        ("http://a:1", "one ':'"),
        ("ä:1", "letters"),
        (&long_label, "63 bytes"),
        (&long, "255 bytes"),
    ] {
        let error = given.parse::<Address>().unwrap_err().to_string();
        assert!(error.contains(why), "'{given}' gave: {error}");
    }
    assert!("a\nb:1".parse::<Address>().unwrap_err().to_string().contains(r"'a\nb:1'"));
    assert!(serde_json::from_str::<Address>("\"a\"").is_err());
}

#[test]
fn a_spec_lists_its_tasks_in_order() {
    let spec = cluster("worker|w0:1;w1:1, ps|p0:1; p1:1,evaluator|e:1,master|c:1");
    assert_eq!(spec.to_flag(), "chief|c:1,ps|p0:1;p1:1,worker|w0:1;w1:1,evaluator|e:1");
    let tasks: Vec<String> = spec.tasks().map(|(task, address)| format!("{task}={address}")).collect();
    assert_eq!(
        tasks,
        ["chief/0=c:1", "ps/0=p0:1", "ps/1=p1:1", "worker/0=w0:1", "worker/1=w1:1", "evaluator/0=e:1"]
    );
    assert_eq!(spec.address(TaskId::ps(1)).unwrap().as_str(), "p1:1");
    assert_eq!(spec.address(TaskId::ps(2)), None);
    assert_eq!(spec.addresses(JobName::Worker).len(), 2);
    assert_eq!(spec.chief_host(), TaskId::CHIEF);
    assert_eq!(cluster("ps|p:1,worker|w:1").chief_host(), TaskId::worker(0));
}

#[test]
fn the_hash_is_stable_across_versions() {
    // The expected value is the FNV-1a hash of 'ps|p:1,worker|w:1', computed by another program. Tasks of
    // different builds must agree on this value.
    assert_eq!(cluster("ps|p:1,worker|w:1").hash(), 0x7da9_7945_eeaf_e7bd);
}

#[test]
fn the_first_difference_is_named() {
    let here = cluster("chief|c:1,ps|a:1;b:1,worker|w:1;x:1");
    let difference = |there| here.difference(&cluster(there));
    assert_eq!(difference("worker|w:1;x:1,ps|a:1;b:1,chief|c:1"), None);
    assert_eq!(difference("chief|c:1,ps|a:1;c:2,worker|w:1").unwrap(), "ps/1 is 'b:1' here and 'c:2' there");
    assert_eq!(
        difference("chief|c:1,ps|a:1;b:1,worker|w:1;x:1;y:1").unwrap(),
        "job 'worker' has 2 tasks here and 3 there"
    );
    assert_eq!(difference("ps|a:1;b:1,worker|w:1;x:1").unwrap(), "job 'chief' has 1 task here and 0 there");
}

#[test]
fn a_received_spec_is_checked_again() {
    let spec = cluster("ps|p:1,worker|w:1");
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(text, r#"{"ps":["p:1"],"worker":["w:1"]}"#);
    assert_eq!(serde_json::from_str::<ClusterSpec>(&text).unwrap(), spec);
    let bytes = rmp_serde::to_vec_named(&spec).unwrap();
    assert_eq!(rmp_serde::from_slice::<ClusterSpec>(&bytes).unwrap(), spec);
    for (bad, why) in [
        (r#"{"ps":["p:1"],"worker":["p:1"]}"#, "both ps/0 and worker/0"),
        (r#"{"ps":["p:1"],"worker":["w"]}"#, "worker/0"),
        (r#"{"ps":[]}"#, "the cluster has no task"),
        (r#"{"ps":["p:1"],"worker":["w:1"],"a gpu":[]}"#, "job name 'a gpu' is not valid"),
        (r#"{"ps":["p:1"],"worker":["w:1"],"ps":["p:2"]}"#, "job 'ps' is given twice"),
        (r#"{"ps":["p:1"],"worker":"w:1"}"#, "at most 4096 addresses of job 'worker'"),
        (r#"{"ps":["p:1"],"worker":[1]}"#, "the address of worker/0"),
    ] {
        let error = serde_json::from_str::<ClusterSpec>(bad).unwrap_err().to_string();
        assert!(error.contains(why), "{bad} gave: {error}");
    }
}

#[test]
fn a_received_spec_is_bounded_while_it_is_read() {
    let spec = |workers: &[String]| {
        let ports = |of: &str| (1..=TASKS_PER_JOB_MAX).map(|port| format!("{of}:{port}")).collect();
        let jobs: [(&str, Vec<String>); 2] = [("ps", ports("p")), ("worker", workers.to_vec())];
        rmp_serde::to_vec(&jobs.into_iter().collect::<std::collections::BTreeMap<_, _>>()).unwrap()
    };
    let read = |workers: &[String]| rmp_serde::from_slice::<ClusterSpec>(&spec(workers));
    let mut workers: Vec<String> = (1..=TASKS_PER_JOB_MAX).map(|port| format!("w:{port}")).collect();
    assert_eq!(read(&workers).unwrap().addresses(JobName::Worker).len(), TASKS_PER_JOB_MAX);
    workers.push("w:5000".into());
    let error = read(&workers).unwrap_err().to_string();
    assert!(error.contains("invalid length 4097, expected at most 4096 addresses"), "{error}");
    let error = read(&["w".repeat(300)]).unwrap_err().to_string();
    assert!(error.contains("address of worker/0") && error.len() < 300, "{error}");
}

#[test]
fn a_job_has_a_bounded_number_of_tasks() {
    let ports = |count: usize| (1..=count).map(|port| format!("w:{port}")).collect::<Vec<_>>();
    let with =
        |count| ClusterSpec::new([(JobName::Ps, vec!["p:1".to_owned()]), (JobName::Worker, ports(count))]);
    with(TASKS_PER_JOB_MAX).unwrap();
    let error = with(TASKS_PER_JOB_MAX + 1).unwrap_err();
    assert_eq!(error, ClusterError::ManyTasks { job: JobName::Worker, tasks: 4097 });
    assert!(error.to_string().contains("at most 4096"));
}

#[test]
fn a_cluster_has_a_bounded_number_of_jobs_and_tasks() {
    let with = |jobs: usize, tasks: usize| {
        let port = |job: usize, task: usize| format!("h{job}:{}", task + 1);
        let addresses = |job| (0..tasks).map(|task| port(job, task)).collect::<Vec<_>>();
        ClusterSpec::new((0..jobs).map(|job| (format!("j{job}").parse().unwrap(), addresses(job))))
    };
    with(JOBS_MAX, 1).unwrap();
    assert_eq!(with(JOBS_MAX + 1, 1).unwrap_err(), ClusterError::ManyJobs(65));
    with(4, TASKS_PER_JOB_MAX).unwrap();
    assert_eq!(with(5, TASKS_PER_JOB_MAX).unwrap_err(), ClusterError::ManyTasksInAll(5 * 4096));
    assert_eq!(with(9, 0).unwrap_err(), ClusterError::Empty);
}

#[test]
fn a_cluster_has_jobs_of_any_names() {
    let flag = "chief|c:1;d:1,worker|w:1,local|a:1,a-b_2|b:1";
    let (spec, task) = of_spec(flag, "local", None).resolve_server().unwrap().unwrap();
    assert_eq!(spec.to_flag(), "chief|c:1;d:1,worker|w:1,a-b_2|b:1,local|a:1");
    assert_eq!(task, TaskId::new("local".parse().unwrap(), 0));
    assert_eq!(spec.address(task).unwrap().as_str(), "a:1");
    let names: Vec<String> = spec.tasks().map(|(task, _)| task.to_string()).collect();
    assert_eq!(names, ["chief/0", "chief/1", "worker/0", "a-b_2/0", "local/0"]);
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<ClusterSpec>(&text).unwrap(), spec);
    assert_eq!(rmp_serde::from_slice::<ClusterSpec>(&rmp_serde::to_vec(&spec).unwrap()).unwrap(), spec);
    let tf_config = tf_config(&spec.to_tf_config(task));
    assert_eq!(tf_config.resolve_server().unwrap().unwrap(), (spec.clone(), task));
    let (there, _) = of_spec("local|a:1,worker|w:1", "local", None).resolve_server().unwrap().unwrap();
    assert_eq!(spec.difference(&there).unwrap(), "job 'chief' has 2 tasks here and 0 there");
    let (there, _) =
        of_spec("chief|c:1;d:1,worker|w:1,local|a:1", "local", None).resolve_server().unwrap().unwrap();
    assert_eq!(there.difference(&spec).unwrap(), "job 'a-b_2' has 0 tasks here and 1 there");
}

#[test]
fn only_a_cluster_of_roles_can_train() {
    let refused = |flag: &str| {
        let jobs = flag.split(',').map(|job| job.split_once('|').unwrap());
        let jobs = jobs.map(|(job, hosts)| (job.parse().unwrap(), hosts.split(';').collect()));
        ClusterSpec::new(jobs).unwrap().for_training().unwrap_err()
    };
    assert_eq!(refused("ps|p:1"), ClusterError::NoWorker);
    assert_eq!(refused("ps|p:1,worker|w:1,chief|c:1;d:1"), ClusterError::ManyChiefs(2));
    let other = refused("ps|p:1,worker|w:1,gpu|g:1");
    assert_eq!(other, ClusterError::NotARole("gpu".parse().unwrap()));
    assert!(other.to_string().starts_with("job 'gpu' takes no part in training"));
    let spec = ClusterSpec::new([(JobName::Ps, vec!["p:1"])]).unwrap();
    assert_eq!(ClusterConfig::new(spec, JobName::Ps, None).unwrap_err(), ClusterError::NoWorker);
}

#[test]
fn workers_host_the_ps_tasks_that_a_cluster_lacks() {
    let of =
        |ps: Vec<&str>| ClusterSpec::new([(JobName::Ps, ps), (JobName::Worker, vec!["w:1", "w:2"])]).unwrap();
    let told = |cluster: &ClusterSpec| {
        let at = |task| cluster.reached_at(task).map(ToString::to_string);
        let tasks: Vec<String> = cluster.tasks_and_hosted().map(|(task, _)| task.to_string()).collect();
        (cluster.has_ps(), at(TaskId::ps(0)), at(TaskId::ps(1)), at(TaskId::worker(1)), tasks.join(" "))
    };
    let text = |text: &str| Some(text.to_owned());
    let expected = (true, text("p:1"), None, text("w:2"), "ps/0 worker/0 worker/1".to_owned());
    assert_eq!(told(&of(vec!["p:1"])), expected);
    let all = "ps/0 ps/1 worker/0 worker/1".to_owned();
    assert_eq!(told(&of(vec![])), (false, text("w:1"), text("w:2"), text("w:2"), all));
    assert_eq!(of(vec![]).ps_addresses().len(), 2);
    assert_eq!(of(vec![]).reached_at(TaskId::ps(2)), None);
}

#[test]
fn a_server_finds_its_task() {
    let found = |flags: &ClusterFlags| flags.resolve_server().map(|found| found.unwrap().1.to_string());
    assert_eq!(found(&of_spec("local|a:1;b:1", "local", Some(1))).unwrap(), "local/1");
    assert_eq!(found(&of_spec("ps|p:1", "ps", None)).unwrap(), "ps/0");
    let only = ClusterFlags { job_name: None, ..of_spec("local|a:1;b:1", "", Some(1)) };
    assert_eq!(found(&only).unwrap(), "local/1");
    let hosts = ClusterFlags {
        ps_hosts: Some("p:1".into()),
        worker_hosts: Some("w:1,x:1".into()),
        job_name: Some("worker".into()),
        task_index: Some(1),
        ..ClusterFlags::default()
    };
    assert_eq!(found(&hosts).unwrap(), "worker/1");
    assert_eq!(ClusterFlags::default().resolve_server().unwrap(), None);
    let unnamed = ClusterFlags { job_name: None, ..of_spec("ps|p:1,a|a:1", "", None) };
    for (flags, parts) in [
        (of_spec("local|a:1;b:1", "local", None), ["2 tasks", "--task-index from 0 to 1"]),
        (of_spec("local|a:1", "local", Some(1)), ["task index 1 of job 'local'", "from 0 to 0"]),
        (of_spec("local|a:1", "evaluator", None), ["'evaluator' has no task", "one of local"]),
        (of_spec("local|a:1", "Local", None), ["--job-name: job name 'Local' is not valid", "a letter"]),
        (of_spec("a b|a:1", "a", None), ["--cluster-spec: job name 'a b' is not valid", "a letter"]),
        (unnamed, ["--job-name", "one of ps, a"]),
        (tf_config(r#"{"cluster": {"A": ["a:1"]}}"#), ["TF_CONFIG: cluster: job name 'A'", "a letter"]),
        (ClusterFlags { job_name: Some("a".into()), ..ClusterFlags::default() }, ["without a cluster", ""]),
    ] {
        let error = found(&flags).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{flags:?} gave: {error}");
    }
}

#[test]
fn no_cluster_at_all_means_embedded() {
    for text in [
        "",
        " \n",
        "{}",
        r#"{"cluster": {}}"#,
        r#"{"cluster": null, "task": null}"#,
        r#"{"environment": "cloud", "task": {"type": "worker", "index": 0}}"#,
    ] {
        assert_eq!(tf_config(text).resolve().unwrap(), None, "{text}");
    }
    assert_eq!(ClusterFlags::default().resolve().unwrap(), None);
}

#[test]
fn tf_config_is_read_as_kubeflow_writes_it() {
    let config = tf_config(
        r#"{"cluster": {"master": ["m:2222"], "ps": ["p0:2222", "p1:2222"], "worker": ["w0:2222"]},
            "task": {"type": "ps", "index": 1}, "environment": "cloud", "rpc_layer": "grpc"}"#,
    );
    let config = config.resolve().unwrap().unwrap();
    assert_eq!(config.task(), TaskId::ps(1));
    assert!(!config.hosts_chief());
    assert_eq!(config.cluster(), &cluster("chief|m:2222,ps|p0:2222;p1:2222,worker|w0:2222"));

    let evaluator =
        r#"{"cluster": {"ps": ["p:1"], "worker": ["w:1"]}, "task": {"type": "evaluator", "index": "3"}}"#;
    let config = tf_config(evaluator).resolve().unwrap().unwrap();
    assert_eq!(config.task(), TaskId::new(JobName::Evaluator, 3));
    assert_eq!(config.cluster().address(config.task()), None);

    let sparse =
        r#"{"cluster": {"ps": {"1": "b:1", "0": "a:1"}, "worker": ["w:1"]}, "task": {"type": "worker"}}"#;
    let config = tf_config(sparse).resolve().unwrap().unwrap();
    assert_eq!(config.cluster(), &cluster("ps|a:1;b:1,worker|w:1"));
    assert_eq!(config.task(), TaskId::worker(0));
    assert!(config.hosts_chief());
}

#[test]
fn a_sparse_job_must_have_every_index() {
    // More than ten tasks, so that sorting the indices as numbers and as text gives different orders.
    let all: Vec<String> = (0..12).map(|index| format!(r#""{index}": "w:{}""#, index + 1)).collect();
    let config = |tasks: &[String]| {
        let tasks = tasks.join(", ");
        tf_config(&format!(
            r#"{{"cluster": {{"ps": ["p:1"], "worker": {{{tasks}}}}}, "task": {{"type": "ps"}}}}"#
        ))
    };
    let resolved = config(&all).resolve().unwrap().unwrap();
    assert_eq!(resolved.cluster().address(TaskId::worker(11)).unwrap().as_str(), "w:12");
    let error = refused(&config(&all[1..]));
    assert!(error.contains("cluster.worker") && error.contains("index 1 in place of 0"), "{error}");
}

#[test]
fn an_error_names_the_invalid_part_of_tf_config() {
    let with = |cluster: &str, task: &str| format!(r#"{{"cluster": {cluster}, "task": {task}}}"#);
    let good = r#"{"ps": ["p:1"], "worker": ["w:1", "x:1"]}"#;
    for (text, parts) in [
        ("[]".into(), ["JSON object", "[]"]),
        ("{".into(), ["JSON object", "EOF"]),
        ("null".into(), ["JSON object", "null"]),
        (r#"{"cluster": 3}"#.into(), ["JSON object", "integer `3`"]),
        (with(r#"{"ps": 3}"#, "{}"), ["cluster.ps", "got 3"]),
        (with(r#"{"ps": ["p:1", 4]}"#, "{}"), ["cluster.ps.1", "got 4"]),
        (with(r#"{"ps": {"x": "p:1"}}"#, "{}"), ["cluster.ps", "index 'x'"]),
        (with(r#"{"boss": ["p:1"]}"#, "{}"), ["unknown job 'boss'", "expected chief"]),
        (with(r#"{"ps": ["p:1"], "ps": ["q:1"]}"#, "{}"), ["'ps' is given twice", ""]),
        (with(r#"{"chief": ["p:1"], "master": ["q:1"]}"#, "{}"), ["'chief' is given twice", "'master'"]),
        (with(good, "[]"), ["task", "got []"]),
        (with(good, r#"{"type": 1}"#), ["task.type", "got 1"]),
        (with(good, r#"{"type": "boss"}"#), ["task.type", "unknown job 'boss'"]),
        (with(good, r#"{"type": "worker", "index": -1}"#), ["task.index", "got -1"]),
        (with(good, r#"{"type": "worker", "index": 0.0}"#), ["task.index", "got 0.0"]),
        (with(good, r#"{"type": "worker", "index": "+1"}"#), ["task.index", "got \"+1\""]),
        (with(good, r#"{"type": "worker", "index": ""}"#), ["task.index", "got \"\""]),
        (with(good, r#"{"type": "worker", "index": [0]}"#), ["task.index", "got [0]"]),
        (with(good, r#"{"type": "worker", "index": 4294967296}"#), ["task.index", "got 4294967296"]),
        (with(good, r#"{"type": "worker", "index": 2}"#), ["task index 2", "0 to 1"]),
        (with(good, r#"{"type": "worker"}"#), ["2 tasks", "0 to 1"]),
        (with(good, r#"{"type": "chief"}"#), ["'chief' has no task", "ps, worker"]),
        (with(good, r#"{"type": "evaluator", "index": 4096}"#), ["index 4096", "0 to 4095"]),
        (with(good, "{}"), ["which of its tasks this process is", "ps, worker"]),
    ] {
        let error = refused(&tf_config(&text));
        assert!(parts.iter().all(|part| error.contains(part)), "{text} gave: {error}");
    }
}

#[test]
fn an_invalid_cluster_is_refused() {
    for (flag, parts) in [
        ("", ["--cluster-spec: ''", "job|host:port"]),
        ("ps|p:1,", ["--cluster-spec: ''", "job|host:port"]),
        ("ps:1", ["'ps:1'", "job|host:port"]),
        ("gpu|g:1", ["unknown job 'gpu'", "worker"]),
        ("ps|p:1;,worker|w:1", ["ps/1: ''", "port"]),
        ("ps|p:1,worker|w", ["worker/0: 'w'", "port"]),
        ("ps|p:1,worker|w:1;v:1;W:01", ["'w:1'", "both worker/0 and worker/2"]),
        ("ps|p:1,worker|w:1,worker|v:1", ["'worker' is given twice", ""]),
        ("ps|p:1,worker|w:1,chief|c:1;d:1", ["'chief' has 2 tasks", "one chief"]),
        ("ps|p:1", ["'worker' has no task", "at least one"]),
    ] {
        let error = refused(&of_spec(flag, "worker", Some(0)));
        assert!(parts.iter().all(|part| error.contains(part)), "{flag} gave: {error}");
    }
}

#[test]
fn workers_may_join_up_to_the_largest_number() {
    let of = |spec: &str, job: &str, index, max| ClusterFlags {
        workers_max: Some(max),
        ..of_spec(spec, job, index)
    };
    let spec = "ps|p:1,worker|w:1;x:1";
    for (index, hosts_ps) in [(0, false), (3, false)] {
        let config = of(spec, "worker", Some(index), 4).resolve().unwrap().unwrap();
        assert_eq!((config.task(), config.workers_max()), (TaskId::worker(index), Some(4)));
        assert_eq!(config.hosts_ps(), hosts_ps);
    }
    let workers = "worker|w:1;x:1";
    let hosts = |index| of(workers, "worker", Some(index), 3).resolve().unwrap().unwrap().hosts_ps();
    assert!(hosts(1) && !hosts(2), "only a listed worker hosts a ps task");
    assert_eq!(of(spec, "ps", None, 2).resolve().unwrap().unwrap().workers_max(), Some(2));
    for (flags, part) in [
        (
            of(spec, "worker", Some(4), 4),
            "task index 4 of job 'worker' is out of range, expected --task-index from 0 to 3",
        ),
        (of(spec, "worker", None, 4), "job 'worker' has 2 tasks and no index is given"),
        (
            of(spec, "ps", Some(0), 1),
            "--workers-max is 1, expected from 2, the number of workers in the cluster",
        ),
        (of(spec, "ps", Some(0), TASKS_PER_JOB_MAX as u32 + 1), "--workers-max is"),
    ] {
        let error = refused(&flags);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_task_of_this_process_must_be_unique() {
    let spec = "ps|p:1,worker|w:1;x:1";
    assert_eq!(of_spec(spec, "ps", None).resolve().unwrap().unwrap().task(), TaskId::ps(0));
    assert_eq!(of_spec(spec, "worker", Some(1)).resolve().unwrap().unwrap().task(), TaskId::worker(1));
    let unnamed = ClusterFlags { job_name: None, ..of_spec(spec, "", Some(0)) };
    let alone = ClusterFlags { job_name: Some("ps".into()), ..ClusterFlags::default() };
    let index_alone = ClusterFlags { task_index: Some(0), ..ClusterFlags::default() };
    for (flags, parts) in [
        (of_spec(spec, "worker", None), ["2 tasks", "--task-index from 0 to 1"]),
        (of_spec(spec, "worker", Some(2)), ["task index 2 of job 'worker'", "from 0 to 1"]),
        (of_spec(spec, "ps", Some(1)), ["task index 1 of job 'ps'", "from 0 to 0"]),
        (of_spec(spec, "chief", None), ["'chief' has no task", "one of ps, worker"]),
        (of_spec(spec, "boss", None), ["--job-name: unknown job 'boss'", "expected chief, ps"]),
        (unnamed, ["--job-name", "one of ps, worker"]),
        (alone, ["--job-name", "without a cluster"]),
        (index_alone, ["--task-index", "without a cluster"]),
    ] {
        let error = refused(&flags);
        assert!(parts.iter().all(|part| error.contains(part)), "{flags:?} gave: {error}");
    }
}

#[test]
fn two_spellings_at_once_are_refused() {
    let tf = Some(r#"{"cluster": {"ps": ["p:1"], "worker": ["w:1"]}}"#.to_owned());
    let spec = Some("ps|p:1,worker|w:1".to_owned());
    let hosts = Some("p:1".to_owned());
    let none = ClusterFlags::default();
    let tf_config = || ClusterFlags { tf_config: tf.clone(), ..none.clone() };
    for (flags, first, second) in [
        (ClusterFlags { cluster_spec: spec.clone(), ..tf_config() }, "TF_CONFIG", "--cluster-spec"),
        (ClusterFlags { ps_hosts: hosts.clone(), ..tf_config() }, "TF_CONFIG", "--ps-hosts"),
        (ClusterFlags { chief_hosts: hosts.clone(), ..tf_config() }, "TF_CONFIG", "--chief-host"),
        (
            ClusterFlags { cluster_spec: spec.clone(), worker_hosts: hosts.clone(), ..none.clone() },
            "--cluster-spec",
            "--worker-hosts",
        ),
    ] {
        assert_eq!(flags.resolve().unwrap_err(), ClusterError::TwoClusters { first, second });
        let error = refused(&flags);
        assert!(error.contains(first) && error.contains(second), "{error}");
    }
}

#[test]
fn flags_may_complete_but_not_contradict_tf_config() {
    let text = r#"{"cluster": {"ps": ["p:1"], "worker": ["w:1", "x:1"]}, "task": {"type": "worker"}}"#;
    let with = |job: Option<&str>, task_index| ClusterFlags {
        job_name: job.map(str::to_owned),
        task_index,
        ..tf_config(text)
    };
    assert_eq!(with(Some("worker"), Some(1)).resolve().unwrap().unwrap().task(), TaskId::worker(1));
    let error = refused(&with(Some("ps"), Some(0)));
    assert!(error.contains("TF_CONFIG says worker and --job-name says ps"), "{error}");
    let indexed = ClusterFlags {
        tf_config: Some(text.replace("\"worker\"}", "\"worker\", \"index\": 0}")),
        ..with(None, Some(1))
    };
    let error = refused(&indexed);
    assert!(error.contains("TF_CONFIG says 0 and --task-index says 1"), "{error}");
}

#[test]
fn a_tf_config_without_a_cluster_gives_the_task() {
    let flags = ClusterFlags {
        ps_hosts: Some("p:1".into()),
        worker_hosts: Some("w:1,x:1".into()),
        ..tf_config(r#"{"task": {"type": "worker", "index": 1}}"#)
    };
    assert_eq!(flags.resolve().unwrap().unwrap().task(), TaskId::worker(1));
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z][a-z0-9_]{0,6}(\\.[a-z][a-z0-9]{0,4}){0,2}",
        any::<[u8; 4]>().prop_map(|ip| std::net::Ipv4Addr::from(ip).to_string()),
        any::<u128>().prop_map(|ip| format!("[{}]", std::net::Ipv6Addr::from(ip))),
    ]
}

/// Draws the addresses of the chief, the ps tasks and the workers. Their ports make them distinct.
fn random_hosts() -> impl Strategy<Value = [Vec<String>; 3]> {
    let hosts = |count| prop::collection::vec(host(), count);
    (hosts(0..2), hosts(1..5), hosts(1..5)).prop_map(|(chief, ps, worker)| {
        let mut port = 1000;
        [chief, ps, worker].map(|hosts| {
            let address = |host| {
                port += 1;
                format!("{host}:{port}")
            };
            hosts.into_iter().map(address).collect()
        })
    })
}

proptest! {
    #[test]
    fn three_spellings_of_one_cluster_are_equal(hosts in random_hosts(), pick in any::<prop::sample::Index>()) {
        let jobs = [JobName::Chief, JobName::Ps, JobName::Worker];
        let spec = ClusterSpec::new(jobs.into_iter().zip(hosts.clone())).unwrap();
        let tasks: Vec<TaskId> = spec.tasks().map(|(task, _)| task).collect();
        let task = *pick.get(&tasks);
        let who = ClusterFlags {
            job_name: Some(task.job.to_string()),
            task_index: Some(task.index),
            ..ClusterFlags::default()
        };
        let [chief, ps, worker] = hosts.map(|hosts| Some(hosts.join(",")).filter(|text| !text.is_empty()));
        for flags in [
            tf_config(&spec.to_tf_config(task)),
            ClusterFlags { cluster_spec: Some(spec.to_flag()), ..who.clone() },
            ClusterFlags { ps_hosts: ps, worker_hosts: worker, chief_hosts: chief, ..who },
        ] {
            let config = flags.resolve().unwrap().unwrap();
            prop_assert_eq!(config.task(), task);
            prop_assert_eq!(config.cluster(), &spec);
            prop_assert_eq!(config.cluster().hash(), spec.hash());
            prop_assert_eq!(config.cluster().difference(&spec), None);
        }
    }

    #[test]
    fn one_changed_address_is_named_and_changes_the_hash(
        mut hosts in random_hosts(),
        pick in any::<prop::sample::Index>(),
    ) {
        let jobs = [JobName::Chief, JobName::Ps, JobName::Worker];
        let spec = |hosts: &[Vec<String>; 3]| ClusterSpec::new(jobs.into_iter().zip(hosts.clone())).unwrap();
        let here = spec(&hosts);
        let tasks: Vec<TaskId> = here.tasks().map(|(task, _)| task).collect();
        let task = *pick.get(&tasks);
        let job = jobs.iter().position(|&job| job == task.job).unwrap();
        hosts[job][task.index as usize] = "changed:1".into();
        let there = spec(&hosts);
        let address = here.address(task).unwrap();
        let expected = format!("{task} is '{address}' here and 'changed:1' there");
        prop_assert_eq!(here.difference(&there), Some(expected));
        prop_assert_ne!(here.hash(), there.hash());
    }

    #[test]
    fn no_text_panics(text in any::<String>(), near in "[\\[\\]{}a-c|;,:.\"0-9 -]{0,40}") {
        for text in [text, near] {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.as_str().parse::<Address>().unwrap(), address.clone());
                prop_assert!(address.as_str().len() <= ADDRESS_BYTES_MAX);
            }
            let job = format!(r#"{{"cluster": {text}, "task": {text}}}"#);
            let jobs = format!(r#"{{"cluster": {{"ps": {text}}}, "task": {{"type": "ps", "index": {text}}}}}"#);
            for tf in [&text, &job, &jobs] {
                if let Err(error) = tf_config(tf).resolve() {
                    prop_assert!(!error.to_string().contains('\n'));
                }
            }
            for flag in [text.clone(), format!("{text}|p:1"), format!("ps|{text}"), format!("ps|p:1,worker|{text}")] {
                if let Err(error) = of_spec(&flag, &text, None).resolve_server() {
                    prop_assert!(!error.to_string().contains('\n'));
                }
                if let Err(error) = of_spec(&flag, &text, None).resolve() {
                    prop_assert!(!error.to_string().contains('\n'));
                }
            }
            let hosts = ClusterFlags {
                ps_hosts: Some(text.clone()),
                worker_hosts: Some("w:1".into()),
                job_name: Some("worker".into()),
                ..ClusterFlags::default()
            };
            if let Ok(config) = hosts.resolve() {
                prop_assert!(config.is_some());
            }
        }
    }
}

#[test]
fn equal_names_are_one_host() {
    let is_one = |addresses: &[&str]| {
        let parsed: Vec<Address> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        on_one_host(&parsed)
    };
    assert!(is_one(&[]) && is_one(&["w0:2222"]) && is_one(&["W0:2222", "w0:2223", "w0:2224"]));
    assert!(is_one(&["[::1]:1", "[::1]:2"]));
    assert!(!is_one(&["w0:2222", "w1:2222"]) && !is_one(&["w0:2222", "w0:2223", "w1:2222"]));
}
