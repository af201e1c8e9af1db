//! What the caller of a device has: memory, kernels, events and a capture. Every device has such a ledger,
//! and refuses with it what no device could carry out, so that all of them refuse the same.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::driver::{Argument, DriverError, Event, Grid, Launch, Memory, Place, Stream, unique};
use crate::signature::Parameter;

/// The largest number of threads in a block, and in the last dimension of one.
const THREADS_MAX: u64 = 1024;
const THREADS_MAX_Z: u32 = 64;
/// The largest number of blocks in each dimension.
const BLOCKS_MAX: [u32; 3] = [(1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1];

/// A kernel that was loaded.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The index of the source that has the kernel, among all that were loaded.
    pub module: usize,
    pub parameters: Vec<Parameter>,
}

/// The ledger of a device.
#[derive(Debug)]
pub(crate) struct Ledger {
    device: u64,
    /// The size of each memory, in bytes.
    memories: BTreeMap<u64, u64>,
    kernels: BTreeMap<String, Kernel>,
    modules: usize,
    selected: Stream,
    captures: bool,
    /// The first error of the capture that is under way.
    error: Option<DriverError>,
    events: u64,
    /// The event of the latest replay for each event of a graph; `None` before the first one.
    of_graphs: BTreeMap<u64, Option<u64>>,
    /// The events of the capture that is under way.
    capturing: Vec<u64>,
}

impl Ledger {
    /// Returns the ledger of a new device.
    pub(crate) fn new() -> Self {
        Self {
            device: unique(),
            memories: BTreeMap::new(),
            kernels: BTreeMap::new(),
            modules: 0,
            selected: Stream::Compute,
            captures: false,
            error: None,
            events: 0,
            of_graphs: BTreeMap::new(),
            capturing: Vec::new(),
        }
    }

    /// Returns the stream that is selected.
    pub(crate) const fn selected(&self) -> Stream {
        self.selected
    }

    pub(crate) const fn select(&mut self, stream: Stream) {
        self.selected = stream;
    }

    /// Adds the kernels of a source, after the device has loaded it.
    pub(crate) fn load(&mut self, kernels: Vec<(String, Vec<Parameter>)>) {
        let module = self.modules;
        self.modules += 1;
        self.kernels
            .extend(kernels.into_iter().map(|(name, parameters)| (name, Kernel { module, parameters })));
    }

