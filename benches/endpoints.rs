//! What being looked at costs: training by real processes without endpoints, with endpoints that nobody asks, with endpoints
//! that are asked so many times a second and a page that is open, and with a timeline that is written.
//!
//! `cargo bench --bench endpoints -- [--rounds N] [--steps N] [--rate N] [--trace-every N]`. The ways take turns. On few cores
//! whoever asks takes time from the training, too; so the time that the endpoints' threads themselves took is told as well.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use pushpull::nn::{Layer, dense};
use pushpull::{DatasetSpec, GraphBuilder, InputSpec, JobSpec, OptimizerSpec};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Args {
    /// How often each way is measured
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Updates in each measurement
    #[arg(long, default_value_t = 6000)]
    steps: u64,
    /// Requests a second, shared among all tasks' endpoints
    #[arg(long, default_value_t = 50)]
    rate: u64,
    /// Of each worker every so many steps one is traced
    #[arg(long, default_value_t = 100)]
    trace_every: u64,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn write_job(path: &Path, steps: u64) -> anyhow::Result<()> {
    let mut g = GraphBuilder::new("mlp");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let mut x = g.reshape(images, [784]);
    for layer in ["dense1", "dense2"] {
        x = dense(layer, 512).relu().apply(&mut g, x);
    }
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let graph = g.finish(loss, &[])?;
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let input = InputSpec::new(digits(1, 20_000), digits(2, 500));
    let job = JobSpec { optimizer: OptimizerSpec::sgd(0.1), seed: 1, ..JobSpec::new(graph, input, steps) };
    Ok(fs::write(path, job.to_json())?)
}

/// Somebody who asks one endpoint at a steady rate, over one connection.
struct Asker {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Asker {
    fn start(address: String, path: &'static str, every: Duration, asked: Arc<AtomicU64>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                // An endpoint closes a connection that has had its time.
                let Ok(mut stream) = TcpStream::connect(&address) else { return };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
                while !seen.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    if ask(&mut stream, path).is_err() {
                        break;
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(every.saturating_sub(begun.elapsed()));
                }
            }
        });
        Self { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

fn ask(stream: &mut TcpStream, path: &str) -> std::io::Result<()> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).map(drop)
}

/// The page that somebody has open: what the chief sends is read.
fn open_page(address: &str, over: Arc<AtomicBool>) -> anyhow::Result<JoinHandle<()>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    Ok(std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while !over.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }))
}

/// Seconds of processor time of the endpoints' threads in that process.
fn endpoint_seconds(process: u32) -> f64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return 0.0 };
    let of_thread = |path: &Path| {
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
        name.starts_with("http").then_some(ticks as f64 / 100.0)
    };
    tasks.flatten().filter_map(|entry| of_thread(&entry.path())).sum()
}

/// What one run came to.
struct Run {
    examples_per_second: f64,
    asked_per_second: f64,
    /// Of the processor time of the whole machine, while it trained: the share that endpoints took.
    share: f64,
}

fn run(folder: &Path, job: &Path, flags: &[String], rate: Option<u64>) -> anyhow::Result<Run> {
    let report = folder.join("report.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pushpull"))
        .args(["local", "--ps=1", "--workers=2"])
        .arg(format!("--job={}", job.display()))
        .arg(format!("--report={}", report.display()))
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let begun = Instant::now();
    let (asked, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (mut askers, mut page) = (Vec::new(), None);
    let mut lines = BufReader::new(child.stderr.take().context("no stderr")?).lines();
    let mut endpoints = 0;
    while endpoints < 4 && rate.is_some() {
        let Some(line) = lines.next().transpose()? else { break };
        let Some((_, address)) = line.split_once("observe this task at http://") else { continue };
        let address = address.trim().trim_end_matches('/').to_owned();
        endpoints += 1;
        if line.contains("chief") {
            page = Some(open_page(&address, Arc::clone(&over))?);
        }
        let every = Duration::from_secs(4) / rate.unwrap_or(1) as u32;
        askers.push(Asker::start(address, "/metrics", every, Arc::clone(&asked)));
    }
    // What else is said is read, so that nobody waits for that.
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let mut seconds = 0.0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
        let now: f64 =
            children.split_whitespace().filter_map(|id| id.parse().ok()).map(endpoint_seconds).sum();
        seconds = f64::max(seconds, now);
        std::thread::sleep(Duration::from_millis(100));
    };
    let took = begun.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    askers.into_iter().for_each(Asker::end);
    page.into_iter().for_each(|page| drop(page.join()));
    let _ = reader.join();
    if !status.success() {
        bail!("pushpull local ended with {status}");
    }
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report)?)?;
    let cores = std::thread::available_parallelism()?.get() as f64;
    Ok(Run {
        examples_per_second: report["examples_per_second"].as_f64().context("no examples_per_second")?,
        asked_per_second: asked.load(Ordering::Relaxed) as f64 / took,
        share: seconds / (took * cores),
    })
}

fn spread(name: &str, mut figures: Vec<f64>, unit: &str) {
    figures.sort_by(f64::total_cmp);
    let (least, median, most) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
    println!("{name:34} median {median:9.3}   least {least:9.3}   most {most:9.3}   {unit}");
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let job = folder.join("job.json");
    write_job(&job, args.steps)?;
    let none = vec!["--http-addr=none".to_owned()];
    let traced = vec![
        "--http-addr=none".to_owned(),
        format!("--trace={}", folder.join("trace.json").display()),
        format!("--trace-every={}", args.trace_every),
    ];
    let ways: [(&str, &[String], Option<u64>); 4] = [
        ("no endpoints", &none, None),
        ("endpoints", &[], None),
        ("asked", &[], Some(args.rate)),
        ("traced", &traced, None),
    ];
    let mut figures: [Vec<Run>; 4] = Default::default();
    for round in 0..args.rounds.max(1) {
        for turn in 0..ways.len() {
            // Whoever is first in one round is not in the next.
            let way = (round + turn) % ways.len();
            let (_, flags, rate) = ways[way];
            figures[way].push(run(folder, &job, flags, rate)?);
        }
    }
    println!("mlp 784-512-512-10, async, 4 processes, {} updates, {} rounds", args.steps, args.rounds);
    for ((name, ..), runs) in ways.iter().zip(&figures) {
        spread(name, runs.iter().map(|run| run.examples_per_second).collect(), "examples/s");
    }
    for way in 1..ways.len() {
        let ratios = figures[way].iter().zip(&figures[0]);
        let ratios = ratios.map(|(run, without)| run.examples_per_second / without.examples_per_second);
        spread(&format!("{} / no endpoints", ways[way].0), ratios.collect(), "");
    }
    spread("requests a second", figures[2].iter().map(|run| run.asked_per_second).collect(), "");
    for way in [1, 2] {
        let shares = figures[way].iter().map(|run| 100.0 * run.share).collect();
        spread(&format!("{}: share of all cores", ways[way].0), shares, "%");
    }
    Ok(())
}
