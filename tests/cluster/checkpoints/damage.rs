//! Tests with damaged or missing checkpoint files, a full disk and a read-only directory. The error names
//! the problem; if an older checkpoint is valid, the job resumes from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Program, Running, linear_regression};

use super::{directory, saving, steps};

/// Runs a job that saves checkpoints, to its end. Returns the job, the directory of checkpoints, and the
/// steps of the last three checkpoints, the newest first.
fn saved() -> (Running, PathBuf, [u64; 3]) {
    let mut running = Running::of(saving(2, 1, 600, &[], &["--save-steps=100"]), &[]);
    running.end_well_without(&[]);
    let directory = directory(running.cluster.dir());
    let steps = steps(&directory);
    let Some(&[third, second, newest]) = steps.last_chunk() else { panic!("only {steps:?}") };
    assert_eq!(newest, 600);
    (running, directory, [newest, second, third])
}

/// Returns the folder of the checkpoint of this step.
fn folder(directory: &Path, step: u64) -> PathBuf {
    let found = fs::read_dir(directory).expect("it is there").map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("step-{step}-")))
    };
    found.into_iter().find(named).expect("a checkpoint of that step")
}

fn change(file: &Path) {
    let mut bytes = fs::read(file).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(file, bytes).expect("it can be written");
}

#[test]
fn a_broken_checkpoint_is_named_and_the_one_before_it_is_used() {
    let (running, directory, [newest, second, third]) = saved();
    change(&folder(&directory, newest).join("ps-1-shard-0.safetensors"));
    fs::write(folder(&directory, second).join("manifest.json"), "{").expect("it can be written");
    let mut running = running.all_again();
    running.chief.wait_for(&format!("restored step-{third}-"));
    let said = running.chief.err();
    for words in ["ps-1-shard-0.safetensors", "manifest"] {
        assert!(said.contains(words), "{words} in {said}");
    }
    assert_eq!(running.end_well_without(&[]).count("began"), third);
}

#[test]
fn a_broken_latest_is_refused_and_a_valid_one_named() {
    let (mut running, directory, [newest, second, _]) = saved();
    fs::remove_file(folder(&directory, newest).join("ps-0-shard-0.safetensors")).expect("it was there");
    fs::remove_file(running.cluster.report_path()).expect("it was there");
    running.cluster.chief_flags.push("--restore=latest".into());
    let mut running = running.all_again();
    for ended in running.fail_without(&[]) {
        assert!(ended.last_line().contains("ps-0-shard-0.safetensors"), "{}", ended.err);
        assert!(ended.last_line().contains(&format!("step-{second}-")), "{}", ended.err);
    }
}

#[test]
fn a_job_with_only_broken_checkpoints_does_not_start_anew() {
    let (running, directory, _) = saved();
    for step in steps(&directory) {
        fs::write(folder(&directory, step).join("manifest.json"), "").expect("it can be written");
    }
    fs::remove_file(running.cluster.report_path()).expect("it was there");
    let mut running = running.all_again();
    running.fail_without(&[]);
    assert!(running.chief.err().contains("--restore"), "{}", running.chief.err());
}

#[test]
fn another_model_is_refused_with_the_first_difference() {
    let (_running, directory, _) = saved();
    let mut cluster = saving(1, 1, 600, &["--model=cnn"], &[]);
    cluster.chief_flags = vec![format!("--checkpoint-dir={}", directory.display())];
    let mut other = Running::of(cluster, &[]);
    for ended in other.fail_without(&[]) {
        assert!(ended.last_line().contains("--warm-start"), "{}", ended.err);
    }
}

/// Runs a program in a mount namespace of its own, in which the command `mount` has mounted a small file
/// system. Returns `None` if this system does not allow that.
fn on_small_disk(dir: &Path, mount: &str, command: &Command) -> Option<Program> {
    let own = ["--user", "--map-root-user", "--mount"];
    let allowed = Command::new("unshare").args(own).args(["sh", "-c", "mount -t tmpfs none /mnt"]).output();
    if !allowed.is_ok_and(|tried| tried.status.success()) {
        eprintln!("!!! SKIPPED: no mount namespace can be made here. A full disk is NOT tested. !!!");
        return None;
    }
    let mut inside = Command::new("unshare");
    inside.args(own).args(["sh", "-c", &format!("{mount} && exec \"$0\" \"$@\"")]);
    inside.arg(command.get_program()).args(command.get_args());
    Some(Program::start(dir, "small", &mut inside))
}

#[test]
fn a_disk_that_is_full_keeps_nobody_from_training() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).expect("the test's directory can be written");
    let mut command = linear_regression();
    // The disk has room for several checkpoints, but not for 50.
    command.args(["--steps=20000", "--batch-size=2", "--save-steps=10", "--keep-checkpoints=50"]);
    command.arg(format!("--checkpoint-dir={}", disk.display())).arg("--last-save-timeout-s=5");
    let mount = format!("mount -t tmpfs -o size=60k none {}", disk.display());
    let Some(mut program) = on_small_disk(dir.path(), &mount, &command) else { return };
    let ended = program.wait().expect(1);
    let last = "error: the job was trained, but its last step was not saved: ";
    assert!(ended.last_line().starts_with(last), "{}", ended.err);
    assert!(ended.err.contains("No space left on device"), "{}", ended.err);
    assert!(ended.err.contains("the newest checkpoint is step-"), "{}", ended.err);
}

#[test]
fn a_directory_that_cannot_be_written_is_told_at_the_start() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).expect("the test's directory can be written");
    let mut command = linear_regression();
    command.args(["--steps=40"]).arg(format!("--checkpoint-dir={}", disk.display()));
    let mount = format!("mount -t tmpfs -o ro,size=60k none {}", disk.display());
    let Some(mut program) = on_small_disk(dir.path(), &mount, &command) else { return };
    let ended = program.wait().expect(1);
    assert!(ended.last_line().contains("Read-only file system"), "{}", ended.err);
}
