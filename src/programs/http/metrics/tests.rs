//! Tests that the text for Prometheus is well-formed for all snapshots. A parser in this file and promtool
//! check the text.
//!
//! Wanted properties: those of `exposition.rs`, which concern buckets, labels and empty families (A to C);
//! every sample has the value that the snapshot contains (D).

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use pushpull_messages::id::{GlobalStep, Incarnation, JobName, LocalStep, ShardId, TaskId, Version};
use pushpull_messages::message::{MetricValue, ShardCounters, ShardSnapshot, StalenessHistogram};
use pushpull_messages::observe::{
    ActorSnapshot, Checkpoints, ChiefSnapshot, EvaluatorSnapshot, Finding, FindingKind, JobPhase, Phases,
    PsSnapshot, RoleSnapshot, RoundTrip, ServerSnapshot, SessionSnapshot, ShardRow, ShardState, TaskRow,
    TaskSnapshot, TaskState, TimeHistogram, Traffic, VerdictCounters, WorkerRow, WorkerSnapshot, WorkerState,
};

use self::promtool::promtool;
use super::exposition::Exposition;
use super::families::{FAMILIES, Kind};
use super::text;

#[path = "../../../../tests/support/promtool.rs"]
mod promtool;

/// The HTTP requests that the endpoint has refused.
const REFUSED: [(&str, u64); 2] = [("host", 3), ("wrong_token", 0)];

