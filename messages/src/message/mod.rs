//! The messages between tasks. Each request and its reply have a file of their own. The table below assigns
//! each message its kind, the number that identifies it on the wire.
//!
//! To add a message, add a file and a line in the table. Never reuse a kind for another message.

mod access_files;
mod appoint;
mod claim;
mod create_shard;
mod decoder;
mod evaluate;
mod finish;
#[cfg(test)]
mod golden;
mod heartbeat;
mod hello;
mod hold_at;
mod inspect;
mod leave;
mod observe;
mod pull;
mod push;
mod refusal;
mod register;
mod rejoin;
mod relay;
mod report;
mod save;
mod senders;
mod session;
mod set_learning_rate;
mod stage;
mod stop;
mod stop_at;
#[cfg(test)]
mod tests;
mod withdraw;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use access_files::{
    AccessFiles, FILE_PIECE_BYTES_MAX, FILES_KEPT_MAX, FileAccess, FilesAccessed, FilesResult, ListedFile,
};
pub use appoint::{Appoint, Appointed};
pub use claim::{Claim, Claimed};
pub use create_shard::{CreateShard, ShardCreated, WORKERS_MAX};
pub use evaluate::{Evaluated, Evaluation, MetricValue, StepEvaluation};
pub use finish::{Finish, Finished, TrainingResult};
pub use heartbeat::Heartbeat;
pub use hello::{Hello, PROTOCOL, Welcome};
pub use hold_at::{HoldAt, Holding};
pub use inspect::{HeldMember, HeldShard, Inspect, Inspected};
pub use leave::{Leave, Left};
pub use observe::{Observe, ShardCounters, ShardSnapshot, StalenessHistogram};
pub use pull::{Pull, PullAt, Pulled};
pub use push::{Contribution, Drafted, Push, PushId, Pushed, Verdict};
pub use refusal::{Refusal, RefusalCode};
pub use register::{Go, Ready, Register, Registered, Resume};
pub use rejoin::{Rejoin, Rejoined};
pub use relay::{JoinRoute, RelayPush, RouteJoined};
pub use report::{REPORT_EVERY_MAX, REPORT_EVERY_MIN, REPORT_NUMBERS_MAX, Report, Reported, Share};
pub use save::{Save, SaveResult, Saved};
pub use session::{
    Abort, Aborted, CONTAINER_NAME_BYTES_MAX, Cancel, Cancelled, CloseGraph, ContainerDescription, Describe,
    Described, FETCHES_MAX, Fed, GraphClosed, GraphOpened, Home, OpenGraph, PartRan, Ran, Reset, ResetDone,
    Run, RunKey, RunPart, TaskDescription, Transfer, Transferred, VARIABLES_LISTED_MAX, VariableDescription,
    decode_graph, encode_graph,
};
pub use set_learning_rate::{LearningRateSet, SetLearningRate};
pub use stage::{
    CloseStage, ComputeStage, DigestStage, FetchStageValue, OpenStage, PullStage, PushStage, ServeStage,
    StageClosed, StageComputed, StageDigests, StageOpened, StagePulled, StagePushed, StageReply, StageValue,
    StageValueFetched, StageValueKey, StageValueTaken, VALUE_SETS_MAX,
};
pub use stop::{Stop, StopReason, Stopped};
pub use stop_at::{StopAt, StoppingAt};
pub use withdraw::{Withdraw, Withdrawn};

/// The error for a message that could be decoded but breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

/// The content of a message: the header without its kind.
trait Content: Serialize + DeserializeOwned {
    /// Checks the rules that the types do not express. `segments` contains the lengths of the payload's
    /// segments, in bytes.
    fn validate(&self, segments: &[u64]) -> Result<(), Invalid> {
        no_payload(segments)
    }
}

fn no_payload(segments: &[u64]) -> Result<(), Invalid> {
    if segments.is_empty() { Ok(()) } else { Err(Invalid("got a payload, expected no payload".into())) }
}

/// Returns whether a number has its default value and is therefore not written.
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The memory that an encoded message has at first, in bytes. Most messages need no more.
const ENCODED_BYTES: usize = 256;

/// The maximum number of bytes in the reason for a failure or a refusal. The sender truncates longer
/// reasons, and the receiver refuses them.
const REASON_BYTES_MAX: usize = 8 << 10;

