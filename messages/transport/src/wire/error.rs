//! The errors that close a connection, each with a short name under which it is counted.

use std::io;

use pushpull_identity::IdentityError;

use crate::buffer::BrokenPromise;

/// An error after which no more of a connection's bytes can be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The frame's first bytes are not those of this protocol.
    #[error("not a pushpull frame: expected magic {expected:#010x}, got {got:#010x}")]
    Magic {
        /// The four bytes with which a frame of this protocol begins, as a little-endian number.
        expected: u32,
        /// The first four bytes that the peer sent, as a little-endian number.
        got: u32,
    },
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks protocol version {got}, and this task speaks {expected}")]
    Version {
        /// The protocol version of this task.
        expected: u16,
        /// The protocol version of the peer.
        got: u16,
    },
    /// The frame has flags that this version of the protocol does not know. The value contains all flags of
    /// the frame.
    #[error("unknown flags {0:#x} in a frame")]
    Flags(u32),
    /// A part of the frame is too large.
    #[error("a frame's {what} may have at most {max} bytes, but would have {got}")]
    TooLarge {
        /// The part of the frame: `header` or `payload`.
        what: &'static str,
        /// The largest size allowed, in bytes.
        max: u64,
        /// The size that the frame's prefix states, in bytes.
        got: u64,
    },
    /// A checksum does not match: bytes changed in transit.
    #[error("the checksum of the {what} is {got:#010x}, but should be {expected:#010x}")]
    Checksum {
        /// The part of the frame: `header` or `payload`.
        what: &'static str,
        /// The checksum in the frame.
        expected: u32,
        /// The checksum of the bytes that arrived.
        got: u32,
    },
    /// The sizes of the segments that the header lists do not add up to the payload size that the prefix
    /// states.
    #[error("the header describes {described} payload bytes, but the frame has {got}")]
    Segments {
        /// The payload's size according to the segments, in bytes.
        described: u64,
        /// The size that the frame's prefix states, in bytes.
        got: u64,
    },
    /// The header cannot be decoded. The value is the reason.
    #[error("{0}")]
    Message(String),
    /// The connection ended in the middle of a frame.
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    /// A frame made too little progress: no byte arrived for too long, or the peer did not take the whole
    /// frame in time. The value is the limit in seconds.
    #[error("a frame made too little progress within {0} s")]
    Stalled(u64),
    /// A frame arrived too slowly. The connection is closed, because others may wait for the memory that the
    /// frame takes.
    #[error("a frame arrived too slowly: {received} of {bytes} bytes in {seconds} s")]
    Slow {
        /// The number of bytes that arrived, without the prefix.
        received: u64,
        /// The size of the frame in bytes, without the prefix.
        bytes: u64,
        /// The time that the frame had, in seconds.
        seconds: u64,
    },
    /// The peer was silent for too long. The peer may have died without a report from the operating system.
    /// The value is the limit in seconds.
    #[error("nothing was received for {0} s, not even a heartbeat")]
    Silent(u64),
    /// The peer broke a rule of the memory that it shares with this task. The value says which.
    #[error("{0}")]
    Loan(&'static str),
    /// The other end of the connection has not proved who it is. The value is the reason.
    #[error("{0}")]
    Identity(String),
    /// The peer, or its host, takes more than strangers may take. The value is the reason.
    #[error("{0}")]
    TooMany(String),
    /// The peer answered in TLS, and this task has no join string.
    #[error("the peer demands TLS: give this task the job's join string with --join-file FILE")]
    TlsDemanded,
    /// A promised part of the payload will not come, because its writer has failed.
    #[error(transparent)]
    Broken(#[from] BrokenPromise),
    /// The operating system reported an error.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        // A stream of TLS wraps the reasons why its other end proves nothing in errors of the system.
        match error.get_ref().is_some_and(|inner| inner.is::<IdentityError>()) {
            true => Self::Identity(error.to_string()),
            false => Self::Io(error),
        }
    }
}

impl WireError {
    /// Returns the short name under which the error is counted.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Magic { .. } => "magic",
            Self::Version { .. } => "version",
            Self::Flags(_) => "flags",
            Self::TooLarge { .. } => "too_large",
            Self::Checksum { .. } => "checksum",
            Self::Loan(_) => "loan",
            Self::Identity(_) => "identity",
            Self::TooMany(_) => "too_many",
            Self::TlsDemanded => "tls_demanded",
            Self::Segments { .. } => "segments",
            Self::Message(_) => "message",
            Self::Truncated => "truncated",
            Self::Stalled(_) => "stalled",
            Self::Slow { .. } => "slow",
            Self::Silent(_) => "silent",
            Self::Broken(_) => "broken",
            Self::Io(_) => "io",
        }
    }
}
