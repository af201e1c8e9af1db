//! What a device does for one operation of a graph: its kernels, their blocks, and their arguments. Sizes are
//! constants of the kernels, so an operation is made for one batch size. This module must not depend on what
//! the kernels compute.

mod attention;
mod axes;
mod chain;
mod columns;
mod convolution;
mod dropout;
mod element;
mod embedding;
mod lanes;
mod library;
mod loss;
mod mean;
mod metric;
mod norm;
mod pool;
mod product;
mod reduction;
mod rows;
mod tile;

pub use attention::Attention;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::driver::{Argument, Driver, DriverError, Grid, Launch, Place};
use crate::multiplication::{Epilogue, Multiplication, Precision};
use crate::source::{LANES, Library, Source, StandIn};

/// An operation for tensors of given sizes. Its comment says which inputs it reads and which outputs it
/// writes, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    stages: Vec<Stage>,
    scratch_bytes: u64,
}

/// A kernel that an operation runs after its earlier ones.
#[derive(Clone, Debug, PartialEq)]
struct Stage {
    kernel: String,
    text: Text,
    grid: Grid,
    arguments: Vec<Slot>,
}

/// Where the text of a kernel is.
#[derive(Clone, Debug, PartialEq)]
struct Text {
    library: Library,
    /// The text of a kernel that was generated; `None` if the kernel is in the library.
    generated: Option<String>,
    /// What a device with a library of its own computes with it, instead of this kernel.
    multiplication: Option<Multiplication>,
}

/// An argument of a kernel, before memory is known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    /// The output with this index, to which the kernel writes.
    Output(usize),
    /// The output with this index, from which the kernel reads what an earlier one has written.
    Made(usize),
    /// The input with this index.
    Input(usize),
    /// A place in the scratch memory, this number of bytes behind its first one, to which the kernel writes.
    Scratch(u64),
    /// Such a place, from which the kernel reads what an earlier one has written.
    Kept(u64),
    /// What differs from step to step: see [`StepNumbers`].
    Step,
    /// A number.
    Number(Argument),
}

/// The numbers that differ from step to step. A device keeps them in memory, as `Step` of the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepNumbers {
    /// The seed of the step's random numbers.
    pub random: u64,
    /// The index of the device's first example in the batch.
    pub first: u64,
    /// The device's share of the examples of the batch.
    pub share: f32,
}

impl StepNumbers {
    /// The number of bytes in a device's memory.
    pub const BYTES: u64 = 24;

    /// Returns the bytes as a device keeps them.
    pub fn bytes(self) -> [u8; Self::BYTES as usize] {
        let mut bytes = [0; Self::BYTES as usize];
        bytes[..8].copy_from_slice(&self.random.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.share.to_le_bytes());
        bytes
    }
}

/// The memory of one tensor: where it begins, and its size in bytes.
pub type Span = (Place, u64);

/// The memory on which an operation runs.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The memory of each output.
    pub outputs: &'a [Span],
    /// The memory of each input.
    pub inputs: &'a [Span],
    /// Memory of [`Operation::scratch_bytes`] bytes, if the operation needs any.
    pub scratch: Option<Place>,
    /// The place of the [`StepNumbers`].
    pub step: Place,
}

impl Operation {
    /// Returns an operation with no kernels, for tensors without elements.
    fn nothing() -> Self {
        Self::default()
    }

    /// Adds a kernel of a library.
    fn then(mut self, library: Library, kernel: &str, grid: Grid, arguments: &[Slot]) -> Self {
        let text = Text { library, generated: None, multiplication: None };
        self.stages.push(Stage { kernel: kernel.to_owned(), text, grid, arguments: arguments.to_vec() });
        self
    }

    /// Adds a kernel that is generated. `parameters` are those of the kernel, and `body` is its text, which
    /// may use what is in the library. The kernel is called `kind` and a hash of its text, so equal kernels
    /// are one.
    fn then_generated(
        mut self,
        library: Library,
        kind: &str,
        [parameters, body]: [&str; 2],
        grid: Grid,
        arguments: &[Slot],
    ) -> Self {
        let (kernel, generated) = generated(kind, parameters, body);
        let text = Text { library, generated: Some(generated), multiplication: None };
        self.stages.push(Stage { kernel, text, grid, arguments: arguments.to_vec() });
        self
    }

