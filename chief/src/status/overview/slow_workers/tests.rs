//! Tests the search for slow workers with hand-made rows of training workers.

use proptest::prelude::*;
use pushpull_messages::id::LocalStep;
use pushpull_messages::observe::WorkerState;

use super::*;

fn worker(worker: u32, compute: u64, exchange: u64) -> WorkerRow {
    let phases_us = vec![
        ("input".into(), 100),
        ("compute".into(), compute),
        ("filter".into(), 10),
        ("exchange".into(), exchange),
        ("hooks".into(), 5),
    ];
    let steps_per_s = 1e6 / (compute + exchange) as f64;
    let (state, local_step) = (WorkerState::Training, LocalStep(9));
    WorkerRow {
        worker,
        state,
        local_step,
        phases_us,
        steps_per_s,
        reported_ms: Some(300),
        ..Default::default()
    }
}

/// Returns the data of a worker that took a step half a second ago, and has been in the phase `compute` for
/// no longer than usual.
fn trains(row: &WorkerRow) -> Trainer<'_> {
    let at = Some(("compute", Duration::from_micros(phase(row, "compute").unwrap_or(0))));
    Trainer { row, at, stood: Duration::from_millis(500), usual_us: &row.phases_us }
}

fn against(rows: &[WorkerRow], sync: SyncSpec) -> Vec<Evidence> {
    slow_workers(&rows.iter().map(trains).collect::<Vec<_>>(), sync).against
}

fn names(evidence: &[Evidence]) -> Vec<&str> {
    evidence.iter().map(|evidence| evidence.finding.name.as_str()).collect()
}

fn any_sync() -> impl Strategy<Value = SyncSpec> {
    prop::sample::select(vec!["async", "bounded:2", "sync"]).prop_map(|sync| sync.parse().unwrap())
}

