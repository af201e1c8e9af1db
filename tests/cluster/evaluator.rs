//! Tests of the evaluator as a separate process, with checkpoints that were made by the tool.

use std::path::Path;

use pushpull_messages::id::JobName;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Job, Program, role, tool, wait_until, write_model};

const LAST_STEP: u64 = 10;

fn save(dir: &Path, step: u64) -> String {
    let mut command = tool();
    command.current_dir(dir).args(["checkpoint", "import", "model.safetensors", "saves", "--job=job.json"]);
    let imported = Program::run(dir, "import", command.arg(format!("--step={step}"))).expect(0);
    imported.out.trim().to_owned()
}

fn prepare(dir: &Path) {
    Job::new(dir, LAST_STEP).edit(|job| write_model(&dir.join("model.safetensors"), job, 0.0));
}

fn evaluator(dir: &Path) -> Program {
    let mut command = role(JobName::Evaluator);
    command.current_dir(dir).args(["--checkpoint-dir=saves", "--poll-every-ms=20", "--devices=2"]);
    Program::start(dir, "evaluator", &mut command)
}

#[test]
fn the_evaluator_skips_broken_checkpoints_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let mut evaluator = evaluator(dir.path());
    evaluator.wait_for("waiting for checkpoints in ");
    let first = save(dir.path(), 3);
    let record = wait_until("a record", crate::harness::PATIENCE, || {
        let text = std::fs::read_to_string(dir.path().join(format!("saves/eval/{first}.json"))).ok()?;
        serde_json::from_str::<Value>(&text).ok()
    });
    // All logits are 0, so all ten classes have the same probability.
    let loss = record["loss"].as_f64().unwrap();
    assert!((loss - 10f64.ln()).abs() < 1e-4, "{record}");
    assert_eq!((&record["step"], &record["examples"]), (&3.into(), &500.into()));
    evaluator.wait_for("step 3 is the best so far: accuracy ");
    let broken = dir.path().join("saves/step-5-0000000000000001");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("manifest.json"), "{}").unwrap();
    evaluator.wait_for("WARN evaluator/0: skipped step-5-0000000000000001: ");
    let last = save(dir.path(), LAST_STEP);
    evaluator.wait().expect(0).says("evaluated the checkpoint of the job's last step");
    assert!(dir.path().join(format!("saves/eval/{last}.json")).exists());
    // The two checkpoints are equally good, and the first one is kept.
    assert!(dir.path().join(format!("saves/best/{first}/manifest.json")).exists());
    let listed = Program::run(
        dir.path(),
        "list",
        tool().current_dir(dir.path()).args(["checkpoint", "list", "saves/best"]),
    );
    let listed = listed.expect(0).out;
    assert!(listed.lines().count() == 2 && listed.trim_end().ends_with("complete"), "{listed}");
}

#[test]
fn a_signal_ends_it_in_good_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let mut evaluator = evaluator(dir.path());
        evaluator.wait_for("waiting for checkpoints in ");
        evaluator.signal(signal);
        evaluator.wait().expect(0).says("interrupted");
    }
}
