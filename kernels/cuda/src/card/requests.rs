//! What a card does for each request.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::sync::Arc;

use super::cublas::{self, Library};
use super::cuda::{Asked, Buffer, Context, Fault, Module, Queue};
use super::error::{
    CopyFault, cannot_copy, cannot_load, cannot_multiply, cannot_start_library, failed, failed_product,
    is_out_of_memory, no_library, too_old,
};
use super::open::Open;
use super::programs::{Key, PROGRAMS};
use super::watch::Watch;
use super::{Card, Copied, Part, VERSION_WATCHED};
use crate::driver::{
    Argument, Driver, DriverError, Event, Graph, Launch, Memory, Place, Stream, Transfer, Worked, unique,
};
use crate::ledger::{out_of_memory, places};
use crate::nvrtc::Architecture;
use crate::signature::signatures;
use crate::source::{Source, StandIn};

/// A download is copied in pieces of this number of bytes, two of them at a time.
const DOWNLOADED_AT_ONCE: usize = 8 << 20;

/// The first generation of cards that multiplies factors in `tf32` and `bf16`.
const ROUNDS: Architecture = Architecture { capability: [8, 0] };

impl Card {
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
    fn compile(&self, source: &Source) -> Result<Arc<[u8]>, DriverError> {
        let (own, version) = (self.info.architecture, self.nvrtc.version());
        let Some(newest) = self.nvrtc.newest_for(own) else {
            let ([major, minor], name) = (version, &self.info.name);
            return Err(DriverError::Unavailable(format!(
                "the NVRTC of CUDA {major}.{minor} compiles no kernels for {name} ({own}), expected another one"
            )));
        };
        // Programs run on all later cards of their generation. For a card that is newer than the compiler,
        // the driver can translate PTX.
        let is_program = newest.capability[0] == own.capability[0];
        let architecture = if is_program { newest.to_string() } else { format!("PTX for {newest}") };
        PROGRAMS.get(Key { text: source.text().to_owned(), architecture, version }, || {
            if is_program {
                return self.nvrtc.assemble(source, newest);
            }
            let mut ptx = self.nvrtc.compile(source, newest)?.into_bytes();
            ptx.push(0);
            Ok(ptx)
        })
    }

    /// Returns the library for products.
    fn library(&mut self) -> Result<&Library, DriverError> {
        if self.library.is_none() {
            if !cublas::is_present() {
                return Err(no_library());
            }
            self.library =
                Some(Library::start(Buffer::allocate).map_err(|fault| cannot_start_library(&fault))?);
            Open::with_library();
        }
        Ok(self.library.as_ref().expect("just started"))
    }

    /// Decides how the library computes what it computes instead of kernels of a source.
    fn plan(&mut self, source: &Source) -> Result<(), DriverError> {
        for StandIn { kernel, multiplication, .. } in source.stand_ins() {
            if !self.plans.contains_key(kernel) {
                let plan = self.library()?.plan(multiplication);
                let plan = plan.map_err(|fault| cannot_multiply(multiplication, &fault))?;
                self.plans.insert(kernel.clone(), plan);
            }
        }
        Ok(())
    }

    /// Waits until the streams of this card are done, none of which may be captured.
    pub(super) fn rest(&mut self) -> Asked<()> {
        // The wait for a mark sleeps, and leaves nothing to wait for to what follows.
        let slept = self.marks.synchronise(&self.queues);
        wait_for(&self.queues).and(slept)
    }