/// A generator of pseudo-random numbers, which gives the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20
    }

    fn float(&mut self) -> f32 {
        match self.next() % 20 {
            0 => f32::NAN,
            1 => f32::INFINITY,
            _ => self.next() as f32 / 1e6,
        }
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (!self.next().is_multiple_of(3)).then(|| value(self))
    }

    fn times(&mut self) -> TimeHistogram {
        TimeHistogram { buckets: std::array::from_fn(|_| self.next() % 1000).into(), sum_us: self.next() }
    }

    fn staleness(&mut self) -> StalenessHistogram {
        let buckets = std::array::from_fn(|_| self.next() % 1000).into();
        StalenessHistogram { buckets, max: self.next(), sum: self.next() }
    }

    fn traffic(&mut self) -> Traffic {
        Traffic { messages: self.next(), payload_bytes: self.next() }
    }

    fn actor(&mut self, name: String) -> ActorSnapshot {
        ActorSnapshot {
            name,
            state: "at work".into(),
            queue: self.next(),
            waited: self.times(),
            handling: self.times(),
            busy_us: self.maybe(Self::next),
        }
    }

    fn shard(&mut self, shard: ShardId) -> ShardSnapshot {
        ShardSnapshot {
            version: Version(self.next()),
            began: Version(self.next()),
            slices: self.next(),
            bytes: self.next(),
            pushes: ShardCounters {
                received: self.next(),
                applied: self.next(),
                held: self.next(),
                stale: self.next(),
                stopped: self.next(),
                duplicate: self.next(),
                refused: self.next(),
            },
            pulls: self.next(),
            staleness: self.staleness(),
            steps_behind: self.staleness(),
            members: self.next() as u32,
            waiting: self.next() as u32,
            leaving: self.next().is_multiple_of(2),
            held_bytes: self.next(),
            slot_bytes: self.next(),
            not_finite: self.next(),
            applying: self.times(),
            saving: self.times(),
            saves_failed: self.next(),
            learning_rate_factor: Some(self.next() as f32),
            actor: self.actor(shard.to_string()),
        }
    }

    fn server(&mut self) -> ServerSnapshot {
        let reasons = self.next() % 40;
        let mut closed: BTreeMap<_, _> =
            (0..reasons).map(|at| (format!("reason \"{at}\"\n"), self.next())).collect();
        closed.insert("other".into(), self.next());
        ServerSnapshot {
            accepted: self.next(),
            closed,
            refused: [("term".into(), self.next()), ("malformed".into(), self.next())].into(),
            received: self.traffic(),
            sent: self.traffic(),
            writing: self.times(),
            in_flight_bytes: self.next(),
            in_flight_bytes_max: self.next(),
        }
    }

    fn session(&mut self) -> SessionSnapshot {
        SessionSnapshot {
            server: self.server(),
            completed: self.next(),
            failed: self.next(),
            running: self.next(),
            took: self.times(),
            graphs: self.next(),
            variable_bytes: self.next(),
            variable_bytes_max: self.next(),
        }
    }

    fn ps(&mut self, index: u32) -> PsSnapshot {
        PsSnapshot {
            chief_connected: true,
            server: self.server(),
            shards: (0..3)
                .map(|shard| ShardId::new(index, shard))
                .map(|shard| (shard, self.shard(shard)))
                .collect(),
            pool_bytes: self.next(),
        }
    }

    fn worker(&mut self) -> WorkerSnapshot {
        WorkerSnapshot {
            local_step: LocalStep(self.next()),
            global_step: GlobalStep(self.next()),
            drawn: self.next(),
            examples: self.next(),
            loss: self.maybe(Self::float),
            skipped: self.next(),
            records_skipped: self.next(),
            phase: Some("exchange".into()),
            phase_us: self.next(),
            phases: Phases {
                input: self.times(),
                compute: self.times(),
                filter: self.times(),
                exchange: self.times(),
                hooks: self.times(),
            },
            verdicts: VerdictCounters {
                applied: self.next(),
                held: self.next(),
                stale: self.next(),
                stopped: self.next(),
            },
            staleness: self.staleness(),
            round_trips: (0..2)
                .map(|ps| RoundTrip { shard: ShardId::new(ps, 0), times: self.times() })
                .collect(),
            in_flight_bytes: self.next(),
            in_flight_bytes_max: self.next(),
            sent: self.traffic(),
            received: self.traffic(),
            reconnections: self.next(),
            resends: self.next(),
            chief_connected: None,
        }
    }

    fn metrics(&mut self) -> Vec<MetricValue> {
        // The names of a model's metrics can be any text, and may occur twice.
        let names = ["loss", "accuracy", "accuracy", "re\"call\\ \u{fc}\n"];
        names.map(|name| MetricValue { name: name.into(), value: self.float() }).into()
    }

    fn evaluator(&mut self) -> EvaluatorSnapshot {
        EvaluatorSnapshot {
            evaluated: self.next(),
            failed: self.next(),
            step: self.maybe(|numbers| GlobalStep(numbers.next())),
            loss: self.maybe(Self::float),
            metrics: self.metrics(),
            took: self.times(),
        }
    }

    fn tasks(&mut self) -> Vec<TaskRow> {
        let tasks = [TaskId::CHIEF, TaskId::ps(0), TaskId::worker(0), TaskId::worker(1)];
        let row = |task| TaskRow {
            task,
            address: "a:1".into(),
            http: None,
            reachable: self.next().is_multiple_of(2),
            lives: self.next(),
        };
        tasks.map(row).into()
    }

    fn chief(&mut self) -> ChiefSnapshot {
        let finding = |kind, name: &str| Finding { kind, name: name.into(), reason: "slow".into() };
        ChiefSnapshot {
            phase: [JobPhase::Starting, JobPhase::Training, JobPhase::Ended][self.next() as usize % 3],
            up_ms: self.next(),
            step: GlobalStep(self.next()),
            last_step: GlobalStep(self.next()),
            began: GlobalStep(self.next()),
            loss: self.maybe(Self::float),
            steps_per_s: f64::from(self.float()),
            examples_per_s: f64::from(self.float()),
            evaluation: self.maybe(|numbers| (GlobalStep(numbers.next()), numbers.metrics())),
            tasks: self.tasks(),
            workers: (0..4)
                .map(|worker| WorkerRow {
                    worker,
                    state: WorkerState::ALL[self.next() as usize % WorkerState::ALL.len()],
                    reported_ms: self.maybe(Self::next),
                    staleness: self.maybe(|numbers| f64::from(numbers.float())),
                    ..Default::default()
                })
                .collect(),
            shards: (0..2)
                .map(|shard| ShardRow {
                    shard: ShardId::new(0, shard),
                    seen_ms: 1,
                    version: Version(1),
                    updates_per_s: 1.0,
                    busy: 0.5,
                    queue: 1,
                    waited_us: 1,
                    handling_us: 1,
                    round_trip_us: self.maybe(Self::next),
                    variables: 1,
                    slices: 1,
                    bytes: 1,
                    more_bytes: 1,
                    pushes: ShardCounters::default(),
                    pulls: 1,
                    staleness: None,
                    waiting: 0,
                    state: ShardState::Serving,
                })
                .collect(),
            checkpoints: self.maybe(|numbers| Checkpoints {
                location: "/c".into(),
                saves: numbers.next(),
                failed: numbers.next(),
                last: None,
                last_step: numbers.maybe(|numbers| GlobalStep(numbers.next())),
                age_ms: numbers.maybe(Self::next),
                took: numbers.times(),
            }),
            findings: vec![
                finding(FindingKind::SlowWorker, "worker/1"),
                finding(FindingKind::SlowWorker, "worker/1"),
                finding(FindingKind::OverloadedShard, "ps/0/shard/1"),
            ],
            spans_lost: self.next(),
            rollbacks: self.next(),
            ..Default::default()
        }
    }

    /// Returns snapshots of a chief, two ps tasks, two workers, an evaluator and a server of sessions.
    fn cluster(&mut self) -> Vec<TaskSnapshot> {
        let roles = [
            (TaskId::CHIEF, RoleSnapshot::Chief(Box::new(self.chief()))),
            (TaskId::ps(0), RoleSnapshot::Ps(Box::new(self.ps(0)))),
            (TaskId::ps(1), RoleSnapshot::Ps(Box::new(self.ps(1)))),
            (TaskId::worker(0), RoleSnapshot::Worker(Box::new(self.worker()))),
            (TaskId::worker(1), RoleSnapshot::Worker(Box::new(self.worker()))),
            (TaskId::new(JobName::Evaluator, 0), RoleSnapshot::Evaluator(Box::new(self.evaluator()))),
            (TaskId::new("local".parse().unwrap(), 0), RoleSnapshot::Session(Box::new(self.session()))),
        ];
        let snapshot = |(task, role): (TaskId, RoleSnapshot)| TaskSnapshot {
            task,
            incarnation: Incarnation(self.next()),
            state: TaskState::ALL[self.next() as usize % 4],
            actors: (0..3).map(|at| self.actor(format!("{task}/actor/{at}"))).collect(),
            role,
        };
        roles.map(snapshot).into()
    }
}

