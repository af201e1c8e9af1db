//! What the driver's errors say to a person, in one line each.

use cudarc::driver::sys::CUresult;

use super::CardInfo;
use super::cublas::{self, StartFault};
use super::cuda::Fault;
use crate::driver::DriverError;
use crate::multiplication::Multiplication;
use crate::nvrtc::Architecture;

/// Says which cards are visible, if a variable of the environment selects them.
pub(super) fn visible() -> String {
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(devices) => format!("; CUDA_VISIBLE_DEVICES is '{devices}'"),
        Err(_) => String::new(),
    }
}

/// Returns the name of an error, and what the driver says of it.
fn describe(fault: &Fault) -> String {
    let text = |text: Result<&std::ffi::CStr, Fault>| text.map(|text| text.to_string_lossy().into_owned());
    let name = text(fault.error_name()).unwrap_or_else(|_| format!("CUDA error {}", fault.0 as u32));
    match text(fault.error_string()) {
        Ok(says) => format!("{name}: {says}"),
        Err(_) => name,
    }
}

/// Returns why the driver cannot be started.
pub(super) fn cannot_start(fault: &Fault) -> DriverError {
    DriverError::Unavailable(match fault.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => return no_card(),
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "the libcuda that was found is the stub of the CUDA toolkit, expected that of a driver; remove its \
             folder from LD_LIBRARY_PATH"
                .to_owned()
        }
        _ => format!("the NVIDIA driver cannot be used: {}", describe(fault)),
    })
}

/// Returns the error of a driver without a card.
pub(super) fn no_card() -> DriverError {
    let reason = format!("the NVIDIA driver finds no card; see what nvidia-smi says{}", visible());
    DriverError::Unavailable(reason)
}

/// Returns why the card with this index cannot be used, although the driver has started.
pub(super) fn cannot_open(index: usize, fault: &Fault) -> DriverError {
    DriverError::Unavailable(format!("card {index} cannot be used: {}", describe(fault)))
}

/// Returns the error of a card that does not round factors, which cards do from `oldest` on.
pub(super) fn too_old(card: &CardInfo, oldest: Architecture) -> DriverError {
    let CardInfo { name, architecture, .. } = card;
    DriverError::Unavailable(format!(
        "{name} is of {architecture}, but tf32, bf16 and fp16 need a card of {oldest} (Ampere) or later; use fp32"
    ))
}

/// An error of a copy.
#[derive(Debug)]
pub(super) enum CopyFault {
    /// The driver did not pin this number of bytes of the host's memory.
    Pin(usize, Fault),
    /// The driver or the card could not copy.
    Copy(Fault),
}

impl From<Fault> for CopyFault {
    fn from(fault: Fault) -> Self {
        Self::Copy(fault)
    }
}

/// Returns why the card could not copy something. Memory of the host and of the card may be missing, which
/// the driver calls the same.
pub(super) fn cannot_copy(what: &str, fault: &CopyFault) -> DriverError {
    match fault {
        CopyFault::Pin(bytes, fault) => {
            failed(&format!("{what}: cannot pin {bytes} bytes of the host's memory"), fault)
        }
        CopyFault::Copy(fault) => failed(what, fault),
    }
}

/// Returns why the driver does not load kernels. The versions are those of CUDA.
pub(super) fn cannot_load(name: &str, fault: &Fault, driver: [i32; 2], nvrtc: [i32; 2]) -> DriverError {
    use CUresult::{
        CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    };
    match fault.0 {
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUDA_ERROR_INVALID_PTX
        | CUDA_ERROR_INVALID_IMAGE
        | CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUDA_ERROR_JIT_COMPILER_NOT_FOUND => DriverError::Unavailable(format!(
            "the NVIDIA driver supports CUDA {}.{} and does not load kernels that the NVRTC of CUDA {}.{} has \
             compiled ({}); update the driver, or use an NVRTC that is not newer than it",
            driver[0],
            driver[1],
            nvrtc[0],
            nvrtc[1],
            describe(fault)
        )),
        _ => failed(&format!("load the kernels '{name}'"), fault),
    }
}

/// Returns whether memory is missing.
pub(super) fn is_out_of_memory(fault: &Fault) -> bool {
    fault.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Returns why the card could not do something. After most errors of kernels it cannot do anything any more.
pub(super) fn failed(what: &str, fault: &Fault) -> DriverError {
    use CUresult::{
        CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    };
    let reason = format!("cannot {what}: {}", describe(fault));
    match fault.0 {
        CUDA_ERROR_INVALID_HANDLE
        | CUDA_ERROR_INVALID_VALUE
        | CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        | CUDA_ERROR_NOT_SUPPORTED
        | CUDA_ERROR_OUT_OF_MEMORY
        | CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => DriverError::Refused(reason),
        _ => DriverError::Failed(reason),
    }
}

/// Returns why the library for products cannot be used.
pub(super) fn cannot_start_library(fault: &StartFault) -> DriverError {
    DriverError::Unavailable(match fault {
        StartFault::Library(fault) => format!("cuBLASLt cannot be used: {fault}"),
        StartFault::Memory(fault) => format!("cuBLASLt cannot be used: {}", describe(fault)),
    })
}

/// Returns why the library cannot compute a product.
pub(super) fn cannot_multiply(multiplication: &Multiplication, fault: &cublas::Fault) -> DriverError {
    let Multiplication { batch, sizes: [rows, terms, columns], precision, .. } = multiplication;
    DriverError::Refused(format!(
        "cuBLASLt cannot multiply {batch} times {rows}×{terms} by {terms}×{columns} in {precision}: {fault}"
    ))
}

/// Returns the error of a machine without the library for products.
pub(super) fn no_library() -> DriverError {
    let reason = "there is no libcublasLt, expected one of CUDA 13 or 12 in the library path; NVIDIA has it as the \
                  package nvidia-cublas for Python";
    DriverError::Unavailable(reason.to_owned())
}

/// Returns the error of a product that the library has not begun.
pub(super) fn failed_product(name: &str, fault: &cublas::Fault) -> DriverError {
    DriverError::Failed(format!("cannot begin the product '{name}': {fault}"))
}
