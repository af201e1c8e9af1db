//! A store whose files are in the memory of the ps tasks. Each file is kept by two tasks, so it outlasts the
//! loss of any one of them.
//!
//! Wanted properties: (A) a file that was stored is found after the loss of any one task; (B) a file counts
//! as missing only if every task has replied that it does not have it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use pushpull_messages::id::TaskId;
use pushpull_messages::message::{FileAccess, FilesResult};

use super::files::MemoryFiles;

/// The number of tasks that keep each file.
const COPIES: usize = 2;
/// The size of the pieces in which a file is sent to another task, in bytes. A larger piece would keep the
/// other task's connections waiting for longer.
const PIECE_BYTES: usize = 1 << 20;
/// The size of the pieces in which a file is read from another task, in bytes.
const READ_BYTES: u64 = 4 << 20;

/// The error of a call to another task: why the task did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task}: {reason}")]
pub struct FileCallError {
    /// The task that was called.
    pub task: TaskId,
    /// The reason.
    pub reason: String,
}

/// The ps tasks, as one task reaches them.
pub trait FileTasks: Send + Sync + 'static {
    /// Returns all ps tasks, in the order in which to ask them for a file. The calling task is the first one
    /// if it keeps files itself.
    fn tasks(&self, name: &str) -> Vec<TaskId>;

    /// Returns the files of the calling task and its id; `None` if it keeps no files.
    fn own(&self) -> Option<(TaskId, &Mutex<MemoryFiles>)>;

    /// Asks another task for an operation on its files. `piece` is the payload of the request; the reply has
    /// the payload of the reply.
    fn call(
        &self,
        task: TaskId,
        access: FileAccess,
        piece: Bytes,
    ) -> BoxFuture<'_, std::result::Result<(FilesResult, Bytes), FileCallError>>;
}

/// A store in the memory of the ps tasks.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    tasks: Box<dyn FileTasks>,
    /// The number of the last upload.
    uploads: AtomicU64,
}

fn failed(verb: &str, name: &str, error: impl fmt::Display) -> Error {
    let source = format!("could not {verb} {name} in the memory of the ps tasks: {error}").into();
    Error::Generic { store: "memory", source }
}

fn missing(name: &str) -> Error {
    Error::NotFound { path: name.to_owned(), source: "no ps task has it in its memory".into() }
}

fn meta(name: &str, size: u64) -> ObjectMeta {
    let location = Path::from(name);
    ObjectMeta { location, last_modified: Default::default(), size, e_tag: None, version: None }
}

fn stored() -> PutResult {
    PutResult { e_tag: None, version: None, extensions: Default::default() }
}

fn joined(parts: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(parts) {
        Ok([one]) => one,
        Err(parts) => {
            let mut all = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
            parts.iter().for_each(|part| all.extend_from_slice(part));
            all.freeze()
        }
    }
}

impl MemoryStore {
    /// Returns a store in the memory of these tasks. `first` is the number of the first upload. An earlier
    /// start of the task must not have used the numbers that follow.
    pub fn new(tasks: impl FileTasks, first: u64) -> Self {
        Self(Arc::new(Shared { tasks: Box::new(tasks), uploads: AtomicU64::new(first) }))
    }

    fn own(&self, task: TaskId) -> Option<&Mutex<MemoryFiles>> {
        self.0.tasks.own().filter(|(own, _)| *own == task).map(|(_, files)| files)
    }

    /// Keeps a file in the memory of two tasks.
    async fn keep(&self, name: &str, parts: Vec<Bytes>) -> Result<PutResult> {
        let (mut copies, mut reasons) = (0, Vec::new());
        for task in self.0.tasks.tasks(name) {
            match self.keep_on(task, name, &parts).await {
                Ok(()) => copies += 1,
                Err(error) => reasons.push(error),
            }
            if copies == COPIES {
                return Ok(stored());
            }
        }
        let reasons = match &reasons[..] {
            [] => "there is no other ps task".to_owned(),
            reasons => reasons.join("; "),
        };
        Err(failed("keep", name, format_args!("{copies} task(s) keep it, expected {COPIES}: {reasons}")))
    }

