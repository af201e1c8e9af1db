//! NVIDIA's run-time compiler for CUDA C++. Its library is loaded when it is needed, and needs no card.

use std::ffi::CString;
use std::fmt;

use cudarc::nvrtc::{result, sys};

use crate::driver::DriverError;
use crate::source::Source;

/// A generation of cards, which its compute capability names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture {
    /// The major and the minor number of the compute capability.
    pub capability: [u32; 2],
}

impl Architecture {
    /// Returns the number that names the architecture.
    const fn number(self) -> u32 {
        10 * self.capability[0] + self.capability[1]
    }
}

/// Writes the name that NVIDIA's tools use, for example `sm_80`.
impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.number())
    }
}

/// The generations for which kernels are tested: Ampere, Hopper and Blackwell.
pub const ARCHITECTURES: [Architecture; 3] = [
    Architecture { capability: [8, 0] },
    Architecture { capability: [9, 0] },
    Architecture { capability: [10, 0] },
];

/// The run-time compiler.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc(());

/// A source that the compiler has compiled.
struct Program {
    handle: sys::nvrtcProgram,
    name: String,
}

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

    /// Returns the version of CUDA to which the compiler belongs.
    pub fn version(self) -> [i32; 2] {
        let [mut major, mut minor] = [0; 2];
        // SAFETY: both pointers are to numbers of the type that the function writes.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
        if answer.result().is_ok() { [major, minor] } else { [0; 2] }
    }

    /// Returns the newest architecture that the compiler knows and whose programs `card` can run.
    pub(crate) fn newest_for(self, card: Architecture) -> Option<Architecture> {
        let mut count = 0;
        // SAFETY: the pointer is to a number of the type that the function writes.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
        answer.result().ok()?;
        let mut numbers = vec![0; usize::try_from(count).ok()?];
        // SAFETY: the function writes as many numbers as the one before has counted.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) };
        answer.result().ok()?;
        let known = numbers.into_iter().filter_map(|number| u32::try_from(number).ok());
        let known = known.map(|number| Architecture { capability: [number / 10, number % 10] });
        known.filter(|architecture| *architecture <= card).max()
    }

    /// Compiles kernels to PTX, the assembly language of cards. A driver translates it for its card, if the
    /// driver is at least as new as the compiler.
    ///
    /// # Errors
    /// Returns what the compiler says about a wrong source.
    pub fn compile(self, source: &Source, architecture: Architecture) -> Result<String, DriverError> {
        let program = Program::new(source, &format!("compute_{}", architecture.number()))?;
        // SAFETY: the handle is that of a program, which is destroyed only when `program` is dropped.
        #[expect(unsafe_code)]
        let ptx = unsafe { result::get_ptx(program.handle) }.map_err(|error| program.failed(&error))?;
        let bytes = ptx.into_iter().map(|byte| byte as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8(bytes).map_err(|error| program.fault(error.to_string()))
    }

    /// Compiles kernels to a program for cards of this architecture. An older driver may load it as well, if
    /// it belongs to the same major version of CUDA.
    ///
    /// # Errors
    /// Returns what the compiler says about a wrong source, or about an architecture that it does not know.
    pub fn assemble(self, source: &Source, architecture: Architecture) -> Result<Vec<u8>, DriverError> {
        let program = Program::new(source, &architecture.to_string())?;
        let mut size = 0;
        // SAFETY: the handle is that of a program, which is destroyed only when `program` is dropped, and the
        // pointer is to a number of the type that the function writes.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::nvrtcGetCUBINSize(program.handle, &raw mut size) };
        answer.result().map_err(|error| program.failed(&error))?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: the handle is as above, and the function writes as many bytes as the one before has
        // counted.
        #[expect(unsafe_code)]
        let answer = unsafe { sys::nvrtcGetCUBIN(program.handle, bytes.as_mut_ptr().cast()) };
        answer.result().map_err(|error| program.failed(&error))?;
        Ok(bytes)
    }
}

impl Program {
    /// Compiles a source.
    fn new(source: &Source, architecture: &str) -> Result<Self, DriverError> {
        let name = source.name().to_owned();
        let text = |text: String| {
            let fault = |error: std::ffi::NulError| DriverError::Source {
                name: source.name().to_owned(),
                reason: error.to_string(),
            };
            CString::new(text).map_err(fault)
        };
        let (file, code) = (text(format!("{name}.cu"))?, text(source.text().to_owned())?);
        let handle = result::create_program(&code, Some(&file))
            .map_err(|error| DriverError::Source { name: name.clone(), reason: format!("{error:?}") })?;
        let program = Self { handle, name };
        let options = [format!("--gpu-architecture={architecture}")];
        // SAFETY: the handle is that of a program, which is destroyed only when `program` is dropped.
        #[expect(unsafe_code)]
        let compiled = unsafe { result::compile_program(handle, &options) };
        compiled.map_err(|error| program.failed(&error))?;
        Ok(program)
    }

    fn fault(&self, reason: String) -> DriverError {
        DriverError::Source { name: self.name.clone(), reason }
    }

    /// Returns what the compiler says, or else the code of the error.
    fn failed(&self, error: &result::NvrtcError) -> DriverError {
        // SAFETY: the handle is that of a program, which is destroyed only when `self` is dropped.
        #[expect(unsafe_code)]
        let log = unsafe { result::get_program_log(self.handle) }.unwrap_or_default();
        let log: Vec<u8> = log.into_iter().map(|byte| byte as u8).take_while(|&byte| byte != 0).collect();
        let log = String::from_utf8_lossy(&log).trim().to_owned();
        self.fault(if log.is_empty() { format!("{:?}", error.0) } else { log })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the handle is that of a program, and nothing uses it any more.
        #[expect(unsafe_code)]
        let _ = unsafe { result::destroy_program(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_architecture_fits_the_card() {
        let nvrtc = match Nvrtc::find() {
            Ok(nvrtc) => nvrtc,
            Err(error) => return println!("SKIPPED: {error}, so the choice of architectures is NOT tested."),
        };
        let newest =
            |capability| nvrtc.newest_for(Architecture { capability }).map(|newest| newest.capability);
        assert_eq!(newest([9, 0]), Some([9, 0]));
        assert_eq!(newest([8, 15]), newest([8, 9]));
        assert!(newest([99, 0]) > Some([9, 0]));
        assert_eq!(newest([1, 0]), None);
        assert!(nvrtc.version() >= [11, 1]);
    }
}
