//! A real card. Kernels are compiled for its architecture when they are loaded; copies go through pinned
//! memory. A machine needs the driver's `libcuda` and a `libnvrtc` only to run this, not to build it.

mod cuda;
mod error;
mod marks;
mod ring;
mod staging;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CString;

use self::cuda::{Asked, Buffer, Context, Device, Executable, Fault, Function, Mark, Module, Pinned, Queue};
use self::error::{cannot_load, cannot_open, cannot_start, failed, visible};
use self::marks::Marks;
use self::staging::{Downloads, Uploads};
use crate::driver::{
    Argument, Driver, DriverError, Event, Graph, Launch, Memory, Place, Stream, Transfer, unique,
};
use crate::ledger::{Ledger, out_of_memory, places};
use crate::nvrtc::{Architecture, Nvrtc};
use crate::source::Source;

/// The oldest driver that has all that is used here, as the version of CUDA that it supports. `cudarc` looks up
/// a function of the driver at its first call, and panics if the driver lacks it. Of the functions here, the
/// newest one is `cuGraphInstantiateWithFlags`; so drivers that are older than the headers of `cudarc` can be
/// used from this version on.
const VERSION_MIN: [i32; 2] = [11, 4];

/// A download is copied in pieces of this number of bytes, two of them at a time.
const DOWNLOADED_AT_ONCE: usize = 8 << 20;

/// What is known of a card before it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// The name, as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The generation of the card.
    pub architecture: Architecture,
    /// The size of the memory in bytes.
    pub memory_bytes: u64,
}

/// A card. It is at rest and has released everything when this value is dropped.
#[derive(Debug)]
pub struct Card {
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
    buffers: BTreeMap<u64, Buffer>,
    /// The sources that were loaded, with their kernels.
    modules: Vec<(Module, BTreeMap<String, Function>)>,
    queues: [Queue; 3],
    // Fields are dropped in this order, and all before need the context.
    context: Context,
}

