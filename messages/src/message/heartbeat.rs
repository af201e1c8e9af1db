//! The heartbeat. A connection on which nothing arrives for too long counts as lost, even if the operating
//! system still reports it as open.

use serde::{Deserialize, Serialize};

use super::Content;

/// A message that either end sends on an idle connection to show that it is alive. There is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {}

impl Content for Heartbeat {}
