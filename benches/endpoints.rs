//! Measures the cost of observation with real processes. Each round trains four jobs: without endpoints,
//! with idle endpoints, with a timeline but no endpoints, and with endpoints that clients read during half of
//! the job. The clients read the metrics and the page's data; their processor time is part of the
//! cost. The speed of the fourth job is measured by the bytes that its tasks send over loopback, so no other
//! program may use loopback. Run it with `cargo bench --bench endpoints -- [--rounds N] [--steps N]
//! [--rate N] [--trace-every N]`.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use pushpull::{OptimizerSpec, SyncSpec};
use support::{local, reported, tell, train};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// Number of rounds; each round measures every variant once
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Number of updates in each measurement; the job with requests to its endpoints has four times as many
    #[arg(long, default_value_t = 2500)]
    steps: u64,
    /// Requests per second, in total over all tasks' endpoints
    #[arg(long, default_value_t = 50)]
    rate: u32,
    /// Trace one in N steps of each worker
    #[arg(long, default_value_t = 100)]
    trace_every: u64,
    /// Ignored: `cargo bench` adds this flag
    #[arg(long, hide = true)]
    bench: bool,
}

/// The number of tasks of each job: one chief, one ps and two workers.
const TASKS: u32 = 4;
/// The length of one interval. Four intervals form a block, and [`ASKED`] says which of them have requests.
/// A block begins and ends without requests, so that a gradual slowdown of the job affects both kinds of
/// intervals equally.
const WINDOW: Duration = Duration::from_secs(1);
const ASKED: [bool; 4] = [false, true, true, false];

/// The state that all clients share: `now` is true in an interval with requests, and `over` is true after
/// the job has ended.
#[derive(Default)]
struct Asking {
    now: AtomicBool,
    over: AtomicBool,
    requests: AtomicU64,
    /// The total size of the responses, in bytes.
    bytes: AtomicU64,
}

impl Asking {
    /// Waits until an interval with requests is running, and returns true. Returns false if the job has
    /// ended.
    fn wait(&self) -> bool {
        while !self.now.load(Ordering::Relaxed) && !self.over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(5));
        }
        !self.over.load(Ordering::Relaxed)
    }

    /// Requests the metrics of one task once per `every`, in intervals with requests. Uses one connection
    /// until it fails, and then opens a new one.
    fn ask(&self, address: &str, every: Duration) {
        while self.wait() {
            let Ok(mut stream) = TcpStream::connect(address) else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            while self.wait() {
                let begun = Instant::now();
                let Ok(bytes) = get(&mut stream, "/metrics") else { break };
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.requests.fetch_add(1, Ordering::Relaxed);
                sleep(every.saturating_sub(begun.elapsed()));
            }
        }
    }

    /// Imitates an open page: reads the chief's events in intervals with requests.
    fn watch(&self, address: &str) {
        let mut buffer = vec![0; 1 << 16];
        while self.wait() {
            let Ok(mut stream) = TcpStream::connect(address) else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            let _ = stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
            while self.now.load(Ordering::Relaxed) {
                match stream.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(bytes) => drop(self.bytes.fetch_add(bytes as u64, Ordering::Relaxed)),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
            }
        }
    }
}

/// Sends a GET request for `path`. Returns the number of bytes of the response, with its head.
fn get(stream: &mut TcpStream, path: &str) -> std::io::Result<u64> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let (mut line, mut length, mut head) = (String::new(), 0, 0);
    while line != "\r\n" {
        line.clear();
        match reader.read_line(&mut line)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            bytes => head += bytes as u64,
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
    }
    Ok(head + std::io::copy(&mut reader.take(length), &mut std::io::sink())?)
}

/// Returns the number of bytes that were sent over loopback since the machine started.
fn loopback() -> anyhow::Result<u64> {
    let file = "/sys/class/net/lo/statistics/rx_bytes";
    fs::read_to_string(file)
        .with_context(|| format!("cannot read {file}: this benchmark needs Linux"))?
        .trim()
        .parse()
        .context("the file contains no number of bytes for loopback")
}

/// The result of one job whose endpoints received requests.
struct Asked {
    /// The job's speed in intervals with requests, divided by its speed in intervals without requests.
    ratio: f64,
    requests_per_second: f64,
}

