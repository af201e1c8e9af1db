//! What was measured over all rounds: medians with their spread, and ratios to the machine's limits.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::case::{Case, Limit};
use crate::child::Measured;
use crate::cluster::Exchanged;
use crate::peer::Peer;

/// Returns the median, the 99th and the 99.9th percentile in microseconds; `None` for one that would be the
/// longest of too few times.
pub(crate) fn percentiles(mut times: Vec<Duration>) -> [Option<f64>; 3] {
    times.sort_unstable();
    [(0.5, 1), (0.99, 100), (0.999, 1000)].map(|(share, least)| {
        let at = (times.len() as f64 * share) as usize;
        let time = times.get(at).filter(|_| times.len() >= least);
        time.map(|time| time.as_secs_f64() * 1e6)
    })
}

/// The results of all rounds.
#[derive(Default)]
pub(crate) struct Table {
    limits: BTreeMap<Limit, Vec<Measured>>,
    peers: Vec<Peer>,
    cases: Vec<Row>,
}

/// The results of one case, one entry for each round.
struct Row {
    case: Case,
    gbit_s: Vec<f64>,
    /// The throughput divided by that of the limit or, for small messages, the median time divided by it.
    raw_ratio: Vec<f64>,
    times_us: [Vec<f64>; 3],
    ps_cpu_s_per_gb: Vec<f64>,
    worker_cpu_s_per_gb: Vec<f64>,
    /// The peak memory of a process divided by the bytes of all values.
    ps_peak_ratio: Vec<f64>,
    worker_peak_ratio: Vec<f64>,
    /// The throughput of the slowest worker divided by the mean.
    fairness: Vec<f64>,
    /// The throughput divided by that of TensorFlow; empty if TensorFlow was not measured.
    peer_ratio: Vec<f64>,
}

/// One result in the JSON file. All figures are medians over the rounds.
#[derive(Serialize)]
pub(crate) struct JsonRow {
    workload: String,
    transport: &'static str,
    mode: String,
    gbit_s: f64,
    gbit_s_min: f64,
    gbit_s_max: f64,
    raw_ratio: f64,
    raw_ratio_min: f64,
    raw_ratio_max: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    cpu_s_per_gb: f64,
    ps_cpu_s_per_gb: f64,
    worker_cpu_s_per_gb: f64,
    ps_peak_ratio: f64,
    worker_peak_ratio: f64,
    fairness: f64,
    fairness_min: f64,
    peer_ratio: Option<f64>,
    peer_ratio_min: Option<f64>,
    peer_ratio_max: Option<f64>,
}

/// Returns the median, the minimum and the maximum.
fn spread(figures: &[f64]) -> [f64; 3] {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    [at(sorted.len() / 2), at(0), at(sorted.len().saturating_sub(1))]
}

/// Returns the median; `None` if there are no figures.
fn median(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| spread(figures)[0])
}

/// Returns a time in whole microseconds as text.
fn shown(time_us: Option<f64>) -> String {
    time_us.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"))
}

impl Table {
    /// Adds the measurement of a limit in this round.
    pub(crate) fn limit(&mut self, limit: Limit, measured: Measured) {
        self.limits.entry(limit).or_default().push(measured);
    }

    /// Adds the measurement of TensorFlow in this round.
    pub(crate) fn peer(&mut self, peer: Peer) {
        self.peers.push(peer);
    }

    /// Adds the measurement of a case in this round. The round's limits must have been added before.
    pub(crate) fn case(&mut self, case: &Case, exchanged: &Exchanged) {
        let Exchanged { workers, ps_cpu_s, ps_peak_bytes } = exchanged;
        let rates: Vec<f64> = workers.iter().map(Measured::gbit_s).collect();
        let (sum, slowest) = (rates.iter().sum::<f64>(), rates.iter().copied().fold(f64::MAX, f64::min));
        let gigabytes = workers.iter().map(|worker| worker.bytes).sum::<u64>() as f64 / 1e9;
        let times =
            [0, 1, 2].map(|at| median(&workers.iter().filter_map(|it| it.times_us[at]).collect::<Vec<_>>()));
        let limit = self.limits.get(&case.limit()).and_then(|rounds| rounds.last());
        let raw_ratio = limit.map_or(f64::NAN, |limit| match case.limit() {
            Limit::PingPong => times[0].unwrap_or(f64::NAN) / limit.times_us[0].unwrap_or(f64::NAN),
            _ => sum / limit.gbit_s(),
        });
        let at = self.cases.iter().position(|row| row.case == *case).unwrap_or_else(|| {
            self.cases.push(Row::new(*case));
            self.cases.len() - 1
        });
        let row = &mut self.cases[at];
        row.gbit_s.push(sum);
        row.raw_ratio.push(raw_ratio);
        for (all, time) in row.times_us.iter_mut().zip(times) {
            all.extend(time);
        }
        row.ps_cpu_s_per_gb.push(ps_cpu_s / gigabytes);
        row.worker_cpu_s_per_gb.push(workers.iter().map(|worker| worker.cpu_s).sum::<f64>() / gigabytes);
        let values = case.variables.bytes() as f64;
        let peak = workers.iter().map(|worker| worker.peak_bytes).max().unwrap_or_default();
        row.ps_peak_ratio.push(*ps_peak_bytes as f64 / values);
        row.worker_peak_ratio.push(peak as f64 / values);
        row.fairness.push(slowest * rates.len() as f64 / sum);
        row.peer_ratio.extend(self.peers.last().and_then(|peer| peer.of(case)).map(|theirs| sum / theirs));
    }

