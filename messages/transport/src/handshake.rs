//! The rules of the handshake: which tasks may talk to each other.

use pushpull_identity::{ClientRole, Proven};
use pushpull_messages::cluster::{ClusterSpec, TASKS_PER_JOB_MAX};
use pushpull_messages::excerpt::excerpt;
use pushpull_messages::id::{Incarnation, JobName, TaskId};
use pushpull_messages::message::{Hello, PROTOCOL, Refusal, RefusalCode};

use crate::wire::WireError;

/// The largest number of characters that an error quotes from a cluster spec.
const CLUSTER_CHARS_MAX: usize = 1000;

/// The reason why a peer is not admitted.
#[derive(Clone, Debug)]
pub(crate) struct Rejection {
    /// What the peer is told.
    pub refusal: Refusal,
    /// What this task logs.
    pub details: String,
}

impl From<Refusal> for Rejection {
    /// Returns a rejection that hides nothing: the peer is told the same reason that this task logs.
    fn from(refusal: Refusal) -> Self {
        Self { details: refusal.to_string(), refusal }
    }
}

/// The identity of a task, which it sends to every peer.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The id of the task: its role and index.
    pub task: TaskId,
    /// The incarnation of the task. Each start of the task has a new one, taken from the clock.
    pub incarnation: Incarnation,
    /// The cluster spec with which the task was started.
    pub cluster: ClusterSpec,
    /// The digest of the graph that the task was started with, if any.
    pub graph: Option<u32>,
    /// The address of the task's HTTP server, which shows the task's state, as `host:port`; `None` if the
    /// task has no HTTP server.
    pub http: Option<String>,
    /// A random number, which distinguishes two starts of the task that have the same incarnation because
    /// their clocks showed the same time. 0 if the task has no such number.
    pub nonce: u64,
}

impl Identity {
    /// Returns the first message that this task sends to `to` after dialling it.
    pub fn hello(&self, to: TaskId) -> Hello {
        Hello {
            protocol: PROTOCOL,
            task: self.task,
            incarnation: self.incarnation,
            to: Some(to),
            cluster: Some(self.cluster.clone()),
            graph: self.graph,
            http: self.http.clone(),
            nonce: self.nonce,
        }
    }

    /// Checks whether the peer that sent `hello` belongs to this cluster, or is a guest of a task that admits
    /// `guests`.
    ///
    /// # Errors
    /// Rejects a guest if `guests` is false, or if it claims to be a task. Rejects a peer that has another
    /// protocol version, cluster spec or graph, that dialled another task, or that is not in the cluster
    /// spec. Only a peer with the same cluster spec is told how it differs from this task. Any other peer
    /// may be a stranger: it is told only that the protocol versions or the cluster specs differ.
    pub(crate) fn admit(&self, hello: &Hello, guests: bool) -> Result<(), Rejection> {
        let mismatch = |reason: String| Err(Refusal::new(RefusalCode::Mismatch, reason).into());
        let (me, peer) = (self.task, hello.task);
        if hello.protocol != PROTOCOL {
            // This peer may be a stranger, so it is told only the two protocol versions.
            let (expected, got) = (PROTOCOL, hello.protocol);
            let error = WireError::Version { expected, got };
            return Err(Refusal::new(RefusalCode::Protocol, error).into());
        }
        let Some((to, cluster)) = hello.membership() else {
            return Ok(self.admit_guest(peer, guests)?);
        };
        if let Some(difference) = self.cluster.difference(cluster) {
            let details = format!("the cluster specs of {me} (here) and {peer} (there) differ: {difference}");
            return Err(Rejection { refusal: Self::other_cluster(), details });
        }
        if to != me {
            return mismatch(format!("{peer} dialled {to}, but reached {me}"));
        }
        // A worker that the cluster does not list may join if the chief lets it.
        let may_join = peer.job == JobName::Worker && (peer.index as usize) < TASKS_PER_JOB_MAX;
        let known = self.cluster.reached_at(peer).is_some() || peer == TaskId::CHIEF || may_join;
        if !known {
            return mismatch(format!("{peer} is not in the cluster spec"));
        }
        match (self.graph, hello.graph) {
            (Some(mine), Some(theirs)) if mine != theirs => mismatch(format!(
                "the graphs of {me} ({mine:08x}) and {peer} ({theirs:08x}) differ; start every task with the same model and flags"
            )),
            _ => Ok(()),
        }
    }

