//! Runs this task's parts of a run that another task leads, and takes the values that other tasks send.

use std::collections::BTreeMap;
use std::sync::Arc;

use pushpull_messages::message::{RunPart, Transfer};
use pushpull_transport::Peer;
use pushpull_transport::buffer::Payload;

use crate::error::SessionError;
use crate::lead::{DECODED_AT_ONCE_MAX, hold, plan, send_all};
use crate::parts::run_parts;
use crate::payload::tensors_of;
use crate::plan::Signature;
use crate::run::Run;
use crate::runs::{Registered, Requester};
use crate::state::State;
use crate::threads::blocking;

/// Checks and registers a request to run this task's parts of a run, while the connection of the leading task
/// is open.
///
/// # Errors
/// If the peer does not lead the run, or the task cannot begin it.
pub(crate) fn register(
    state: &Arc<State>,
    peer: &Peer,
    request: &RunPart,
) -> Result<Registered, SessionError> {
    if (request.run.task, request.run.incarnation) != (peer.task, peer.incarnation) {
        let reason = format!("{} leads no run of {}", peer.task, request.run.task);
        return Err(SessionError::Malformed(reason));
    }
    let requester = Requester { connection: peer.connection, number: None };
    state.runs.register(requester, request.run)
}

/// Runs this task's parts of a run.
///
/// # Errors
/// If the run cannot begin, or fails here or elsewhere.
pub(crate) async fn follow(
    state: &Arc<State>,
    peer: &Peer,
    registered: &Registered,
    request: RunPart,
) -> Result<(), SessionError> {
    let graph = state.graphs.get(peer.connection, request.graph)?;
    let RunPart { feeds, fetches, targets, .. } = request;
    let (control, signature) = (&registered.control, Signature { feeds, fetches, targets });
    let plan = control.unless_failed(plan(state, &graph, &signature)).await??;
    let held = hold(state, &graph, &plan)?;
    let identity = (registered.key, Arc::clone(control));
    let (run, outgoing) = Run::new(state.site(), identity, graph, plan, BTreeMap::new(), held);
    let run = registered.begin(run);
    let parts = async {
        let result = run_parts(&run).await;
        run.close();
        result
    };
    let all = async { tokio::join!(parts, send_all(state, &run, outgoing)).0 };
    control.unless_failed(all).await??;
    Ok(control.check()?)
}

/// Stores a value for a part of this task. If its run has not begun yet, waits a while.
///
/// # Errors
/// If the run has ended, does not begin in time, or reads no such value.
pub(crate) async fn arrive(state: &State, request: Transfer, payload: Payload) -> Result<(), SessionError> {
    let run = state.runs.wait(&request.run).await?;
    let large = payload.bytes() as u64 > DECODED_AT_ONCE_MAX;
    let Transfer { tensor, part, value: key, .. } = request;
    run.expects(part, key, &tensor).map_err(SessionError::Malformed)?;
    let decode = move || -> Result<_, SessionError> {
        let values = tensors_of([&tensor], &payload)?;
        Ok(values.into_iter().next().expect("a transfer has one segment"))
    };
    // A run in progress waits for the value, so this needs no permit of those who plan.
    let value = match large {
        true => blocking(decode).await.expect("decoding never panics"),
        false => decode(),
    };
    let value = value?;
    run.arrive(part, key, value).map_err(SessionError::Malformed)
}
