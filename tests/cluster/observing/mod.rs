//! What people and Prometheus see of a running cluster: endpoints, the chief's page, `pushpull top`, the timeline.

mod counters;
mod endpoints;
mod naming;
mod page;
mod slowed;
mod timeline;