    /// Checks whether a guest with this id may connect. A guest may be a stranger, so it is told nothing
    /// about the cluster.
    fn admit_guest(&self, peer: TaskId, guests: bool) -> Result<(), Refusal> {
        let mismatch = |reason: String| Err(Refusal::new(RefusalCode::Mismatch, reason));
        if !guests {
            return mismatch("this task serves no clients: connect to a pushpull-server".to_owned());
        }
        if peer.job != JobName::CLIENT || self.cluster.address(peer).is_some() {
            return mismatch(format!(
                "a client has the task {peer}, expected client/N with a random number N"
            ));
        }
        Ok(())
    }

    /// Returns the refusal that is sent to a peer with another cluster spec. The peer may be a stranger, so
    /// the refusal reveals nothing about the cluster.
    pub(crate) fn other_cluster() -> Refusal {
        Refusal::new(RefusalCode::Cluster, "this task has another cluster spec than the task that dialled it")
    }

    /// Returns the refusal that this task has received from `to`, in a form for the user of this task. If the
    /// cluster specs differ, `to` does not say how they differ. The returned reason then quotes the spec of
    /// this task.
    pub(crate) fn explain(&self, to: TaskId, refusal: Refusal) -> Refusal {
        if refusal.code != RefusalCode::Cluster {
            return refusal;
        }
        let (me, own) = (self.task, excerpt(&self.cluster.to_flag(), CLUSTER_CHARS_MAX));
        let reason = format!(
            "{to} has another cluster spec than {me}, which has '{own}'; start every task with the same one: \
             the log of {to} says how the two differ"
        );
        Refusal::new(RefusalCode::Cluster, reason)
    }
}

/// Checks that a peer is what its hello claims: the task `claimed` or, if `guest` is true, a client program.
/// `proven` is `None` if the link needs no proof.
///
/// # Errors
/// Rejects a peer that claims to be another task, or a task although it is a client. It is told only that.
pub(crate) fn proves(claimed: TaskId, guest: bool, proven: Option<&Proven>) -> Result<(), Rejection> {
    let (reason, details) = match proven {
        None => return Ok(()),
        Some(Proven::Client(_)) if guest => return Ok(()),
        Some(Proven::Tasks(tasks)) if !guest && tasks.contains(&claimed) => return Ok(()),
        Some(Proven::Tasks(tasks)) => {
            let names: Vec<String> = tasks.iter().map(ToString::to_string).collect();
            let details = format!("{claimed} connected with the certificate of {}", names.join(" and "));
            (format!("the certificate of this connection is not that of {claimed}"), details)
        }
        Some(Proven::Client(role)) => {
            let details = format!("{claimed} connected as a client with the role {role}");
            (format!("this connection proves a client only, and not {claimed}"), details)
        }
    };
    Err(Rejection { refusal: Refusal::new(RefusalCode::Mismatch, reason), details })
}

