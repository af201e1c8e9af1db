//! The errors that close a connection, each with a short name by which it is counted.

use std::io;

use crate::buffer::BrokenPromise;

/// An error after which no more of a connection's bytes can be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not those of this protocol.
    #[error("not a pushpull frame: expected magic {expected:#010x}, got {got:#010x}")]
    Magic {
        /// This task's.
        expected: u32,
        /// The peer's.
        got: u32,
    },
    /// The peer speaks another version of the protocol.
    #[error("the peer speaks protocol version {got}, and this task speaks {expected}")]
    Version {
        /// This task's.
        expected: u16,
        /// The peer's.
        got: u16,
    },
    /// The frame has flags that this version does not know.
    #[error("unknown flags {0:#x} in a frame")]
    Flags(u32),
    /// The frame is too large.
    #[error("a frame's {what} may have at most {max} bytes, but would have {got}")]
    TooLarge {
        /// `header` or `payload`.
        what: &'static str,
        /// The limit.
        max: u64,
        /// The size in the prefix.
        got: u64,
    },
    /// Bytes changed on the way.
    #[error("the checksum of the {what} is {got:#010x}, but should be {expected:#010x}")]
    Checksum {
        /// `header` or `payload`.
        what: &'static str,
        /// The checksum in the frame.
        expected: u32,
        /// The checksum computed.
        got: u32,
    },
    /// The header's segments do not add up to the payload.
    #[error("the header describes {described} payload bytes, but the frame has {got}")]
    Segments {
        /// The sum of the segments.
        described: u64,
        /// The size in the prefix.
        got: u64,
    },
    /// The header cannot be read.
    #[error("{0}")]
    Message(String),
    /// The connection ended in the middle of a frame.
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    /// Nothing moved for too long in the middle of a frame, in either direction.
    #[error("nothing moved for {0} s in the middle of a frame")]
    Stalled(u64),
    /// The peer was silent for too long; it may be gone without the operating system knowing.
    #[error("nothing came for {0} s, not even a heartbeat")]
    Silent(u64),
    /// A promised payload will not come.
    #[error(transparent)]
    Broken(#[from] BrokenPromise),
    /// The operating system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl WireError {
    /// Returns the error's short name, by which it is counted.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Magic { .. } => "magic",
            Self::Version { .. } => "version",
            Self::Flags(_) => "flags",
            Self::TooLarge { .. } => "too_large",
            Self::Checksum { .. } => "checksum",
            Self::Segments { .. } => "segments",
            Self::Message(_) => "message",
            Self::Truncated => "truncated",
            Self::Stalled(_) => "stalled",
            Self::Silent(_) => "silent",
            Self::Broken(_) => "broken",
            Self::Io(_) => "io",
        }
    }
}
