//! A store that works at first and fails from a given operation on. The first operation that fails may still
//! take effect.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::*;

/// Decides which operations of a store fail: counts down to the first operation that fails. All later
/// operations fail, too.
#[derive(Debug)]
pub(super) struct Fuse {
    left: AtomicU64,
    /// Whether the first operation that fails still takes effect. Its caller gets an error in any case.
    late: bool,
    /// Whether operations hang instead of failing. Only `list` fails in any case.
    hangs: bool,
}

/// A store that passes its operations to `inner`, until `fuse` makes them fail.
#[derive(Clone, Debug)]
pub(crate) struct FailingStore {
    inner: Arc<dyn ObjectStore>,
    fuse: Arc<Fuse>,
}

impl FailingStore {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, operations: u64, late: bool) -> Self {
        Self { inner, fuse: Arc::new(Fuse { left: AtomicU64::new(operations), late, hangs: false }) }
    }

    /// Returns a store whose operations never end, except for `list`, which fails.
    pub(crate) fn hanging(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, fuse: Arc::new(Fuse { left: AtomicU64::new(0), late: false, hangs: true }) }
    }

    /// Restarts the count: of the operations from now on, number `operations` is the first that fails. If
    /// `operations` is 0, all fail.
    pub(super) fn refill(&self, operations: u64) {
        self.fuse.left.store(operations, Ordering::SeqCst);
    }

    /// Returns the number of operations until the first failure, including the one that fails. Returns 0 if
    /// the store has failed.
    pub(super) fn left(&self) -> u64 {
        self.fuse.left.load(Ordering::SeqCst)
    }
}

fn broken<T>() -> Result<T> {
    Err(Error::Generic { store: "failing", source: "no more".into() })
}

impl Fuse {
    /// Counts an operation. Returns whether the operation succeeds, and whether it takes effect. An
    /// operation that fails may still take effect.
    fn blow(&self) -> (bool, bool) {
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(1) => (false, self.late),
            Ok(_) => (true, true),
            Err(_) => (false, false),
        }
    }

    async fn run<T>(&self, operation: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let (works, has_effect) = self.blow();
        if !works && self.hangs {
            std::future::pending::<()>().await;
        }
        let result = if has_effect { operation.await } else { broken() };
        if works { result } else { broken() }
    }
}

impl fmt::Display for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failing")
    }
}

#[async_trait]
impl ObjectStore for FailingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.fuse.run(self.inner.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.fuse.run(self.inner.put_multipart_opts(location, options)).await?;
        Ok(Box::new(FailingUpload { inner, fuse: Arc::clone(&self.fuse) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.fuse.run(self.inner.get_opts(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let Self { inner, fuse } = self.clone();
        let delete = move |location: Result<Path>| {
            let (inner, fuse) = (Arc::clone(&inner), Arc::clone(&fuse));
            async move {
                let location = location?;
                fuse.run(inner.delete(&location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.fuse.blow() {
            (true, _) => self.inner.list(prefix),
            (false, _) => futures_util::stream::once(async { broken() }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.fuse.run(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.fuse.run(self.inner.copy_opts(from, to, options)).await
    }
}

#[derive(Debug)]
struct FailingUpload {
    inner: Box<dyn MultipartUpload>,
    fuse: Arc<Fuse>,
}

#[async_trait]
impl MultipartUpload for FailingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        let fuse = Arc::clone(&self.fuse);
        Box::pin(async move { fuse.run(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.fuse.run(self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.fuse.run(self.inner.abort()).await
    }
}
