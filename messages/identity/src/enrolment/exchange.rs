//! The two ends of an enrolment: a task asks, and the task with the authority grants.

use std::time::Duration;

use pushpull_messages::id::TaskId;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};

use super::message::{EnrolmentError, EnrolmentMessage};
use super::proof::{Channel, PROOF_BYTES, Side, is_same};
use crate::authority::Authority;
use crate::error::IdentityError;
use crate::join_string::JoinString;
use crate::place::Place;
use crate::provider::PUBLIC_KEY_BYTES;

/// The refusal that every task receives.
const REFUSAL: &str = "its role, its index or its join string is not one of this job";

/// What is needed in order to grant certificates.
#[derive(Clone, Copy)]
pub(crate) struct Grants<'a> {
    pub authority: &'a Authority,
    pub place: &'a Place,
    /// The time since 1970.
    pub now: Duration,
}

/// Asks for the certificate of `task`, whose process has the key `public_key`. Returns the chain.
pub(crate) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    channel: Channel,
    join: &JoinString,
    task: TaskId,
    public_key: &[u8],
) -> Result<Vec<CertificateDer<'static>>, EnrolmentError> {
    let public_key: [u8; PUBLIC_KEY_BYTES] =
        public_key.try_into().map_err(|_| EnrolmentError::Message("the key has the wrong size"))?;
    let proof = question_proof(&channel, join, task, &public_key);
    EnrolmentMessage::Ask { task, public_key, proof }.write(stream).await?;
    match EnrolmentMessage::read(stream).await? {
        EnrolmentMessage::Granted { chain, proof } => {
            let expected = channel.prove(&join.secret, Side::Authority, &chain.each_ref().map(AsRef::as_ref));
            if !is_same(&expected, &proof) {
                return Err(EnrolmentError::AuthorityProof);
            }
            Ok(chain.to_vec())
        }
        EnrolmentMessage::Refused { reason } => Err(EnrolmentError::Refused(reason)),
        _ => Err(EnrolmentError::Message("expected an answer")),
    }
}

/// Returns the proof of a question: that of the secret, for this task and this key.
fn question_proof(
    channel: &Channel,
    join: &JoinString,
    task: TaskId,
    public_key: &[u8],
) -> [u8; PROOF_BYTES] {
    let (role, index) = (task.job.as_str().as_bytes(), task.index.to_be_bytes());
    channel.prove(&join.secret, Side::Task, &[role, &index, public_key])
}

/// Answers the question of a task. Returns the tasks that the certificate names.
pub(crate) async fn grant(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    channel: Channel,
    grants: Grants<'_>,
) -> Result<Vec<TaskId>, IdentityError> {
    let question = EnrolmentMessage::read(stream).await?;
    match decide(&question, channel, grants) {
        Ok((tasks, granted)) => {
            granted.write(stream).await?;
            Ok(tasks)
        }
        Err(error) => {
            EnrolmentMessage::Refused { reason: REFUSAL.to_owned() }.write(stream).await?;
            Err(error)
        }
    }
}

fn decide(
    question: &EnrolmentMessage,
    channel: Channel,
    Grants { authority, place, now }: Grants<'_>,
) -> Result<(Vec<TaskId>, EnrolmentMessage), IdentityError> {
    let EnrolmentMessage::Ask { task, public_key, proof } = question else {
        return Err(EnrolmentError::Message("expected a question").into());
    };
    let (task, join) = (*task, authority.join());
    if !is_same(&question_proof(&channel, join, task, public_key), proof) {
        return Err(EnrolmentError::Proof(task).into());
    }
    let tasks = place.tasks_with(task).filter(|tasks| !tasks.contains(&place.authority()));
    let tasks = tasks.ok_or(EnrolmentError::NotListed(task))?;
    let chain = authority.certify(&tasks, &place.hosts_of(&tasks), public_key, now)?;
    let chain: [_; 2] =
        chain.try_into().map_err(|_| EnrolmentError::Message("a chain has two certificates"))?;
    let proof = channel.prove(&join.secret, Side::Authority, &chain.each_ref().map(AsRef::as_ref));
    Ok((tasks, EnrolmentMessage::Granted { chain, proof }))
}
