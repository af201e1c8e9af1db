//! Tests that a task that delays the others is named: in the page's data, in a metric, and by `pushpull
//! top`.

use serde_json::Value;

use crate::browser::Browser;
use crate::harness::{Cluster, ENDLESS, Endpoint, Job, PATIENCE, Program, Running, Slowed, tool, wait_until};

fn found(job: &Value, kind: &str, name: &str) -> bool {
    job["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .any(|finding| finding["kind"] == kind && finding["name"] == name)
}

/// Returns one frame of `pushpull top`.
fn top(running: &Running, chief: &Endpoint) -> String {
    let mut command = tool();
    command.args(["top", "--once", "--chief", &chief.0]);
    Program::run(running.cluster.dir(), "top", &mut command).expect(0).out
}

#[test]
fn a_slow_worker_and_an_overloaded_shard_are_named() {
    // With this batch size and width a step takes several milliseconds, so that no task is slow by chance.
    // Each shard has two of the four layers.
    let cluster = Cluster::with(1, 2, 3, |dir| Job::with(dir, ENDLESS, &["--width=512"]));
    cluster.job.edit(|job| job["batch_size"] = 256.into());
    let mut running = Running::of(cluster, &["--lost-after-s=60"]);
    running.wait_for_version(50);
    let chief = Endpoint::of(&mut running.chief);
    let mut browser = Browser::find("that the page names who is slow");
    if let Some(browser) = &mut browser {
        browser.open(&format!("http://{}/", chief.0));
    }
    for (kind, name, says) in
        [("slow_worker", "worker/1", "slow"), ("overloaded_shard", "ps/1/shard/0", "overloaded")]
    {
        let slowed = Slowed::new(match kind {
            "slow_worker" => &running.workers[1],
            _ => &running.ps[1],
        });
        wait_until(&format!("{kind} {name}"), PATIENCE, || {
            found(&chief.json("/job"), kind, name).then_some(())
        });
        let named = wait_until("the metric", PATIENCE, || {
            chief.metrics().sum("pushpull_bottleneck", &[("kind", kind), ("name", name)])
        });
        assert_eq!(named, 1.0);
        wait_until("pushpull top", PATIENCE, || {
            top(&running, &chief).contains(&format!("! {name} is {says}: ")).then_some(())
        });
        if let Some(browser) = &mut browser {
            let shown = format!("document.querySelector('#findings').textContent.includes('{name}')");
            browser.wait_for(&shown, PATIENCE);
        }
        drop(slowed);
        wait_until(&format!("{name} to be forgiven"), PATIENCE, || {
            (!found(&chief.json("/job"), kind, name)).then_some(())
        });
    }
    running.chief.wait_for(
        "slow worker; check its host, or give all workers the same batch size and device worker=worker/1 ",
    );
    running.chief.wait_for("shards, or the placement greedy_load_balancing shard=ps/1/shard/0 ");
    running.kill_all();
}