/// Returns `what` as the text of a reason. A text of more than [`REASON_BYTES_MAX`] bytes is truncated.
fn reason(what: impl std::fmt::Display) -> String {
    let mut text = what.to_string();
    if text.len() > REASON_BYTES_MAX {
        let cut = (0..=REASON_BYTES_MAX - 3).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

fn text_within(what: &str, text: &str, bytes_max: usize) -> Result<(), Invalid> {
    if text.len() <= bytes_max {
        Ok(())
    } else {
        Err(Invalid(format!("{what} has {} bytes, expected at most {bytes_max}", text.len())))
    }
}

/// The error for a header that is not a valid message of this protocol version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// No message has this kind.
    #[error("message kind {0} is unknown to this build: run the same version on all tasks")]
    UnknownKind(u16),
    /// The bytes are not valid MessagePack for a message of this kind.
    #[error("{kind} cannot be decoded: {error}")]
    Undecodable {
        /// The message's name.
        kind: &'static str,
        /// The decoder's error.
        error: String,
    },
    /// The message was decoded, but breaks a rule.
    #[error("{kind} is not valid: {error}")]
    Invalid {
        /// The message's name.
        kind: &'static str,
        /// The rule that is broken.
        error: Invalid,
    },
}

/// The maximum depth of nested values in a header. No valid header comes near this depth; the bound prevents
/// a stack overflow.
const DEPTH_MAX: usize = 64;

fn decode<T: Content>(kind: &'static str, bytes: &[u8], segments: &[u64]) -> Result<T, ContentError> {
    let content = decoder::from_bytes::<T>(bytes, DEPTH_MAX)
        .map_err(|error| ContentError::Undecodable { kind, error: error.to_string() })?;
    content.validate(segments).map_err(|error| ContentError::Invalid { kind, error })?;
    Ok(content)
}

macro_rules! messages {
    ($($kind:literal $name:ident: $doc:literal,)*) => {
        /// A message between two tasks.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Message {
            $(#[doc = $doc] $name(Box<$name>),)*
        }

        $(impl From<$name> for Message {
            fn from(content: $name) -> Self {
                Self::$name(Box::new(content))
            }
        }

        impl TryFrom<Message> for $name {
            type Error = Message;

            fn try_from(message: Message) -> Result<Self, Message> {
                match message {
                    Message::$name(content) => Ok(*content),
                    other => Err(other),
                }
            }
        })*

        impl Message {
            /// The kinds of all messages, in the order of the table.
            pub const KINDS: &'static [u16] = &[$($kind),*];

            /// Returns the name of the message's kind, for logs and errors.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }

            /// Returns the number of the message's kind on the wire.
            pub const fn kind(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $kind,)*
                }
            }

            /// Encodes the message, without its kind, as MessagePack with field names.
            pub fn encode(&self) -> Vec<u8> {
                let mut bytes = Vec::with_capacity(ENCODED_BYTES);
                match self {
                    $(Self::$name(content) => rmp_serde::encode::write_named(&mut bytes, content),)*
                }
                .expect("plain data encodes");
                bytes
            }

            /// Decodes and checks a message. `segments` contains the lengths of its payload's segments, in
            /// bytes.
            ///
            /// # Errors
            /// If the kind is unknown; if the bytes cannot be decoded; if the content breaks a rule.
            pub fn decode(kind: u16, bytes: &[u8], segments: &[u64]) -> Result<Self, ContentError> {
                match kind {
                    $($kind => decode::<$name>(stringify!($name), bytes, segments).map(Self::from),)*
                    unknown => Err(ContentError::UnknownKind(unknown)),
                }
            }
        }
    };
}

