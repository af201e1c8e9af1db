//! A device without a card: kernels compiled as C++, run by a process of their own, under the address and
//! undefined-behaviour sanitizers. Threads, and requests on different streams, run one after the other, in an
//! order that depends on a seed. So a missing barrier, an access beyond a piece of memory, a wait without end or
//! a request without an order fails here. Of shared memory, only accesses through the name of an array are
//! checked.

mod compiler;
mod order;
mod process;
mod queues;
mod request;

use std::collections::BTreeMap;

pub use compiler::Compiler;

use self::order::Order;
use self::process::Process;
use self::queues::Queues;
use self::request::{Call, Captured, Touch, Work};
use crate::driver::{Driver, DriverError, Event, Graph, Launch, Memory, Place, Stream, Transfer, unique};
use crate::ledger::{Ledger, out_of_memory, places};
use crate::source::{Parameter, Source};

/// The longest time that a kernel may run, in seconds.
const KERNEL_SECONDS_MAX: u32 = 60;

/// The size of the memory, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// The name of every emulated device.
const NAME: &str = "the emulator";

/// An emulated device. Its process ends when this value is dropped.
#[derive(Debug)]
pub struct Emulator {
    process: Process,
    ledger: Ledger,
    order: Order,
    queues: Queues,
    /// The number of requests so far, which tells equal requests apart in errors.
    requests: u64,
    /// What the next launch reads and writes, if it was declared.
    touches: Option<[Vec<(Place, u64)>; 2]>,
    /// What was captured, while a capture is under way.
    captured: Vec<Captured>,
    graphs: BTreeMap<u64, Vec<Captured>>,
    transfers: BTreeMap<u64, Arriving>,
}

/// A transfer that was not finished.
#[derive(Debug)]
struct Arriving {
    clock: [u64; 3],
    /// The bytes, after the copy was carried out.
    bytes: Option<Vec<u8>>,
}

impl Emulator {
    /// Starts an emulated device. `seed` decides the order in which threads and requests run. A kernel may run
    /// for a minute.
    ///
    /// # Errors
    /// If the emulator cannot be compiled or started.
    pub fn start(compiler: &Compiler, seed: u64) -> Result<Self, DriverError> {
        Self::start_with_limit(compiler, seed, KERNEL_SECONDS_MAX)
    }

    /// Starts an emulated device whose kernels may run for this number of seconds. A kernel that runs for
    /// longer ends the device.
    ///
    /// # Errors
    /// If the emulator cannot be compiled or started.
    pub fn start_with_limit(compiler: &Compiler, seed: u64, seconds: u32) -> Result<Self, DriverError> {
        Ok(Self {
            process: Process::start(compiler, seed, seconds)?,
            ledger: Ledger::new(),
            order: Order::default(),
            queues: Queues::new(seed),
            requests: 0,
            touches: None,
            captured: Vec::new(),
            graphs: BTreeMap::new(),
            transfers: BTreeMap::new(),
        })
    }