    /// Returns all results for the JSON file.
    pub(crate) fn to_json(&self) -> Vec<JsonRow> {
        self.cases.iter().map(Row::to_json).collect()
    }
}

impl Row {
    fn new(case: Case) -> Self {
        Self {
            case,
            gbit_s: Vec::new(),
            raw_ratio: Vec::new(),
            times_us: Default::default(),
            ps_cpu_s_per_gb: Vec::new(),
            worker_cpu_s_per_gb: Vec::new(),
            ps_peak_ratio: Vec::new(),
            worker_peak_ratio: Vec::new(),
            fairness: Vec::new(),
            peer_ratio: Vec::new(),
        }
    }

    fn to_json(&self) -> JsonRow {
        let typical = |figures: &[f64]| spread(figures)[0];
        let ([gbit_s, gbit_s_min, gbit_s_max], [raw_ratio, raw_ratio_min, raw_ratio_max]) =
            (spread(&self.gbit_s), spread(&self.raw_ratio));
        let [p50_us, p99_us, p999_us] = [0, 1, 2].map(|at: usize| median(&self.times_us[at]));
        let [peer_ratio, peer_ratio_min, peer_ratio_max] =
            spread(&self.peer_ratio).map(|ratio| (!self.peer_ratio.is_empty()).then_some(ratio));
        let [fairness, fairness_min, _] = spread(&self.fairness);
        let (ps, workers) = (typical(&self.ps_cpu_s_per_gb), typical(&self.worker_cpu_s_per_gb));
        JsonRow {
            workload: self.case.workload(),
            transport: self.case.transport(),
            mode: self.case.mode(),
            gbit_s,
            gbit_s_min,
            gbit_s_max,
            raw_ratio,
            raw_ratio_min,
            raw_ratio_max,
            p50_us,
            p99_us,
            p999_us,
            cpu_s_per_gb: ps + workers,
            ps_cpu_s_per_gb: ps,
            worker_cpu_s_per_gb: workers,
            ps_peak_ratio: typical(&self.ps_peak_ratio),
            worker_peak_ratio: typical(&self.worker_peak_ratio),
            fairness,
            fairness_min,
            peer_ratio,
            peer_ratio_min,
            peer_ratio_max,
        }
    }
}

/// Shows the results as a Markdown table. Each cell has the median and, in brackets, minimum and maximum.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show_limits(f)?;
        writeln!(
            f,
            "\n| workload | transport | Gbit/s | of the limit | p50 / p99 / p99.9 us | CPU s per GB: ps, workers | peak: ps, worker | slowest worker |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|")?;
        for row in &self.cases {
            let JsonRow {
                workload,
                transport,
                gbit_s,
                gbit_s_min,
                gbit_s_max,
                raw_ratio,
                raw_ratio_min,
                raw_ratio_max,
                p50_us,
                p99_us,
                p999_us,
                ps_cpu_s_per_gb,
                worker_cpu_s_per_gb,
                ps_peak_ratio,
                worker_peak_ratio,
                fairness,
                fairness_min,
                ..
            } = row.to_json();
            let [p50, p99, p999] = [p50_us, p99_us, p999_us].map(shown);
            writeln!(
                f,
                "| {workload} | {transport} | {gbit_s:.1} ({gbit_s_min:.1}-{gbit_s_max:.1}) | {raw_ratio:.2} \
                 ({raw_ratio_min:.2}-{raw_ratio_max:.2}) | {p50} / {p99} / {p999} | \
                 {ps_cpu_s_per_gb:.2}, {worker_cpu_s_per_gb:.2} | {ps_peak_ratio:.1}, {worker_peak_ratio:.1} | \
                 {fairness:.2} (min {fairness_min:.2}) |"
            )?;
        }
        self.show_peer(f)
    }
}

impl Table {
    fn show_limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (limit, rounds) in &self.limits {
            let (rates, times): (Vec<f64>, Vec<f64>) =
                rounds.iter().map(|one| (one.gbit_s(), one.times_us[0].unwrap_or_default())).unzip();
            if *limit == Limit::PingPong {
                let [median, least, most] = spread(&times);
                let late = self::median(&rounds.iter().filter_map(|one| one.times_us[1]).collect::<Vec<_>>());
                let (name, late) = (limit.name(), shown(late));
                writeln!(f, "{name}: p50 {median:.0} us ({least:.0}-{most:.0}), p99 {late} us")?;
            } else {
                let [median, least, most] = spread(&rates);
                writeln!(f, "{}: {median:.1} Gbit/s ({least:.1}-{most:.1})", limit.name())?;
            }
        }
        Ok(())
    }

    /// Shows the throughput of TensorFlow, and ours divided by it.
    fn show_peer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.peers.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        for (name, rates) in [
            ("push", self.peers.iter().map(|peer| peer.push).collect::<Vec<_>>()),
            ("pull", self.peers.iter().map(|peer| peer.pull).collect()),
        ] {
            let [median, least, most] = spread(&rates);
            writeln!(f, "TensorFlow, {name} of 25x4MB: {median:.1} Gbit/s ({least:.1}-{most:.1})")?;
        }
        for row in self.cases.iter().filter(|row| !row.peer_ratio.is_empty()) {
            let [median, least, most] = spread(&row.peer_ratio);
            writeln!(f, "{} / TensorFlow: {median:.2} ({least:.2}-{most:.2})", row.case.name())?;
        }
        Ok(())
    }
}
