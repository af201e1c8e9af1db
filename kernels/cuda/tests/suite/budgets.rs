//! Every kernel can be compiled for every generation of cards, within a budget of registers and of shared
//! memory, and keeps no registers in slow memory. This needs no card.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use pushpull_cuda::{ARCHITECTURES, Architecture, DriverError, Nvrtc, Operation, Source};

use crate::case::Case;
use crate::devices::folder;
use crate::{
    attentions, chains, convolutions, dropouts, elements, embeddings, libraries, losses, metrics, norms,
    pools, products, reductions, rows,
};

/// For each kernel, the number of registers of a thread and the bytes of shared memory of a block.
const BUDGETS: &str = include_str!("budgets.txt");

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    registers: u32,
    shared_bytes: u32,
    /// The bytes of registers that are kept in slow memory.
    spilled_bytes: u32,
}

/// Returns the budget of each kernel with the compiler of a version of CUDA.
fn budgets(version: [i32; 2]) -> BTreeMap<&'static str, [u32; 2]> {
    let own = format!("{}.{}:", version[0], version[1]);
    let budget = |line: &'static str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kernel, registers, shared, exceptions @ ..] = &words[..] else {
            panic!("expected three words: {line}")
        };
        let registers = exceptions.iter().find_map(|word| word.strip_prefix(&own)).unwrap_or(registers);
        (*kernel, [registers, *shared].map(|number| number.parse().expect("a number")))
    };
    BUDGETS.lines().filter(|line| !line.starts_with('#')).map(budget).collect()
}

/// Returns the number before `unit` in a line of the assembler; 0 if the line has none.
fn number_before(line: &str, unit: &str) -> u32 {
    let before = line.split(unit).next().filter(|before| before.len() < line.len());
    before.and_then(|before| before.split_whitespace().last()?.parse().ok()).unwrap_or(0)
}

/// Returns what each kernel takes, as the assembler says.
fn uses(report: &str) -> BTreeMap<String, Use> {
    let (mut all, mut kernel, mut spilled_bytes) = (BTreeMap::new(), None, 0);
    for line in report.lines() {
        if line.contains("Compiling entry function") {
            kernel = line.split('\'').nth(1).map(str::to_owned);
        } else if line.contains("bytes spill stores") {
            spilled_bytes = number_before(line, " bytes spill stores");
        } else if line.contains("Used ") {
            let (registers, shared_bytes) =
                (number_before(line, " registers"), number_before(line, " bytes smem"));
            let kernel = kernel.take().expect("a kernel before its registers");
            all.insert(kernel, Use { registers, shared_bytes, spilled_bytes });
        }
    }
    all
}

/// Assembles a program, and returns what its kernels take.
fn assemble(ptx: &str, architecture: Architecture, folder: &Path) -> BTreeMap<String, Use> {
    let (input, output) = (folder.join("kernels.ptx"), folder.join("kernels.cubin"));
    fs::write(&input, ptx).unwrap();
    let mut command = Command::new("ptxas");
    command.arg("-v").arg(format!("-arch={architecture}")).arg("-o").arg(output).arg(input);
    let assembled = command.output().unwrap();
    let report = String::from_utf8_lossy(&assembled.stderr);
    assert!(assembled.status.success(), "{architecture}: {report}");
    uses(&report)
}

/// Returns the compiler; `None`, after a warning, if this machine has no compiler or no assembler.
fn compiler() -> Option<Nvrtc> {
    let mut assembler = Command::new("ptxas");
    assembler.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let found = Nvrtc::find().and_then(|nvrtc| match assembler.status() {
        Ok(status) if status.success() => Ok(nvrtc),
        _ => Err(DriverError::Unavailable("there is no ptxas in the path".to_owned())),
    });
    match found {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            println!("SKIPPED: {error}, so it is NOT tested whether kernels can be compiled for cards.");
            None
        }
    }
}

