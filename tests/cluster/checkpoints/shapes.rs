//! Tests that a checkpoint can be restored with any number of ps tasks and any partitioner. Every bit is the
//! same, and training continues as without the interruption.

use std::path::Path;

use pushpull_storage::Store;

use crate::harness::{Program, Running, tool};

use super::{deterministic, directory, undisturbed, wait_for_save};

/// Exports a checkpoint, by default the newest one, with the tool, and returns the bytes of the file.
fn exported(dir: &Path, name: &str, flags: &[&str]) -> Vec<u8> {
    let file = dir.join(name);
    let mut command = tool();
    command.args(["checkpoint", "export"]).arg(directory(dir)).arg(&file).args(flags);
    Program::run(dir, "export", &mut command).expect(0);
    std::fs::read(file).expect("it was written")
}

#[test]
fn a_checkpoint_is_restored_on_any_number_of_ps_tasks() {
    const HALF: u64 = 30;
    const STEPS: u64 = 120;
    let flags = ["--ema-decay=0.9"];
    let cluster = |ps, steps, more: &[&str]| {
        let usual = ["--sync=sync", "--deterministic", "--optimizer=adam"];
        super::saving(ps, 2, steps, &[&usual[..], &flags, more].concat(), &[])
    };
    let expected = undisturbed(cluster(3, STEPS, &[]));
    // The job has the schedule of all `STEPS` steps, although it is killed after the first `HALF`.
    let mut first = cluster(3, STEPS, &["--partitioner=fixed:3"]);
    first.chief_flags.push(format!("--save-steps={HALF}"));
    let mut first = Running::of(first, &[]);
    let saved_at = wait_for_save(&mut first.chief, HALF);
    first.kill_all();
    let saved = directory(first.cluster.dir());
    let shapes = [(1, "none"), (2, "max_slice_bytes:100000"), (5, "fixed:7")].map(|(ps, how)| {
        let mut cluster = cluster(ps, STEPS, &[&format!("--partitioner={how}")]);
        let own = directory(cluster.dir());
        copy(&saved, &own);
        cluster.chief_flags.push(format!("--restore={saved_at}"));
        Running::of(cluster, &[])
    });
    for mut running in shapes {
        running.chief.wait_for(&format!("restored step-{saved_at}-"));
        let report = running.end_well_without(&[]);
        assert_eq!(report.variables_crc32c(), expected);
        assert_eq!(report.count("began"), saved_at);
    }
}

#[test]
fn resliced_and_saved_again_is_bit_equal() {
    const STEPS: u64 = 20;
    let mut first = Running::of(deterministic(3, 1, STEPS, &[]), &[]);
    first.end_well_without(&[]);
    let dir = first.cluster.dir();
    let expected = exported(dir, "model.safetensors", &[]);
    let warm = format!("--warm-start={}", directory(dir).display());
    let cluster = super::saving(2, 1, STEPS, &["--partitioner=fixed:4", "--seed=9"], &[&warm]);
    // A job with a warm start saves its initial values as the checkpoint of step 0.
    let mut second = Running::of(cluster, &[]);
    second.end_well_without(&[]);
    let got = exported(second.cluster.dir(), "again.safetensors", &["--step=0"]);
    assert_eq!(tensors(&got), tensors(&expected));
    let store = Store::open(dir.to_str().expect("a path in UTF-8")).expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let found = runtime.block_on(pushpull_storage::read_header(&store, "model.safetensors"));
    let names: Vec<String> =
        found.expect("a safetensors file").into_iter().map(|tensor| tensor.name).collect();
    assert!(names.contains(&"dense1/kernel".to_owned()), "{names:?}");
}

/// Returns the bytes of a safetensors file after its header. The header is left out, because it contains the
/// name of the checkpoint.
fn tensors(file: &[u8]) -> &[u8] {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    &file[8 + length as usize..]
}

/// Copies a directory with all its contents.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a test's directory can be written");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read").path();
        let target = to.join(entry.file_name().expect("an entry has a name"));
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            std::fs::copy(&entry, &target).expect("it can be copied");
        }
    }
}