/// Returns the value of every sample in `text`, by the sample's name and labels.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let before = samples.insert(name, value.parse().expect("a number"));
        assert!(before.is_none(), "(B) twice: {name}");
    }
    samples
}

/// Splits a sample into its name, its labels except `le`, and the value of `le`.
fn parts(sample: &str) -> (&str, BTreeSet<&str>, Option<f64>) {
    let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
    let labels = labels.trim_end_matches('}').split("\",").map(|label| label.trim_end_matches('"'));
    let (bounds, labels): (Vec<_>, BTreeSet<_>) = {
        let (bounds, labels): (Vec<_>, Vec<_>) = labels.partition(|label| label.starts_with("le="));
        (bounds, labels.into_iter().collect())
    };
    let bound = bounds.first().map(|bound| bound.trim_start_matches("le=\"").parse().expect("a bound"));
    (name, labels, bound)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// Checks (A)–(D).
    #[test]
    fn whatever_the_snapshots_hold_it_is_well_formed(seed in 1u64..) {
        let cluster = Numbers(seed).cluster();
        let text = text(&cluster, REFUSED, true);
        let samples = samples(&text);
        let lines: BTreeSet<&str> = text.lines().collect();
        let parsed: Vec<_> = samples.iter().map(|(sample, &value)| (parts(sample), value)).collect();
        let names: BTreeSet<&str> = parsed.iter().map(|((own, ..), _)| *own).collect();
        let mut histograms = 0;
        for &(name, kind, help) in FAMILIES {
            let told = lines.contains(&*format!("# HELP {name} {help}"));
            let of_histogram = || ["_sum", "_count", "_bucket"].iter().any(|end| names.contains(&*format!("{name}{end}")));
            let some = names.contains(name) || kind == Kind::Histogram && of_histogram();
            prop_assert_eq!(told, some, "(C) {}", name);
            if kind != Kind::Histogram {
                continue;
            }
            let bucket = format!("{name}_bucket");
            let mut rows: BTreeMap<&BTreeSet<&str>, Vec<(f64, f64)>> = BTreeMap::new();
            for ((own, labels, bound), count) in &parsed {
                if let Some(bound) = bound && *own == bucket {
                    rows.entry(labels).or_default().push((*bound, *count));
                }
            }
            let total_name = format!("{name}_count");
            for (labels, mut row) in rows {
                histograms += 1;
                row.sort_by(|one, other| one.0.total_cmp(&other.0));
                prop_assert!(row.is_sorted_by(|one, other| one.0 < other.0 && one.1 <= other.1), "(A) {}", name);
                let total = parsed.iter().find(|((own, its, _), _)| *own == total_name && its == labels);
                prop_assert_eq!(row.last().map(|last| last.1), total.map(|total| total.1), "(A) {}", name);
                prop_assert_eq!(row.last().unwrap().0, f64::INFINITY);
            }
        }
        prop_assert!(histograms > 30);
        prop_assert_eq!(samples["pushpull_http_refused_total{reason=\"host\"}"], 3.0, "(D)");
        prop_assert_eq!(samples["pushpull_insecure"], 1.0, "(D)");
        for task in &cluster {
            if let RoleSnapshot::Ps(ps) = &task.role {
                let labels = format!("job=\"ps\",task=\"{}\"", task.task.index);
                let closed: u64 = ps.server.closed.values().sum();
                let told = samples.iter().filter(|(sample, _)| {
                    sample.starts_with("pushpull_connections_closed_total{") && sample.contains(&labels)
                });
                prop_assert_eq!(told.map(|(_, count)| count).sum::<f64>(), closed as f64, "(D)");
                for (shard, snapshot) in &ps.shards {
                    let of = |name: &str, more: &str| samples[&*format!("{name}{{{labels},shard=\"{shard}\"{more}}}")];
                    let pushes = snapshot.pushes;
                    prop_assert_eq!(of("pushpull_pushes_total", ",verdict=\"stale\""), pushes.stale as f64, "(D)");
                    prop_assert_eq!(of("pushpull_push_staleness_versions_sum", ""), snapshot.staleness.sum as f64, "(D)");
                    prop_assert_eq!(of("pushpull_push_staleness_versions_count", ""), snapshot.staleness.count() as f64, "(D)");
                    prop_assert_eq!(of("pushpull_apply_seconds_sum", ""), snapshot.applying.sum_us as f64 / 1e6, "(D)");
                    let quick = snapshot.applying.buckets[..4].iter().sum::<u64>() as f64;
                    prop_assert_eq!(of("pushpull_apply_seconds_bucket", ",le=\"0.00001\""), quick, "(D)");
                    let stale = snapshot.staleness.buckets[..3].iter().sum::<u64>() as f64;
                    prop_assert_eq!(of("pushpull_push_staleness_versions_bucket", ",le=\"3\""), stale, "(D)");
                }
            }
        }
    }
}