fn asked(folder: &Path, job: &Path, rate: u32) -> anyhow::Result<Asked> {
    let mut child = local(folder, job, 1, TASKS - 2).stderr(Stdio::piped()).spawn()?;
    let asking = Arc::new(Asking::default());
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut endpoints = 0;
    while endpoints < TASKS {
        let Some(line) = lines.next().transpose()? else {
            bail!("the job ended before every task had logged the address of its endpoints")
        };
        let Some((_, address)) = line.split_once("observe this task at http://") else { continue };
        let address = address.trim().to_owned();
        endpoints += 1;
        if line.contains("chief") {
            let (asking, address) = (Arc::clone(&asking), address.clone());
            threads.push(spawn(move || asking.watch(&address)));
        }
        let (asking, every) = (Arc::clone(&asking), Duration::from_secs(TASKS.into()) / rate);
        threads.push(spawn(move || asking.ask(&address, every)));
    }
    // The rest of the output is read and discarded, because the process would block if its pipe were full.
    let reader = spawn(move || lines.map_while(Result::ok).for_each(drop));
    sleep(WINDOW);
    let (mut trained, mut seconds) = ([0.0; 2], [0.0; 2]);
    // The first block is not counted: a job is slower at its start, which would affect mainly the intervals
    // without requests.
    let mut is_warm = false;
    let status = 'job: loop {
        let (mut of_block, mut took) = ([0.0; 2], [0.0; 2]);
        for now in ASKED {
            asking.now.store(now, Ordering::Relaxed);
            let (begun, before) = (Instant::now(), loopback()? - asking.bytes.load(Ordering::Relaxed));
            sleep(WINDOW);
            let after = loopback()? - asking.bytes.load(Ordering::Relaxed);
            of_block[usize::from(now)] += (after - before) as f64;
            took[usize::from(now)] += begun.elapsed().as_secs_f64();
            // A block during which the job ends is not counted.
            if let Some(status) = child.try_wait()? {
                break 'job status;
            }
        }
        for now in [0, 1].into_iter().filter(|_| is_warm) {
            trained[now] += of_block[now];
            seconds[now] += took[now];
        }
        is_warm = true;
    };
    asking.over.store(true, Ordering::Relaxed);
    asking.now.store(false, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let _ = reader.join();
    if !status.success() {
        bail!("pushpull local ended with {status}");
    }
    reported(folder)?;
    if seconds[1] == 0.0 {
        bail!(
            "the job ended within {} s, which is too short: increase --steps",
            2 * WINDOW.as_secs() * ASKED.len() as u64
        );
    }
    Ok(Asked {
        ratio: (trained[1] / seconds[1]) / (trained[0] / seconds[0]),
        requests_per_second: asking.requests.load(Ordering::Relaxed) as f64 / seconds[1],
    })
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let write = |name: &str, steps| -> anyhow::Result<_> {
        let file = folder.join(name);
        fs::write(&file, support::job(512, OptimizerSpec::sgd(0.01), SyncSpec::default(), steps)?.to_json())?;
        Ok(file)
    };
    let (short, long) = (write("short.json", args.steps)?, write("long.json", 4 * args.steps)?);
    let with = |flags: &[String]| -> Command {
        let mut local = local(folder, &short, 1, TASKS - 2);
        local.args(flags);
        local
    };
    let none = "--http-addr=none".to_owned();
    let trace = format!("--trace={}", folder.join("trace.json").display());
    let ways = [
        ("no endpoints", vec![none.clone()]),
        ("endpoints", vec![]),
        ("traced", vec![none, trace, format!("--trace-every={}", args.trace_every)]),
    ];
    let mut figures: [Vec<f64>; 3] = Default::default();
    let (mut ratios, mut requests) = (Vec::new(), Vec::new());
    for round in 0..args.rounds.max(1) {
        for turn in 0..ways.len() {
            // Each round begins with a different variant.
            let way = (round + turn) % ways.len();
            figures[way].push(train(folder, with(&ways[way].1))?);
        }
        let asked = asked(folder, &long, args.rate.max(1))?;
        ratios.push(asked.ratio);
        requests.push(asked.requests_per_second);
    }
    println!("mlp 784-512-512-10, async, {TASKS} processes, {} updates, {} rounds", args.steps, args.rounds);
    for ((name, _), figures) in ways.iter().zip(&figures) {
        tell(name, figures.clone(), "examples/s");
    }
    for way in 1..ways.len() {
        let ratios = figures[way].iter().zip(&figures[0]).map(|(with, without)| with / without);
        tell(&format!("{} / no endpoints", ways[way].0), ratios.collect(), "");
    }
    tell("asked / not asked", ratios, "");
    tell("requests while asked", requests, "a second");
    Ok(())
}
