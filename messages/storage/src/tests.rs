//! Tests manifests and stores: what is written can be read again, and any change of the written data is
//! detected.

use proptest::prelude::*;

use super::*;
use crate::fixtures::{file_spec, job, placement, worker_record};
use pushpull_messages::checkpoint::*;
use pushpull_messages::id::*;
use pushpull_messages::input::FilesDigest;
use pushpull_messages::optimizer::{RateChange, RateSpec};

/// Returns the manifest of a checkpoint of one shard with one variable.
pub(crate) fn manifest(step: u64) -> ManifestSpec {
    ManifestSpec {
        format: FORMAT,
        step: GlobalStep(step),
        saved_ms: 5,
        job: job(4, 1),
        placement: placement(),
        files: vec![file_spec(step)],
        workers: vec![worker_record()],
        learning_rate: RateSpec::default(),
        inputs: Default::default(),
    }
}

#[test]
fn the_files_of_workers_are_part_of_a_manifest() {
    let plain = String::from_utf8(manifest(12).encode().unwrap()).unwrap();
    assert!(!plain.contains("\"inputs\":{"), "as it was before manifests had files of workers");
    let files = FilesDigest { files: 2, bytes: 7, crc32c: 3 };
    let with = ManifestSpec { inputs: [(1, files)].into(), ..manifest(12) };
    assert_eq!(ManifestSpec::decode(&with.encode().unwrap()).unwrap(), with);
}

#[test]
fn a_shard_without_slices_needs_no_file() {
    let mut manifest = manifest(12);
    manifest.placement.shards.push(ShardId::new(0, 1));
    manifest.validate().unwrap();
    // Earlier versions wrote one.
    let name = CheckpointName::shard_file(ShardId::new(0, 1));
    let empty =
        FileSpec { name, shard: ShardId::new(0, 1), tensors: Vec::new(), ..manifest.files[0].clone() };
    manifest.files.push(empty);
    manifest.validate().unwrap();
    manifest.files.remove(0);
    let error = manifest.validate().unwrap_err().to_string();
    assert!(error.contains("ps/0/shard/0 has no file"), "{error}");
}

#[test]
fn a_name_in_a_manifest_forges_no_line_of_a_log() {
    let mut forged = manifest(12);
    forged.files[0].name = "a\n\u{1b}[31mERROR".repeat(1000);
    let error = ManifestSpec::decode(&forged.encode().unwrap()).unwrap_err().to_string();
    assert!(error.contains("is called 'a\\n\\u{1b}[31mERROR"), "{error}");
    assert!(error.len() < 10_000 && !error.chars().any(char::is_control), "{error}");
}

#[test]
fn a_changed_learning_rate_is_part_of_a_manifest() {
    let plain = String::from_utf8(manifest(12).encode().unwrap()).unwrap();
    assert!(!plain.contains("factor"), "as it was before learning rates could change");
    let next = Some(RateChange { from: Version(14), factor: 0.25 });
    let changed = ManifestSpec { learning_rate: RateSpec { factor: 0.5, next }, ..manifest(12) };
    assert_eq!(ManifestSpec::decode(&changed.encode().unwrap()).unwrap(), changed);
    let wrong = ManifestSpec { learning_rate: RateSpec { factor: 0.0, next: None }, ..changed };
    let error = ManifestSpec::decode(&wrong.encode().unwrap()).unwrap_err().to_string();
    assert!(error.contains("learning rate: factor must be finite"), "{error}");
}

#[tokio::test]
async fn new_checkpoints_are_the_newest_whatever_the_clock_says() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(directory.path().to_str().unwrap()).unwrap();
    let catalog = Catalog::new(store.clone());
    assert_eq!(catalog.next_life(Incarnation(7), 0).await.unwrap(), Incarnation(7), "there is none");
    let ahead = Incarnation(1 << 60);
    for (step, life) in [(9, Incarnation(3)), (4, ahead)] {
        let name = CheckpointName { step: GlobalStep(step), life };
        store.put(&name.file("a"), "").await.unwrap();
    }
    // Two tasks whose clocks are behind take different numbers.
    for (nonce, distance) in [(0, 1), (5 << 32, 6), (u64::MAX, 1 << 32)] {
        let life = catalog.next_life(Incarnation(7), nonce).await.unwrap();
        assert_eq!(life, Incarnation(ahead.0 + distance));
    }
    let later = Incarnation(ahead.0 + (1 << 40));
    assert_eq!(catalog.next_life(later, u64::MAX).await.unwrap(), later);
    // The greatest number that a name may have.
    let last = CheckpointName { step: GlobalStep(1), life: Incarnation(u64::MAX - 1) };
    store.put(&last.file("a"), "").await.unwrap();
    let name = CheckpointName { life: catalog.next_life(Incarnation(7), u64::MAX).await.unwrap(), ..last };
    assert_eq!(name.to_string().parse(), Ok(name));
}

