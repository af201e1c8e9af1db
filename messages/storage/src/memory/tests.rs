//! Tests of the files in the memory of ps tasks, with tasks that call each other without a network.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use proptest::prelude::*;
use pushpull_messages::checkpoint::MEMORY;
use pushpull_messages::id::{Incarnation, TaskId};
use pushpull_messages::message::{FileAccess, FilesResult, ListedFile};

use super::*;
use crate::{Store, StoreError};

fn uploader(task: u32, upload: u64) -> Uploader {
    Uploader { task: TaskId::ps(task), incarnation: Incarnation(1), upload }
}

fn content(files: &MemoryFiles, name: &str) -> Option<Vec<u8>> {
    let (size, parts) = files.get(name, 0..u64::MAX)?;
    let bytes = parts.concat();
    assert_eq!(bytes.len() as u64, size);
    Some(bytes)
}

proptest! {
    /// Checks against a map of whole files: uploads of several tasks in pieces, some of them repeated, and
    /// some abandoned for another one (A), (B), within a bound (C).
    #[test]
    fn uploads_in_pieces_give_whole_files(
        events in prop::collection::vec((0u32..3, 0u8..4, 1usize..40, 1usize..9, any::<bool>(), any::<bool>()), 1..60),
        bytes_max in 2_000u64..12_000,
    ) {
        let mut files = MemoryFiles::new(bytes_max);
        let mut known: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (number, (task, file, bytes, piece, repeats, finishes)) in events.into_iter().enumerate() {
            let (name, from) = (format!("f{file}"), uploader(task, number as u64));
            let whole: Vec<u8> = (0..bytes).map(|at| (at + number) as u8).collect();
            let pieces: Vec<_> = whole.chunks(piece).collect();
            let sent = if finishes { pieces.len() } else { pieces.len() - 1 };
            let mut refused = false;
            for (index, bytes_of_piece) in pieces.iter().take(sent).enumerate() {
                let mut put = || {
                    let piece = Bytes::copy_from_slice(bytes_of_piece);
                    files.put_piece(from, &name, (index * piece_size(&pieces)) as u64, bytes as u64, piece)
                };
                refused |= put().is_err();
                if repeats && !refused {
                    put().unwrap();
                }
                prop_assert!(files.taken() <= bytes_max, "(C)");
                if refused {
                    break;
                }
            }
            if finishes && !refused {
                known.insert(name, whole);
            }
            for (name, whole) in &known {
                prop_assert_eq!(content(&files, name), Some(whole.clone()), "(A)");
            }
            prop_assert_eq!(files.list("").len(), known.len());
            if number % 7 == 6 {
                let name = format!("f{file}");
                files.delete(&name);
                known.remove(&name);
            }
        }
        for name in known.keys() {
            files.delete(name);
        }
        prop_assert!(files.taken() <= 3 * (1024 + 40), "only uploads are left");
    }

    #[test]
    fn a_range_has_the_bytes_of_the_file(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
        start in 0u64..80,
        length in 0u64..80,
    ) {
        let mut files = MemoryFiles::new(1 << 20);
        files.put("f", parts.iter().cloned().map(Bytes::from)).unwrap();
        let whole = parts.concat();
        let (size, found) = files.get("f", start..start + length).unwrap();
        let end = whole.len().min((start + length) as usize);
        prop_assert_eq!(size, whole.len() as u64);
        prop_assert_eq!(&found.concat()[..], whole.get(start as usize..end).unwrap_or_default());
    }
}