    /// Ends the part of the capture that is under way.
    pub(super) fn end_part(&mut self) -> Result<(), DriverError> {
        if std::mem::take(&mut self.capture.is_open) {
            let queue = &self.queues[Stream::Compute.index()];
            let executable = queue.end_capture().map_err(|fault| failed("capture", &fault))?;
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
    fn begin(&mut self, address: u64, bytes: usize) -> Result<Copied, CopyFault> {
        let mut memory = self.downloads.take(bytes)?;
        let stream = self.ledger.selected();
        let queue = &self.queues[stream.index()];
        let begun = match bytes {
            0 => Ok(()),
            _ => watching(&mut self.watch, stream, queue, || queue.download(&mut memory, address, bytes)),
        };
        match settled(&self.queues, begun.and_then(|()| self.marks.mark(queue))) {
            Ok(mark) => Ok(Copied { memory, bytes, mark }),
            Err(fault) => {
                self.downloads.give(memory);
                Err(fault.into())
            }
        }
    }

    /// Waits for the bytes of a copy.
    fn end(&mut self, copied: Copied, bytes: &mut [u8]) -> Result<(), CopyFault> {
        let done = settled(&self.queues, copied.mark.synchronise());
        if done.is_ok() {
            copied.memory.read(bytes);
        }
        self.marks.give(copied.mark);
        self.downloads.give(copied.memory);
        Ok(done?)
    }

    /// Copies bytes from an address on the card.
    fn copy_to(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), CopyFault> {
        let mut begun = VecDeque::new();
        let copied = self.copy_pieces(address, bytes, &mut begun);
        // After an error, some copies may still be under way.
        for (left, _) in begun {
            let _ = self.end(left, &mut []);
        }
        copied
    }

    /// Copies bytes from an address on the card. After an error, `begun` has the pieces that are under way.
    fn copy_pieces<'a>(
        &mut self,
        address: u64,
        bytes: &'a mut [u8],
        begun: &mut VecDeque<(Copied, &'a mut [u8])>,
    ) -> Result<(), CopyFault> {
        let mut at = address;
        for piece in bytes.chunks_mut(DOWNLOADED_AT_ONCE) {
            let length = piece.len();
            begun.push_back((self.begin(at, length)?, piece));
            at += length as u64;
            if begun.len() == 2
                && let Some((copied, piece)) = begun.pop_front()
            {
                self.end(copied, piece)?;
            }
        }
        while let Some((copied, piece)) = begun.pop_front() {
            self.end(copied, piece)?;
        }
        Ok(())
    }

    /// Launches a kernel or what the library computes instead of it, or captures the launch.
    fn launch_kernel(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        let module = self.ledger.check(&launch)?.module;
        self.ledger.in_order()?;
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
        let stream = self.ledger.selected();
        let queue = &self.queues[stream.index()];
        // What is captured is recorded when it is replayed.
        let watch = if self.ledger.captures() { &mut None } else { &mut self.watch };
        if let Some(watch) = watch {
            watch.before(stream, queue).map_err(cannot)?;
        }
        if let (Some(plan), Some(library)) = (self.plans.get(launch.kernel), &self.library) {
            let multiplied = library.multiply(plan, queue, &arguments);
            multiplied.map_err(|fault| failed_product(launch.kernel, &fault))?;
        } else if let Some(function) = self.modules.get(module).and_then(|(_, all)| all.get(launch.kernel)) {
            queue.launch(*function, launch.grid, &mut arguments).map_err(cannot)?;
        } else {
            return Err(DriverError::Refused(format!("there is no kernel '{}'", launch.kernel)));
        }
        watch.as_mut().map_or(Ok(()), |watch| watch.after(queue)).map_err(cannot)
    }

    /// Ends a part of the capture, and adds an event behind it.
    fn capture_event(&mut self) -> Result<Event, DriverError> {
        self.ledger.in_order()?;
        self.bind()?;
        self.end_part()?;
        let event = self.ledger.record();
        self.capture.parts.push(Part::Event(event.number));
        Ok(event)
    }

    /// Removes the copy of a transfer.
    fn copied(&mut self, Transfer { id, .. }: Transfer) -> Result<Copied, DriverError> {
        let none = || DriverError::Refused(format!("there is no transfer {id}"));
        self.transfers.remove(&id).ok_or_else(none)
    }
}

impl Driver for Card {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_info(&mut self) -> Result<[u64; 2], DriverError> {
        self.bind()?;
        Context::memory().map_err(|fault| failed("ask for the free memory", &fault))
    }

    fn has_library(&mut self) -> bool {
        // A library of another version may be there and not start.
        self.bind().is_ok() && self.library().is_ok()
    }

    fn rounds_factors(&self) -> Result<(), DriverError> {
        if self.info.architecture >= ROUNDS { Ok(()) } else { Err(too_old(&self.info, ROUNDS)) }
    }

    fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        self.ledger.outside_capture("load kernels")?;
        self.bind()?;
        let kernels = signatures(source)?;
        self.plan(source)?;
        let program = self.compile(source)?;
        let cannot = |fault: Fault| cannot_load(source.name(), &fault, self.version, self.nvrtc.version());
        let module = Module::load(&program).map_err(cannot)?;
        let mut functions = BTreeMap::new();
        for (name, _) in kernels.iter().filter(|(name, _)| !self.plans.contains_key(name)) {
            let text = CString::new(name.as_str()).map_err(|error| DriverError::Source {
                name: source.name().to_owned(),
                reason: error.to_string(),
            })?;
            functions.insert(name.clone(), module.function(text).map_err(cannot)?);
        }
        self.modules.push((module, functions));
        self.ledger.load(kernels);
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
            Err(fault) if is_out_of_memory(&fault) => {
                let info = self.memory_info()?;
                Err(out_of_memory(&self.name, bytes, info))
            }
            Err(fault) => Err(failed(&format!("allocate {bytes} bytes"), &fault)),
        }
    }

    fn release(&mut self, memory: Memory) -> Result<(), DriverError> {
        self.ledger.outside_capture("release memory")?;
        self.ledger.range(memory.place(), 0)?;
        self.bind()?;
        // A request may still use the memory, although the caller says that none does.
        let done = self.rest();
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
        let stream = self.ledger.selected();
        let queue = &self.queues[stream.index()];
        let (uploads, marks) = (&mut self.uploads, &mut self.marks);
        let upload = || uploads.upload(marks, queue, address, bytes);
        let uploaded = settled(&self.queues, watching(&mut self.watch, stream, queue, upload));
        uploaded.map_err(|fault| cannot_copy(&format!("upload {} bytes", bytes.len()), &fault))
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), DriverError> {
        self.ledger.outside_capture("copy")?;
        self.ledger.check_copy(from, to, bytes)?;
        let [first, second] = [self.address(from, bytes)?, self.address(to, bytes)?];
        self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.ledger.selected();
        let queue = &self.queues[stream.index()];
        let copy = || queue.copy(second, first, bytes as usize);
        let copied = watching(&mut self.watch, stream, queue, copy);
        copied.map_err(|fault| failed(&format!("copy {bytes} bytes"), &fault))
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
        copied.map_err(|fault| cannot_copy(&format!("download {length} bytes"), &fault))
    }