    /// Adds products that the device's library computes. Its arguments are the results, a, b, the bias if
    /// there is one, and the factor of sums in `fp16`. The grid is that of the kernel that stands in
    /// for a library.
    fn then_library(mut self, multiplication: &Multiplication, grid: Grid, arguments: &[Slot]) -> Self {
        let &Multiplication { batch, sizes, transposed: [a, b], precision, epilogue } = multiplication;
        let [rows, terms, columns] = sizes;
        let factor = if precision.is_narrow() { "unsigned short" } else { "float" };
        let (bias, added) =
            if epilogue == Epilogue::Bare { ("", "nullptr") } else { (", const float* bias", "bias") };
        let (scale, alpha) =
            if precision == Precision::Fp16 { (", const float* alpha", "*alpha") } else { ("", "1.0f") };
        let parameters = format!("float* to, const {factor}* a, const {factor}* b{bias}{scale}");
        let body = format!(
            "    multiply::multiply<{batch}, {rows}, {terms}, {columns}, {a}, {b}, \
             multiply::Precision::{precision:?}, multiply::Epilogue::{epilogue:?}>(to, a, b, {added}, {alpha});\n"
        );
        let (kernel, generated) = generated("multiply", &parameters, &body);
        let text = Text {
            library: Library::Multiply,
            generated: Some(generated),
            multiplication: Some(*multiplication),
        };
        self.stages.push(Stage { kernel, text, grid, arguments: arguments.to_vec() });
        self
    }

    /// Sets the number of bytes of scratch memory that the kernels share.
    fn with_scratch(mut self, bytes: u64) -> Self {
        self.scratch_bytes = bytes;
        self
    }

    /// Returns the number of bytes of other memory that the operation needs while it runs.
    pub const fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// Returns the kernels of some operations as one source.
    pub fn source<'a>(name: impl Into<String>, operations: impl IntoIterator<Item = &'a Self>) -> Source {
        let (mut libraries, mut kernels, mut stand_ins) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for Stage { kernel, text, .. } in operations.into_iter().flat_map(|operation| &operation.stages) {
            libraries.push(text.library);
            libraries.extend_from_slice(text.library.needs());
            match (&text.generated, text.multiplication) {
                (Some(text), None) => drop(kernels.insert(kernel, text)),
                (Some(text), Some(multiplication)) => {
                    let (kernel, text) = (kernel.clone(), text.clone());
                    stand_ins.insert(kernel.clone(), StandIn { kernel, text, multiplication });
                }
                (None, _) => {}
            }
        }
        libraries.sort_unstable();
        libraries.dedup();
        let mut text: String = libraries.into_iter().map(Library::text).collect();
        text.extend(kernels.into_values().map(String::as_str));
        Source::new(name, &text).with_stand_ins(stand_ins.into_values().collect())
    }

    /// Returns the operation with at most this number of blocks in each kernel. It computes the same. For
    /// tests of kernels whose blocks work on several items.
    #[must_use]
    pub fn with_blocks_at_most(mut self, blocks: u32) -> Self {
        self.stages.iter_mut().for_each(|stage| stage.grid.blocks[0] = stage.grid.blocks[0].min(blocks));
        self
    }

    /// Runs the operation.
    ///
    /// # Errors
    /// Returns the errors of [`Driver::launch`]. A [`source`](Self::source) with the operation must have been
    /// loaded.
    ///
    /// # Panics
    /// If there are too few places.
    pub fn run(&self, driver: &mut dyn Driver, places: Places<'_>) -> Result<(), DriverError> {
        let Places { outputs, inputs, scratch, step } = places;
        for Stage { kernel, grid, arguments, .. } in &self.stages {
            let beside = |first| (scratch.expect("scratch memory").behind(first), self.scratch_bytes - first);
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            let touching = |all: &mut Vec<Span>, span: Span| {
                all.push(span);
                Argument::Place(span.0)
            };
            let argument = |slot: &Slot| match *slot {
                Slot::Output(index) => touching(&mut writes, outputs[index]),
                Slot::Made(index) => touching(&mut reads, outputs[index]),
                Slot::Input(index) => touching(&mut reads, inputs[index]),
                Slot::Scratch(first) => touching(&mut writes, beside(first)),
                Slot::Kept(first) => touching(&mut reads, beside(first)),
                Slot::Step => touching(&mut reads, (step, StepNumbers::BYTES)),
                Slot::Number(number) => number,
            };
            let arguments: Vec<Argument> = arguments.iter().map(argument).collect();
            driver.touches(&reads, &writes);
            driver.launch(Launch { kernel, grid: *grid, arguments: &arguments })?;
        }
        Ok(())
    }
}

/// Returns the name and the text of a kernel that is generated.
fn generated(kind: &str, parameters: &str, body: &str) -> (String, String) {
    let mut hasher = DefaultHasher::new();
    (parameters, body).hash(&mut hasher);
    let kernel = format!("{kind}_{:016x}", hasher.finish());
    let text = format!("\nextern \"C\" __global__ void {kernel}({parameters}) {{\n{body}}}\n");
    (kernel, text)
}

/// Returns a grid with one block for each of `count` items, or with fewer that work on several items each.
fn block_for_each(count: usize) -> Grid {
    Grid { blocks: [(count as u64).clamp(1, Grid::BLOCKS_MAX) as u32, 1, 1], threads: [LANES, 1, 1] }
}

/// Returns a grid with one thread for each of `count` elements, or with fewer that work on several elements
/// each.
fn thread_for_each(count: usize) -> Grid {
    Grid::for_each(count as u64)
}

/// Returns a number of elements as an argument.
const fn count(number: usize) -> Slot {
    Slot::Number(Argument::U64(number as u64))
}
