//! Claims the ps tasks for this run of the chief: all of them or none. Of two chiefs that claim the tasks at
//! the same time, the one that gets the first task gets all others.

use std::sync::Arc;

use futures_util::future::join_all;
use pushpull_messages::message::{Claim, Claimed, RefusalCode, Withdraw, Withdrawn};
use pushpull_transport::buffer::Payload;
use pushpull_transport::{CallError, ReconnectingClient};
use tracing::debug;

/// Returns whether a ps task refused a request because it does not obey this chief.
pub(crate) fn is_refused(error: &CallError) -> bool {
    matches!(error, CallError::Refused { refusal, .. } if refusal.code == RefusalCode::Term)
}

/// Claims the first task, and then all others at once. Withdraws the claim from all tasks if one refuses it.
///
/// # Errors
/// Returns the refusal or, if there is none, the error of the first task that could not be asked.
pub(super) async fn claim_all(callers: &[Arc<ReconnectingClient>], attempt: u64) -> Result<(), CallError> {
    let claim = async |caller: &Arc<ReconnectingClient>| {
        caller.call::<Claimed>(Claim { attempt }, Payload::EMPTY).await.map(|_| ())
    };
    let Some((first, others)) = callers.split_first() else { return Ok(()) };
    let mut claimed = vec![claim(first).await];
    if !matches!(&claimed[0], Err(error) if is_refused(error)) {
        claimed.extend(join_all(others.iter().map(claim)).await);
    }
    let mut errors: Vec<_> = claimed.into_iter().filter_map(Result::err).collect();
    if let Some(refused) = errors.iter().position(is_refused) {
        withdraw(callers, attempt).await;
        return Err(errors.swap_remove(refused));
    }
    errors.into_iter().next().map_or(Ok(()), Err)
}

/// Withdraws the claims of all attempts so far.
async fn withdraw(callers: &[Arc<ReconnectingClient>], attempt: u64) {
    let withdrawn = callers.iter().map(|caller| async move {
        let withdraw = Withdraw { attempt };
        // A task that cannot be reached drops the claim when this chief has been away for long enough.
        if let Err(error) = caller.call::<Withdrawn>(withdraw, Payload::EMPTY).await {
            debug!(task = %caller.peer(), %error, "could not withdraw the claim");
        }
    });
    join_all(withdrawn).await;
}
