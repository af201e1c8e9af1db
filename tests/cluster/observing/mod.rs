//! Tests of the views of a running cluster: endpoints, the chief's page, `pushpull top`, and the timeline.

mod counters;
mod endpoints;
mod guarded;
mod naming;
mod page;
mod timeline;
