//! The two levels of checkpoints, and the names of the files that a ps task keeps in its memory. Reads and
//! writes nothing.

/// The location of the checkpoints in the memory of the ps tasks.
pub const MEMORY: &str = "memory://";

/// The largest length of the name of a file in a ps task's memory, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Where a checkpoint is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// In a directory or a bucket.
    Directory,
    /// In the memory of the ps tasks. Such a checkpoint does not outlast the job.
    Memory,
}

impl Level {
    /// Returns the level of the checkpoints at a location.
    pub fn of(location: &str) -> Self {
        if location == MEMORY { Self::Memory } else { Self::Directory }
    }
}

/// Returns whether a text may be the name of a file in a ps task's memory, such as `step-5-…/manifest.json`.
pub fn is_file_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let part = |part: &str| !part.is_empty() && !matches!(part, "." | "..") && part.bytes().all(fits);
    name.len() <= NAME_BYTES_MAX && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::CheckpointName;
    use crate::id::{GlobalStep, Incarnation, ShardId};

    #[test]
    fn names_of_checkpoint_files_are_valid() {
        let name = CheckpointName { step: GlobalStep(u64::MAX), life: Incarnation(u64::MAX - 1) };
        assert!(is_file_name(&name.to_string()) && is_file_name(&name.manifest()));
        let shard = ShardId::new(u32::MAX, u32::MAX);
        assert!(is_file_name(&name.file(&CheckpointName::shard_file(shard))));
    }

    #[test]
    fn other_names_are_not_valid() {
        for name in ["", "/", "a/", "/a", "a//b", "..", "a/../b", "a b", "a\0", "ä", "a\\b"] {
            assert!(!is_file_name(name), "{name}");
        }
        assert!(is_file_name(&"a".repeat(NAME_BYTES_MAX)) && !is_file_name(&"a".repeat(NAME_BYTES_MAX + 1)));
    }

    #[test]
    fn only_one_location_is_in_memory() {
        assert_eq!(Level::of(MEMORY), Level::Memory);
        for other in ["", "memory", "/memory://", "s3://memory"] {
            assert_eq!(Level::of(other), Level::Directory);
        }
    }
}
