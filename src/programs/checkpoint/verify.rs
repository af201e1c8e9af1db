//! Checks every byte of a checkpoint.
//!
//! (A) A changed byte of a manifest or a tensor, a truncated file, and a header that disagrees with the
//! manifest are reported as faults. (B) A checkpoint that is unchanged since it was written has no fault.

use std::fmt;

use pushpull_messages::checkpoint::{BLOCK_BYTES, CheckpointName, FileSpec, SavedTensorSpec};
use pushpull_messages::tensor::Shape;
use pushpull_storage::{
    Catalog, FileError, FoundTensor, ManifestSpec, Piece, Store, StoreError, read_header, read_piece,
};
use serde::Serialize;

use crate::programs::format::plain;

/// A part of a checkpoint that differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Fault {
    /// The name of the file in the checkpoint's folder.
    pub file: String,
    /// The name of the tensor; `None` if the fault is not in a tensor.
    pub tensor: Option<String>,
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            Some(tensor) => write!(f, "{}: tensor '{tensor}': {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// The faults of a checkpoint, and the number of files, tensors and bytes that were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub faults: Vec<Fault>,
    pub files: usize,
    pub tensors: usize,
    pub bytes: u64,
}

/// Reads a whole checkpoint, and returns all its faults. At most a few blocks are in memory at a time.
pub(crate) async fn verify(store: &Store, name: CheckpointName) -> Verified {
    let mut verified = Verified { faults: Vec::new(), files: 0, tensors: 0, bytes: 0 };
    match Catalog::new(store.clone()).manifest(name).await {
        Ok(manifest) => {
            for file in &manifest.files {
                verified.faults.extend(verify_file(store, name, &manifest, file).await);
                verified.files += 1;
                verified.tensors += file.tensors.len();
                verified.bytes += file.bytes;
            }
        }
        Err(error) => {
            let what = match error {
                // The text omits the name of the file, because the fault has a field for it.
                FileError::Manifest { error, .. } => error.to_string(),
                other => other.to_string(),
            };
            verified.faults.push(Fault { file: "manifest.json".into(), tensor: None, what });
        }
    }
    verified
}

/// Returns the newest checkpoint without a fault.
pub(crate) async fn latest_whole(store: &Store) -> Result<Option<CheckpointName>, StoreError> {
    for name in Catalog::new(store.clone()).names().await? {
        if verify(store, name).await.faults.is_empty() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

async fn verify_file(
    store: &Store,
    name: CheckpointName,
    manifest: &ManifestSpec,
    file: &FileSpec,
) -> Vec<Fault> {
    let fault = |tensor, what| Fault { file: file.name.clone(), tensor, what };
    match store.size(&name.file(&file.name)).await {
        Err(StoreError::Missing { .. }) => return vec![fault(None, "the file is missing".into())],
        Err(error) => return vec![fault(None, error.to_string())],
        Ok(size) if size != file.bytes => {
            return vec![fault(None, format!("the file has {size} bytes, expected {}", file.bytes))];
        }
        Ok(_) => {}
    }
    let mut faults = match read_header(store, &name.file(&file.name)).await {
        Err(error) => vec![fault(None, error.to_string())],
        Ok(found) => verify_header(manifest, file, &found),
    };
    for tensor in &file.tensors {
        faults.extend(verify_tensor(store, name, file, tensor).await);
    }
    faults
}

/// Returns the entry that a tensor must have in its file's header, according to the manifest.
fn expected(manifest: &ManifestSpec, file: &FileSpec, tensor: &SavedTensorSpec) -> Option<FoundTensor> {
    let slice = manifest.placement.slices.get(tensor.slice.index())?.slice;
    let mut shape: Shape = manifest.job.graph.variables.get(slice.variable.index())?.shape.clone();
    if let Some(rows) = shape.0.first_mut() {
        *rows = slice.rows as usize;
    }
    debug_assert!(tensor.offset + tensor.bytes <= file.bytes);
    let SavedTensorSpec { name, offset, bytes, .. } = tensor;
    Some(FoundTensor { name: name.clone(), shape, dtype: "F32".into(), offset: *offset, bytes: *bytes })
}

fn verify_header(manifest: &ManifestSpec, file: &FileSpec, found: &[FoundTensor]) -> Vec<Fault> {
    let fault = |tensor: &str, what| Fault { file: file.name.clone(), tensor: Some(plain(tensor)), what };
    let words = |tensor: &FoundTensor| {
        let FoundTensor { shape, dtype, offset, bytes, .. } = tensor;
        format!("{} {shape} of {bytes} bytes at byte {offset}", plain(dtype))
    };
    let mut faults = Vec::new();
    for tensor in &file.tensors {
        let expected = expected(manifest, file, tensor).expect("a manifest's tensors have slices");
        match found.iter().find(|found| found.name == tensor.name) {
            None => faults.push(fault(&tensor.name, "the tensor is missing in the file's header".into())),
            Some(found) if *found != expected => {
                let what = format!("the file's header has {}, expected {}", words(found), words(&expected));
                faults.push(fault(&tensor.name, what));
            }
            Some(_) => {}
        }
    }
    let known = |found: &FoundTensor| file.tensors.iter().any(|tensor| tensor.name == found.name);
    let odd = found.iter().filter(|found| !known(found));
    faults.extend(odd.map(|odd| fault(&odd.name, "the tensor is missing in the manifest".into())));
    faults
}

/// Reads a tensor and compares the checksums of its blocks with those in the manifest. Returns a fault if a
/// block is wrong. The fault describes the first wrong block, and says how many more blocks are wrong.
async fn verify_tensor(
    store: &Store,
    name: CheckpointName,
    file: &FileSpec,
    tensor: &SavedTensorSpec,
) -> Option<Fault> {
    let (mut first, mut wrong) = (None, 0);
    let mut block = vec![0; tensor.bytes.min(BLOCK_BYTES as u64) as usize];
    let mut start = 0;
    while start < tensor.bytes {
        let end = tensor.bytes.min(start + BLOCK_BYTES as u64);
        let piece = Piece {
            file: &file.name,
            tensor: &tensor.name,
            tensor_offset: tensor.offset,
            tensor_bytes: tensor.bytes,
            crc32c: &tensor.crc32c,
            from: start..end,
            to: 0,
        };
        if let Err(error) = read_piece(store, name, &piece, &mut block[..(end - start) as usize]).await {
            wrong += 1;
            first.get_or_insert(match error {
                FileError::Checksum { offset, expected, got, .. } => {
                    format!("the block at byte {offset} has checksum {got:08x}, expected {expected:08x}")
                }
                other => other.to_string(),
            });
        }
        start = end;
    }
    let more = if wrong > 1 { format!("; {} more blocks are wrong", wrong - 1) } else { String::new() };
    let what = first? + &more;
    Some(Fault { file: file.name.clone(), tensor: Some(plain(&tensor.name)), what })
}
