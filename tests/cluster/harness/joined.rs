//! A cluster whose tasks have a join string, and the files that hold its secrets.

use std::path::{Path, PathBuf};
use std::process::Command;

use pushpull_messages::id::TaskId;

use super::cluster::Cluster;
use super::program::{Program, tool};
use crate::secret;

/// Nothing but TCP.
pub(crate) const TCP: &str = "--transport=tcp";

/// A cluster whose tasks have a join string.
pub(crate) struct Joined {
    pub(crate) cluster: Cluster,
    /// The file of the authority.
    pub(crate) authority: PathBuf,
    /// The file of the join string.
    pub(crate) join: PathBuf,
}

impl Joined {
    #[track_caller]
    pub(crate) fn new(cluster: Cluster) -> Self {
        let (authority, join) = Self::authority(&cluster, "authority");
        Self { cluster, authority, join }
    }

    /// Makes an authority and its join string, and returns their files.
    #[track_caller]
    pub(crate) fn authority(cluster: &Cluster, name: &str) -> (PathBuf, PathBuf) {
        let [authority, join] =
            [name.to_owned(), format!("{name}-join")].map(|name| cluster.dir().join(name));
        let mut new = tool();
        new.args(["join", "new", "--authority"]).arg(&authority);
        let made = Program::run(cluster.dir(), "join", &mut new).expect(0);
        assert_eq!((made.out.lines().count(), made.err.as_str()), (1, ""), "only the join string is printed");
        write_secret(&join, &made.out);
        (authority, join)
    }

    /// Returns the command of a task that has the join string in a file.
    pub(crate) fn role(&self, task: TaskId) -> Command {
        let mut command = self.cluster.role(task);
        if task == self.cluster.spec.chief_host() {
            command.arg("--authority").arg(&self.authority);
        } else {
            command.arg("--join-file").arg(&self.join);
        }
        command
    }

    #[track_caller]
    pub(crate) fn start(&self, task: TaskId) -> Program {
        self.cluster.spawn(task, self.role(task).arg(TCP))
    }

    #[track_caller]
    pub(crate) fn start_all(&self) -> Vec<Program> {
        self.cluster.spec.tasks().map(|(task, _)| self.start(task)).collect()
    }
}

/// Writes a new file that only its owner can read.
#[track_caller]
pub(crate) fn write_secret(path: &Path, text: &str) {
    secret::write_secret(path, text).expect("the test's directory can be written");
}
