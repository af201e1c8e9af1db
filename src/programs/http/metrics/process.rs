//! The operating system's metrics of this process. They are read from `/proc`, and have the names that all
//! client libraries of Prometheus use. This module must not depend on tasks.
//!
//! `/proc/self/stat` and `/proc/stat` are parsed here, because a library for this would add two large crates
//! to the build.

use std::fs;
use std::sync::OnceLock;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::families::Kind;

/// A metric of the process: name, kind, help and value.
pub(super) type Reading = (&'static str, Kind, &'static str, f64);

/// The fields of `/proc/self/stat` that the metrics need, as proc_pid_stat(5) describes them.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Processor time in user and kernel mode, in clock ticks.
    cpu_ticks: u64,
    threads: u64,
    /// The time at which the process started, in clock ticks since the start of the system.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Parses the file. Returns `None` if it is not what the kernel writes.
    fn parse(file: &str) -> Option<Self> {
        // The name of the program is in parentheses, and may itself contain spaces and parentheses.
        let (_, fields) = file.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // The manual numbers the fields from 1, and field 3 is the first one after the name.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.checked_add(field(15)?)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// Returns the metrics that this system provides, and leaves out all others.
pub(super) fn readings() -> Vec<Reading> {
    use Kind::{Counter, Gauge};

    let mut readings = Vec::new();
    let mut add =
        |name, kind, help, value: Option<f64>| readings.extend(value.map(|value| (name, kind, help, value)));
    // The name of the program may be cut in the middle of a character.
    let file = fs::read("/proc/self/stat").unwrap_or_default();
    let stat = Stat::parse(&String::from_utf8_lossy(&file));
    let stat = stat.as_ref();
    let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
    add(
        "process_cpu_seconds_total",
        Counter,
        "Total user and system CPU time spent in seconds.",
        stat.map(|stat| seconds(stat.cpu_ticks)),
    );
    // Reading the directory opens one more descriptor, which is subtracted.
    let open = fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1) as f64);
    add("process_open_fds", Gauge, "Number of open file descriptors.", open);
    let limit = getrlimit(Resource::Nofile).current.map(|limit| limit as f64);
    add("process_max_fds", Gauge, "Maximum number of open file descriptors.", limit);
    add(
        "process_virtual_memory_bytes",
        Gauge,
        "Virtual memory size in bytes.",
        stat.map(|stat| stat.virtual_bytes as f64),
    );
    add(
        "process_resident_memory_bytes",
        Gauge,
        "Resident memory size in bytes.",
        stat.map(|stat| stat.resident_pages as f64 * page_size() as f64),
    );
    add(
        "process_start_time_seconds",
        Gauge,
        "Start time of the process since unix epoch in seconds.",
        stat.zip(system_start()).map(|(stat, start)| start as f64 + seconds(stat.start_ticks)),
    );
    add(
        "process_threads",
        Gauge,
        "Number of OS threads in the process.",
        stat.map(|stat| stat.threads as f64),
    );
    readings
}

/// Returns the time at which the system started, in seconds since 1970. The time is read only once, because
/// the system computes it from the clock: if it were read again after the clock was set, this process would
/// seem to have restarted.
fn system_start() -> Option<u64> {
    static START: OnceLock<Option<u64>> = OnceLock::new();
    *START.get_or_init(|| {
        let file = fs::read_to_string("/proc/stat").ok()?;
        file.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn fields_are_counted_from_behind_the_name() {
        let file = "42 (a (b) 7 8) R 1 2 3 4 5 6 7 8 9 10 1100 25 13 14 20 0 17 0 5000 4096000 99 18446744073709551615 1\n";
        let expected = Stat {
            cpu_ticks: 1125,
            threads: 17,
            start_ticks: 5000,
            virtual_bytes: 4_096_000,
            resident_pages: 99,
        };
        assert_eq!(Stat::parse(file), Some(expected));
        for broken in
            ["", "42 (name", "42 (name) R 1 2 3", &file.replace("1100", "x"), &file.replace("25", "-1")]
        {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn this_process_is_read() {
        let readings = readings();
        let value = |name: &str| {
            readings.iter().find(|reading| reading.0 == name).unwrap_or_else(|| panic!("{name}")).3
        };
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age}");
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_resident_memory_bytes") >= 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!((1.0..=value("process_max_fds")).contains(&value("process_open_fds")));
    }
}
