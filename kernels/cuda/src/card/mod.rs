//! A real card. Kernels are compiled for its architecture when they are loaded; copies go through pinned
//! memory. A machine needs the driver's `libcuda` and a `libnvrtc` only to run this, not to build it.

mod cublas;
mod cuda;
mod error;
mod marks;
mod open;
mod programs;
mod requests;
mod ring;
mod staging;
mod watch;

use std::collections::{BTreeMap, BTreeSet};

use self::cublas::{Library, Plan};
use self::cuda::{Asked, Buffer, Context, Device, Executable, Function, Mark, Module, Pinned, Queue};
use self::error::{cannot_open, cannot_start, no_card, visible};
use self::marks::Marks;
use self::open::Open;
use self::staging::{Downloads, Uploads};
use self::watch::Watch;
use crate::driver::DriverError;
use crate::ledger::Ledger;
use crate::nvrtc::{Architecture, Nvrtc};

/// The oldest driver that has all that is used here, as the version of CUDA that it supports. `cudarc` looks
/// up a function of the driver at its first call, and panics if the driver lacks it. Of the functions here,
/// the newest one is `cuGraphInstantiateWithFlags`; so drivers that are older than the headers of `cudarc`
/// can be used from this version on.
const VERSION_MIN: [i32; 2] = [11, 4];

/// The oldest driver that says when streams work: `cudarc` asks it with a function that older ones lack.
const VERSION_WATCHED: [i32; 2] = [12, 8];

/// A description of a card, which the driver gives before the card is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// The name, for example `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The generation of the card.
    pub architecture: Architecture,
    /// The size of the memory in bytes.
    pub memory_bytes: u64,
}

/// A card. Its streams are at rest and everything is released when this value is dropped.
///
/// A process may open a card more than once, for example for two replicas. Each value has its own streams and
/// memory, and none waits for another one. But the driver has one context for all of them: after a kernel has
/// failed in one, none of them can be used.
#[derive(Debug)]
pub struct Card {
    /// The name with the index, which tells equal cards apart.
    name: String,
    info: CardInfo,
    /// The version of CUDA that the driver supports.
    version: [i32; 2],
    nvrtc: Nvrtc,
    ledger: Ledger,
    capture: Captured,
    graphs: BTreeMap<u64, Captured>,
    transfers: BTreeMap<u64, Copied>,
    uploads: Uploads,
    downloads: Downloads,
    marks: Marks,
    /// When the streams work, if that is recorded.
    watch: Option<Watch>,
    buffers: BTreeMap<u64, Buffer>,
    /// The sources that were loaded, with their kernels.
    modules: Vec<(Module, BTreeMap<String, Function>)>,
    /// How the library computes what it computes instead of kernels, by their names.
    plans: BTreeMap<String, Plan>,
    /// The library for products, after it was needed.
    library: Option<Library>,
    queues: [Queue; 3],
    // Fields are dropped in this order, and all before need the context.
    context: Context,
    _open: Open,
}

/// A capture: parts of launches, with events between them. Each part is a graph of its own, so that an event
/// is recorded as it would be without a capture.
#[derive(Debug, Default)]
struct Captured {
    parts: Vec<Part>,
    /// The memory that the launches use.
    memories: BTreeSet<u64>,
    /// True while the driver captures a part.
    is_open: bool,
}

#[derive(Debug)]
enum Part {
    Launches(Executable),
    /// The event with this number.
    Event(u64),
}

/// A copy from the card that was not finished.
#[derive(Debug)]
struct Copied {
    memory: Pinned,
    bytes: usize,
    /// The mark after the copy.
    mark: Mark,
}

/// Starts the driver. Returns the version of CUDA that it supports, and the number of cards.
fn start() -> Result<([i32; 2], usize), DriverError> {
    if !cuda::is_present() {
        let reason = "this machine has no NVIDIA driver: libcuda.so.1 was not found";
        return Err(DriverError::Unavailable(reason.to_owned()));
    }
    let version = cuda::start().map_err(|fault| cannot_start(&fault))?;
    if version < VERSION_MIN {
        let ([major, minor], [least, least_minor]) = (version, VERSION_MIN);
        return Err(DriverError::Unavailable(format!(
            "the NVIDIA driver supports CUDA {major}.{minor}, expected at least {least}.{least_minor}; update it"
        )));
    }
    match Device::count().map_err(|fault| cannot_start(&fault))? {
        0 => Err(no_card()),
        count => Ok((version, count)),
    }
}

fn info(device: Device) -> Asked<CardInfo> {
    let architecture = Architecture { capability: device.capability()? };
    Ok(CardInfo { name: device.name()?, architecture, memory_bytes: device.memory_bytes()? })
}

/// Returns the cards of this machine, in the order of their indices.
///
/// # Errors
/// If there is no driver or no card, or if the driver cannot be used.
pub fn cards() -> Result<Vec<CardInfo>, DriverError> {
    let (_, count) = start()?;
    let info = |index| Device::get(index).and_then(info).map_err(|fault| cannot_open(index, &fault));
    (0..count).map(info).collect()
}

impl Card {
    /// Opens the card with this index.
    ///
    /// # Errors
    /// If there is no driver, no such card or no compiler for kernels, or if the card cannot be used.
    pub fn open(index: usize) -> Result<Self, DriverError> {
        let (version, count) = start()?;
        if index >= count {
            return Err(DriverError::Unavailable(format!(
                "there is no card {index}: the NVIDIA driver finds {count}, counted from 0{}",
                visible()
            )));
        }
        let nvrtc = Nvrtc::find()?;
        Self::with(index, version, nvrtc).map_err(|fault| cannot_open(index, &fault))
    }

    fn with(index: usize, version: [i32; 2], nvrtc: Nvrtc) -> Asked<Self> {
        let (device, open) = (Device::get(index)?, Open::count());
        let context = Context::of(device)?;
        let info = info(device)?;
        Ok(Self {
            name: format!("cuda:{index} ({})", info.name),
            info,
            version,
            nvrtc,
            ledger: Ledger::new(),
            capture: Captured::default(),
            graphs: BTreeMap::new(),
            transfers: BTreeMap::new(),
            uploads: Uploads::new(),
            downloads: Downloads::default(),
            marks: Marks::default(),
            watch: None,
            buffers: BTreeMap::new(),
            modules: Vec::new(),
            plans: BTreeMap::new(),
            library: None,
            queues: [Queue::create()?, Queue::create()?, Queue::create()?],
            context,
            _open: open,
        })
    }

    /// Returns the version of CUDA that the driver supports.
    pub const fn driver_version(&self) -> [i32; 2] {
        self.version
    }

    /// Returns the description of the card.
    pub const fn info(&self) -> &CardInfo {
        &self.info
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // What fails here has failed before, or no longer matters.
        let _ = self.context.bind();
        let _ = self.end_part();
        let _ = self.rest();
    }
}
