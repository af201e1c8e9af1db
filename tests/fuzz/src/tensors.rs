//! The target `tensors`: reads bytes as a data file of a checkpoint, in a store in memory: first the header,
//! and then the tensors of the manifest that belongs to the file. The first byte selects the name.

use std::sync::Arc;

use bytes::Bytes;
use object_store::memory::InMemory;
use pushpull_messages::checkpoint::{CheckpointName, Part};
use pushpull_messages::id::{GlobalStep, Incarnation, VariableId};
use pushpull_messages::tensor::Shape;
use pushpull_storage::{ManifestSpec, NewTensor, PieceReader, Store, read_header_with_metadata, write_file};

use crate::manifest::manifest;
use crate::target::{Class, Target, check_error};

/// The number of bytes of a tensor of the file: those of a variable of 3 rows and 2 columns.
const TENSOR_BYTES: usize = 24;

pub(crate) const TARGET: Target = Target {
    name: "tensors",
    class: Class::File,
    about: &["messages/storage/src/file.rs", "messages/storage/src/read.rs"],
    check,
    stages: &["no header", "a header", "the tensors", "the saved values"],
    seeds,
    words: &[
        b"{\"",
        b"\"dtype\":\"F32\"",
        b"\"shape\":[3,2]",
        b"\"data_offsets\":[0,24]",
        b"__metadata__",
        b"BF16",
        b"[24,0]",
        b"[0,18446744073709551615]",
    ],
    ..Target::USUAL
};

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    static STORE: Store = Store::with(Arc::new(InMemory::new()), "memory");
    static MANIFEST: ManifestSpec = saved().0;
}

fn checkpoint() -> CheckpointName {
    CheckpointName { step: GlobalStep(12), life: Incarnation(1) }
}

/// Returns a manifest, and the bytes of its only data file.
fn saved() -> (ManifestSpec, Bytes) {
    let mut manifest = manifest(12);
    let names: Vec<String> = manifest.files[0].tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let tensor = |(name, fill): (&String, u8)| NewTensor {
        name: name.clone(),
        shape: Shape(vec![3, 2]),
        bytes: vec![Bytes::from(vec![fill; TENSOR_BYTES])],
    };
    let tensors: Vec<NewTensor> = names.iter().zip(1u8..).map(tensor).collect();
    let file = RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let store = Store::with(Arc::new(InMemory::new()), "memory");
            let metadata = [("format".to_owned(), "pt".to_owned())].into();
            let (written, bytes) =
                write_file(&store, "file", tensors, metadata).await.expect("memory does not fail");
            let file = &mut manifest.files[0];
            file.bytes = bytes;
            for (tensor, written) in file.tensors.iter_mut().zip(written) {
                (tensor.offset, tensor.bytes, tensor.crc32c) =
                    (written.offset, written.bytes, written.crc32c);
            }
            store.get("file", 1 << 16).await.expect("it was written")
        })
    });
    manifest.validate().expect("a valid manifest");
    (manifest, file)
}

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((_, file)) = bytes.split_first() else { return 0 };
    RUNTIME.with(|runtime| {
        STORE.with(|store| MANIFEST.with(|manifest| runtime.block_on(read(store, manifest, file))))
    })
}

async fn read(store: &Store, manifest: &ManifestSpec, file: &[u8]) -> usize {
    let name = checkpoint().file(&manifest.files[0].name);
    store.put(&name, file.to_vec()).await.expect("memory does not fail");
    let mut reached = 0;
    match read_header_with_metadata(store, &name).await {
        Ok((tensors, _)) => {
            reached = 1;
            for tensor in tensors {
                let end = tensor.offset.checked_add(tensor.bytes);
                assert!(
                    end.is_some_and(|end| end <= file.len() as u64),
                    "{} lies within the file",
                    tensor.name
                );
                let read = store.read(&name, tensor.offset..tensor.offset + tensor.bytes).await;
                match read {
                    Ok(bytes) => assert!(bytes.len() as u64 == tensor.bytes, "all bytes are read"),
                    Err(error) => check_error(&error),
                }
                reached = 2;
            }
        }
        Err(error) => check_error(&error),
    }
    let mut reader = PieceReader::new(store, checkpoint());
    for (part, fill) in [(Part::Value, 1u8), (Part::Slot(0), 2), (Part::Slot(1), 3)] {
        for piece in manifest.pieces(VariableId(0), part, 0..3) {
            let mut to = [0; TENSOR_BYTES];
            match reader.read(&piece, &mut to).await {
                Ok(()) => {
                    assert!(to == [fill; TENSOR_BYTES], "C2: only what was saved is restored");
                    reached = reached.max(3);
                }
                Err(error) => check_error(&error),
            }
        }
    }
    reached
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    vec![("saved".to_owned(), [&[0], &saved().1[..]].concat())]
}
