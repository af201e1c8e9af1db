//! Measures the cost of checkpoints with real processes: how fast a large model is saved and restored,
//! compared with writing and reading a plain file of the same size; how much memory the ps needs to save
//! and to restore; and how much saving slows down training. Checkpoints and plain files are dropped from the
//! page cache before they are read. Run it with
//! `cargo bench --bench checkpoint -- [--rounds N] [--width N] [--dir DIR] [--steps N] [--save-steps N]`.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use pushpull::{OptimizerSpec, SyncSpec};
use support::ports::free_address;
use support::usage::peak_of;
use support::{local, tell, train};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of rounds; each round makes every measurement once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Units of each hidden layer of the large model; 15800 units make a model of 1 GiB
    #[arg(long, default_value_t = 15_800)]
    width: usize,
    /// Directory for the checkpoints and plain files [default: the system's directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Number of updates in each measurement of training
    #[arg(long, default_value_t = 4000)]
    steps: u64,
    /// Number of updates between two checkpoints, in the measurement of training with checkpoints
    #[arg(long, default_value_t = 400)]
    save_steps: u64,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

fn write_job(path: &Path, width: usize, optimizer: OptimizerSpec, steps: u64) -> anyhow::Result<u64> {
    let job = support::job(width, optimizer, SyncSpec::default(), steps)?;
    fs::write(path, job.to_json())?;
    Ok(job.graph.variables.iter().map(|variable| variable.shape.elements() as u64 * 4).sum())
}

/// A process that is killed when it is dropped.
struct Task(Child);

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A chief process and a ps process. There is no worker, because saving and restoring need none.
struct Pair {
    ps: Task,
    _chief: Task,
    log: PathBuf,
}

impl Pair {
    fn start(folder: &Path, job: &Path, checkpoints: &Path) -> anyhow::Result<Self> {
        let spec = ["chief", "ps", "worker"].map(|job| format!("{job}|{}", free_address())).join(",");
        let log = folder.join("chief.log");
        let start = |program: &str, flags: &[&str], err: Stdio| {
            let mut command = Command::new(program);
            command.args(["--cluster-spec", &spec]).args(flags).stdout(Stdio::null()).stderr(err);
            command.spawn().map(Task).with_context(|| format!("cannot start {program}"))
        };
        let ps = start(env!("CARGO_BIN_EXE_pushpull-ps"), &[], Stdio::null())?;
        let (job, directory) =
            (format!("--job={}", job.display()), format!("--checkpoint-dir={}", checkpoints.display()));
        let chief =
            start(env!("CARGO_BIN_EXE_pushpull-chief"), &[&job, &directory], File::create(&log)?.into())?;
        Ok(Self { ps, _chief: chief, log })
    }