    /// Adds new memory.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Memory {
        let id = unique();
        self.memories.insert(id, bytes);
        Memory { id, bytes }
    }

    /// Removes memory.
    pub(crate) fn release(&mut self, id: u64) {
        self.memories.remove(&id);
    }

    /// Returns the memory that was not released, with its size.
    pub(crate) fn memories(&self) -> impl Iterator<Item = (u64, u64)> {
        self.memories.iter().map(|(&id, &bytes)| (id, bytes))
    }

    /// Returns the bytes of a memory that begin at a place.
    pub(crate) fn range(&self, Place { id, offset }: Place, length: u64) -> Result<Range<u64>, DriverError> {
        let Some(&bytes) = self.memories.get(&id) else {
            return Err(DriverError::Refused(format!("there is no memory {id}, or it was released")));
        };
        match offset.checked_add(length) {
            Some(end) if end <= bytes => Ok(offset..end),
            _ => Err(DriverError::Refused(format!(
                "memory {id} has {bytes} bytes, but {length} from {offset} are asked for"
            ))),
        }
    }

    /// Checks that a copy from one place to another stays within the memory, and that the places do not
    /// overlap.
    pub(crate) fn check_copy(&self, from: Place, to: Place, length: u64) -> Result<(), DriverError> {
        let [source, target] = [self.range(from, length)?, self.range(to, length)?];
        if from.id == to.id && source.start < target.end && target.start < source.end {
            return Err(DriverError::Refused(format!(
                "memory {}: a copy of {length} bytes from {} to {} overlaps itself",
                from.id, source.start, target.start
            )));
        }
        Ok(())
    }

    /// Returns the kernel of a launch, if the device can run it.
    pub(crate) fn check(&self, launch: &Launch<'_>) -> Result<&Kernel, DriverError> {
        let Launch { kernel: name, grid: Grid { blocks, threads }, arguments } = *launch;
        let refused = |reason: String| Err(DriverError::Refused(reason));
        let Some(kernel) = self.kernels.get(name) else {
            return refused(format!("there is no kernel '{name}'"));
        };
        let parameters = &kernel.parameters;
        let takes = parameters.iter().zip(arguments).all(|(parameter, argument)| parameter.takes(argument));
        if !takes || parameters.len() != arguments.len() {
            return refused(format!(
                "the kernel '{name}' takes other arguments: {parameters:?}, not {arguments:?}"
            ));
        }
        let lanes: u64 = threads.into_iter().map(u64::from).product();
        if lanes == 0 || lanes > THREADS_MAX || threads[2] > THREADS_MAX_Z {
            return refused(format!("the kernel '{name}' cannot have {lanes} lanes in a block"));
        }
        if blocks.iter().zip(BLOCKS_MAX).any(|(&count, most)| count == 0 || count > most) {
            let [x, y, z] = blocks.map(u128::from);
            return refused(format!("the kernel '{name}' cannot have {} blocks", x * y * z));
        }
        for place in places(arguments) {
            self.range(place, 0)?;
        }
        Ok(kernel)
    }

    /// Returns whether a capture is under way.
    pub(crate) const fn captures(&self) -> bool {
        self.captures
    }

    /// Refuses a request while a capture is under way.
    pub(crate) fn outside_capture(&self, what: &str) -> Result<(), DriverError> {
        match self.captures {
            false => Ok(()),
            true => Err(DriverError::Refused(format!("cannot {what} while a capture is under way"))),
        }
    }

    /// Refuses a request for kernels while another stream than theirs is selected.
    fn on_compute(&self, what: &str) -> Result<(), DriverError> {
        match self.selected {
            Stream::Compute => Ok(()),
            other => Err(DriverError::Refused(format!(
                "cannot {what} on the stream {other:?}, expected Compute to be selected"
            ))),
        }
    }

    /// Refuses a launch on another stream while a capture is under way.
    pub(crate) fn in_order(&self) -> Result<(), DriverError> {
        if self.captures { self.on_compute("capture") } else { Ok(()) }
    }

    pub(crate) fn begin_capture(&mut self) -> Result<(), DriverError> {
        self.outside_capture("begin a capture")?;
        self.on_compute("capture")?;
        self.captures = true;
        Ok(())
    }

    /// Returns the result of a request that can be captured. If it is an error, the capture that is under way
    /// ends with it.
    pub(crate) fn captured<T>(&mut self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        if let (true, Err(error)) = (self.captures, &result) {
            self.error.get_or_insert_with(|| error.clone());
        }
        result
    }

    /// Ends the capture, and returns its events or its first error.
    pub(crate) fn end_capture(&mut self) -> Result<Vec<u64>, DriverError> {
        if !self.captures {
            return Err(DriverError::Refused("cannot end a capture: none is under way".to_owned()));
        }
        let in_order = self.in_order();
        self.captures = false;
        let events = std::mem::take(&mut self.capturing);
        match self.error.take().map_or(in_order, Err) {
            Ok(()) => Ok(events),
            Err(error) => {
                self.discard(events);
                Err(error)
            }
        }
    }

    /// Refuses a replay that cannot begin now.
    pub(crate) fn replay(&self) -> Result<(), DriverError> {
        self.outside_capture("replay a graph")?;
        self.on_compute("replay a graph")
    }

    /// Returns a new event. If a capture is under way, it is one of the graph.
    pub(crate) fn record(&mut self) -> Event {
        self.events += 1;
        if self.captures {
            self.of_graphs.insert(self.events, None);
            self.capturing.push(self.events);
        }
        Event { device: self.device, number: self.events, of_graph: self.captures }
    }

    /// Returns a new event that stands for the event `captured` of a graph until the next replay.
    pub(crate) fn record_again(&mut self, captured: u64) -> u64 {
        self.events += 1;
        self.of_graphs.insert(captured, Some(self.events));
        self.events
    }

    /// Removes the events of a graph.
    pub(crate) fn discard(&mut self, events: impl IntoIterator<Item = u64>) {
        for event in events {
            self.of_graphs.remove(&event);
        }
    }

    /// Returns the number of the event for which to wait; `None` if the capture that is under way has it,
    /// because what is captured is ordered behind it already.
    pub(crate) fn event_of(&self, event: Event) -> Result<Option<u64>, DriverError> {
        let refused = |reason: &str| Err(DriverError::Refused(format!("cannot wait for an event {reason}")));
        let Event { device, number, of_graph } = event;
        if device != self.device {
            return refused("of another device");
        }
        if self.captures {
            return match self.capturing.contains(&number) {
                true => Ok(None),
                false => refused("that the capture does not contain; wait before the replay instead"),
            };
        }
        match self.of_graphs.get(&number) {
            _ if !of_graph => Ok(Some(number)),
            Some(Some(latest)) => Ok(Some(*latest)),
            Some(None) => refused("that was never recorded: its graph was not replayed"),
            None => refused("whose graph was discarded"),
        }
    }
}

/// Returns the places among arguments.
pub(crate) fn places(arguments: &[Argument]) -> impl Iterator<Item = Place> {
    arguments.iter().filter_map(|argument| match argument {
        Argument::Place(place) => Some(*place),
        _ => None,
    })
}

/// Returns the refusal of memory that a device does not have.
pub(crate) fn out_of_memory(name: &str, bytes: u64, [free, total]: [u64; 2]) -> DriverError {
    DriverError::Refused(format!(
        "out of memory on {name}: {bytes} bytes are asked for, and {free} of {total} bytes are free"
    ))
}
