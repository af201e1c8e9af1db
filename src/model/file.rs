//! The file of a model: a safetensors file whose metadata contain the graph and the map stages.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pushpull_messages::graph::GraphSpec;
use pushpull_messages::model::ModelSpec;
use pushpull_messages::variable::VariableSpec;
use pushpull_storage::{FoundTensor, NewTensor, Store, read_header_with_metadata, write_file};
use pushpull_transport::buffer::{Buffer, Segment};
use pushpull_worker::Values;

use super::Model;
use crate::error::Error;
use crate::report::is_special;

/// The key under which the file's metadata contain the [`ModelSpec`].
const KEY: &str = "pushpull";
/// The maximum number of bytes that are read at a time.
const BLOCK_BYTES: u64 = 8 << 20;

/// The source of a model's description. The values always come from the model's file.
pub(super) enum Source {
    /// The file's metadata.
    File,
    /// The graph comes from the caller. The rest of the description comes from the file's metadata; without
    /// such metadata, the model has no map stages.
    Graph(GraphSpec),
    /// The file's metadata or, if they do not describe a model, this description from the caller.
    #[cfg(feature = "programs")]
    Job(ModelSpec),
}

/// Returns the directory of a model's file, and the file's name in it.
///
/// # Errors
/// Returns an error if the file's name has characters that a store would replace, or if `path` is a URL, a
/// device or a pipe.
pub(crate) fn located(path: &Path) -> Result<(PathBuf, String), Error> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Error::Model(format!("{}: expected the path of a file", path.display())))?;
    if is_special(path) {
        return Err(Error::Model(format!("{} is a device or a pipe, expected a file", path.display())));
    }
    // The store would write other characters in another form, and another program would not find the file.
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if !name.chars().all(plain) || path.to_str().is_none_or(|path| path.contains("://")) {
        let text = format!(
            "{}: expected a path of this machine whose file name has only letters, digits, '.', '_' and '-'",
            path.display()
        );
        return Err(Error::Model(text));
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = std::path::absolute(directory).map_err(Error::model)?;
    Ok((directory, name.to_owned()))
}

/// Runs `task` on a thread and a runtime of its own, because the caller may be in a runtime already.
fn block_on<T: Send>(task: impl Future<Output = Result<T, Error>> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(Error::model)?.block_on(task)
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(super) fn save(model: &Model, path: &Path) -> Result<(), Error> {
    let (directory, name) = located(path)?;
    let tensors =
        model.graph().variables.iter().zip(model.values()).map(|(variable, (_, tensor))| NewTensor {
            name: variable.name.clone(),
            shape: variable.shape.clone(),
            // The elements are copied, because the model stays usable while the file is written.
            bytes: vec![Bytes::from(
                tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
            )],
        });
    let (tensors, metadata) = (tensors.collect(), HashMap::from([(KEY.to_owned(), model.spec.to_json())]));
    block_on(async move {
        let store = Store::create(&directory.to_string_lossy()).map_err(Error::model)?;
        write_file(&store, &name, tensors, metadata).await.map_err(Error::model)?;
        Ok(())
    })
}

pub(super) fn load(path: &Path, source: Source) -> Result<Model, Error> {
    let (directory, name) = located(path)?;
    let shown = path.display().to_string();
    block_on(async move {
        let store = Store::open(&directory.to_string_lossy()).map_err(Error::model)?;
        let (found, metadata) = read_header_with_metadata(&store, &name).await.map_err(Error::model)?;
        let spec = match source {
            // A file that this library has written contains the map stages, which apply to any graph.
            Source::Graph(graph) if metadata.contains_key(KEY) => {
                ModelSpec { graph, ..described(&shown, &metadata)? }
            }
            Source::Graph(graph) => ModelSpec { graph, map: Vec::new(), batch_size: 250 },
            Source::File => described(&shown, &metadata)?,
            #[cfg(feature = "programs")]
            Source::Job(_) if metadata.contains_key(KEY) => described(&shown, &metadata)?,
            #[cfg(feature = "programs")]
            Source::Job(spec) => spec,
        };
        let found: HashMap<&str, &FoundTensor> = found.iter().map(|own| (own.name.as_str(), own)).collect();
        // All tensors are checked before the first is read, so that a wrong file costs no time and no memory.
        let mut chosen = Vec::new();
        for variable in &spec.graph.variables {
            chosen.push(check(&shown, variable, found.get(variable.name.as_str()).copied())?);
        }
        let mut variables = Vec::with_capacity(chosen.len());
        for tensor in chosen {
            variables.push(Segment::whole(Arc::new(read(&store, &name, tensor).await?)));
        }
        Ok(Model::new(spec, Arc::new(Values::new(variables))))
    })
}

/// Reads the description of the model from the metadata of a file.
fn described(shown: &str, metadata: &HashMap<String, String>) -> Result<ModelSpec, Error> {
    let text = metadata.get(KEY).ok_or_else(|| {
        Error::Model(format!(
            "{shown} does not contain the graph of its model: give the graph with Model::load_with, or the job with \
             `pushpull predict --job FILE`"
        ))
    })?;
    ModelSpec::from_json(text)
        .map_err(|error| Error::Model(format!("{shown}: the description of the model is invalid: {error}")))
}

/// Checks that `found`, the file's tensor with the name of a variable, has the variable's shape and the type
/// F32. Returns the tensor. `found` is `None` if the file has no such tensor.
fn check<'a>(
    shown: &str,
    variable: &VariableSpec,
    found: Option<&'a FoundTensor>,
) -> Result<&'a FoundTensor, Error> {
    let VariableSpec { name, shape, .. } = variable;
    match found {
        None => Err(Error::Model(format!("{shown} has no tensor '{name}', expected F32 {shape}"))),
        Some(tensor)
            if tensor.dtype != "F32" || tensor.shape != *shape || tensor.bytes != variable.bytes() =>
        {
            let (dtype, got) = (&tensor.dtype, &tensor.shape);
            Err(Error::Model(format!("{shown}: tensor '{name}' is {dtype} {got}, expected F32 {shape}")))
        }
        Some(tensor) => Ok(tensor),
    }
}

async fn read(store: &Store, name: &str, tensor: &FoundTensor) -> Result<Buffer, Error> {
    let mut buffer = Buffer::zeroed(tensor.bytes as usize);
    let (mut at, end) = (0, tensor.bytes);
    while at < end {
        let next = end.min(at + BLOCK_BYTES);
        let block = store.read(name, tensor.offset + at..tensor.offset + next).await.map_err(Error::model)?;
        buffer.as_bytes_mut()[at as usize..next as usize].copy_from_slice(&block);
        at = next;
    }
    Ok(buffer)
}
