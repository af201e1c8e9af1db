//! The status of a job that the chief shows to observers: an overview that is kept up to date and published.
//! Decides nothing.

mod overview;
mod publisher;
mod view;

pub(crate) use overview::Overview;
pub(crate) use publisher::{Publisher, PublisherTask, publish};
pub use view::ChiefView;
pub(crate) use view::StatusBoard;
