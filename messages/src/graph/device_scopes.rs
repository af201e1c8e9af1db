//! The open device scopes of a graph that is being built, which give each new node its device.

use std::fmt;

use super::spec::{GraphSpec, NodeSpec};
use crate::device::OpDeviceSpec;

/// A function that chooses a device for a node of a graph.
type Choose = Box<dyn Fn(&NodeSpec, &GraphSpec) -> OpDeviceSpec + Send + Sync>;

/// The device scopes that are open, from the outermost to the innermost.
#[derive(Debug, Default)]
pub(super) struct DeviceScopes(Vec<DeviceScope>);

/// What a device scope requests for the nodes within it.
pub(super) enum DeviceScope {
    /// The same device for all nodes.
    Fixed(OpDeviceSpec),
    /// A device that depends on the node.
    Chosen(Choose),
}

impl DeviceScopes {
    /// Opens a scope within the others.
    pub fn open(&mut self, scope: DeviceScope) {
        self.0.push(scope);
    }

    /// Closes the innermost scope.
    pub fn close(&mut self) {
        self.0.pop();
    }

    /// Sets the device of a node that is about to be added to `graph`. Parts that an inner scope requests
    /// replace those of an outer scope. A function sees what the scopes within its own request.
    pub fn place(&self, node: &mut NodeSpec, graph: &GraphSpec) {
        for scope in self.0.iter().rev() {
            let outer = match scope {
                DeviceScope::Fixed(device) => *device,
                DeviceScope::Chosen(choose) => choose(node, graph),
            };
            let merged = outer.merge(node.device.unwrap_or_default());
            node.device = Some(merged).filter(|device| !device.is_unrestricted());
        }
    }
}

impl fmt::Debug for DeviceScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(device) => write!(f, "{device}"),
            Self::Chosen(_) => f.write_str("a function"),
        }
    }
}
