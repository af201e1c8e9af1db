//! Job files for tests. The example writes them, as for a user, and a test may then change them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::program::{Program, WIDTH, mnist};

/// A job file.
pub(crate) struct Job {
    path: PathBuf,
    pub(crate) steps: u64,
}

impl Job {
    /// Makes a job on generated digits, with small batches, `steps` steps, and additional flags of the
    /// example. The model is narrow, unless the flags contain a width.
    pub(crate) fn with(dir: &Path, steps: u64, flags: &[&str]) -> Self {
        let path = dir.join("job.json");
        let mut command = mnist();
        if !flags.iter().any(|flag| flag.starts_with("--width")) {
            command.arg(WIDTH);
        }
        command.args(["--batch-size=16", &format!("--steps={steps}")]).args(flags);
        command.arg("--export-job").arg(&path);
        Program::run(dir, "export", &mut command).expect(0);
        let job = Self { path, steps };
        // The data sets are made small, because every worker generates all examples before it begins.
        job.edit(|job| {
            for (part, examples) in [("train", 640), ("test", 500)] {
                if let Some(digits) = job["input"][part].get_mut("digits") {
                    digits["examples"] = json!(examples);
                }
            }
            // With the example's rate, 0.3, gradients that are several versions late are at the edge of
            // stability: the loss of single batches then jumps far above that of a guess.
            let late = job["sync"].as_str().is_some_and(|sync| !sync.starts_with("sync"));
            let asked = flags.iter().any(|flag| flag.starts_with("--learning-rate"));
            if let Some(sgd) = job["optimizer"].get_mut("sgd").filter(|_| late && !asked) {
                sgd["learning_rate"] = json!(0.05);
            }
        });
        job
    }

    pub(crate) fn new(dir: &Path, steps: u64) -> Self {
        Self::with(dir, steps, &[])
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the job end after this number of steps.
    pub(crate) fn end_after(&mut self, steps: u64) {
        self.edit(|job| job["last_step"] = json!(steps));
        self.steps = steps;
    }

    pub(crate) fn edit(&self, edit: impl FnOnce(&mut Value)) {
        let text = fs::read_to_string(&self.path).expect("the job file is there");
        let mut job = serde_json::from_str(&text).expect("the job file is JSON");
        edit(&mut job);
        fs::write(&self.path, job.to_string()).expect("the job file can be written");
    }
}
