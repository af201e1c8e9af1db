//! NVIDIA's run-time compiler for CUDA C++. Its library is loaded when it is needed, and needs no card.

use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts, sys};

use crate::driver::DriverError;
use crate::source::Source;

/// A generation of cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// The name of its virtual machine, as `compute_80`.
    virtual_name: &'static str,
    /// Its name, as `sm_80`.
    pub name: &'static str,
}

/// The generations for which kernels are compiled: Ampere, Hopper and Blackwell.
pub const ARCHITECTURES: [Architecture; 3] = [
    Architecture { virtual_name: "compute_80", name: "sm_80" },
    Architecture { virtual_name: "compute_90", name: "sm_90" },
    Architecture { virtual_name: "compute_100", name: "sm_100" },
];

/// The run-time compiler.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc(());

impl Nvrtc {
    /// Finds the library of the compiler.
    ///
    /// # Errors
    /// If there is none.
    pub fn find() -> Result<Self, DriverError> {
        // SAFETY: to load a library runs the code with which it begins. The library that the system has under
        // this name is trusted, as all libraries of the system are.
        #[expect(unsafe_code)]
        let is_there = unsafe { sys::is_culib_present() };
        if is_there {
            return Ok(Self(()));
        }
        let reason = "there is no libnvrtc, expected one of CUDA 13 or 12 in the library path; NVIDIA has it as \
                      the package nvidia-cuda-nvrtc for Python";
        Err(DriverError::Unavailable(reason.to_owned()))
    }

    /// Compiles kernels to PTX, the assembly language that every driver understands.
    ///
    /// # Errors
    /// Returns what the compiler says about a wrong source.
    pub fn compile(self, source: &Source, architecture: Architecture) -> Result<String, DriverError> {
        let options = CompileOptions {
            arch: Some(architecture.virtual_name),
            name: Some(format!("{}.cu", source.name())),
            ..CompileOptions::default()
        };
        let failed = |reason| DriverError::Source { name: source.name().to_owned(), reason };
        match compile_ptx_with_opts(source.text(), options) {
            Ok(compiled) => Ok(compiled.to_src()),
            Err(CompileError::CompileError { log, .. }) => {
                Err(failed(log.to_string_lossy().trim().to_owned()))
            }
            Err(error) => Err(failed(format!("{error:?}"))),
        }
    }
}
