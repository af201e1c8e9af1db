//! The operations of the tool `pushpull checkpoint`: list, show, verify, export and import. This module must
//! not depend on flags, printed tables or clusters.

mod catalog;
mod export;
mod import;
mod selection;
#[cfg(test)]
mod tests;
mod verify;

pub(crate) use catalog::{Entry, State, listed};
pub(crate) use export::{Export, chosen, export};
pub(crate) use import::{Import, import};
pub(crate) use selection::select;
pub(crate) use verify::{Verified, latest_whole, verify};
