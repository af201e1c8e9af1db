//! The manifest of a checkpoint: the files, offsets and checksums of all tensors. It is written last: a
//! folder without a manifest is not a checkpoint, so a save that failed half-way is never restored (C1).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use pushpull_messages::checkpoint::{
    BLOCK_BYTES, CheckpointName, FileSpec, Part, SavedTensorSpec, WorkerRecord,
};
use pushpull_messages::excerpt::excerpt;
use pushpull_messages::id::{GlobalStep, SliceId, VariableId};
use pushpull_messages::input::FilesDigest;
use pushpull_messages::job::JobSpec;
use pushpull_messages::optimizer::RateSpec;
use pushpull_messages::placement::{PlacedSlice, Placement};

/// The version of the manifest's format. No other version exists so far.
pub const FORMAT: u32 = 1;
/// The largest size of a manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// The largest number of characters in the reason why a manifest is invalid.
const REASON_CHARS_MAX: usize = 1000;

/// The manifest: everything that is needed to resume from a checkpoint, except the contents of the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestSpec {
    /// The version of the manifest's format; see [`FORMAT`].
    pub format: u32,
    /// The number of updates that the checkpoint contains.
    pub step: GlobalStep,
    /// The time of the commit, in milliseconds since 1970.
    pub saved_ms: u64,
    /// The job that saved the checkpoint.
    #[serde(with = "job_text")]
    pub job: JobSpec,
    /// The placement of the slices when the checkpoint was saved.
    pub placement: Placement,
    /// The tensor files, one for each shard of the placement.
    pub files: Vec<FileSpec>,
    /// The records of the workers' last pushes, one for each worker, merged from the records of all shards.
    pub workers: Vec<WorkerRecord>,
    /// The factor by which hooks have multiplied the learning rate.
    #[serde(default, skip_serializing_if = "RateSpec::is_default")]
    pub learning_rate: RateSpec,
    /// A description of the training files of each worker that reads files. Older checkpoints do not have
    /// this field.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<u32, FilesDigest>,
}

/// A range of consecutive bytes of a tensor in a file. The tensor holds one part of a slice: its value, its
/// average or a slot. The range holds some of the rows that were requested from [`Index::pieces`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The file's name.
    pub file: &'a str,
    /// The tensor's name.
    pub tensor: &'a str,
    /// The offset of the tensor in the file, in bytes.
    pub tensor_offset: u64,
    /// The length of the whole tensor in bytes.
    pub tensor_bytes: u64,
    /// The checksums of the tensor's blocks.
    pub crc32c: &'a [u32],
    /// The range of the tensor's bytes that make up the piece.
    pub from: Range<u64>,
    /// The position of the piece among the bytes of all requested rows: the number of bytes before the piece.
    pub to: u64,
}

/// An invalid manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The text is not a manifest in JSON.
    #[error("not a manifest: {0}")]
    Json(String),
    /// The manifest's bytes have changed since it was written.
    #[error("the manifest has checksum {got:08x}, but the stored checksum is {expected:08x}")]
    Checksum {
        /// The stored checksum.
        expected: u32,
        /// The checksum of the bytes read.
        got: u32,
    },
    /// The manifest has an unknown format. The value is the version of that format.
    #[error(
        "the manifest has format {0}, expected format {FORMAT}; use the version of pushpull that wrote it"
    )]
    Format(u32),
    /// The manifest is readable but contradicts itself. The value says how.
    #[error("the manifest contradicts itself: {0}")]
    Invalid(String),
    /// The manifest is too large. The value is its size in bytes.
    #[error("the manifest has {0} bytes, expected at most {MANIFEST_BYTES_MAX}")]
    TooLarge(u64),
}

/// Writes and reads a job with functions of `pushpull-messages`, the crate that defines it. Without these
/// functions, the serializers of all specs would be compiled again in this crate and make up half of its
/// machine code.
mod job_text {
    use pushpull_messages::job::JobSpec;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
    use serde_json::value::RawValue;

