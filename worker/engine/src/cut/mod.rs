//! Cuts a graph, with its gradients, into parts that run at the same time, one program each: the graph of a
//! session into parts, that of a job into stages. Values that a part reads from elsewhere are columns, which
//! arrive while it runs; values that it sends are written to a sink. So parts need no kernels of their own.
//! Parts run on the processor only. This module must not depend on the transport of the values.

mod edge;
mod homes;
mod part;
mod part_ir;
mod parts;
mod spec;
mod split;
mod stage;
mod stages;
mod whole;

pub use edge::Edge;
pub use part::Part;
pub use parts::Parts;
pub use spec::{Cut, CutGradient};
pub use stage::{Destination, Held, Origin, Stage, Wanted};
pub use stages::Stages;