    /// Ends the device.
    ///
    /// # Errors
    /// If a request fails that was still to be carried out, and if memory was not released or a transfer was
    /// not finished.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.run_all()?;
        let memories = self.ledger.memories().map(|(id, bytes)| format!("memory {id} of {bytes} bytes"));
        let transfers = self.transfers.keys().map(|id| format!("transfer {id}"));
        let leaks: Vec<String> = memories.chain(transfers).collect();
        match leaks.is_empty() {
            true => Ok(()),
            false => Err(DriverError::Refused(format!("not released or finished: {}", leaks.join(", ")))),
        }
    }

    /// Returns the name of a new request.
    fn name_of(&mut self, what: &str) -> String {
        self.requests += 1;
        format!("{what} (request {})", self.requests)
    }

    /// Returns a copy to or from the device as an access to memory.
    fn copy(&self, place: Place, length: u64, written: bool) -> Result<Vec<Touch>, DriverError> {
        let bytes = self.ledger.range(place, length)?;
        Ok(if length == 0 { Vec::new() } else { vec![Touch { memory: place.id, bytes, written }] })
    }

    /// Returns a launch with what was declared for it.
    fn call(&mut self, launch: Launch<'_>) -> Result<Call, DriverError> {
        let declared = self.touches.take();
        let kernel = self.ledger.check(&launch)?.clone();
        let touched = match declared {
            None => None,
            Some([reads, writes]) => {
                let mut touched = Vec::new();
                for (place, length) in reads {
                    touched.extend(self.copy(place, length, false)?);
                }
                for (place, length) in writes {
                    touched.extend(self.copy(place, length, true)?);
                }
                Some(touched)
            }
        };
        let call = Call {
            kernel: launch.kernel.to_owned(),
            module: kernel.module,
            parameters: kernel.parameters,
            grid: launch.grid,
            arguments: launch.arguments.to_vec(),
            touched,
        };
        for Touch { memory, .. } in call.touched.iter().flatten().filter(|touch| touch.written) {
            if !call.writes_to(*memory) {
                return Err(DriverError::Refused(format!(
                    "the kernel '{}' is declared to write to memory {memory}, but has no pointer there that is \
                     not const",
                    call.kernel
                )));
            }
        }
        Ok(call)
    }

    /// Adds a launch to the queue of the selected stream.
    fn push_call(&mut self, call: Call) -> Result<(), DriverError> {
        let name = self.name_of(&format!("the kernel '{}'", call.kernel));
        let touched = call.touched.as_deref().unwrap_or_default();
        let uses: Vec<u64> = places(&call.arguments).map(|place| place.id).collect();
        self.order.add(self.ledger.selected(), &name, touched, &uses)?;
        self.push(name, Work::Call(call))
    }

    /// Adds a request to the queue of the selected stream. Some requests may be carried out.
    fn push(&mut self, name: String, work: Work) -> Result<(), DriverError> {
        self.queues.push(self.ledger.selected(), name, work);
        while self.queues.are_ahead() && self.run_next()? {}
        Ok(())
    }

    /// Carries out a request that may be the next one. Returns false if there is none.
    fn run_next(&mut self) -> Result<bool, DriverError> {
        let Some((name, work)) = self.queues.pop() else { return Ok(false) };
        let ran = match work {
            Work::Upload { to, bytes } => self.process.upload(to, &bytes),
            Work::Call(call) => self.process.launch(&call),
            Work::Download { from, transfer, bytes } => self.process.download(from, bytes).map(|bytes| {
                if let Some(arriving) = self.transfers.get_mut(&transfer) {
                    arriving.bytes = Some(bytes);
                }
            }),
            Work::Record(_) | Work::Wait(_) => Ok(()),
        };
        ran.map(|()| true).map_err(|error| match error {
            DriverError::Failed(reason) => DriverError::Failed(format!("{name}: {reason}")),
            DriverError::Refused(reason) => DriverError::Refused(format!("{name}: {reason}")),
            other => other,
        })
    }

    /// Carries out all requests, and returns the first error after the last of them.
    fn run_all(&mut self) -> Result<(), DriverError> {
        let mut first = Ok(());
        loop {
            match self.run_next() {
                Ok(true) => (),
                Ok(false) => return first,
                Err(error) => first = first.and(Err(error)),
            }
        }
    }
}

impl Driver for Emulator {
    fn name(&self) -> &str {
        NAME
    }

    fn memory_info(&mut self) -> Result<[u64; 2], DriverError> {
        let used: u64 = self.ledger.memories().map(|(_, bytes)| bytes).sum();
        Ok([MEMORY_BYTES - used, MEMORY_BYTES])
    }

    fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        self.ledger.outside_capture("load kernels")?;
        let signatures = source.signatures()?;
        self.process.load(source)?;
        self.ledger.load(signatures);
        Ok(())
    }

    fn allocate(&mut self, bytes: u64) -> Result<Memory, DriverError> {
        self.ledger.outside_capture("allocate memory")?;
        let [free, total] = self.memory_info()?;
        if bytes > free {
            return Err(out_of_memory(NAME, bytes, [free, total]));
        }
        let memory = self.ledger.allocate(bytes);
        self.process.allocate(memory.id, bytes)?;
        Ok(memory)
    }

    fn release(&mut self, memory: Memory) -> Result<(), DriverError> {
        self.ledger.outside_capture("release memory")?;
        self.ledger.range(memory.place(), 0)?;
        self.order.release(memory.id)?;
        self.ledger.release(memory.id);
        self.process.release(memory.id)
    }

    fn select(&mut self, stream: Stream) {
        self.ledger.select(stream);
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Result<(), DriverError> {
        self.ledger.outside_capture("upload")?;
        let touched = self.copy(to, bytes.len() as u64, true)?;
        let name = self.name_of(&format!("the upload of {} bytes", bytes.len()));
        self.order.add(self.ledger.selected(), &name, &touched, &[])?;
        self.push(name, Work::Upload { to, bytes: bytes.to_vec() })
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError> {
        let transfer = self.begin_download(from, bytes.len() as u64)?;
        self.finish(transfer, bytes)
    }

    fn begin_download(&mut self, from: Place, bytes: u64) -> Result<Transfer, DriverError> {
        self.ledger.outside_capture("download")?;
        let touched = self.copy(from, bytes, false)?;
        let name = self.name_of(&format!("the download of {bytes} bytes"));
        let clock = self.order.add(self.ledger.selected(), &name, &touched, &[])?;
        let id = unique();
        self.transfers.insert(id, Arriving { clock, bytes: None });
        self.push(name, Work::Download { from, transfer: id, bytes })?;
        Ok(Transfer { id, bytes })
    }

    fn finish(&mut self, transfer: Transfer, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.ledger.outside_capture("finish a transfer")?;
        let Transfer { id, .. } = transfer;
        while self.transfers.get(&id).is_some_and(|arriving| arriving.bytes.is_none()) && self.run_next()? {}
        let Some(Arriving { clock, bytes: arrived }) = self.transfers.remove(&id) else {
            return Err(DriverError::Refused(format!("there is no transfer {id}")));
        };
        let Some(arrived) = arrived else {
            return Err(DriverError::Refused(format!("transfer {id} has failed before")));
        };
        self.order.is_done(clock);
        if arrived.len() != bytes.len() {
            let (got, wanted) = (arrived.len(), bytes.len());
            return Err(DriverError::Refused(format!("transfer {id} has {got} bytes, expected {wanted}")));
        }
        bytes.copy_from_slice(&arrived);
        Ok(())
    }

    fn touches(&mut self, reads: &[(Place, u64)], writes: &[(Place, u64)]) {
        self.touches = Some([reads.to_vec(), writes.to_vec()]);
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        let call = self.call(launch)?;
        self.ledger.in_order()?;
        if self.ledger.captures() {
            self.captured.push(Captured::Call(call));
            return Ok(());
        }
        self.push_call(call)
    }

    fn record(&mut self) -> Result<Event, DriverError> {
        self.ledger.in_order()?;
        let event = self.ledger.record();
        if self.ledger.captures() {
            self.captured.push(Captured::Event(event.number));
            return Ok(event);
        }
        self.push_event(event.number)?;
        Ok(event)
    }

    fn wait(&mut self, event: Event) -> Result<(), DriverError> {
        self.ledger.in_order()?;
        let Some(event) = self.ledger.event_of(event)? else { return Ok(()) };
        self.order.wait(self.ledger.selected(), event);
        self.push(String::new(), Work::Wait(event))
    }

    fn synchronise(&mut self) -> Result<(), DriverError> {
        self.ledger.outside_capture("synchronise")?;
        self.order.all_is_done();
        self.run_all()
    }

    fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.ledger.begin_capture()
    }

    fn end_capture(&mut self) -> Result<Graph, DriverError> {
        self.ledger.end_capture()?;
        let id = unique();
        self.graphs.insert(id, std::mem::take(&mut self.captured));
        Ok(Graph { id })
    }

    fn replay(&mut self, graph: &Graph) -> Result<(), DriverError> {
        self.ledger.replay()?;
        let Some(captured) = self.graphs.get(&graph.id).cloned() else {
            return Err(DriverError::Refused(format!("there is no graph {}", graph.id)));
        };
        for one in captured {
            match one {
                Captured::Call(call) => {
                    for place in places(&call.arguments) {
                        self.ledger.range(place, 0)?;
                    }
                    self.push_call(call)?;
                }
                Captured::Event(event) => {
                    let latest = self.ledger.record_again(event);
                    self.push_event(latest)?;
                }
            }
        }
        Ok(())
    }

    fn discard(&mut self, graph: Graph) -> Result<(), DriverError> {
        let captured = self.graphs.remove(&graph.id).into_iter().flatten();
        let event = |one| match one {
            Captured::Event(event) => Some(event),
            Captured::Call(_) => None,
        };
        self.ledger.discard(captured.filter_map(event));
        Ok(())
    }
}

impl Emulator {
    /// Records an event on the selected stream.
    fn push_event(&mut self, event: u64) -> Result<(), DriverError> {
        self.order.record(self.ledger.selected(), event);
        self.push(String::new(), Work::Record(event))
    }
}

impl Call {
    /// Returns whether an argument is a pointer to this memory through which the kernel may write.
    fn writes_to(&self, memory: u64) -> bool {
        let mut arguments = self.parameters.iter().zip(&self.arguments);
        arguments.any(|(parameter, argument)| {
            *parameter == Parameter::Write
                && places(std::slice::from_ref(argument)).any(|place| place.id == memory)
        })
    }
}
