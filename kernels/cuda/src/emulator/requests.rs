//! What the emulator does for each request.

use super::work::{Call, Captured, Touch, Work};
use super::{Arriving, Emulator, MEMORY_BYTES, NAME};
use crate::driver::{Driver, DriverError, Event, Graph, Launch, Memory, Place, Stream, Transfer, unique};
use crate::ledger::{out_of_memory, places};
use crate::signature::{Parameter, signatures};
use crate::source::Source;

impl Emulator {
    /// Returns the name of a new request.
    fn name_of(&mut self, what: &str) -> String {
        self.requests += 1;
        format!("{what} (request {})", self.requests)
    }

    /// Returns the bytes that a request reads or writes as an access to memory.
    fn access(&self, place: Place, length: u64, written: bool) -> Result<Vec<Touch>, DriverError> {
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
                    touched.extend(self.access(place, length, false)?);
                }
                for (place, length) in writes {
                    touched.extend(self.access(place, length, true)?);
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
    pub(super) fn run_next(&mut self) -> Result<bool, DriverError> {
        let Some((name, work)) = self.queues.pop() else { return Ok(false) };
        let ran = match work {
            Work::Upload { to, bytes } => self.process.upload(to, &bytes),
            Work::Copy { from, to, bytes } => {
                self.process.download(from, bytes).and_then(|bytes| self.process.upload(to, &bytes))
            }
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

    /// Carries out requests until a transfer has its bytes.
    fn arrive(&mut self, transfer: u64) -> Result<(), DriverError> {
        let waits = |one: &Arriving| one.bytes.is_none();
        while self.transfers.get(&transfer).is_some_and(waits) && self.run_next()? {}
        Ok(())
    }

    /// Records an event on the selected stream.
    fn push_event(&mut self, event: u64) -> Result<(), DriverError> {
        self.order.record(self.ledger.selected(), event);
        self.push(String::new(), Work::Record(event))
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

    fn has_library(&mut self) -> bool {
        self.has_library
    }

    fn rounds_factors(&self) -> Result<(), DriverError> {
        let reason = || "emulated is too old for tf32, bf16 and fp16; use fp32".to_owned();
        if self.rounds_factors { Ok(()) } else { Err(DriverError::Unavailable(reason())) }
    }

    fn load(&mut self, source: &Source) -> Result<(), DriverError> {
        self.ledger.outside_capture("load kernels")?;
        let kernels = signatures(source)?;
        self.process.load(source)?;
        self.ledger.load(kernels);
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
        let touched = self.access(to, bytes.len() as u64, true)?;
        let name = self.name_of(&format!("the upload of {} bytes", bytes.len()));
        self.order.add(self.ledger.selected(), &name, &touched, &[])?;
        self.push(name, Work::Upload { to, bytes: bytes.to_vec() })
    }

    fn copy(&mut self, from: Place, to: Place, bytes: u64) -> Result<(), DriverError> {
        self.ledger.outside_capture("copy")?;
        self.ledger.check_copy(from, to, bytes)?;
        let touched = [self.access(from, bytes, false)?, self.access(to, bytes, true)?].concat();
        let name = self.name_of(&format!("the copy of {bytes} bytes"));
        self.order.add(self.ledger.selected(), &name, &touched, &[])?;
        self.push(name, Work::Copy { from, to, bytes })
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Result<(), DriverError> {
        let transfer = self.begin_download(from, bytes.len() as u64)?;
        self.finish(transfer, bytes)
    }

    fn begin_download(&mut self, from: Place, bytes: u64) -> Result<Transfer, DriverError> {
        self.ledger.outside_capture("download")?;
        let touched = self.access(from, bytes, false)?;
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
        self.arrive(id)?;
        let Some(Arriving { clock, bytes: arrived }) = self.transfers.remove(&id) else {
            return Err(DriverError::Refused(format!("there is no transfer {id}")));
        };
        let Some(arrived) = arrived else {
            return Err(has_failed(id));
        };
        self.order.is_done(clock);
        if arrived.len() != bytes.len() {
            let (got, wanted) = (arrived.len(), bytes.len());
            return Err(DriverError::Refused(format!("transfer {id} has {got} bytes, expected {wanted}")));
        }
        bytes.copy_from_slice(&arrived);
        Ok(())
    }

    fn abandon(&mut self, Transfer { id, .. }: Transfer) -> Result<(), DriverError> {
        let arrived = self.arrive(id);
        let Some(Arriving { clock, bytes }) = self.transfers.remove(&id) else {
            return Err(DriverError::Refused(format!("there is no transfer {id}")));
        };
        arrived?;
        if bytes.is_none() {
            return Err(has_failed(id));
        }
        self.order.is_done(clock);
        Ok(())
    }

    fn touches(&mut self, reads: &[(Place, u64)], writes: &[(Place, u64)]) {
        self.touches = Some([reads.to_vec(), writes.to_vec()]);
    }

    fn launch(&mut self, launch: Launch<'_>) -> Result<(), DriverError> {
        let call = self.call(launch).and_then(|call| self.ledger.in_order().map(|()| call));
        let call = self.ledger.captured(call)?;
        if self.ledger.captures() {
            self.captured.push(Captured::Call(call));
            return Ok(());
        }
        self.push_call(call)
    }

    fn record(&mut self) -> Result<Event, DriverError> {
        let in_order = self.ledger.in_order();
        self.ledger.captured(in_order)?;
        let event = self.ledger.record();
        if self.ledger.captures() {
            self.captured.push(Captured::Event(event.number));
            return Ok(event);
        }
        self.push_event(event.number)?;
        Ok(event)
    }

    fn wait(&mut self, event: Event) -> Result<(), DriverError> {
        let event = self.ledger.in_order().and_then(|()| self.ledger.event_of(event));
        let Some(event) = self.ledger.captured(event)? else { return Ok(()) };
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
        let captured = std::mem::take(&mut self.captured);
        self.ledger.end_capture()?;
        let id = unique();
        self.graphs.insert(id, captured);
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

/// Returns the refusal of a transfer whose copy has failed in an earlier request.
fn has_failed(transfer: u64) -> DriverError {
    DriverError::Refused(format!("transfer {transfer} has failed before"))
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