    fn begin_download(&mut self, from: Place, bytes: u64) -> Result<Transfer, DriverError> {
        self.ledger.outside_capture("download")?;
        let address = self.address(from, bytes)?;
        self.bind()?;
        let copied = self.begin(address, bytes as usize);
        let copied = copied.map_err(|fault| cannot_copy(&format!("download {bytes} bytes"), &fault))?;
        let id = unique();
        self.transfers.insert(id, copied);
        Ok(Transfer { id, bytes })
    }

    fn finish(&mut self, transfer: Transfer, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.ledger.outside_capture("finish a transfer")?;
        self.bind()?;
        let id = transfer.id;
        let copied = self.copied(transfer)?;
        let (got, wanted) = (copied.bytes, bytes.len());
        let bytes = if got == wanted { bytes } else { &mut [] };
        self.end(copied, bytes).map_err(|fault| cannot_copy("finish a transfer", &fault))?;
        match got == wanted {
            true => Ok(()),
            false => Err(DriverError::Refused(format!("transfer {id} has {got} bytes, expected {wanted}"))),
        }
    }

    fn abandon(&mut self, transfer: Transfer) -> Result<(), DriverError> {
        self.bind()?;
        let copied = self.copied(transfer)?;
        self.end(copied, &mut []).map_err(|fault| cannot_copy("abandon a transfer", &fault))
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        let launched = self.launch_kernel(launch);
        self.ledger.captured(launched)
    }

    fn watch(&mut self) -> Result<(), DriverError> {
        if self.version < VERSION_WATCHED {
            return Ok(());
        }
        self.synchronise()?;
        let watch = Watch::begin(&self.queues[Stream::Compute.index()]);
        self.watch = Some(watch.map_err(|fault| failed("record times", &fault))?);
        Ok(())
    }

    fn watched(&mut self) -> Result<Vec<Worked>, DriverError> {
        let Some(watch) = self.watch.take() else { return Ok(Vec::new()) };
        self.synchronise()?;
        watch.end().map_err(|fault| failed("read recorded times", &fault))
    }

    fn record(&mut self) -> Result<Event, DriverError> {
        if self.ledger.captures() {
            let recorded = self.capture_event();
            return self.ledger.captured(recorded);
        }
        self.bind()?;
        let event = self.ledger.record();
        self.record_number(event.number)?;
        Ok(event)
    }

    fn wait(&mut self, event: Event) -> Result<(), DriverError> {
        let number = self.ledger.in_order().and_then(|()| self.ledger.event_of(event));
        let Some(number) = self.ledger.captured(number)? else { return Ok(()) };
        self.bind()?;
        let Some(mark) = self.marks.get(number) else { return Ok(()) };
        self.queue().wait(mark).map_err(|fault| failed("wait for an event", &fault))
    }

    fn synchronise(&mut self) -> Result<(), DriverError> {
        self.ledger.outside_capture("synchronise")?;
        self.bind()?;
        self.rest().map_err(|fault| failed("synchronise", &fault))
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.ledger.begin_capture()
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        // After an error of a launch, the driver must end its capture as well, and may return an error for
        // it.
        let ended = self.bind().and_then(|()| self.end_part());
        let capture = std::mem::take(&mut self.capture);
        let events = self.ledger.end_capture()?;
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
                Part::Launches(executable) => {
                    watching(&mut self.watch, Stream::Compute, queue, || queue.replay(executable))
                }
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

/// Makes a request of a stream, and records when the stream carries it out if that is wanted.
fn watching<T, E>(
    watch: &mut Option<Watch>,
    stream: Stream,
    queue: &Queue,
    request: impl FnOnce() -> Result<T, E>,
) -> Result<T, E>
where
    E: From<Fault>,
{
    let Some(watch) = watch else { return request() };
    watch.before(stream, queue)?;
    let made = request()?;
    watch.after(queue)?;
    Ok(made)
}

/// Returns a number that begins with these bytes in memory.
fn first_bytes(bytes: [u8; 4]) -> u64 {
    let [a, b, c, d] = bytes;
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

/// Waits until streams are done, none of which may be captured. Returns the first error after the last wait.
fn wait_for(queues: &[Queue]) -> Asked<()> {
    queues.iter().map(Queue::synchronise).fold(Ok(()), Result::and)
}

/// Waits for all streams if something has failed, so that no copy uses memory that is dropped because of it.
fn settled<T, E>(queues: &[Queue], result: Result<T, E>) -> Result<T, E> {
    result.inspect_err(|_| {
        let _ = wait_for(queues);
    })
}
