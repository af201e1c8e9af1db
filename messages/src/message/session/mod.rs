//! The messages of sessions. A client opens a graph on one task of a cluster and runs parts of it; this task
//! has the other tasks run their parts, and tasks send each other the values that cross between them.

mod abort;
mod cancel;
mod close_graph;
mod describe;
mod open_graph;
mod reset;
mod run;
mod run_part;
mod transfer;

use super::{Content, Invalid, no_payload, text_within};

pub use abort::{Abort, Aborted};
pub use cancel::{Cancel, Cancelled};
pub use close_graph::{CloseGraph, GraphClosed};
pub use describe::{
    ContainerDescription, Describe, Described, TaskDescription, VARIABLES_LISTED_MAX, VariableDescription,
};
pub use open_graph::{GraphOpened, Home, OpenGraph, decode_graph, encode_graph};
pub use reset::{Reset, ResetDone};
pub use run::{FETCHES_MAX, Fed, Ran, Run};
pub use run_part::{PartRan, RunKey, RunPart};
pub use transfer::{Transfer, Transferred};

/// The maximum number of bytes in the name of a container.
pub const CONTAINER_NAME_BYTES_MAX: usize = 256;

fn container_name(name: &str) -> Result<(), Invalid> {
    text_within("the name of a container", name, CONTAINER_NAME_BYTES_MAX)
}

fn at_most(what: &str, count: usize, max: usize) -> Result<(), Invalid> {
    if count <= max { Ok(()) } else { Err(Invalid(format!("got {count} {what}, expected at most {max}"))) }
}

/// Checks that a payload has one segment for each of these tensors.
fn one_segment_per_tensor(tensors: usize, segments: &[u64]) -> Result<(), Invalid> {
    if segments.len() == tensors {
        return Ok(());
    }
    let segments = segments.len();
    Err(Invalid(format!("got {segments} payload segments, expected one for each of {tensors} tensors")))
}