/// Returns what a guest may do. Without TLS, everybody who reaches the server may do everything.
pub(crate) const fn role_of(proven: Option<&Proven>) -> ClientRole {
    match proven {
        Some(Proven::Client(role)) => *role,
        Some(Proven::Tasks(_)) | None => ClientRole::Run,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Guest;

    fn identity(task: TaskId, workers: &[&str]) -> Identity {
        let jobs = [(JobName::Ps, vec!["p:1"]), (JobName::Worker, workers.to_vec())];
        let cluster = ClusterSpec::new(jobs).unwrap();
        Identity { task, incarnation: Incarnation(1), cluster, graph: None, http: None, nonce: 0 }
    }

    #[test]
    fn only_the_log_says_how_two_clusters_differ() {
        let ps = identity(TaskId::ps(0), &["w:1", "w:2"]);
        let worker = identity(TaskId::worker(0), &["w:1", "w:3"]);
        let Rejection { refusal, details } = ps.admit(&worker.hello(TaskId::ps(0)), true).unwrap_err();
        assert_eq!(
            details,
            "the cluster specs of ps/0 (here) and worker/0 (there) differ: worker/1 is 'w:2' here and 'w:3' there"
        );
        assert_eq!(refusal, Identity::other_cluster());
        let told = worker.explain(TaskId::ps(0), refusal);
        assert!(told.reason.contains("'ps|p:1,worker|w:1;w:3'"), "{told}");
        let newer = Hello { protocol: 99, ..worker.hello(TaskId::ps(0)) };
        let Rejection { refusal, .. } = ps.admit(&newer, true).unwrap_err();
        let expected = format!("the peer speaks protocol version 99, and this task speaks {PROTOCOL}");
        assert_eq!((refusal.code, refusal.reason), (RefusalCode::Protocol, expected));
    }

    #[test]
    fn a_certificate_is_that_of_the_task_that_says_hello() {
        let [ps, worker] = [TaskId::ps(0), TaskId::worker(0)];
        for tasks in [None, Some(vec![worker]), Some(vec![ps, worker])] {
            proves(worker, false, tasks.map(Proven::Tasks).as_ref()).unwrap();
        }
        let other = Proven::Tasks(vec![ps, TaskId::worker(1)]);
        let Rejection { refusal, details } = proves(worker, false, Some(&other)).unwrap_err();
        assert_eq!(details, "worker/0 connected with the certificate of ps/0 and worker/1");
        assert_eq!(refusal.reason, "the certificate of this connection is not that of worker/0");
    }

    #[test]
    fn a_client_string_makes_a_guest_and_no_task() {
        let guest = Guest { index: 7, incarnation: Incarnation(1), nonce: 0 }.task();
        for role in ClientRole::ALL {
            let client = Proven::Client(role);
            proves(guest, true, Some(&client)).unwrap();
            assert_eq!(role_of(Some(&client)), role);
            let Rejection { refusal, details } = proves(TaskId::ps(0), false, Some(&client)).unwrap_err();
            assert_eq!(refusal.reason, "this connection proves a client only, and not ps/0");
            assert_eq!(details, format!("ps/0 connected as a client with the role {role}"));
        }
        assert_eq!(role_of(None), ClientRole::Run);
        // Not even a guest whose id is in the certificate.
        for tasks in [vec![TaskId::ps(0)], vec![guest]] {
            assert!(proves(guest, true, Some(&Proven::Tasks(tasks))).is_err());
        }
    }

    #[test]
    fn a_guest_must_be_wanted_and_must_not_claim_a_task() {
        let mut server = identity(TaskId::ps(0), &["w:1"]);
        let jobs = [(JobName::Ps, vec!["p:1"]), (JobName::CLIENT, vec!["c:1"])];
        server.cluster = ClusterSpec::new(jobs).unwrap();
        let guest = Guest { index: 7, incarnation: Incarnation(1), nonce: 0 };
        server.admit(&guest.hello(), true).unwrap();
        let refused = |hello: &Hello, guests| {
            let Rejection { refusal, details } = server.admit(hello, guests).unwrap_err();
            assert_eq!((refusal.code, &details), (RefusalCode::Mismatch, &refusal.to_string()));
            refusal.reason
        };
        let unwanted = refused(&guest.hello(), false);
        assert_eq!(unwanted, "this task serves no clients: connect to a pushpull-server");
        for claimed in [TaskId::ps(0), TaskId::CHIEF, TaskId::worker(9), TaskId::new(JobName::CLIENT, 0)] {
            let error = refused(&Hello { task: claimed, ..guest.hello() }, true);
            assert!(
                error.contains(&format!("a client has the task {claimed}, expected client/N")),
                "{error}"
            );
        }
        let newer = Hello { protocol: 99, ..guest.hello() };
        assert_eq!(server.admit(&newer, true).unwrap_err().refusal.code, RefusalCode::Protocol);
    }

    #[test]
    fn a_member_is_told_how_it_differs() {
        let ps = Identity { graph: Some(1), ..identity(TaskId::ps(0), &["w:1"]) };
        let worker = identity(TaskId::worker(0), &["w:1"]);
        let differs = |worker: Identity, to| {
            let Rejection { refusal, details } = ps.admit(&worker.hello(to), true).unwrap_err();
            assert_eq!(refusal.reason, details);
            assert_eq!(worker.explain(TaskId::ps(0), refusal.clone()), refusal);
            details
        };
        let graph = differs(Identity { graph: Some(2), ..worker.clone() }, TaskId::ps(0));
        assert!(graph.contains("(00000001) and worker/0 (00000002) differ"), "{graph}");
        assert!(differs(worker, TaskId::CHIEF).contains("dialled chief/0, but reached ps/0"));
    }
}