    /// Waits until the chief logs a line that contains `word`. Returns the duration that the line states, in
    /// seconds; the line has the form `… in 1.23 s …`.
    fn seconds(&self, word: &str) -> anyhow::Result<f64> {
        let deadline = Instant::now() + Duration::from_secs(300);
        while Instant::now() < deadline {
            let log = fs::read_to_string(&self.log)?;
            if let Some(line) = log.lines().find(|line| line.contains(word)) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let found = words.windows(3).find(|three| three[0] == "in" && three[2].starts_with('s'));
                let found = found.with_context(|| format!("the line '{line}' contains no time"))?;
                return Ok(found[1].parse()?);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the chief did not log '{word}' within 300 s:\n{}", fs::read_to_string(&self.log)?)
    }

    /// Returns the peak resident memory of the ps so far, in bytes.
    fn peak(&self) -> anyhow::Result<u64> {
        peak_of(&self.ps.0.id().to_string())
    }
}

/// Waits long enough for a virtual machine to return freed memory to its host. The next allocations are
/// slow, because the virtual machine must get the memory back from the host. For a fair comparison, each
/// round waits before it writes the plain file and the checkpoint, and before it reads each of them.
fn settle() {
    std::thread::sleep(Duration::from_secs(6));
}

/// Writes a file of `bytes` bytes in parts, and waits until the file is on the disk. Returns the total
/// duration, in seconds.
fn plain_write(path: &Path, bytes: u64) -> anyhow::Result<f64> {
    // The numbers are pseudorandom, so that the file is as hard to compress as a model.
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    let part: Vec<u8> = (0..8 << 20).map(|_| next()).collect();
    let begun = Instant::now();
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let some = left.min(part.len() as u64);
        file.write_all(&part[..some as usize])?;
        left -= some;
    }
    file.sync_all()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Reads a file in parts. Returns the duration of reading, in seconds.
fn plain_read(path: &Path) -> anyhow::Result<f64> {
    let mut part = vec![0; 8 << 20];
    let begun = Instant::now();
    let mut file = File::open(path)?;
    while file.read(&mut part)? > 0 {}
    Ok(begun.elapsed().as_secs_f64())
}

/// Drops all files under the folder `path` from the page cache, so that they are next read from the disk.
fn forget(path: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?.path();
        if entry.is_dir() {
            forget(&entry)?;
        } else {
            let file = File::open(&entry)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = match &args.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let folder = folder.path();
    let (large, small) = (folder.join("large.json"), folder.join("small.json"));
    let bytes = write_job(&large, args.width, OptimizerSpec::sgd(0.01), 1000)?;
    let gigabytes = bytes as f64 / 1e9;
    println!("mlp 784-{0}-{0}-10: {gigabytes:.2} GB on one ps", args.width);
    let names = ["plain write", "save", "save / plain", "plain read", "restore", "restore / plain"];
    let mut figures: [Vec<f64>; 6] = Default::default();
    let (mut saving, mut restoring) = (Vec::new(), Vec::new());
    for round in 0..args.rounds.max(1) {
        let checkpoints = folder.join(format!("checkpoints-{round}"));
        let plain = folder.join("plain");
        settle();
        let write = plain_write(&plain, bytes)?;
        let pair = Pair::start(folder, &large, &checkpoints)?;
        let save = pair.seconds("saved step-0-")?;
        saving.push(pair.peak()? as f64 / bytes as f64);
        drop(pair);
        forget(folder)?;
        settle();
        let read = plain_read(&plain)?;
        settle();
        let pair = Pair::start(folder, &large, &checkpoints)?;
        let restore = pair.seconds("restored step-0-")?;
        restoring.push(pair.peak()? as f64 / bytes as f64);
        drop(pair);
        for (figure, seconds) in [(0, write), (1, save), (3, read), (4, restore)] {
            figures[figure].push(gigabytes / seconds);
        }
        figures[2].push(write / save);
        figures[5].push(read / restore);
        fs::remove_dir_all(&checkpoints)?;
        fs::remove_file(&plain)?;
    }
    for (name, figures) in names.into_iter().zip(figures) {
        tell(name, figures, if name.contains('/') { "" } else { "GB/s" });
    }
    tell("memory of the ps after saving", saving, "× the model");
    tell("memory of the ps after restoring", restoring, "× the model");
    write_job(&small, 512, OptimizerSpec::adam(0.001), args.steps)?;
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds.max(1) {
        let flags = [
            format!("--checkpoint-dir={}", folder.join(format!("small-{round}")).display()),
            format!("--save-steps={}", args.save_steps),
        ];
        without.push(train(folder, local(folder, &small, 1, 2))?);
        let mut saving = local(folder, &small, 1, 2);
        saving.args(flags);
        with.push(train(folder, saving)?);
        ratios.push(with[round] / without[round]);
    }
    println!("mlp 784-512-512-10, adam, {} steps, a checkpoint every {}", args.steps, args.save_steps);
    tell("training", without, "examples/s");
    tell("training and saving", with, "examples/s");
    tell("with / without", ratios, "");
    Ok(())
}
