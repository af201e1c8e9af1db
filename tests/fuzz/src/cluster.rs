//! The target `cluster`: parses text as a cluster, which flags, `TF_CONFIG` or JSON give. The first byte
//! selects which of them.

use pushpull_messages::cluster::{Address, ClusterFlags, ClusterSpec};
use pushpull_messages::id::{JobName, TaskId};

use crate::corpus::Form;
use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "cluster",
    about: &["messages/src/cluster"],
    check,
    stages: &["refused", "an address", "a cluster", "a cluster and a task"],
    seeds,
    form: Form::Json,
    words: &[
        b"worker|",
        b"ps|",
        b"chief|",
        b"a:1",
        b";",
        b",",
        b"[::1]:22",
        b"{\"cluster\":",
        b"\"task\"",
        b"127.0.0.1:2222",
    ],
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, text)) = bytes.split_first() else { return 0 };
    let Ok(text) = std::str::from_utf8(text) else { return 0 };
    let given = || Some(text.to_owned());
    let flags = match how % 6 {
        0 => ClusterFlags { tf_config: given(), ..ClusterFlags::default() },
        1 => ClusterFlags { cluster_spec: given(), ..ClusterFlags::default() },
        2 => {
            let (ps, workers) = text.split_once('|').unwrap_or((text, "w:1"));
            ClusterFlags {
                ps_hosts: Some(ps.to_owned()),
                worker_hosts: Some(workers.to_owned()),
                ..ClusterFlags::default()
            }
        }
        3 => return check_json(text),
        4 => return check_address(text),
        _ => {
            let (job, config) = text.split_once('\n').unwrap_or((text, ""));
            ClusterFlags {
                tf_config: Some(config.to_owned()),
                job_name: Some(job.to_owned()),
                ..ClusterFlags::default()
            }
        }
    };
    let flags = ClusterFlags {
        job_name: flags.job_name.clone().or((how & 64 != 0).then(|| "worker".to_owned())),
        task_index: (how & 128 != 0).then_some(u32::from(how) % 3),
        ..flags
    };
    let trains = match flags.resolve() {
        Ok(config) => config.inspect(|config| check_cluster(config.cluster())).is_some(),
        Err(error) => {
            check_error(&error);
            false
        }
    };
    match flags.resolve_server() {
        Ok(Some((cluster, task))) => {
            assert!(cluster.address(task).is_some(), "the task is one of the cluster");
            check_cluster(&cluster);
            3
        }
        Ok(None) => usize::from(trains) * 3,
        Err(error) => {
            check_error(&error);
            usize::from(trains) * 3
        }
    }
}

fn check_json(text: &str) -> usize {
    let Ok(cluster) = serde_json::from_str::<ClusterSpec>(text) else { return 0 };
    check_cluster(&cluster);
    let written = serde_json::to_string(&cluster).expect("plain data encodes");
    assert!(serde_json::from_str::<ClusterSpec>(&written).is_ok_and(|again| again == cluster), "W1");
    2
}

fn check_address(text: &str) -> usize {
    match text.parse::<Address>() {
        Ok(address) => {
            assert!(
                address.as_str().parse::<Address>().as_ref() == Ok(&address),
                "it is written as it is read"
            );
            assert!(!address.host().is_empty(), "it has a host");
            1
        }
        Err(error) => {
            check_error(&error);
            0
        }
    }
}

/// Checks that a cluster is read again as it is written.
fn check_cluster(cluster: &ClusterSpec) {
    let task = cluster.tasks().next().expect("a cluster has a task").0;
    let with = |flags: ClusterFlags| {
        let flags =
            ClusterFlags { job_name: Some(task.job.to_string()), task_index: Some(task.index), ..flags };
        flags.resolve_server().expect("what was written can be read").expect("there is a cluster")
    };
    let flag = with(ClusterFlags { cluster_spec: Some(cluster.to_flag()), ..ClusterFlags::default() });
    assert!(flag == (cluster.clone(), task), "the flag gives the same cluster");
    let config =
        with(ClusterFlags { tf_config: Some(cluster.to_tf_config(task)), ..ClusterFlags::default() });
    assert!(config == (cluster.clone(), task), "TF_CONFIG gives the same cluster");
    assert!(cluster.difference(&flag.0).is_none() && cluster.hash() == flag.0.hash(), "nothing differs");
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let jobs = [
        (JobName::Chief, vec!["c:1"]),
        (JobName::Ps, vec!["p0.example:2222", "10.0.0.1:2222"]),
        (JobName::Worker, vec!["w:1", "[::1]:2"]),
    ];
    let cluster = ClusterSpec::new(jobs).expect("a valid cluster");
    let text = |how: u8, text: &str| [&[how], text.as_bytes()].concat();
    let config = cluster.to_tf_config(TaskId::worker(1));
    let sparse =
        r#"{"cluster":{"worker":{"0":"w:1","1":"w:2"},"ps":["p:1"]},"task":{"type":"ps","index":"0"}}"#;
    [
        ("tf-config", text(0, &config)),
        ("sparse", text(0, sparse)),
        ("flag", text(1 + 64, &cluster.to_flag())),
        ("flag-task", text(127 + 128, &cluster.to_flag())),
        ("hosts", text(2 + 66, "p:1,p:2|w:1,w:2")),
        ("json", text(3, &serde_json::to_string(&cluster).expect("plain data encodes"))),
        ("address", text(4, "a.b-c_d:65535")),
        ("address-ip", text(4, "[2001:db8::1]:80")),
        ("address-4", text(4, "127.0.0.1:1")),
        ("both", text(5, &format!("worker\n{config}"))),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}
