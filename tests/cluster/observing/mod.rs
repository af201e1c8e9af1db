//! The views of a running cluster for people and Prometheus: endpoints, the chief's page, `pushpull top`, the
//! timeline.

mod counters;
mod endpoints;
mod naming;
mod page;
mod slowed;
mod timeline;