#[test]
fn names_are_of_this_program_and_end_as_their_kind_does() {
    let mut told = BTreeSet::new();
    for &(name, kind, help) in FAMILIES {
        assert!(told.insert(name), "{name} is twice in the table");
        assert!(name.starts_with("pushpull_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        assert!(help.ends_with('.'), "{name}: {help}");
    }
}

#[test]
fn a_family_without_samples_is_left_out() {
    assert!(Exposition::new().families().is_empty());
    let page = text(&[], [], false);
    assert!(page.contains("pushpull_insecure 0\n"), "{page}");
    let has_process = page.contains("\nprocess_resident_memory_bytes ");
    assert_eq!(has_process, cfg!(target_os = "linux"), "{page}");
}

#[test]
fn promtool_finds_nothing_to_complain_of() {
    let page = text(&Numbers(4711).cluster(), REFUSED, true);
    let said = promtool(&["check", "metrics"], &page);
    // promtool may print suggestions even if it succeeds.
    assert!(said.as_deref().is_none_or(|said| said.trim().is_empty()), "{said:?}\n{page}");
}

/// The file that lists the metric names that dashboards and alerts rely on.
const NAMES: &str = "tests/golden/metrics.txt";

/// Returns a line for each metric family that a role shows, with the role and the family's name, kind and
/// labels. Many snapshots are used because no single snapshot has all samples.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for snapshot in (1..40).flat_map(|seed| Numbers(seed).cluster()) {
        let job = snapshot.task.job;
        let page = text(std::slice::from_ref(&snapshot), REFUSED, true);
        let mut family = ("", "");
        for line in page.lines() {
            if let Some(told) = line.strip_prefix("# TYPE ") {
                family = told.split_once(' ').expect("a name and a kind");
            } else if !line.starts_with('#') {
                let (_, labels, _) = parts(line.rsplit_once(' ').expect("a name and a value").0);
                let labels = labels.iter().filter_map(|label| Some(label.split_once('=')?.0));
                let labels = labels.collect::<Vec<_>>().join(",");
                names.insert(format!("{job} {} {} {labels}", family.0, family.1).trim_end().to_owned());
            }
        }
    }
    names
}

#[cfg(target_os = "linux")]
#[test]
fn names_of_metrics_stay() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(NAMES);
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let (committed, now): (BTreeSet<_>, _) = (committed.lines().map(str::to_owned).collect(), names());
    let (lost, new): (Vec<_>, Vec<_>) =
        (committed.difference(&now).collect(), now.difference(&committed).collect());
    assert!(
        lost.is_empty() && new.is_empty(),
        "dashboards rely on these names; edit {NAMES} only for a change that is announced to users\nlost: {lost:#?}\nnew: {new:#?}"
    );
}