    pub(super) fn serialize<S: Serializer>(job: &JobSpec, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::from_string(job.to_json_line()).map_err(ser::Error::custom)?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<JobSpec, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        JobSpec::parse_json(text.get()).map_err(de::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    crc32c: u32,
    manifest: Box<RawValue>,
}

/// Returns the error of a manifest that contradicts itself. The reason may quote names from the file, so it
/// is made safe to log.
fn invalid(what: impl std::fmt::Display) -> ManifestError {
    ManifestError::Invalid(excerpt(&what.to_string(), REASON_CHARS_MAX))
}

/// Returns the checksums of a tensor's blocks.
pub fn block_checksums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(BLOCK_BYTES).map(crc32c::crc32c).collect()
}

impl ManifestSpec {
    /// Encodes the manifest as the JSON of its file, with a checksum.
    ///
    /// # Errors
    /// If the encoded manifest is longer than [`MANIFEST_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        let text = serde_json::to_string(self).expect("plain data encodes");
        let crc32c = crc32c::crc32c(text.as_bytes());
        let manifest = RawValue::from_string(text).expect("it has just been encoded");
        let bytes = serde_json::to_vec(&Envelope { crc32c, manifest }).expect("plain data encodes");
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge(bytes.len() as u64));
        }
        Ok(bytes)
    }

    /// Decodes and checks a manifest.
    ///
    /// # Errors
    /// If the manifest is truncated, has been changed, has another format, or contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge(bytes.len() as u64));
        }
        let json = |error: serde_json::Error| ManifestError::Json(pushpull_messages::job::told(&error));
        let Envelope { crc32c: expected, manifest } = serde_json::from_slice(bytes).map_err(json)?;
        let got = crc32c::crc32c(manifest.get().as_bytes());
        if expected != got {
            return Err(ManifestError::Checksum { expected, got });
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_str(manifest.get()).map_err(json)?;
        if format != FORMAT {
            return Err(ManifestError::Format(format));
        }
        let manifest: Self = serde_json::from_str(manifest.get()).map_err(json)?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// Checks everything that can be checked without reading the files.
    ///
    /// # Errors
    /// If the manifest contradicts itself; reports the first fault found.
    pub fn validate(&self) -> Result<(), ManifestError> {
        let variables = &self.job.graph.variables;
        self.job.validate().map_err(invalid)?;
        self.learning_rate.validate().map_err(invalid)?;
        self.placement.validate(variables).map_err(invalid)?;
        let mut files = BTreeMap::new();
        for file in &self.files {
            let own = CheckpointName::shard_file(file.shard);
            if file.name != own {
                return Err(invalid(format!(
                    "the file of {} is called '{}', expected {own}",
                    file.shard, file.name
                )));
            }
            if file.version.0 != self.step.0 {
                let (shard, version, step) = (file.shard, file.version, self.step);
                return Err(invalid(format!(
                    "{shard} has version {version}, expected {step}, the step of the checkpoint"
                )));
            }
            if files.insert(file.shard, file).is_some() {
                return Err(invalid(format!("{} has two files, expected one", file.shard)));
            }
        }
        let with_slices = self.placement.shards_with_slices();
        for shard in &self.placement.shards {
            match files.remove(shard) {
                Some(file) => self.validate_file(file)?,
                None if with_slices.contains(shard) => return Err(invalid(format!("{shard} has no file"))),
                // A shard without slices has nothing to save.
                None => {}
            }
        }
        match files.keys().next() {
            Some(unknown) => Err(invalid(format!("{unknown} has a file, but is not in the placement"))),
            None => self.validate_workers(),
        }
    }

    fn validate_file(&self, file: &FileSpec) -> Result<(), ManifestError> {
        let mut missing: BTreeMap<SliceId, u64> = self
            .placement
            .on_shard(file.shard)
            .map(|(id, slice)| {
                (id, slice.elements(&self.job.graph.variables[slice.variable.index()]) as u64 * 4)
            })
            .collect();
        let sizes = missing.clone();
        let (mut end, mut seen) = (0u64, std::collections::BTreeSet::new());
        for tensor in &file.tensors {
            let SavedTensorSpec { name, slice, part, offset, bytes, crc32c } = tensor;
            let fits = sizes.get(slice) == Some(bytes)
                && *offset >= end
                && offset.checked_add(*bytes).is_some_and(|end| end <= file.bytes)
                && crc32c.len() as u64 == bytes.div_ceil(BLOCK_BYTES as u64);
            if !fits || !seen.insert((*slice, *part)) {
                return Err(invalid(format!("tensor '{name}' of {} does not fit its slice", file.name)));
            }
            end = offset + bytes;
            if *part == Part::Value {
                missing.remove(slice);
            }
        }
        match missing.keys().next() {
            Some(slice) => Err(invalid(format!("{} lacks the value of slice {slice}", file.name))),
            None => Ok(()),
        }
    }

    fn validate_workers(&self) -> Result<(), ManifestError> {
        match self.workers.windows(2).find(|pair| pair[0].worker >= pair[1].worker) {
            Some(pair) => Err(invalid(format!("worker/{} is out of order or listed twice", pair[1].worker))),
            None => Ok(()),
        }
    }

    /// Returns the variable called `name`.
    pub fn variable(&self, name: &str) -> Option<VariableId> {
        let position = self.job.graph.variables.iter().position(|variable| variable.name == name)?;
        Some(VariableId(position as u32))
    }

    /// Returns an index of the tensors, which makes repeated queries fast.
    pub fn index(&self) -> Index<'_> {
        let files = self.files.iter();
        let tensors = files.flat_map(|file| {
            file.tensors.iter().map(move |tensor| ((tensor.slice, tensor.part), (file, tensor)))
        });
        Index { manifest: self, tensors: tensors.collect() }
    }

    /// Returns the same as [`Index::pieces`], for a single query.
    pub fn pieces(&self, variable: VariableId, part: Part, rows: Range<u64>) -> Vec<Piece<'_>> {
        self.index().pieces(variable, part, rows)
    }
}