fn piece_size(pieces: &[&[u8]]) -> usize {
    pieces[0].len()
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let mut files = MemoryFiles::new(10_000);
    files.put("a", [Bytes::from(vec![1; 5000])]).unwrap();
    let error = files.put("b", [Bytes::from(vec![1; 5000])]).unwrap_err().to_string();
    assert!(
        error.contains("'b' with 5000 bytes does not fit: checkpoints already take 6024 of 10000"),
        "{error}"
    );
    // An upload is refused with its first piece, and before any memory is taken for it.
    for total in [5000, u64::MAX] {
        let refused = files.put_piece(uploader(1, 1), "b", 0, total, Bytes::from_static(b"x"));
        assert!(matches!(refused, Err(FilesFull::Bytes { .. })), "{refused:?}");
    }
    assert_eq!(files.taken(), 6024);
    files.put_piece(uploader(1, 2), "b", 0, 2000, Bytes::from_static(b"x")).unwrap();
    assert!(files.put("c", [Bytes::from(vec![1; 1000])]).is_err(), "the upload has its place");
    let gap = files.put_piece(uploader(1, 2), "b", 7, 2000, Bytes::from_static(b"x")).unwrap_err();
    assert_eq!(gap, FilesFull::Gap { name: "b".into(), offset: 7, expected: 1 });
    let other = files.put_piece(uploader(2, 2), "b", 1, 2000, Bytes::from_static(b"x")).unwrap_err();
    assert_eq!(other, FilesFull::Gap { name: "b".into(), offset: 1, expected: 0 });
}

#[test]
fn a_folder_lists_its_own_files_only() {
    let mut files = MemoryFiles::new(1 << 20);
    for name in ["step-1/a", "step-1/b", "step-10/a", "top"] {
        files.put(name, [Bytes::from_static(b"x")]).unwrap();
    }
    let names = |folder| files.list(folder).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names("step-1"), ["step-1/a", "step-1/b"]);
    assert_eq!(names("").len(), 4);
    assert!(names("step").is_empty());
}

/// The ps tasks of a test; `None` where one cannot be reached.
#[derive(Clone)]
struct Tasks(Arc<Vec<Mutex<Option<MemoryFiles>>>>);

/// The tasks as one ps task sees them, or the chief.
struct Seen {
    tasks: Tasks,
    own: Option<(TaskId, Mutex<MemoryFiles>)>,
    from: TaskId,
}

impl Tasks {
    fn new(count: usize) -> Self {
        Self(Arc::new((0..count).map(|_| Mutex::new(Some(MemoryFiles::new(16 << 20)))).collect()))
    }

    fn store(&self, from: TaskId, first: u64) -> Store {
        let seen = Seen { tasks: self.clone(), own: None, from };
        Store::with(Arc::new(MemoryStore::new(seen, first)), MEMORY)
    }

    fn restart(&self, task: usize) {
        *self.0[task].lock() = Some(MemoryFiles::new(16 << 20));
    }
}

impl FileTasks for Seen {
    fn tasks(&self, _: &str) -> Vec<TaskId> {
        let count = self.tasks.0.len() as u32;
        let first = if self.from == TaskId::CHIEF { 0 } else { self.from.index };
        (first..count).chain(0..first).map(TaskId::ps).collect()
    }

    fn own(&self) -> Option<(TaskId, &Mutex<MemoryFiles>)> {
        self.own.as_ref().map(|(task, files)| (*task, files))
    }

    fn call(
        &self,
        task: TaskId,
        access: FileAccess,
        piece: Bytes,
    ) -> BoxFuture<'_, Result<(FilesResult, Bytes), FileCallError>> {
        let from = Uploader { task: self.from, incarnation: Incarnation(1), upload: 0 };
        let mut files = self.tasks.0[task.index as usize].lock();
        let result = match files.as_mut() {
            None => Err("it cannot be reached".to_owned()),
            Some(files) => Ok(answer(files, access, piece, from)),
        };
        std::future::ready(result.map_err(|reason| FileCallError { task, reason })).boxed()
    }
}

