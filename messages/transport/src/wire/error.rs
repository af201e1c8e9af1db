//! Why a connection had to be closed, with a short reason to count it by.

use std::io;

use crate::buffer::BrokenPromise;

/// Anything that makes the rest of a connection's bytes worthless.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not those of this protocol.
    #[error("not a pushpull frame: expected magic {expected:#010x}, got {got:#010x}")]
    Magic {
        /// Ours.
        expected: u32,
        /// What came.
        got: u32,
    },
    /// Another version of the protocol.
    #[error("the peer speaks protocol version {got}, and this task speaks {expected}")]
    Version {
        /// Ours.
        expected: u16,
        /// What came.
        got: u16,
    },
    /// Bits in the flags that this version does not know.
    #[error("unknown flags {0:#x} in a frame")]
    Flags(u32),
    /// A frame larger than agreed.
    #[error("a frame's {what} may have at most {max} bytes here, and would have {got}")]
    TooLarge {
        /// Header or payload.
        what: &'static str,
        /// The limit.
        max: u64,
        /// What the prefix promised.
        got: u64,
    },
    /// Bytes changed on the way.
    #[error("checksum of the {what} is {got:#010x}, and should be {expected:#010x}")]
    Checksum {
        /// Header or payload.
        what: &'static str,
        /// What the frame says.
        expected: u32,
        /// What was computed.
        got: u32,
    },
    /// The header's segments are not those of the payload.
    #[error("a header describes {described} payload bytes, and the frame has {got}")]
    Segments {
        /// What the segments add up to.
        described: u64,
        /// What the prefix says.
        got: u64,
    },
    /// A header that cannot be read.
    #[error("{0}")]
    Message(String),
    /// The connection ended in the middle of a frame.
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    /// The peer began a frame, or is to take one, and then nothing moved for too long.
    #[error("nothing moved for {0} s in the middle of a frame")]
    Stalled(u64),
    /// The peer may be gone without the operating system knowing.
    #[error("nothing came for {0} s, not even a sign of life")]
    Silent(u64),
    /// A payload that was promised will not come.
    #[error(transparent)]
    Broken(#[from] BrokenPromise),
    /// The operating system's word.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl WireError {
    /// A short word to count by.
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
