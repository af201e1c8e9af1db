//! A simulated store of checkpoints, below the real `Store`: operations take time, fail before or after their
//! effect, find no space, or hang. As in a directory and in a bucket, a file appears whole or not at all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, once};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::*;
use parking_lot::Mutex;
use pushpull_storage::{Store, Stores};
use tokio::time::{Instant, sleep, sleep_until};

use crate::machine::Machine;
use crate::random::Random;
use crate::trace::Trace;

/// The location of the checkpoints in the store.
pub const LOCATION: &str = "sim://checkpoints";
/// The factor by which the operations of a slow store take longer.
const SLOWER: u32 = 50;

/// What may be wrong with the store for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Operations take much longer.
    Slow,
    /// Every fourth operation fails, half of them after their effect.
    Failing,
    /// No file can be written.
    Full,
    /// No file can be read, but the files can be listed.
    Unreadable,
    /// No operation ends.
    Hanging,
}

/// A store that all tasks of a job share.
#[derive(Clone, Debug)]
pub struct SimulatedStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: Arc<InMemory>,
    trace: Trace,
    latency: [Duration; 2],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// The troubles, each with its end.
    troubles: BTreeMap<Trouble, Instant>,
}

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Succeeds,
    FailsBefore(&'static str),
    FailsAfter,
}

impl SimulatedStore {
    /// Makes an empty store whose operations take a time within `latency` before their effect, and again
    /// after it.
    pub fn new(seed: u64, latency: [Duration; 2], trace: Trace) -> Self {
        let state = Mutex::new(State { random: Random::new(seed ^ 0x5704e), troubles: BTreeMap::new() });
        Self(Arc::new(Shared { files: Arc::default(), trace, latency, state }))
    }

    /// Begins a trouble, which ends after a time.
    pub fn trouble(&self, trouble: Trouble, time: Duration) {
        let until = Instant::now() + time;
        let known = &mut self.0.state.lock().troubles;
        let known = known.entry(trouble).or_insert(until);
        *known = until.max(*known);
    }

    /// Ends all troubles.
    pub fn heal(&self) {
        self.0.state.lock().troubles.clear();
    }

    /// Ends all troubles except a long one of operations that hang: no task may wait for it without a limit.
    pub fn heal_early(&self) {
        self.0.state.lock().troubles.retain(|&trouble, _| trouble == Trouble::Hanging);
    }

    /// Returns the stores as the task on a machine sees them.
    pub fn stores(&self, machine: &Machine) -> Stores {
        Stores::all_in(Arc::new(Client { store: self.clone(), machine: machine.clone() }))
    }

    /// Returns the files, without any trouble.
    pub fn files(&self) -> Store {
        Store::with(Arc::<InMemory>::clone(&self.0.files), LOCATION)
    }

    fn has(&self, trouble: Trouble) -> Option<Instant> {
        self.0.state.lock().troubles.get(&trouble).copied().filter(|&until| until > Instant::now())
    }

    /// Waits for one way of an operation.
    async fn wait(&self) {
        let [least, most] = self.0.latency.map(|time| time.as_micros() as u64);
        let time = Duration::from_micros(self.0.state.lock().random.between(least, most));
        sleep(if self.has(Trouble::Slow).is_some() { SLOWER * time } else { time }).await;
        while let Some(until) = self.has(Trouble::Hanging) {
            // A trouble may be healed early, so the wait has short steps.
            sleep_until(until.min(Instant::now() + Duration::from_secs(1))).await;
        }
    }

    fn fate(&self, kind: Kind) -> Fate {
        if kind == Kind::Writes && self.has(Trouble::Full).is_some() {
            return Fate::FailsBefore("no space left");
        }
        if kind == Kind::Reads && self.has(Trouble::Unreadable).is_some() {
            return Fate::FailsBefore("input/output error");
        }
        let failing = self.has(Trouble::Failing).is_some();
        let random = &mut self.0.state.lock().random;
        match failing.then(|| random.between(0, 7)) {
            Some(0) => Fate::FailsBefore("the store is not available"),
            Some(1) => Fate::FailsAfter,
            _ => Fate::Succeeds,
        }
    }
}

/// The store as the task on one machine sees it.
#[derive(Clone, Debug)]
struct Client {
    store: SimulatedStore,
    machine: Machine,
}

/// An operation, for the trace.
struct Operation<'a> {
    verb: &'static str,
    name: &'a str,
    kind: Kind,
}

/// What an operation needs of the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    Writes,
    Other,
}

fn failed<T>(reason: &'static str) -> Result<T> {
    Err(Error::Generic { store: "simulated", source: reason.into() })
}

impl Client {
    /// Runs an operation. If its task is killed meanwhile, the operation has its effect or not.
    async fn run<T>(
        &self,
        operation: Operation<'_>,
        effect: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let Operation { verb, name, kind } = operation;
        let trace = |what: &str| self.store.0.trace.add(format!("store: {verb} {name}{what}"));
        self.store.wait().await;
        self.machine.running().await;
        if self.machine.is_killed() {
            return failed("the task was killed");
        }
        let fate = self.store.fate(kind);
        if let Fate::FailsBefore(reason) = fate {
            trace(&format!(" fails: {reason}"));
            return failed(reason);
        }
        let result = effect.await;
        if fate == Fate::FailsAfter {
            trace(" fails after its effect");
        } else if kind == Kind::Writes {
            trace("");
        }
        self.store.wait().await;
        if fate == Fate::FailsAfter { failed("the reply was lost") } else { result }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

fn write<'a>(verb: &'static str, name: &'a Path) -> Operation<'a> {
    Operation { verb, name: name.as_ref(), kind: Kind::Writes }
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let put = self.store.0.files.put_opts(location, payload, options);
        self.run(write("put", location), put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begin = self.store.0.files.put_multipart_opts(location, options);
        let inner = self.run(write("begin", location), begin).await?;
        Ok(Box::new(Upload { inner, client: self.clone(), location: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let read = Operation { verb: "read", name: location.as_ref(), kind: Kind::Reads };
        self.run(read, self.store.0.files.get_opts(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let client = self.clone();
        let delete = move |location: Result<Path>| {
            let client = client.clone();
            async move {
                let location = location?;
                // A full store can delete.
                let delete = Operation { verb: "delete", name: location.as_ref(), kind: Kind::Other };
                client.run(delete, client.store.0.files.delete(&location)).await?;
                Ok(location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (client, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let name = prefix.as_ref().map_or("", AsRef::as_ref);
            let list = Operation { verb: "list", name, kind: Kind::Other };
            let all = client.store.0.files.list(prefix.as_ref()).try_collect::<Vec<_>>();
            client.run(list, all).await
        };
        once(listed).map_ok(|all| futures_util::stream::iter(all).map(Ok)).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let list = Operation { verb: "list", name: prefix.map_or("", AsRef::as_ref), kind: Kind::Other };
        self.run(list, self.store.0.files.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run(write("copy", to), self.store.0.files.copy_opts(from, to, options)).await
    }
}

/// An upload in parts. If it is cut, none of its parts appears.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    client: Client,
    location: Path,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (client, location, part) =
            (self.client.clone(), self.location.clone(), self.inner.put_part(data));
        Box::pin(async move { client.run(write("put part of", &location), part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.client.run(write("complete", &self.location), self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        let abort = Operation { verb: "abort", name: self.location.as_ref(), kind: Kind::Other };
        self.client.run(abort, self.inner.abort()).await
    }
}
