//! The sign of life. A connection on which nothing comes for long counts as lost, whatever the operating system says.

use serde::{Deserialize, Serialize};

use super::Content;

/// Either way, when there is nothing else to say: still here. Is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {}

impl Content for Heartbeat {}