#[test]
fn a_manifest_round_trips_and_any_change_is_detected() {
    let manifest = manifest(12);
    let bytes = manifest.encode().unwrap();
    assert_eq!(ManifestSpec::decode(&bytes).unwrap(), manifest);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x01;
        // A change may spell the same text differently, for example with an escape, but never results in a
        // different manifest.
        match ManifestSpec::decode(&changed) {
            Ok(read) => assert_eq!(read, manifest, "byte {at}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(ManifestSpec::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_contradictory_manifest_is_refused() {
    let with = |change: fn(&mut ManifestSpec)| {
        let mut manifest = manifest(12);
        change(&mut manifest);
        manifest.validate().unwrap_err().to_string()
    };
    assert!(
        with(|m| m.files[0].version = Version(11))
            .contains("has version 11, expected 12, the step of the checkpoint")
    );
    assert!(with(|m| m.files[0].name = "../x".into()).contains("is called '../x'"));
    assert!(with(|m| m.files.clear()).contains("ps/0/shard/0 has no file"));
    assert!(with(|m| m.files[0].tensors[0].part = Part::Average).contains("lacks the value of slice 0"));
    assert!(with(|m| m.files[0].tensors[1].bytes = 4).contains("does not fit"));
    assert!(with(|m| m.files[0].tensors[2].offset = u64::MAX).contains("does not fit"));
    assert!(with(|m| m.files[0].tensors[2].part = Part::Slot(0)).contains("does not fit"));
    assert!(with(|m| m.files[0].tensors[0].crc32c.clear()).contains("does not fit"));
    assert!(with(|m| m.workers.push(m.workers[0])).contains("worker/0 is out of order"));
    assert!(with(|m| m.files.push(m.files[0].clone())).contains("two files"));
}

#[test]
fn names_round_trip_and_other_texts_are_refused() {
    let name = CheckpointName { step: GlobalStep(1200), life: Incarnation(0x6_4432_fa1b) };
    assert_eq!(name.to_string(), "step-1200-000000064432fa1b");
    assert_eq!(name.to_string().parse(), Ok(name));
    for other in
        ["step-1200", "step-01200-000000064432fa1b", "step-1-64432", "eval", "step-1-000000064432FA1B", ""]
    {
        assert!(other.parse::<CheckpointName>().is_err(), "{other}");
    }
    assert!(name < CheckpointName { step: GlobalStep(1201), life: Incarnation(0) });
}

proptest! {
    /// Each of two shards saves some rows of a variable. Checks that the pieces of the variable contain each
    /// requested row exactly once, in order.
    #[test]
    fn pieces_cover_the_requested_rows(cut in 1u64..3, start in 0u64..3, rows in 1u64..4) {
        let mut manifest = manifest(1);
        let second = ShardId::new(1, 0);
        manifest.placement.shards.push(second);
        let whole = manifest.placement.slices[0];
        let slice = |row, rows, shard| pushpull_messages::placement::PlacedSlice {
            slice: pushpull_messages::placement::SliceSpec { row, rows, ..whole.slice },
            shard,
        };
        manifest.placement.slices = vec![slice(0, cut, whole.shard), slice(cut, 3 - cut, second)];
        let row_bytes = 8;
        let file = |shard: ShardId, id: u32, rows: u64| FileSpec {
            name: CheckpointName::shard_file(shard),
            shard,
            version: Version(1),
            bytes: 8 + rows * row_bytes,
            tensors: vec![SavedTensorSpec {
                name: "kernel".into(),
                slice: SliceId(id),
                part: Part::Value,
                offset: 8,
                bytes: rows * row_bytes,
                crc32c: vec![0],
            }],
        };
        manifest.files = vec![file(second, 1, 3 - cut), file(whole.shard, 0, cut)];
        manifest.validate().unwrap();
        let end = (start + rows).min(3);
        let pieces = manifest.pieces(VariableId(0), Part::Value, start..end);
        let mut next = 0;
        for piece in &pieces {
            prop_assert_eq!(piece.to, next);
            let first_row = if piece.file == CheckpointName::shard_file(second) { cut } else { 0 };
            prop_assert_eq!(first_row * row_bytes + piece.from.start, start * row_bytes + next);
            next += piece.from.end - piece.from.start;
        }
        prop_assert_eq!(next, end.saturating_sub(start) * row_bytes);
        prop_assert!(manifest.pieces(VariableId(0), Part::Average, 0..3).is_empty());
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn files_of_a_directory_appear_complete() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new").to_str().unwrap().to_owned();
    let missing = Store::open(&path).unwrap_err().to_string();
    assert!(
        missing.ends_with(
            "new is not a directory that this host can use: No such file or directory (os error 2)"
        ),
        "{missing}"
    );
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Store::open(file.to_str().unwrap()).unwrap_err().to_string();
    assert!(
        error.ends_with("file is not a directory that this host can use: it exists, but is no directory"),
        "{error}"
    );
    let store = Store::create(&path).unwrap();
    block_on(async {
        store.put("a/one", "first").await.unwrap();
        store.put("a/one", "second").await.unwrap();
        let mut upload = store.upload("a/two").await.unwrap();
        upload.part(["12".into(), "34".into()]).await.unwrap();
        let half = store.size("a/two").await.unwrap_err().to_string();
        assert!(half.starts_with("a/two is missing in "), "{half}");
        upload.part(["5".into()]).await.unwrap();
        upload.finish().await.unwrap();
        assert_eq!(store.get("a/one", 6).await.unwrap(), "second");
        assert_eq!(store.read("a/two", 1..4).await.unwrap(), "234");
        assert!(store.read("a/two", 1..9).await.is_err());
        assert!(matches!(store.get("a/one", 5).await, Err(StoreError::TooLarge { bytes: 6, max: 5, .. })));
        store.copy("a/one", "b/one").await.unwrap();
        let mut unfinished = store.upload("b/three").await.unwrap();
        unfinished.part(["1".into()]).await.unwrap();
        drop(unfinished);
        let mut folders = store.folders().await.unwrap();
        folders.sort();
        assert_eq!(folders, ["a", "b"]);
        assert_eq!(store.files("b").await.unwrap(), ["one"]);
        assert!(store.files("none").await.unwrap().is_empty());
        store.delete_folder("b").await.unwrap();
        store.delete("a/none").await.unwrap();
        assert_eq!(store.folders().await.unwrap(), ["a"]);
        assert!(!directory.path().join("new/b").exists(), "half-written files are gone as well");
    });
}

#[test]
fn a_file_is_read_in_parts_and_changes_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let store = Store::create(path).unwrap();
    let name = CheckpointName { step: GlobalStep(1), life: Incarnation(2) };
    // The first tensor is longer than a block, and its pieces differ from the blocks. The second tensor is
    // short.
    let long: Vec<u8> = (0..BLOCK_BYTES * 2 + 4096).map(|at| (at / 7) as u8).collect();
    let whole = bytes::Bytes::from(long.clone());
    let pieces = vec![whole.slice(..1000), whole.slice(1000..5_000_000), whole.slice(5_000_000..)];
    let tensors = [
        NewTensor { name: "a/long".into(), shape: [long.len() / 4].into(), bytes: pieces },
        NewTensor { name: "b:m".into(), shape: [1, 2].into(), bytes: vec![vec![1u8; 8].into()] },
    ];
    block_on(async {
        let file = CheckpointName::shard_file(ShardId::new(0, 0));
        let (written, bytes) =
            write_file(&store, &name.file(&file), tensors.to_vec(), Default::default()).await.unwrap();
        assert_eq!(store.size(&name.file(&file)).await.unwrap(), bytes);
        assert_eq!(written[0].crc32c, block_checksums(&long));
        assert_eq!(written[0].offset % 64, 0);
        let found = read_header(&store, &name.file(&file)).await.unwrap();
        let shown: Vec<_> =
            found.iter().map(|f| (f.name.as_str(), f.offset, f.bytes, f.dtype.as_str())).collect();
        assert_eq!(
            shown,
            [("a/long", written[0].offset, written[0].bytes, "F32"), ("b:m", written[1].offset, 8, "F32")]
        );
        let piece = |from: std::ops::Range<u64>| Piece {
            file: &file,
            tensor: "a/long",
            tensor_offset: written[0].offset,
            tensor_bytes: written[0].bytes,
            crc32c: &written[0].crc32c,
            from,
            to: 0,
        };
        let block = BLOCK_BYTES as u64;
        for from in [0..4, block - 4..block + 4, 8..2 * block + 4000, 0..written[0].bytes, 12..12] {
            let mut to = vec![0; (from.end - from.start) as usize];
            read_piece(&store, name, &piece(from.clone()), &mut to).await.unwrap();
            assert_eq!(to, long[from.start as usize..from.end as usize]);
        }
        let local = std::path::Path::new(path).join(name.file(&file));
        let good = std::fs::read(&local).unwrap();
        let mut changed = good.clone();
        changed[written[0].offset as usize + BLOCK_BYTES + 5] ^= 4;
        std::fs::write(&local, &changed).unwrap();
        read_piece(&store, name, &piece(0..100), &mut [0; 100]).await.unwrap();
        let error =
            read_piece(&store, name, &piece(block..block + 4), &mut [0; 4]).await.unwrap_err().to_string();
        assert!(error.contains("block at byte 4194304 of tensor 'a/long'"), "{error}");
        for cut in [0, 7, 8, 100, good.len() - 1, good.len() - 200] {
            std::fs::write(&local, &good[..cut]).unwrap();
            assert!(read_header(&store, &name.file(&file)).await.is_err(), "cut at {cut}");
        }
        assert!(
            read_piece(&store, name, &piece(block..2 * block + 4096), &mut vec![0; BLOCK_BYTES + 4096])
                .await
                .is_err()
        );
    });
}

#[test]
fn an_unknown_location_is_refused() {
    for (location, words) in [("ftp://host/x", "expected a directory"), ("s3://bucket/x", "feature `cloud`")]
    {
        let error = Store::create(location);
        if cfg!(feature = "cloud") && location.starts_with("s3") {
            continue;
        }
        assert!(error.unwrap_err().to_string().contains(words));
    }
}

#[test]
fn a_directory_is_locked_until_its_holder_ends() {
    let path = tempfile::tempdir().unwrap();
    let location = path.path().to_str().unwrap();
    let open = |location: &str| Store::open(location).unwrap();
    let lock = open(location).lock("the job 'one'").unwrap().expect("it is locked");
    // The same directory, with its location written as a URL.
    let second = open(&format!("file://{location}"));
    let error = second.lock("the job 'two'").unwrap_err().to_string();
    assert!(error.contains("is in use by the job 'one': wait until it has ended"), "{error}");
    drop(lock);
    let lock = second.lock("two").unwrap();
    let error = open(location).lock("three").unwrap_err().to_string();
    assert!(lock.is_some() && error.contains("is in use by two: wait"), "{error}");
    // The file of the lock is not listed among the folders of checkpoints.
    let folders = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(second.folders());
    assert!(folders.unwrap().is_empty());
    let nowhere = path.path().join("missing");
    let gone =
        Store::with(std::sync::Arc::new(object_store::memory::InMemory::new()), nowhere.to_str().unwrap());
    let error = gone.lock("four").unwrap_err().to_string();
    assert!(error.starts_with("cannot open job.lock in "), "{error}");
    // The lock also works if the process may not write to the file.
    drop(lock);
    let file = path.path().join("job.lock");
    let mut permissions = std::fs::metadata(&file).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&file, permissions).unwrap();
    let lock = second.lock("five").unwrap();
    assert!(lock.is_some() && open(location).lock("six").is_err());
    let bucket = Store::with(std::sync::Arc::new(object_store::memory::InMemory::new()), "s3://bucket");
    assert!(bucket.lock("five").unwrap().is_none() && bucket.lock("six").unwrap().is_none());
}
