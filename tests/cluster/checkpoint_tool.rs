//! Tests of the tool `pushpull checkpoint` as a user calls it. It ends with status 0, or with status 1 and
//! one line with the reason.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Ended, Job, Program, tool, write_model};

/// A directory with a job, a model, and a checkpoint that was imported from the model.
struct Place {
    dir: tempfile::TempDir,
    name: String,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::with(dir.path(), 10, &["--optimizer=adam", "--ema-decay=0.9"]);
        job.edit(|job| write_model(&dir.path().join("model.safetensors"), job, 0.25));
        let mut place = Self { dir, name: String::new() };
        let imported = place.run(&["import", "model.safetensors", "saves", "--job=job.json"]).expect(0);
        place.name = imported.out.trim().to_owned();
        assert!(place.name.starts_with("step-0-"), "{}", place.name);
        place
    }

    fn run(&self, args: &[&str]) -> Ended {
        let mut command = tool();
        command.current_dir(self.dir.path()).arg("checkpoint").args(args);
        Program::run(self.dir.path(), "tool", &mut command)
    }

    /// Runs the tool, which must fail with one line that contains `words`, and print nothing else.
    #[track_caller]
    fn fails(&self, args: &[&str], words: &str) {
        let ended = self.run(args).expect(1).says(words);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
        assert!(ended.out.is_empty(), "{}", ended.out);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(args).expect(0).out).unwrap()
    }
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_checkpoint_is_imported_listed_shown_verified_and_exported() {
    let place = Place::new();
    let listed = place.run(&["list", "saves"]).expect(0).out;
    assert!(listed.contains(&place.name) && listed.trim_end().ends_with("complete"), "{listed}");
    let shown = place.run(&["show", "saves", "0"]).expect(0).out;
    for words in ["adam", "0 of 10", ":average", ":m ", ":v ", "ps/0/shard/0", "async"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let verified = place.run(&["verify", "saves"]).expect(0).out;
    assert!(verified.starts_with(&format!("{} is valid: 1 file(s)", place.name)), "{verified}");
    for flag in [&[][..], &["--averages"], &["--step", &place.name], &["--variables=*"]] {
        place.run(&[&["export", "saves", "again.safetensors"], flag].concat()).expect(0);
        let (first, again) = (place.path("model.safetensors"), place.path("again.safetensors"));
        let tail = |path: &Path| {
            let bytes = std::fs::read(path).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[8 + header..].to_vec()
        };
        assert!(tail(&first) == tail(&again), "{flag:?}: all values are there");
    }
    // The JSON output contains the same.
    assert_eq!(place.json(&["list", "--json", "saves"])[0]["state"], "whole");
    assert_eq!(place.json(&["show", "--json", "saves"])["manifest"]["step"], 0);
    assert_eq!(
        place.json(&["verify", "--json", &format!("file://{}", place.path("saves").display())])["whole"],
        true
    );
}

#[test]
fn a_broken_checkpoint_is_explained_and_a_valid_one_named() {
    let place = Place::new();
    place.run(&["import", "model.safetensors", "saves", "--job=job.json", "--step=7"]).expect(0);
    let later = files(&place.path("saves")).into_iter().find(|name| name.starts_with("step-7-")).unwrap();
    let file = place.path("saves").join(&later).join("ps-0-shard-0.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    // A byte of the first variable's value is changed.
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header + 5] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let broken = place.run(&["verify", "saves"]).expect(1);
    assert!(broken.out.contains("ps-0-shard-0.safetensors: tensor '"), "{}", broken.out);
    assert_eq!((broken.out.lines().count(), broken.err.lines().count()), (1, 1));
    let broken = broken
        .says(&format!("{later} is damaged, 1 fault(s); the newest valid checkpoint is {}", place.name));
    assert!(broken.err.starts_with("error: "));
    // A damaged checkpoint is not exported, and an existing file is left unchanged.
    std::fs::write(place.path("out.safetensors"), "mine").unwrap();
    place.fails(&["export", "saves", "out.safetensors"], "checksum");
    assert_eq!(std::fs::read_to_string(place.path("out.safetensors")).unwrap(), "mine");
    assert!(!files(place.dir.path()).iter().any(|name| name.contains('#')), "nothing half-written is left");
    std::fs::remove_file(&file).unwrap();
    let listed = place.run(&["list", "saves"]).expect(0).out;
    let damage = "damaged: ps-0-shard-0.safetensors is missing in saves; run `pushpull checkpoint verify`";
    assert!(listed.contains(damage), "{listed}");
}

#[test]
fn what_is_not_there_is_told_in_one_line() {
    let place = Place::new();
    place.fails(&["list", "nowhere"], "nowhere is not a directory");
    place.fails(&["show", "saves", "5"], "no finished checkpoint of step 5");
    place.fails(&["verify", "saves", "../saves"], "is not a step or a checkpoint");
    place.fails(&["export", "saves", "nowhere/x.safetensors"], "nowhere is not a directory");
    place
        .fails(&["export", "saves", "x.safetensors", "--variables=conv9/*"], "no variable matches 'conv9/*'");
    place.fails(&["import", "job.json", "saves", "--job=job.json"], "job.json is not a safetensors file");
    place.fails(&["import", "none.safetensors", "saves", "--job=job.json"], "none.safetensors is missing");
    place.fails(&["import", "model.safetensors", "saves", "--job=none.json"], "cannot read the job file");
    let later = ["import", "model.safetensors", "saves", "--job=job.json", "--step=11"];
    place.fails(&later, "step 11 is beyond the job's last step, 10");
}
