//! Tests of how servers are started: all spellings of the flags, and clusters that cannot be.

use std::time::Duration;

use pushpull::{GraphBuilder, Server, Session, SessionOptions, TaskId};

use crate::harness::{PATIENCE, Program, Servers, tool};

#[test]
fn a_constant_text_comes_back() {
    let servers = Servers::start(&[("local", 1)], &[]);
    let mut g = GraphBuilder::new("hello");
    let hello = g.text("Hello, distributed!");
    let graph = g.finish_session().unwrap();
    let fetched = servers.session("local/0").run(&graph, &[], &[hello]).unwrap();
    assert_eq!(fetched[0].texts().unwrap(), ["Hello, distributed!"]);
}

#[test]
fn a_server_in_the_program_needs_no_flags() {
    let server = Server::local().unwrap();
    let session = Session::connect(&server.target()).unwrap();
    let mut g = GraphBuilder::new("sum");
    let (two, three) = (g.value(2i64), g.value(3i64));
    let sum = g.add(two, three);
    let graph = g.finish_session().unwrap();
    assert_eq!(session.run(&graph, &[], &[sum]).unwrap()[0].i64s().unwrap(), [5]);
    assert_eq!(session.task().to_string(), "local/0");
}

#[test]
fn every_spelling_of_the_flags_means_the_same() {
    let mut servers = Servers::prepare(&[("ps", 1), ("worker", 3)], &[]);
    let hosts = |job: &str, tasks: u32| {
        let address = |index| servers.address(&format!("{job}/{index}"));
        (0..tasks).map(address).collect::<Vec<_>>()
    };
    let (ps, workers) = (hosts("ps", 1), hosts("worker", 3));
    let own = |task: TaskId| [format!("--job_name={}", task.job), format!("--task_index={}", task.index)];
    let listed = |task: TaskId, lists: [String; 2]| {
        let mut command = crate::harness::server();
        command.args(lists).args(own(task));
        command
    };
    let underscores =
        [format!("--ps_hosts={}", ps.join(",")), format!("--worker_hosts={}", workers.join(","))];
    let dashes = [format!("--ps-hosts={}", ps.join(",")), format!("--worker-hosts={}", workers.join(","))];
    let mut env = crate::harness::server();
    env.env("TF_CONFIG", servers.spec.to_tf_config(TaskId::worker(1)));
    let mut reversed = crate::harness::server();
    reversed.arg(format!("--cluster-spec=worker|{},ps|{}", workers.join(";"), ps.join(";")));
    reversed.args(own(TaskId::worker(2)));
    let commands = [
        (TaskId::ps(0), listed(TaskId::ps(0), underscores)),
        (TaskId::worker(0), listed(TaskId::worker(0), dashes)),
        (TaskId::worker(1), env),
        (TaskId::worker(2), reversed),
    ];
    let tasks = commands.each_ref().map(|(task, _)| *task);
    commands.into_iter().for_each(|(task, command)| servers.spawn(task, command));
    tasks.into_iter().for_each(|task| servers.wait_until_serving(task));

    // All tasks take part, so all of them are of the same cluster.
    let mut g = GraphBuilder::new("sum");
    let devices = ["/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"];
    let ones = devices.map(|device| g.device(device, |g| g.value(1.0f32)));
    let sum = g.add_n(&ones);
    let graph = g.finish_session().unwrap();
    for task in ["worker/2", "ps/0"] {
        let fetched = servers.session(task).run(&graph, &[], &[sum]).unwrap();
        assert_eq!(fetched[0].f32s().unwrap(), [4.0]);
    }
}

#[test]
fn two_tasks_of_one_job_run_one_graph() {
    let servers = Servers::start(&[("local", 2)], &[]);
    let session = servers.session("local/0");
    let described = session.describe().unwrap();
    let tasks: Vec<String> = described.tasks.iter().map(|task| task.task.to_string()).collect();
    assert_eq!(tasks, ["local/0", "local/1"]);

    let mut g = GraphBuilder::new("both");
    let one = g.device("/job:local/task:0", |g| g.value([1.0f32, 2.0]));
    let product = g.device("/job:local/task:1", |g| {
        let three = g.value(3.0f32);
        g.mul(one, three)
    });
    let graph = g.finish_session().unwrap();
    assert_eq!(session.run(&graph, &[], &[product]).unwrap()[0].f32s().unwrap(), [3.0, 6.0]);
    let placement = session.placement(&graph).unwrap();
    assert_eq!(placement[one.index()], "/job:local/task:0/device:CPU:0");
    assert_eq!(placement[product.index()], "/job:local/task:1/device:CPU:0");

    let shown = Program::run(servers.dir(), "tool", tool().args(["session", &servers.target("local/1")]));
    let out = shown.expect(0).out;
    for device in ["/job:local/task:0/device:CPU:0", "/job:local/task:1/device:CPU:0"] {
        assert!(out.contains(device), "{out}");
    }
}

#[test]
fn a_closed_port_is_told_as_refused() {
    let servers = Servers::prepare(&[("local", 1)], &[]);
    let connect_timeout = Duration::from_millis(300);
    let options = SessionOptions { connect_timeout, ..SessionOptions::default() };
    let error =
        Session::connect_with(&servers.target("local/0"), options).expect_err("no server").to_string();
    let address = servers.address("local/0");
    assert!(error.starts_with(&format!("no server at {address} answered in time: ")), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
}

#[test]
fn a_second_server_on_a_port_is_refused() {
    let servers = Servers::start(&[("local", 1)], &[]);
    let mut command = servers.command(TaskId::new("local".parse().unwrap(), 0));
    let ended = Program::start(servers.dir(), "second", &mut command).wait_within(PATIENCE).expect_failure();
    let expected = format!("error: local/0: address {} is already in use", servers.address("local/0"));
    assert_eq!(ended.last_line(), expected);
}

#[test]
fn a_member_of_another_cluster_is_refused() {
    let mut servers = Servers::prepare(&[("worker", 2)], &[]);
    let other = Servers::prepare(&[("worker", 1)], &[]);
    let [first, second] = [TaskId::worker(0), TaskId::worker(1)];
    let mut stranger = crate::harness::server();
    let cluster =
        format!("--cluster-spec=worker|{};{}", other.address("worker/0"), servers.address("worker/1"));
    stranger.args([&cluster, "--job-name=worker", "--task-index=1"]);
    servers.spawn(first, servers.command(first));
    servers.spawn(second, stranger);
    [first, second].into_iter().for_each(|task| servers.wait_until_serving(task));

    let mut g = GraphBuilder::new("far");
    let far = g.device("/job:worker/task:1", |g| g.value(1.0f32));
    let graph = g.finish_session().unwrap();
    let error = servers.session("worker/0").run(&graph, &[], &[far]).unwrap_err().to_string();
    assert!(error.contains("worker/1 refused this task: worker/1 has another cluster spec"), "{error}");
    assert!(!error.contains('\n'), "{error}");

    let mut g = GraphBuilder::new("near");
    let two = g.device("/job:worker/task:0", |g| g.value(2.0f32));
    let graph = g.finish_session().unwrap();
    let fetched = servers.session("worker/0").run(&graph, &[], &[two]).unwrap();
    assert_eq!(fetched[0].f32s().unwrap(), [2.0]);
}