/// Returns the kernels of all operations.
fn operations() -> Source {
    let of_elements = [chains::cases(10, 40), elements::cases(), dropouts::cases()].concat();
    let of_rows = [reductions::cases(), rows::cases(), embeddings::cases(), norms::cases()].concat();
    let cases: Vec<Case> = [of_elements, of_rows, losses::cases(), metrics::cases(), pools::cases()].concat();
    // The kernels of products depend on sizes more than others do, so those of layers are compiled.
    let products = [products::layers(), libraries::operations(), attentions::operations()].concat();
    let layers = [products, convolutions::layers()].concat();
    Operation::source("operations", cases.iter().map(|case| &case.operation).chain(&layers))
}

#[test]
fn every_kernel_is_within_its_budget_on_every_architecture() {
    let Some(nvrtc) = compiler() else { return };
    let folder = folder().join(format!("budgets.{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (budgets, mut faults) = (budgets(nvrtc.version()), Vec::new());
    for source in [Source::optimizer(), operations()] {
        for architecture in ARCHITECTURES {
            let ptx = nvrtc.compile(&source, architecture).unwrap();
            let uses = assemble(&ptx, architecture, &folder);
            assert!(uses.keys().map(String::as_str).eq({
                let mut kernels: Vec<&str> = source.kernels().collect();
                kernels.sort_unstable();
                kernels
            }));
            for (kernel, own) in uses {
                // A generated kernel has a hash behind its name; all kernels of one name have one budget.
                let generated = kernel.rsplit_once('_').filter(|(_, hash)| hash.len() == 16);
                let name = generated.map_or(&*kernel, |(name, _)| name);
                let within = budgets.get(name).is_some_and(|&[registers, shared_bytes]| {
                    own.registers <= registers && own.shared_bytes <= shared_bytes && own.spilled_bytes == 0
                });
                if !within {
                    faults.push(format!("{kernel} on {architecture}: {own:?}"));
                }
            }
        }
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(faults.is_empty(), "beyond budgets.txt:\n{}", faults.join("\n"));
}

#[test]
fn a_budget_may_name_the_version_of_a_compiler() {
    let registers = |version| budgets(version)["batch_norm_grad"][0];
    assert_eq!([[12, 8], [13, 0], [13, 5]].map(registers), [40, 44, 40]);
    assert_eq!(budgets([13, 0])["fill"], budgets([13, 5])["fill"]);
}

#[test]
fn programs_are_made_for_every_architecture() {
    let Some(nvrtc) = compiler() else { return };
    for architecture in ARCHITECTURES {
        let program = nvrtc.assemble(&Source::optimizer(), architecture).unwrap();
        assert!(program.starts_with(b"\x7FELF"), "{architecture}");
    }
}

#[test]
fn a_wrong_source_is_an_error_for_cards() {
    let Some(nvrtc) = compiler() else { return };
    let wrong = Source::optimizer().with("sqrtf(second)", "no_such_function(second)");
    let ptx = nvrtc.compile(&wrong, ARCHITECTURES[0]).map(drop);
    for result in [ptx, nvrtc.assemble(&wrong, ARCHITECTURES[0]).map(drop)] {
        let Err(DriverError::Source { reason, .. }) = &result else { panic!("{result:?}") };
        assert!(reason.contains("no_such_function"), "{reason}");
    }
    let unknown = Architecture { capability: [1, 0] };
    let error = nvrtc.assemble(&Source::optimizer(), unknown).unwrap_err().to_string();
    assert!(error.contains("gpu-architecture"), "{error}");
}

#[test]
fn the_report_of_the_assembler_is_understood() {
    let report = "ptxas info    : Compiling entry function 'lamb' for 'sm_80'\n\
                  ptxas info    : Function properties for lamb\n    \
                  0 bytes stack frame, 8 bytes spill stores, 0 bytes spill loads\n\
                  ptxas info    : Used 40 registers, used 1 barriers, 2048 bytes smem, 444 bytes cmem[0]\n";
    let expected = Use { registers: 40, shared_bytes: 2048, spilled_bytes: 8 };
    assert_eq!(uses(report).into_iter().collect::<Vec<_>>(), [("lamb".to_owned(), expected)]);
}