messages! {
    1 Hello: "The first frame on every connection: the dialling task and its cluster.",
    2 Welcome: "The reply to `Hello`.",
    3 Refusal: "The reply to a request that was refused, with the reason.",
    4 Heartbeat: "In either direction, on an idle connection: the sender is alive.",
    10 Register: "Worker to chief: a request to join the job.",
    11 Registered: "Chief to worker: the job and the placement.",
    12 Report: "Worker to chief, about once a second: the worker's progress.",
    13 Reported: "Chief to worker: whether to continue.",
    14 Finish: "Worker to chief: the end of the worker's training.",
    15 Finished: "Chief to worker: whether to evaluate.",
    16 Evaluated: "Worker to chief: the final evaluation.",
    17 Ready: "Worker to chief: the worker is ready to train.",
    18 Go: "Chief to worker: begin to train.",
    19 ServeStage: "Chief to worker: compute a stage of another worker's replica.",
    20 CreateShard: "Chief to ps: create a shard with initial values.",
    21 ShardCreated: "Ps to chief: the shard has its initial values.",
    22 Push: "Worker to ps: the gradients of a step; may request the next values, too.",
    23 Pushed: "Ps to worker: the verdict on the push, with the values if requested.",
    24 Pull: "Worker to ps: a request for values.",
    25 Pulled: "Ps to worker: the values of one version.",
    26 Observe: "To ps: a request for a shard's state.",
    27 ShardSnapshot: "From ps: the shard's state.",
    28 Stop: "Chief to ps: the job is over.",
    29 Stopped: "Ps to chief: the task stops.",
    30 Leave: "Chief to ps: an incarnation of a worker has left.",
    31 Left: "Ps to chief: the shard no longer waits for that worker.",
    32 Save: "Chief to ps: save a shard's part of a checkpoint.",
    33 Saved: "Ps to chief: the result of a save.",
    34 StopAt: "Chief to ps: a new last step for a shard.",
    35 StoppingAt: "Ps to chief: the shard's version.",
    36 HoldAt: "Chief to ps: a version that a shard must not pass until its learning rate is set.",
    37 Holding: "Ps to chief: the shard's version.",
    38 SetLearningRate: "Chief to ps: a factor of the learning rate, from a version on.",
    39 LearningRateSet: "Ps to chief: the shard has the factor.",
    40 Claim: "Chief to ps: obey this run of the chief.",
    41 Claimed: "Ps to chief: the claim is granted.",
    42 Withdraw: "Chief to ps: forget the chief's claims up to and including a given attempt.",
    43 Withdrawn: "Ps to chief: the claims are forgotten.",
    44 Appoint: "Chief to ps: this incarnation of a worker may join a shard.",
    45 Appointed: "Ps to chief: the shard lets that incarnation join.",
    46 Inspect: "Chief to ps: what does a shard hold? A later run of the chief asks this to continue the job.",
    47 Inspected: "Ps to chief: the job that the shard serves, and the shard's progress.",
    48 Rejoin: "Worker to a later run of the chief: the worker is already training and continues.",
    49 Rejoined: "Chief to worker: whether the chief leads the job now.",
    50 Describe: "Client or server to server: what do the tasks have?",
    51 Described: "Server: the tasks' devices and variables.",
    52 OpenGraph: "Client or server to server: keep a graph.",
    53 GraphOpened: "Server: the number of the graph.",
    54 CloseGraph: "Client or server to server: forget a graph.",
    55 GraphClosed: "Server: the graph is forgotten.",
    56 Run: "Client to server: run what some nodes of a graph need.",
    57 Ran: "Server to client: the values of the fetches.",
    58 Cancel: "Client to server: end a run.",
    59 Cancelled: "Server to client: whether the run was in progress.",
    60 RunPart: "Server to server: run your part of a run.",
    61 PartRan: "Server to server: the part has run.",
    62 Transfer: "Server to server: a value that crosses between tasks.",
    63 Transferred: "Server to server: the value has arrived.",
    64 Abort: "Server to server: end your part of a run.",
    65 Aborted: "Server to server: the part ends.",
    66 Reset: "Client or server to server: remove the variables of containers.",
    67 ResetDone: "Server: the variables are removed.",
    70 OpenStage: "Leader to stage: prepare a job.",
    71 StageOpened: "Stage to leader: the stage is ready.",
    72 PullStage: "Leader to stage: pull the values of your variables.",
    73 StagePulled: "Stage to leader: the versions of the values.",
    74 ComputeStage: "Leader to stage: compute your part of a batch.",
    75 StageComputed: "Stage to leader: the part is computed.",
    76 PushStage: "Leader to stage: push your gradients, and pull the next values.",
    77 StagePushed: "Stage to leader: the verdicts of the shards.",
    78 StageValue: "To a stage: a value that crosses between stages.",
    79 StageValueTaken: "Stage: the value has arrived.",
    80 FetchStageValue: "Leader to stage: reply with a value when it is computed.",
    81 StageValueFetched: "Stage to leader: the value.",
    82 CloseStage: "Leader to stage: the job is over for this replica.",
    83 StageClosed: "Stage to leader: the stage ends.",
    84 DigestStage: "Leader to stage: what are the checksums of your values?",
    85 StageDigests: "Stage to leader: the checksums.",
    86 JoinRoute: "Worker to worker: pass my pushes on to shards.",
    87 RouteJoined: "Worker: the version from which the worker passes pushes on.",
    88 RelayPush: "Worker to worker: a push to be added to yours and passed on; the reply is `Pushed`.",
    90 AccessFiles: "Chief or ps to ps: read or change the files in your memory.",
    91 FilesAccessed: "Ps: the result.",
    92 Drafted: "Ps to worker, before `Pushed`: the values that a push makes if it is applied.",
}
