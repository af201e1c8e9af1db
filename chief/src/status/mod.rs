//! The status of a job for observers. The chief keeps an overview of the job up to date, and publishes it.
//! Decides nothing.

mod overview;
mod publisher;
mod view;

pub(crate) use overview::Overview;
pub(crate) use publisher::{Publisher, PublisherTask, publish};
pub use view::ChiefView;
pub(crate) use view::StatusBoard;
