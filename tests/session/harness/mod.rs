//! The harness of these tests: clusters of real servers, and graphs that take long. Processes, ports and
//! waiting are those of the tests of training clusters.

// Each test crate uses a part of what the harness of clusters has.
#[allow(dead_code)]
#[path = "../../cluster/harness/endpoint.rs"]
mod endpoint;
#[path = "../../support/ports.rs"]
mod ports;
#[allow(dead_code)]
#[path = "../../cluster/harness/program.rs"]
mod program;
#[allow(dead_code)]
#[path = "../../cluster/harness/wait.rs"]
mod wait;

mod long;
mod servers;

pub(crate) use endpoint::Endpoint;
pub(crate) use long::Long;
pub(crate) use program::{Program, example_called, tool};
pub(crate) use servers::{Servers, server};
pub(crate) use wait::{PATIENCE, wait_until};
