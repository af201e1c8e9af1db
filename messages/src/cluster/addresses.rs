//! Decodes the addresses of one job. The sender may be a stranger, so each address is checked as soon as it
//! is read, and reading ends at the first fault.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::TASKS_PER_JOB_MAX;
use super::address::Address;
use super::error::ClusterError;
use crate::id::{JobName, TaskId};

/// Reads the addresses of this job. Fails at the first invalid address, or if there are more than
/// `TASKS_PER_JOB_MAX` addresses.
pub(super) struct AddressesOf(pub JobName);

/// Reads the address of this task. Checks the text in place, so that no unchecked text is copied.
struct AddressOf(TaskId);

impl<'de> DeserializeSeed<'de> for AddressesOf {
    type Value = Vec<Address>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Address>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for AddressesOf {
    type Value = Vec<Address>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {TASKS_PER_JOB_MAX} addresses of job '{}'", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Address>, A::Error> {
        let mut addresses = Vec::new();
        for index in 0..TASKS_PER_JOB_MAX as u32 {
            match list.next_element_seed(AddressOf(TaskId::new(self.0, index)))? {
                Some(address) => addresses.push(address),
                None => return Ok(addresses),
            }
        }
        match list.next_element::<de::IgnoredAny>()? {
            Some(_) => Err(de::Error::invalid_length(TASKS_PER_JOB_MAX + 1, &self)),
            None => Ok(addresses),
        }
    }
}

impl<'de> DeserializeSeed<'de> for AddressOf {
    type Value = Address;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Address, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for AddressOf {
    type Value = Address;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the address of {}", self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Address, E> {
        text.parse().map_err(|error| E::custom(ClusterError::Address { task: self.0, error }))
    }
}