/// An index of a manifest's tensors by slice and part.
#[derive(Debug)]
pub struct Index<'a> {
    manifest: &'a ManifestSpec,
    tensors: HashMap<(SliceId, Part), (&'a FileSpec, &'a SavedTensorSpec)>,
}

impl<'a> Index<'a> {
    /// Returns the pieces that together hold `part` (the value, the average or a slot) of the rows `rows` of
    /// a variable, in the order of rows. Returns no pieces if the part is not stored. In a valid manifest,
    /// the pieces of [`Part::Value`] cover all rows.
    pub fn pieces(&self, variable: VariableId, part: Part, rows: Range<u64>) -> Vec<Piece<'a>> {
        let Some(spec) = self.manifest.job.graph.variables.get(variable.index()) else { return Vec::new() };
        let row_bytes = spec.row_elements() as u64 * 4;
        let slices = &self.manifest.placement.slices;
        // The slices are in the order of variables and rows.
        let last = |placed: &PlacedSlice| placed.slice.row + placed.slice.rows;
        let begin =
            slices.partition_point(|placed| (placed.slice.variable, last(placed)) <= (variable, rows.start));
        let mut pieces = Vec::new();
        for (position, placed) in slices.iter().enumerate().skip(begin) {
            let first = placed.slice.row;
            let (from, to) = (first.max(rows.start), last(placed).min(rows.end));
            if placed.slice.variable != variable || from >= to {
                break;
            }
            let Some(&(file, tensor)) = self.tensors.get(&(SliceId(position as u32), part)) else { continue };
            pieces.push(Piece {
                file: &file.name,
                tensor: &tensor.name,
                tensor_offset: tensor.offset,
                tensor_bytes: tensor.bytes,
                crc32c: &tensor.crc32c,
                from: (from - first) * row_bytes..(to - first) * row_bytes,
                to: (from - rows.start) * row_bytes,
            });
        }
        pieces
    }
}
