//! The heartbeat. A connection that is silent for too long counts as lost, whatever the operating system
//! reports.

use serde::{Deserialize, Serialize};

use super::Content;

/// Either way, on an idle connection: the peer is alive. Has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {}

impl Content for Heartbeat {}