/// The reason why a worker does not reach its next step.
#[derive(Clone, Copy, Debug)]
enum Hindrance {
    /// The worker does not report.
    Silence,
    /// The worker stays in this phase.
    Phase(&'static str),
}

fn any_hindrance() -> impl Strategy<Value = Hindrance> {
    let phases = vec!["input", "hooks", "compute", "filter"];
    prop_oneof![Just(Hindrance::Silence), prop::sample::select(phases).prop_map(Hindrance::Phase)]
}

proptest! {
    /// Checks that no worker is found if the workers' compute times differ by a third at most (A). Then
    /// replaces the time of one worker, possibly by a much longer one, and checks that only this worker may
    /// be found, and is found if it is clearly slower (B).
    #[test]
    fn only_the_slow_worker_is_found(
        times in prop::collection::vec(0.87f64..1.13, 1..9),
        usual in 100u64..500_000,
        exchange in 0u64..500_000,
        slow in 0.87f64..10.0,
        at in 0usize..9,
        sync in any_sync(),
    ) {
        let compute = |factor: f64| (usual as f64 * factor) as u64;
        let mut rows: Vec<WorkerRow> = Vec::new();
        for (index, &factor) in (0..).zip(&times) {
            // The other workers wait for the slow worker in the exchange.
            rows.push(worker(index, compute(factor), exchange));
        }
        prop_assert_eq!(against(&rows, sync), vec![], "(A)");
        let at = at % times.len();
        rows[at] = worker(at as u32, compute(slow), exchange);
        let found = against(&rows, sync);
        let slowest = format!("worker/{at}");
        prop_assert!(found.iter().all(|found| found.finding.name == slowest), "(B) {found:?}");
        if rows.len() > 1 && slow > 1.9 && compute(slow - 1.2) > 2_000 + usual / 10 {
            prop_assert_eq!(found.len(), 1, "(B)");
            prop_assert!(found[0].finding.reason.ends_with(" in compute"), "{}", found[0].finding.reason);
        }
    }

    /// No worker takes steps any more. At most one of them is silent or stays in a phase; the others wait in
    /// the exchange. Checks that the search finds this worker (C) and no other one (A).
    #[test]
    fn only_the_worker_that_holds_up_all_is_found(
        workers in 3u32..9,
        keep in prop::collection::vec((0u32..9, any_hindrance()), 0..2),
        stood in 4u64..600,
        sync in any_sync(),
    ) {
        let stood = Duration::from_secs(stood);
        // After a while, the window no longer contains any steps, so rates and phases are missing.
        let rows: Vec<WorkerRow> = (0..workers).map(|index| {
            let kept = keep.iter().find(|(culprit, _)| culprit % workers == index);
            let silent = matches!(kept, Some((_, Hindrance::Silence)));
            let reported_ms = Some(if silent { stood.as_millis() as u64 } else { 900 });
            let (steps_per_s, phases_us) = (0.0, Vec::new());
            WorkerRow { reported_ms, steps_per_s, phases_us, ..worker(index, 1_000, 1_000) }
        }).collect();
        let usual_us = worker(0, 300_000, 1_000).phases_us;
        let all: Vec<Trainer<'_>> = rows.iter().map(|row| {
            let kept = keep.iter().find(|(culprit, _)| culprit % workers == row.worker);
            let at = match kept {
                Some((_, Hindrance::Phase(name))) => (*name, stood),
                _ => (EXCHANGE, stood),
            };
            Trainer { row, at: Some(at), stood, usual_us: &usual_us }
        }).collect();
        let AllEvidence { against, unclear } = slow_workers(&all, sync);
        let wanted: Vec<String> = keep.iter().map(|(index, _)| format!("worker/{}", index % workers)).collect();
        prop_assert_eq!(names(&against), wanted.iter().map(String::as_str).collect::<Vec<_>>(), "(A) and (C)");
        for found in &against {
            prop_assert_eq!(found.lasted, stood);
            prop_assert!(found.finding.reason.ends_with(", and other workers wait"), "{}", found.finding.reason);
        }
        // (D): a worker that was slow before may still be slow.
        for row in rows.iter().filter(|row| !wanted.contains(&format!("worker/{}", row.worker))) {
            prop_assert!(unclear.contains(&(format!("worker/{}", row.worker), Cause::Slower)), "(D)");
        }
    }

    /// Checks that no worker is found (A) if all have just begun, or if most are stalled in the same phase.
    #[test]
    fn nothing_is_found_where_most_are_alike(
        at in prop::collection::vec((prop::sample::select(vec!["input", "compute", "exchange"]), 0u64..29_000), 1..9),
        kept in 3u64..99,
        sync in any_sync(),
    ) {
        let row = |worker| WorkerRow {
            worker,
            local_step: LocalStep(0),
            state: WorkerState::Training,
            reported_ms: Some(900),
            ..Default::default()
        };
        let rows: Vec<WorkerRow> = (0..at.len() as u32).map(row).collect();
        let begin = |(row, &(name, ms)): (_, &(&'static str, u64))| {
            let lasts = Duration::from_millis(ms);
            Trainer { row, at: Some((name, lasts)), stood: lasts, usual_us: &[] }
        };
        let all: Vec<Trainer<'_>> = rows.iter().zip(&at).map(begin).collect();
        prop_assert_eq!(slow_workers(&all, sync).against, vec![], "(A)");
        let usual_us = vec![("input".to_owned(), 100), ("compute".to_owned(), 100)];
        let kept = Duration::from_secs(kept);
        let alike = |(index, row): (usize, _)| {
            let name = if index * 2 + 2 < at.len() { EXCHANGE } else { "input" };
            Trainer { row, at: Some((name, kept)), stood: kept, usual_us: &usual_us }
        };
        let all: Vec<Trainer<'_>> = rows.iter().enumerate().map(alike).collect();
        prop_assert_eq!(slow_workers(&all, sync).against, vec![], "(A)");
    }
}

#[test]
fn reasons_contain_numbers() {
    let workers = [worker(0, 12_000, 500), worker(1, 11_000, 500), worker(2, 84_000, 500)];
    let found = against(&workers, SyncSpec::SYNC);
    let [Evidence { finding, lasted, .. }] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((finding.name.as_str(), *lasted), ("worker/2", Duration::ZERO));
    assert_eq!(
        finding.reason,
        "its steps take 84 ms, those of others 12 ms; most of the difference is in compute"
    );
    let all: Vec<Trainer<'_>> = workers[..2].iter().map(trains).collect();
    let stalled = Trainer { at: Some(("input", Duration::from_millis(4_200))), ..trains(&workers[1]) };
    let found = slow_workers(&[all[0].clone(), stalled], SyncSpec::SYNC).against;
    let reason = "it has been in the phase input for 4200 ms, usually 0.1 ms, and other workers go on";
    assert_eq!((names(&found), found[0].finding.reason.as_str()), (vec!["worker/1"], reason));
}

