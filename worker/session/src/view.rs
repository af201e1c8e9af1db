//! A view of a server for observers. Reading it delays no request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use pushpull_messages::observe::{Observed, RoleSnapshot, SessionSnapshot, TaskSnapshot, TaskState};
use pushpull_transport::ServerObserver;

use crate::state::State;

/// A view of a server. It can be read even after the server has ended.
pub struct SessionView {
    pub(crate) state: Arc<State>,
    pub(crate) server: ServerObserver,
}

#[async_trait]
impl Observed for SessionView {
    async fn observe(&self) -> TaskSnapshot {
        let State { runs, graphs, variables, meter, identity, .. } = &*self.state;
        let (variable_bytes, variable_bytes_max) = variables.bytes();
        let snapshot = SessionSnapshot {
            server: self.server.snapshot(),
            completed: meter.completed.load(Ordering::Relaxed),
            failed: meter.failed.load(Ordering::Relaxed),
            running: runs.count() as u64,
            took: meter.took.snapshot(),
            graphs: graphs.count() as u64,
            variable_bytes,
            variable_bytes_max,
        };
        TaskSnapshot {
            task: identity.task,
            incarnation: identity.incarnation,
            state: if runs.is_draining() { TaskState::Stopping } else { TaskState::Ready },
            actors: Vec::new(),
            role: RoleSnapshot::Session(Box::new(snapshot)),
        }
    }
}
