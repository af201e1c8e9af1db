//! Names of jobs. A job is a list of tasks with the same role. Four names are the roles of training; the
//! tasks of sessions may have any others.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::excerpt::excerpt;

/// The maximum number of bytes in the name of a job.
pub const JOB_NAME_BYTES_MAX: usize = 31;
/// The maximum number of characters that an error quotes from a text that is not the name of a job.
const QUOTE_CHARS_MAX: usize = 64;

/// The name of a job in a cluster spec, which is the role of the job's tasks, as in TensorFlow. The older
/// name `master` is parsed as `chief`.
///
/// Names are ordered as in a cluster spec: chief, ps, worker, evaluator, and then all others by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobName {
    /// Coordinates the training. No tensors pass through it.
    Chief,
    /// Stores variables and applies updates to them (parameter server).
    Ps,
    /// Computes gradients.
    Worker,
    /// Evaluates checkpoints during training, and is not part of the cluster that trains.
    Evaluator,
    /// A job that takes no part in training: its tasks only run sessions.
    Other(JobLabel),
}

/// A valid name of a job that is not a role of training: a lower-case letter, and then up to 30 lower-case
/// letters, digits, `_` and `-`. Only [`JobName`] contains it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobLabel {
    /// The name, filled up with zeros, so that labels are ordered like their texts.
    bytes: [u8; JOB_NAME_BYTES_MAX],
    len: u8,
}

impl JobName {
    /// The four roles of training, in the order of a cluster spec.
    pub const ROLES: [Self; 4] = [Self::Chief, Self::Ps, Self::Worker, Self::Evaluator];
    /// The job of client programs, which connect to a cluster without being one of its tasks.
    pub const CLIENT: Self = Self::Other(JobLabel::literal("client"));

    /// Returns the job's name in a cluster spec.
    pub const fn as_str(&self) -> &str {
        match self {
            Self::Chief => "chief",
            Self::Ps => "ps",
            Self::Worker => "worker",
            Self::Evaluator => "evaluator",
            Self::Other(label) => label.as_str(),
        }
    }

    /// Returns true for the roles of training: chief, ps, worker and evaluator.
    pub const fn is_role(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    /// Parses the name of a role of training.
    ///
    /// # Errors
    /// If the text is not the name of one of the four roles.
    pub fn role(text: &str) -> Result<Self, UnknownJob> {
        text.parse().ok().filter(Self::is_role).ok_or_else(|| UnknownJob(excerpt(text, QUOTE_CHARS_MAX)))
    }
}

impl JobLabel {
    /// Makes the label of a name in the source code. The name must be valid and not a role.
    const fn literal(name: &str) -> Self {
        let (from, mut bytes, mut at) = (name.as_bytes(), [0; JOB_NAME_BYTES_MAX], 0);
        while at < from.len() {
            bytes[at] = from[at];
            at += 1;
        }
        Self { bytes, len: from.len() as u8 }
    }

    /// Returns the name.
    pub const fn as_str(&self) -> &str {
        let (name, _) = self.bytes.split_at(self.len as usize);
        match std::str::from_utf8(name) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for JobLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// The error for a text that is not the name of a role of training.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown job '{0}': expected chief, ps, worker or evaluator")]
pub struct UnknownJob(pub String);

/// The error for a text that cannot be the name of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "job name '{0}' is not valid, expected a letter and then up to 30 characters: lower-case letters, digits, '_' and '-'"
)]
pub struct JobNameError(String);

impl FromStr for JobName {
    type Err = JobNameError;

    fn from_str(text: &str) -> Result<Self, JobNameError> {
        match text {
            "chief" | "master" => return Ok(Self::Chief),
            "ps" => return Ok(Self::Ps),
            "worker" => return Ok(Self::Worker),
            "evaluator" => return Ok(Self::Evaluator),
            _ => {}
        }
        let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        let valid = (1..=JOB_NAME_BYTES_MAX).contains(&text.len())
            && text.as_bytes()[0].is_ascii_lowercase()
            && text.bytes().all(allowed);
        if !valid {
            return Err(JobNameError(excerpt(text, QUOTE_CHARS_MAX)));
        }
        Ok(Self::Other(JobLabel::literal(text)))
    }
}

impl Serialize for JobName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for JobName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Parses the text in place, so that nothing of an invalid name is copied but the quote in the error.
        struct Name;

        impl Visitor<'_> for Name {
            type Value = JobName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a job")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<JobName, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn roles_are_parsed_as_roles_and_others_as_labels() {
        for role in JobName::ROLES {
            assert_eq!((role.as_str().parse(), role.is_role()), (Ok(role), true));
            assert_eq!(JobName::role(role.as_str()), Ok(role));
        }
        assert_eq!("master".parse(), Ok(JobName::Chief));
        assert_eq!("client".parse(), Ok(JobName::CLIENT));
        assert!(!JobName::CLIENT.is_role());
        let error = JobName::role("local").unwrap_err().to_string();
        assert_eq!(error, "unknown job 'local': expected chief, ps, worker or evaluator");
    }

    #[test]
    fn an_invalid_name_of_a_job_is_refused() {
        let long = "a".repeat(JOB_NAME_BYTES_MAX + 1);
        for text in ["", "Worker", "1a", "-a", "_a", "a b", "a|b", "a/b", "ä", "a\n", &long] {
            let error = text.parse::<JobName>().unwrap_err().to_string();
            assert!(error.contains("is not valid") && !error.contains('\n'), "{error}");
            assert!(serde_json::from_value::<JobName>(serde_json::json!(text)).is_err());
        }
        assert!(long[1..].parse::<JobName>().is_ok());
        assert!("x".repeat(9999).parse::<JobName>().unwrap_err().to_string().len() < 300);
    }

    proptest! {
        #[test]
        fn names_keep_their_text_and_its_order(one in "[a-z][a-z0-9_-]{0,30}", other in "[a-z][a-z0-9_-]{0,30}") {
            let names: [JobName; 2] = [one.parse().unwrap(), other.parse().unwrap()];
            let packed = rmp_serde::to_vec(&names).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<[JobName; 2]>(&packed).unwrap(), names);
            for (name, text) in names.iter().zip([&one, &other]) {
                prop_assert!(name.as_str() == text || text == "master");
                prop_assert_eq!(serde_json::to_value(name).unwrap(), serde_json::json!(name.as_str()));
            }
            if names.iter().all(|name| !name.is_role()) {
                prop_assert_eq!(names[0].cmp(&names[1]), one.cmp(&other));
            }
        }
    }
}