/// A capture: parts of launches, with events between them. Each part is a graph of its own, so that an event is
/// recorded as it would be without a capture.
#[derive(Debug, Default)]
struct Captured {
    parts: Vec<Part>,
    /// The memory that the launches use.
    memories: BTreeSet<u64>,
    /// Whether the driver captures a part now.
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
    let count = Device::count().map_err(|fault| cannot_start(&fault))?;
    Ok((version, count))
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
    (0..count).map(|index| Device::get(index).and_then(info).map_err(|fault| cannot_open(&fault))).collect()
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
        Self::with(index, version, nvrtc).map_err(|fault| cannot_open(&fault))
    }

    fn with(index: usize, version: [i32; 2], nvrtc: Nvrtc) -> Asked<Self> {
        let device = Device::get(index)?;
        let context = Context::of(device)?;
        Ok(Self {
            info: info(device)?,
            version,
            nvrtc,
            ledger: Ledger::new(),
            capture: Captured::default(),
            graphs: BTreeMap::new(),
            transfers: BTreeMap::new(),
            uploads: Uploads::new(),
            downloads: Downloads::default(),
            marks: Marks::default(),
            buffers: BTreeMap::new(),
            modules: Vec::new(),
            queues: [Queue::create()?, Queue::create()?, Queue::create()?],
            context,
        })
    }

    /// Returns what is known of the card.
    pub const fn info(&self) -> &CardInfo {
        &self.info
    }

    /// Binds the card to this thread, which each request may come from another one.
    fn bind(&self) -> Result<(), DriverError> {
        self.context.bind().map_err(|fault| failed("use the card", &fault))
    }

    /// Returns the stream that is selected.
    const fn queue(&self) -> &Queue {
        &self.queues[self.ledger.selected().index()]
    }

    /// Returns the address of some bytes on the card.
    fn address(&self, place: Place, length: u64) -> Result<u64, DriverError> {
        let range = self.ledger.range(place, length)?;
        match self.buffers.get(&place.id) {
            Some(buffer) => Ok(buffer.address + range.start),
            None => Err(DriverError::Refused(format!("there is no memory {}", place.id))),
        }
    }

    /// Returns the kernels of a source as the card needs them.
    fn compile(&self, source: &Source) -> Result<Vec<u8>, DriverError> {
        let own = self.info.architecture;
        match self.nvrtc.newest_for(own) {
            // Programs run on all later cards of their generation.
            Some(newest) if newest.capability[0] == own.capability[0] => self.nvrtc.assemble(source, newest),
            // The driver can translate PTX for a card that is newer than the compiler.
            Some(newest) => {
                let mut ptx = self.nvrtc.compile(source, newest)?.into_bytes();
                ptx.push(0);
                Ok(ptx)
            }
            None => {
                let ([major, minor], name) = (self.nvrtc.version(), &self.info.name);
                Err(DriverError::Unavailable(format!(
                    "the NVRTC of CUDA {major}.{minor} compiles no kernels for {name} ({own}), expected another one"
                )))
            }
        }
    }

    /// Ends the part of the capture that is under way.
    fn end_part(&mut self) -> Result<(), DriverError> {
        if std::mem::take(&mut self.capture.is_open) {
            let executable = self.queue().end_capture().map_err(|fault| failed("capture", &fault))?;
            self.capture.parts.push(Part::Launches(executable));
        }
        Ok(())
    }

    /// Records an event on the selected stream.
    fn record_number(&mut self, number: u64) -> Result<(), DriverError> {
        let stream = self.ledger.selected().index();
        let recorded = self.marks.record(stream, &self.queues[stream], number);
        recorded.map_err(|fault| failed("record an event", &fault))
    }

    /// Begins to copy bytes from the card.
    fn begin(&mut self, address: u64, bytes: usize) -> Asked<Copied> {
        let mut memory = self.downloads.take(bytes)?;
        let queue = &self.queues[self.ledger.selected().index()];
        if bytes > 0 {
            queue.download(&mut memory, address, bytes)?;
        }
        let mark = settled(self.marks.mark(queue))?;
        Ok(Copied { memory, bytes, mark })
    }

    /// Waits for the bytes of a copy.
    fn end(&mut self, copied: Copied, bytes: &mut [u8]) -> Asked<()> {
        settled(copied.mark.synchronise())?;
        copied.memory.read(bytes);
        self.marks.give(copied.mark);
        self.downloads.give(copied.memory);
        Ok(())
    }

    /// Copies bytes from an address on the card.
    fn copy_to(&mut self, address: u64, bytes: &mut [u8]) -> Asked<()> {
        let mut begun: VecDeque<(Copied, &mut [u8])> = VecDeque::new();
        let mut at = address;
        for piece in bytes.chunks_mut(DOWNLOADED_AT_ONCE) {
            let length = piece.len();
            begun.push_back((settled(self.begin(at, length))?, piece));
            at += length as u64;
            if begun.len() == 2
                && let Some((copied, piece)) = begun.pop_front()
            {
                self.end(copied, piece)?;
            }
        }
        begun.into_iter().try_for_each(|(copied, piece)| self.end(copied, piece))
    }
}

impl Driver for Card {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn memory_info(&mut self) -> Result<[u64; 2], DriverError> {
        self.bind()?;
        Context::memory().map_err(|fault| failed("ask for the free memory", &fault))
    }

    fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        self.ledger.outside_capture("load kernels")?;
        self.bind()?;
        let signatures = source.signatures()?;
        let program = self.compile(source)?;
        let cannot = |fault: Fault| cannot_load(source.name(), &fault, self.version, self.nvrtc.version());
        let module = Module::load(&program).map_err(cannot)?;
        let mut functions = BTreeMap::new();
        for (name, _) in &signatures {
            let text = CString::new(name.as_str()).map_err(|error| DriverError::Source {
                name: source.name().to_owned(),
                reason: error.to_string(),
            })?;
            functions.insert(name.clone(), module.function(text).map_err(cannot)?);
        }
        self.modules.push((module, functions));
        self.ledger.load(signatures);
        Ok(())
    }

    fn allocate(&mut self, bytes: u64) -> Result<Memory, DriverError> {
        self.ledger.outside_capture("allocate memory")?;
        self.bind()?;
        match Buffer::allocate(bytes) {
            Ok(buffer) => {
                let memory = self.ledger.allocate(bytes);
                self.buffers.insert(memory.id, buffer);
                Ok(memory)
            }
            Err(fault) if error::is_out_of_memory(&fault) => {
                let info = self.memory_info()?;
                Err(out_of_memory(&self.info.name, bytes, info))
            }
            Err(fault) => Err(failed(&format!("allocate {bytes} bytes"), &fault)),
        }
    }

    fn release(&mut self, memory: Memory) -> Result<(), DriverError> {
        self.ledger.outside_capture("release memory")?;
        self.ledger.range(memory.place(), 0)?;
        self.bind()?;
        // A request may still use the memory, although the caller says that none does.
        let done = Context::synchronise();
        self.ledger.release(memory.id);
        self.buffers.remove(&memory.id);
        done.map_err(|fault| failed("release memory", &fault))
    }

    fn select(&mut self, stream: Stream) {
        self.ledger.select(stream);
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError> {
        self.ledger.outside_capture("upload")?;
        let address = self.address(to, bytes.len() as u64)?;
        self.bind()?;
        let queue = &self.queues[self.ledger.selected().index()];
        let uploaded = self.uploads.upload(&mut self.marks, queue, address, bytes);
        settled(uploaded).map_err(|fault| failed(&format!("upload {} bytes", bytes.len()), &fault))
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.ledger.outside_capture("download")?;
        let address = self.address(from, bytes.len() as u64)?;
        self.bind()?;
        let length = bytes.len();
        let copied = match length {
            // The caller waits for the stream, even if it wants no bytes.
            0 => self.begin(address, 0).and_then(|copied| self.end(copied, bytes)),
            _ => self.copy_to(address, bytes),
        };
        copied.map_err(|fault| failed(&format!("download {length} bytes"), &fault))
    }

    fn begin_download(&mut self, from: Place, bytes: u64) -> Result<Transfer, DriverError> {
        self.ledger.outside_capture("download")?;
        let address = self.address(from, bytes)?;
        self.bind()?;
        let copied = self.begin(address, bytes as usize);
        let copied = copied.map_err(|fault| failed(&format!("download {bytes} bytes"), &fault))?;
        let id = unique();
        self.transfers.insert(id, copied);
        Ok(Transfer { id, bytes })
    }

    fn finish(&mut self, transfer: Transfer, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.ledger.outside_capture("finish a transfer")?;
        let Transfer { id, .. } = transfer;
        let Some(copied) = self.transfers.remove(&id) else {
            return Err(DriverError::Refused(format!("there is no transfer {id}")));
        };
        self.bind()?;
        let (got, wanted) = (copied.bytes, bytes.len());
        let bytes = if got == wanted { bytes } else { &mut [] };
        self.end(copied, bytes).map_err(|fault| failed("finish a transfer", &fault))?;
        match got == wanted {
            true => Ok(()),
            false => Err(DriverError::Refused(format!("transfer {id} has {got} bytes, expected {wanted}"))),
        }
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        let module = self.ledger.check(&launch)?.module;
        self.ledger.in_order()?;
        let Some(&function) = self.modules.get(module).and_then(|(_, all)| all.get(launch.kernel)) else {
            return Err(DriverError::Refused(format!("there is no kernel '{}'", launch.kernel)));
        };
        let mut arguments = Vec::new();
        for argument in launch.arguments {
            arguments.push(match *argument {
                Argument::Place(place) => self.address(place, 0)?,
                Argument::U32(number) => first_bytes(number.to_ne_bytes()),
                Argument::U64(number) => number,
                Argument::F32(number) => first_bytes(number.to_ne_bytes()),
            });
        }
        self.bind()?;
        let cannot = |fault: Fault| failed(&format!("launch the kernel '{}'", launch.kernel), &fault);
        if self.ledger.captures() {
            self.capture.memories.extend(places(launch.arguments).map(|place| place.id));
            if !self.capture.is_open {
                self.queue().begin_capture().map_err(cannot)?;
                self.capture.is_open = true;
            }
        }
        self.queue().launch(function, launch.grid, &mut arguments).map_err(cannot)
    }

    fn record(&mut self) -> Result<Event, DriverError> {
        self.ledger.in_order()?;
        self.bind()?;
        if self.ledger.captures() {
            self.end_part()?;
            let event = self.ledger.record();
            self.capture.parts.push(Part::Event(event.number));
            return Ok(event);
        }
        let event = self.ledger.record();
        self.record_number(event.number)?;
        Ok(event)
    }

    fn wait(&mut self, event: Event) -> Result<(), DriverError> {
        self.ledger.in_order()?;
        let Some(number) = self.ledger.event_of(event)? else { return Ok(()) };
        self.bind()?;
        let Some(mark) = self.marks.get(number) else { return Ok(()) };
        self.queue().wait(mark).map_err(|fault| failed("wait for an event", &fault))
    }

    fn synchronise(&mut self) -> Result<(), DriverError> {
        self.ledger.outside_capture("synchronise")?;
        self.bind()?;
        Context::synchronise().map_err(|fault| failed("synchronise", &fault))
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.ledger.begin_capture()
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        self.ledger.in_order()?;
        let events = self.ledger.end_capture()?;
        let ended = self.bind().and_then(|()| self.end_part());
        let capture = std::mem::take(&mut self.capture);
        if let Err(error) = ended {
            self.ledger.discard(events);
            return Err(error);
        }
        let id = unique();
        self.graphs.insert(id, capture);
        Ok(Graph { id })
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), DriverError> {
        self.ledger.replay()?;
        self.bind()?;
        let Some(captured) = self.graphs.get(&graph.id) else {
            return Err(DriverError::Refused(format!("there is no graph {}", graph.id)));
        };
        for &id in &captured.memories {
            self.ledger.range(Place { id, offset: 0 }, 0)?;
        }
        let stream = Stream::Compute.index();
        let queue = &self.queues[stream];
        for part in &captured.parts {
            let replayed = match part {
                Part::Launches(executable) => queue.replay(executable),
                Part::Event(event) => {
                    let number = self.ledger.record_again(*event);
                    self.marks.record(stream, queue, number)
                }
            };
            replayed.map_err(|fault| failed("replay a graph", &fault))?;
        }
        Ok(())
    }

    fn discard(&mut self, graph: Graph) -> Result<(), DriverError> {
        self.ledger.outside_capture("discard a graph")?;
        self.bind()?;
        let Some(captured) = self.graphs.remove(&graph.id) else { return Ok(()) };
        let event = |part: &Part| match part {
            Part::Event(event) => Some(*event),
            Part::Launches(_) => None,
        };
        self.ledger.discard(captured.parts.iter().filter_map(event));
        // The driver keeps what is still running.
        drop(captured);
        Ok(())
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // What fails here has failed before, or no longer matters.
        let _ = self.context.bind();
        self.ledger.select(Stream::Compute);
        let _ = self.end_part();
        let _ = Context::synchronise();
    }
}

/// Returns a number that begins with these bytes in memory.
fn first_bytes(bytes: [u8; 4]) -> u64 {
    let [a, b, c, d] = bytes;
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

/// Waits for all streams if something has failed, so that no copy uses memory that is dropped because of it.
fn settled<T>(asked: Asked<T>) -> Asked<T> {
    asked.inspect_err(|_| {
        let _ = Context::synchronise();
    })
}