#[test]
fn a_slow_connection_is_found_only_under_async() {
    let workers = [worker(0, 5_000, 2_000), worker(1, 5_000, 2_000), worker(2, 5_000, 60_000)];
    let found = against(&workers, SyncSpec::ASYNC);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].finding.reason,
        "its steps take 65 ms, those of others 7.1 ms; most of the difference is in exchange"
    );
    assert!(against(&workers, SyncSpec::SYNC).is_empty());
    // A worker that receives no replies at all is found, too.
    let row = WorkerRow { steps_per_s: 0.0, phases_us: vec![], ..worker(1, 1_000, 0) };
    let stood = Duration::from_secs(4);
    let stuck = Trainer { at: Some((EXCHANGE, stood)), stood, ..trains(&row) };
    let found = slow_workers(&[trains(&workers[0]), stuck.clone()], SyncSpec::ASYNC).against;
    assert_eq!(found[0].finding.reason, "it takes no step, and other workers go on");
    assert!(slow_workers(&[trains(&workers[0]), stuck.clone()], SyncSpec::SYNC).against.is_empty());
    let both = slow_workers(&[stuck.clone(), stuck], SyncSpec::ASYNC);
    assert!(both.against.is_empty() && both.unclear.contains(&("worker/1".into(), Cause::Stalled)));
}

/// Checks when it is unclear whether a worker is slow (D). A worker that trains alone is certainly not slow,
/// so an earlier finding about it ends. If the only other worker has not reported a step yet, the answer is
/// unclear.
#[test]
fn a_worker_alone_is_not_slow() {
    let slow = worker(1, 80_000, 0);
    let alone = slow_workers(&[trains(&slow)], SyncSpec::ASYNC);
    assert_eq!((alone.against, alone.unclear), (vec![], vec![]));
    // A worker that has reported no step yet may be equally slow.
    let begins = WorkerRow { phases_us: vec![], ..worker(0, 1_000, 0) };
    let two = slow_workers(&[trains(&begins), trains(&slow)], SyncSpec::ASYNC);
    assert!(two.against.is_empty() && two.unclear.contains(&("worker/1".into(), Cause::Slower)));
}

#[test]
fn a_silent_worker_is_found_while_others_report() {
    let silent = WorkerRow { reported_ms: Some(4_000), ..worker(1, 1_000, 0) };
    let found = against(&[worker(0, 1_000, 0), silent.clone()], SyncSpec::ASYNC);
    assert_eq!(found[0].finding.reason, "it has not reported for 4 s, and other workers go on");
    assert_eq!((names(&found), found[0].lasted), (vec!["worker/1"], Duration::from_secs(4)));
    let rows = [WorkerRow { worker: 0, ..silent.clone() }, silent.clone()];
    let all = slow_workers(&rows.each_ref().map(trains), SyncSpec::ASYNC);
    assert!(all.against.is_empty() && all.unclear.contains(&("worker/1".into(), Cause::Silent)));
    // A worker that never reported is found at once if others take steps, and after a while if all wait.
    let never = WorkerRow { reported_ms: None, steps_per_s: 0.0, phases_us: vec![], ..silent };
    let waits = WorkerRow { steps_per_s: 0.0, phases_us: vec![], ..worker(0, 1_000, 0) };
    let never = |stood| Trainer { at: None, stood: Duration::from_secs(stood), ..trains(&never) };
    let found = slow_workers(&[trains(&worker(0, 1_000, 0)), never(1)], SyncSpec::SYNC).against;
    assert_eq!((names(&found), found[0].lasted), (vec!["worker/1"], Duration::ZERO));
    assert!(slow_workers(&[trains(&waits), never(20)], SyncSpec::SYNC).against.is_empty());
    let found = slow_workers(&[trains(&waits), never(40)], SyncSpec::SYNC).against;
    assert_eq!(found[0].finding.reason, "it has not reported since it began, and other workers wait");
    // A worker that has finished is in no phase.
    let ended = Trainer { at: None, ..never(9) };
    let row = WorkerRow { reported_ms: Some(100), ..ended.row.clone() };
    let ended = Trainer { row: &row, ..ended };
    assert!(slow_workers(&[trains(&worker(0, 1_000, 0)), ended], SyncSpec::SYNC).against.is_empty());
}