fn answer(files: &mut MemoryFiles, access: FileAccess, piece: Bytes, from: Uploader) -> (FilesResult, Bytes) {
    match access {
        FileAccess::Put { name, upload, offset, total } => {
            files.put_piece(Uploader { upload, ..from }, &name, offset, total, piece).unwrap();
            (FilesResult::Done, Bytes::new())
        }
        FileAccess::Get { name, offset, bytes } => match files.get(&name, offset..offset + bytes) {
            Some((bytes, found)) => (FilesResult::Found { bytes }, found.concat().into()),
            None => (FilesResult::Missing, Bytes::new()),
        },
        FileAccess::List { folder } => {
            let listed = files.list(&folder).into_iter().map(|(name, bytes)| ListedFile { name, bytes });
            (FilesResult::Listed(listed.collect()), Bytes::new())
        }
        FileAccess::Delete { name } => {
            files.delete(&name);
            (FilesResult::Done, Bytes::new())
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks that all files are still there after the loss of any one task (A), also if a task could not be
    /// reached while they were stored; and that a file is never missing while a task does not reply (B).
    #[test]
    fn files_outlast_the_loss_of_any_task(
        count in 2usize..5,
        puts in prop::collection::vec((0usize..5, 1usize..3000), 1..12),
        away in prop::option::of(0usize..5),
        lost in 0usize..5,
        restarts in any::<bool>(),
    ) {
        block_on(async {
            let tasks = Tasks::new(count);
            let away = away.filter(|away| *away < count && count > 2);
            let kept = away.map(|away| tasks.0[away].lock().take());
            for (number, &(from, bytes)) in puts.iter().enumerate() {
                let from = if from < count { TaskId::ps(from as u32) } else { TaskId::CHIEF };
                let store = tasks.store(from, 100 * number as u64);
                store.put(&format!("step-1/f{number}"), vec![number as u8; bytes]).await.unwrap();
            }
            if let Some(away) = away {
                *tasks.0[away].lock() = kept.flatten();
            }
            let lost = lost % count;
            match restarts {
                true => tasks.restart(lost),
                false => drop(tasks.0[lost].lock().take()),
            }
            let reader = tasks.store(TaskId::ps(((lost + 1) % count) as u32), 0);
            for (number, &(_, bytes)) in puts.iter().enumerate() {
                let read = reader.get(&format!("step-1/f{number}"), 1 << 20).await.unwrap();
                prop_assert_eq!(&read[..], &vec![number as u8; bytes][..], "(A)");
            }
            let missing = reader.size("step-1/none").await.unwrap_err();
            prop_assert_eq!(matches!(missing, StoreError::Missing { .. }), restarts, "(B) {}", missing);
            if restarts {
                prop_assert_eq!(reader.files("step-1").await.unwrap().len(), puts.len());
                prop_assert_eq!(reader.folders().await.unwrap(), ["step-1"]);
                reader.delete_folder("step-1").await.unwrap();
                prop_assert!(tasks.0.iter().all(|files| files.lock().as_ref().unwrap().list("").is_empty()));
            } else {
                prop_assert!(reader.files("step-1").await.is_err(), "a list without a task is not whole");
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_file_that_only_one_task_keeps_is_not_stored() {
    block_on(async {
        let tasks = Tasks::new(2);
        tasks.0[1].lock().take();
        let error = tasks.store(TaskId::ps(0), 0).put("step-1/f", "x").await.unwrap_err().to_string();
        assert!(error.contains("1 task(s) keep it, expected 2: ps/1: it cannot be reached"), "{error}");
        let alone = Tasks::new(1).store(TaskId::ps(0), 0).put("step-1/f", "x").await.unwrap_err().to_string();
        assert!(alone.contains("there is no other ps task"), "{alone}");
    });
}

#[test]
fn a_task_keeps_its_own_files_without_copies() {
    block_on(async {
        let tasks = Tasks::new(2);
        let own = Some((TaskId::ps(0), Mutex::new(MemoryFiles::new(16 << 20))));
        let store = MemoryStore::new(Seen { tasks: tasks.clone(), own, from: TaskId::ps(0) }, 0);
        let store = Store::with(Arc::new(store), MEMORY);
        let bytes = Bytes::from(vec![7; 3 << 20]);
        let mut upload = store.upload("step-1/f").await.unwrap();
        upload.part([bytes.clone()]).await.unwrap();
        upload.finish().await.unwrap();
        let read = store.read("step-1/f", 5..100).await.unwrap();
        assert_eq!(read.as_ptr(), bytes[5..].as_ptr(), "it has the memory of the caller");
        let (size, copy) = tasks.0[1].lock().as_ref().unwrap().get("step-1/f", 0..u64::MAX).unwrap();
        assert_eq!((size, copy.concat()), (3 << 20, bytes.to_vec()), "the other task has a copy");
    });
}