    async fn keep_on(&self, task: TaskId, name: &str, parts: &[Bytes]) -> std::result::Result<(), String> {
        if let Some(files) = self.own(task) {
            let kept = files.lock().put(name, parts.iter().cloned());
            return kept.map_err(|error| format!("{task}: {error}"));
        }
        let total = parts.iter().map(|part| part.len() as u64).sum();
        let upload = self.0.uploads.fetch_add(1, Ordering::Relaxed);
        let mut offset = 0;
        for part in parts {
            for start in (0..part.len()).step_by(PIECE_BYTES) {
                let piece = part.slice(start..part.len().min(start + PIECE_BYTES));
                let length = piece.len() as u64;
                let access = FileAccess::Put { name: name.to_owned(), upload, offset, total };
                match self.0.tasks.call(task, access, piece).await {
                    Ok((FilesResult::Done, _)) => offset += length,
                    Ok((other, _)) => return Err(format!("{task} replied {other:?}, expected Done")),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        match total {
            0 => Err("the file is empty, expected at least 1 byte".to_owned()),
            _ => Ok(()),
        }
    }

    /// Returns the length of a file and a piece of it. Asks one task after the other until one has the file.
    async fn find(&self, name: &str, range: Range<u64>) -> Result<(u64, Bytes)> {
        let mut reasons = Vec::new();
        for task in self.0.tasks.tasks(name) {
            match self.find_on(task, name, range.clone()).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => reasons.push(error),
            }
        }
        match reasons.is_empty() {
            true => Err(missing(name)),
            // The task that does not reply may have the file.
            false => Err(failed("find", name, reasons.join("; "))),
        }
    }

    async fn find_on(
        &self,
        task: TaskId,
        name: &str,
        range: Range<u64>,
    ) -> std::result::Result<Option<(u64, Bytes)>, String> {
        if let Some(files) = self.own(task) {
            let found = files.lock().get(name, range);
            return Ok(found.map(|(size, parts)| (size, joined(parts))));
        }
        let (mut pieces, mut at) = (Vec::new(), range.start);
        loop {
            let bytes = range.end.saturating_sub(at).min(READ_BYTES);
            let access = FileAccess::Get { name: name.to_owned(), offset: at, bytes };
            let (size, piece) = match self.0.tasks.call(task, access, Bytes::new()).await {
                Ok((FilesResult::Found { bytes }, piece)) => (bytes, piece),
                Ok((FilesResult::Missing, _)) => return Ok(None),
                Ok((other, _)) => return Err(format!("{task} replied {other:?}, expected Found or Missing")),
                Err(error) => return Err(error.to_string()),
            };
            if piece.len() as u64 != bytes.min(size.saturating_sub(at)) {
                return Err(format!("{task} sent {} bytes of {name}, expected {bytes}", piece.len()));
            }
            at += piece.len() as u64;
            let ends = piece.is_empty() || at >= range.end.min(size);
            pieces.push(piece);
            if ends {
                return Ok(Some((size, joined(pieces))));
            }
        }
    }

    /// Returns the files of a folder and of the folders in it, on all tasks.
    async fn all(&self, folder: &str) -> Result<BTreeMap<String, u64>> {
        let mut all = BTreeMap::new();
        for task in self.0.tasks.tasks(folder) {
            if let Some(files) = self.own(task) {
                all.extend(files.lock().list(folder));
                continue;
            }
            let access = FileAccess::List { folder: folder.to_owned() };
            match self.0.tasks.call(task, access, Bytes::new()).await {
                Ok((FilesResult::Listed(files), _)) => {
                    all.extend(files.into_iter().map(|file| (file.name, file.bytes)));
                }
                Ok((other, _)) => {
                    return Err(failed(
                        "list",
                        folder,
                        format_args!("{task} replied {other:?}, expected Listed"),
                    ));
                }
                Err(error) => return Err(failed("list", folder, error)),
            }
        }
        Ok(all)
    }

    async fn delete(&self, name: &str) -> Result<()> {
        let mut reasons = Vec::new();
        for task in self.0.tasks.tasks(name) {
            if let Some(files) = self.own(task) {
                files.lock().delete(name);
                continue;
            }
            let access = FileAccess::Delete { name: name.to_owned() };
            if let Err(error) = self.0.tasks.call(task, access, Bytes::new()).await {
                reasons.push(error.to_string());
            }
        }
        match reasons.is_empty() {
            true => Ok(()),
            false => Err(failed("delete", name, reasons.join("; "))),
        }
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory of the ps tasks")
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.keep(location.as_ref(), payload.into_iter().collect()).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = MemoryUpload { store: self.clone(), location: location.clone(), parts: Vec::new() };
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let name = location.as_ref();
        // The range of most reads has an end, and the file is read with the first request.
        let wanted = match &options.range {
            Some(object_store::GetRange::Bounded(range)) if !options.head => Some(range.clone()),
            _ => None,
        };
        let (size, read) = self.find(name, wanted.clone().unwrap_or(0..0)).await?;
        let wrong = |error| Error::Generic { store: "memory", source: Box::new(error) };
        let range =
            options.range.as_ref().map_or(Ok(0..size), |range| range.as_range(size).map_err(wrong))?;
        let bytes = match wanted.is_some() || options.head {
            true => read,
            false => self.find(name, range.clone()).await?.1,
        };
        let payload = GetResultPayload::Stream(futures_util::stream::once(async { Ok(bytes) }).boxed());
        let (attributes, extensions) = (Default::default(), Default::default());
        Ok(GetResult { payload, meta: meta(name, size), range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                Self::delete(&store, location.as_ref()).await?;
                Ok(location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, folder) = (self.clone(), prefix.map(ToString::to_string).unwrap_or_default());
        let listed = async move {
            let all = store.all(&folder).await?;
            let all: Vec<_> = all.into_iter().map(|(name, bytes)| Ok(meta(&name, bytes))).collect();
            Ok::<_, Error>(futures_util::stream::iter(all))
        };
        listed.into_stream().try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let folder = prefix.map(ToString::to_string).unwrap_or_default();
        let (mut objects, mut folders) = (Vec::new(), BTreeMap::new());
        for (name, bytes) in self.all(&folder).await? {
            let rest = name.get(folder.len()..).unwrap_or_default().trim_start_matches('/');
            match rest.split_once('/') {
                None => objects.push(meta(&name, bytes)),
                Some((child, _)) => {
                    let path = prefix.cloned().unwrap_or_default().join(child);
                    folders.insert(path.to_string(), path);
                }
            }
        }
        let common_prefixes = folders.into_values().collect();
        Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        let (size, _) = self.find(from.as_ref(), 0..0).await?;
        let (_, bytes) = self.find(from.as_ref(), 0..size).await?;
        self.keep(to.as_ref(), vec![bytes]).await.map(drop)
    }
}

/// An upload in parts. The parts share the caller's memory until the upload is completed.
#[derive(Debug)]
struct MemoryUpload {
    store: MemoryStore,
    location: Path,
    parts: Vec<Bytes>,
}

#[async_trait]
impl MultipartUpload for MemoryUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.extend(data);
        std::future::ready(Ok(())).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.store.keep(self.location.as_ref(), std::mem::take(&mut self.parts)).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.clear();
        Ok(())
    }
}
