//! Tests of the examples with real servers.

use crate::harness::{Program, Servers, example_called};

/// Returns what a line of the program says, for example the loss.
#[track_caller]
fn said<'a>(out: &'a str, what: &str) -> &'a str {
    let line = out.lines().find_map(|line| line.strip_prefix(what));
    line.unwrap_or_else(|| panic!("no '{what}' in {out}")).trim()
}

#[track_caller]
fn run(servers: &Servers, name: &str, flags: &[&str]) -> String {
    let mut command = example_called(name);
    Program::run(servers.dir(), name, command.args(flags)).expect(0).out
}

#[test]
fn copies_within_one_graph_learn_digits() {
    let servers = Servers::start(&[("ps", 2), ("worker", 2)], &[]);
    let target = servers.target("worker/0");
    for average in [&[][..], &["--average"]] {
        let flags = [&["--steps=150", "--target", &target], average].concat();
        let out = run(&servers, "in_graph", &flags);
        assert_eq!(said(&out, "copies"), "2, variables on 2 ps tasks");
        let number = |what| said(&out, what).trim_end_matches(" %").parse::<f32>().expect("a number");
        assert!(number("loss after") < 0.3 * number("loss before"), "{out}");
        assert!(number("test accuracy") > 85.0, "{out}");
    }
}

#[test]
fn several_devices_of_one_task_train_towers() {
    let servers = Servers::start(&[("ps", 1), ("worker", 3)], &["--devices=2"]);
    let out = run(&servers, "in_graph", &["--steps=50", "--average", "--target", &servers.target("ps/0")]);
    assert_eq!(said(&out, "copies"), "3, variables on 1 ps tasks");
    assert!(servers.session("ps/0").describe().unwrap().tasks.iter().all(|task| task.cpus == 2));
}

#[test]
fn a_model_too_large_for_one_task_is_cut_over_two() {
    let servers = Servers::start(&[("worker", 2)], &["--memory-limit=1"]);
    let out = run(&servers, "model_parallel", &["--steps=60", "--target", &servers.target("worker/1")]);
    let refused = said(&out, "one task");
    assert!(
        refused.contains("variable 'layer2/kernel' needs") && refused.contains("--memory-limit"),
        "{out}"
    );
    let [before, after] = said(&out, "loss").split_once(" before, ").map(<[&str; 2]>::from).expect("two");
    let loss = |text: &str| text.trim_end_matches(" after").parse::<f32>().expect("a number");
    assert!(loss(after) < 0.5 * loss(before), "{out}");
    assert!(said(&out, "worker/0").ends_with("of 1024 KiB: layer1/bias, layer1/kernel"), "{out}");
    let second = "of 1024 KiB: layer2/bias, layer2/kernel, layer3/bias, layer3/kernel";
    assert!(said(&out, "worker/1").ends_with(second), "{out}");
}
