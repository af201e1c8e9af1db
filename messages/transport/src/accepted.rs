//! A link that a listener has accepted. Its other end may still have to prove who it is.

use futures_util::future::BoxFuture;

use crate::link::Link;

/// A link that a listener has accepted.
pub enum Accepted {
    /// The link can be used at once.
    Open(Link),
    /// The other end has to prove who it is. This takes a while, so it is not done by the listener.
    Opening {
        /// The address of the other end, for logs.
        peer: String,
        /// Opens the link within a time limit. If the other end proves nothing, nothing but an error can be
        /// received from the link.
        open: BoxFuture<'static, Link>,
    },
}

impl Accepted {
    /// Returns the address of the other end, for logs.
    pub fn peer(&self) -> &str {
        match self {
            Self::Open(link) => &link.peer,
            Self::Opening { peer, .. } => peer,
        }
    }

    /// Waits until the link can be used.
    pub async fn open(self) -> Link {
        match self {
            Self::Open(link) => link,
            Self::Opening { open, .. } => open.await,
        }
    }
}

impl From<Link> for Accepted {
    fn from(link: Link) -> Self {
        Self::Open(link)
    }
}
