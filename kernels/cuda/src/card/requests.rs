//! What a card does for each request.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;

use super::cuda::{Asked, Buffer, Context, Fault, Module, Queue};
use super::error::{cannot_load, failed, is_out_of_memory};
use super::{Card, Copied, Part};
use crate::driver::{
    Argument, Driver, DriverError, Event, Graph, Launch, Memory, Place, Stream, Transfer, unique,
};
use crate::ledger::{out_of_memory, places};
use crate::signature::signatures;
use crate::source::Source;

/// A download is copied in pieces of this number of bytes, two of them at a time.
const DOWNLOADED_AT_ONCE: usize = 8 << 20;

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
    pub(super) fn end_part(&mut self) -> Result<(), DriverError> {
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
        let kernels = signatures(source)?;
        let program = self.compile(source)?;
        let cannot = |fault: Fault| cannot_load(source.name(), &fault, self.version, self.nvrtc.version());
        let module = Module::load(&program).map_err(cannot)?;
        let mut functions = BTreeMap::new();
        for (name, _) in &kernels {
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
