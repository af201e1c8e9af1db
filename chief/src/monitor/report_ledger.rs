//! Counts each report of the workers once, and keeps the latest report of each worker. Reads no clock.
//! Wanted properties: (A) if a worker repeats a report over several connections, the steps in the report are
//! counted once, and its other contents are passed on once; (B) a span is passed on only if it belongs to
//! the reporting worker or to a ps task of the cluster, and lies between the chief's start and now, give or
//! take an hour; all other spans are dropped and counted; (C) the steps of all incarnations of a worker add
//! up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::{Incarnation, JobName, LocalStep, TaskId};
use pushpull_messages::message::Report;
use pushpull_messages::observe::{Micros, SpanSpec, WorkerSnapshot};
use pushpull_transport::Peer;

use super::training_snapshot::{IntervalReports, WorkerReport};

/// How far a span may lie before the chief's start or after the present, in microseconds. The limit is
/// generous because clocks are aligned only roughly.
const MARGIN_US: Micros = 3_600_000_000;

/// The latest report of a worker.
#[derive(Clone, Debug)]
pub(crate) struct LatestReport {
    /// The incarnation of the worker that sent the report.
    pub life: Incarnation,
    /// The time of the report, since the start of the chief.
    pub at: Duration,
    pub local_step: LocalStep,
    /// The last finite loss of this incarnation, if there was any.
    pub loss: Option<f32>,
    /// The number of spans that this incarnation of the worker dropped for lack of room.
    pub spans_lost: u64,
    pub snapshot: Option<Arc<WorkerSnapshot>>,
}

/// A ledger of the reports of all workers.
#[derive(Debug)]
pub(crate) struct ReportLedger {
    /// The number of ps tasks in the cluster.
    ps: u32,
    /// The latest report of each worker, with the number of the report.
    latest: BTreeMap<u32, (u64, LatestReport)>,
    /// The reports since the last call of [`take`](Self::take).
    interval: IntervalReports,
}

/// The new information in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The number of steps that the worker has taken since its previous report.
    pub steps: u64,
    /// The number of spans that were dropped because they cannot belong to this worker or this job.
    pub spans_dropped: u64,
}

impl ReportLedger {
    pub(crate) fn new(ps: u32) -> Self {
        Self { ps, latest: BTreeMap::new(), interval: IntervalReports::default() }
    }

    /// Records a report that was received at the time `at` from the current incarnation of a worker. Removes
    /// from the report all invalid spans, and everything that was already passed on. Returns `None` if a
    /// report that the worker sent later has already been recorded. In that case, nothing of this report may
    /// be passed on.
    pub(crate) fn record(&mut self, peer: &Peer, at: Duration, report: &mut Report) -> Option<Recorded> {
        let (worker, life) = (peer.task.index, peer.incarnation);
        let snapshot = report.snapshot.take().map(Arc::from);
        let before = self.latest.get(&worker).filter(|(_, before)| before.life == life);
        if before
            .is_some_and(|(number, before)| report.number < *number || report.local_step < before.local_step)
        {
            return None;
        }
        // The report was already received over an earlier connection, and only the reply was lost.
        if before.is_some_and(|(number, _)| report.number > 0 && report.number == *number) {
            report.summaries.clear();
            report.spans.clear();
            report.evaluations.clear();
        }
        let spans = report.spans.len();
        let now = Micros::try_from(at.as_micros()).unwrap_or(Micros::MAX);
        report.spans.retain(|span| self.is_plausible(span, peer.task, now));
        let steps = report.local_step.0 - before.map_or(0, |(_, before)| before.local_step.0);
        let loss = Some(report.loss).filter(|loss| loss.is_finite());
        let latest = LatestReport {
            life,
            at,
            local_step: report.local_step,
            loss: loss.or_else(|| before.and_then(|(_, before)| before.loss)),
            spans_lost: report.spans_lost,
            snapshot: snapshot.or_else(|| before.and_then(|(_, before)| before.snapshot.clone())),
        };
        self.latest.insert(worker, (report.number, latest));
        self.interval.add(worker, steps, report);
        Some(Recorded { steps, spans_dropped: (spans - report.spans.len()) as u64 })
    }

    fn is_plausible(&self, span: &SpanSpec, worker: TaskId, now: Micros) -> bool {
        let known = match span.task.job {
            JobName::Ps => span.task.index < self.ps,
            _ => span.task == worker,
        };
        let times = -MARGIN_US..now.saturating_add(MARGIN_US);
        known && times.contains(&span.start_us) && times.contains(&span.start_us.saturating_add(span.took_us))
    }

    /// Returns the latest report of each worker.
    pub(crate) fn latest(&self) -> BTreeMap<u32, LatestReport> {
        self.latest.iter().map(|(&worker, (_, latest))| (worker, latest.clone())).collect()
    }

    /// Returns the reports of each worker since the last call, keyed by the worker's index.
    pub(crate) fn take(&mut self) -> BTreeMap<u32, WorkerReport> {
        self.interval.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::GlobalStep;
    use pushpull_messages::message::{Evaluation, StepEvaluation};
    use pushpull_messages::summary::SummarySpec;

    use super::*;

    fn span(task: TaskId, start_us: Micros, took_us: Micros) -> SpanSpec {
        let (lane, name) = ("trainer".into(), "compute".into());
        SpanSpec { task, lane, name, push: None, local_step: None, start_us, took_us }
    }

    fn peer(life: u64, connection: u64) -> Peer {
        let (task, incarnation) = (TaskId::worker(1), Incarnation(life));
        Peer { task, guest: None, incarnation, connection, address: String::new(), http: None, nonce: 0 }
    }

    /// Returns a report whose summary, span and evaluation can be recognised by `number`. The report's own
    /// number is `number + 1`, because numbers of reports begin with 1.
    fn report(number: u64, local_step: u64, loss: f32) -> Report {
        let local_step = LocalStep(local_step);
        let snapshot = WorkerSnapshot { local_step, drawn: number, ..Default::default() };
        Report {
            global_step: GlobalStep(0),
            number: number + 1,
            local_step,
            loss,
            drawn: number,
            gradient_norm: None,
            metrics: Vec::new(),
            summaries: vec![SummarySpec::scalar("a", GlobalStep(number), 1.0)],
            snapshot: Some(Box::new(snapshot)),
            spans: vec![span(TaskId::worker(1), number as Micros, 1)],
            spans_lost: 0,
            evaluations: vec![evaluation(number)],
        }
    }

    fn evaluation(step: u64) -> StepEvaluation {
        let evaluation = Evaluation { loss: 0.5, metrics: Vec::new(), examples: 1, variables_crc32c: 0 };
        StepEvaluation { step: GlobalStep(step), evaluation }
    }

    /// The fate of a report whose connection breaks before the reply.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Lost,
        Received,
        /// The report arrives late: after its repetition, and after this number of later reports.
        Late(u64),
    }

    proptest! {
        /// Checks that a repeated report counts once (A). The worker repeats each report, each time over a
        /// new connection, until it receives a reply.
        #[test]
        fn reports_count_once_over_all_connections(
            reports in prop::collection::vec(
                (0u64..5, prop::collection::vec(prop_oneof![
                    Just(Fate::Lost), Just(Fate::Received), (0u64..4).prop_map(Fate::Late),
                ], 0..3)),
                1..30,
            ),
        ) {
            let mut ledger = ReportLedger::new(1);
            let (mut connection, mut known, mut step) = (1, 0, 0);
            let (mut spans, mut summaries, mut late) = (Vec::new(), 0, Vec::new());
            let mut evaluated = Vec::new();
            let mut receive = |ledger: &mut ReportLedger, over: u64, mut report: Report| {
                if over < known {
                    return;
                }
                known = over;
                if ledger.record(&peer(3, over), Duration::from_secs(1), &mut report).is_some() {
                    spans.extend(report.spans.iter().map(|span| span.start_us));
                    summaries += report.summaries.len();
                    evaluated.extend(report.evaluations.iter().map(|own| own.step.0));
                }
            };
            let total = reports.len();
            for (number, (steps, fates)) in (0..).zip(reports) {
                step += steps;
                let report = report(number, step, if steps > 0 { 0.5 } else { f32::NAN });
                for fate in fates {
                    match fate {
                        Fate::Lost => {}
                        Fate::Received => receive(&mut ledger, connection, report.clone()),
                        Fate::Late(after) => late.push((number + after, connection, report.clone())),
                    }
                    connection += 1;
                }
                receive(&mut ledger, connection, report);
                for (_, over, report) in late.extract_if(.., |(at, ..)| *at <= number) {
                    receive(&mut ledger, over, report);
                }
                prop_assert_eq!(ledger.latest()[&1].local_step.0, step, "(A)");
            }
            let all = ledger.take()[&1];
            prop_assert_eq!((all.steps, all.local_step.0), (step, step), "(A)");
            prop_assert_eq!(all.loss, (step > 0).then_some(0.5));
            prop_assert_eq!((spans, summaries), ((0..total as Micros).collect(), total), "(A)");
            prop_assert_eq!(evaluated, (0..total as u64).collect::<Vec<_>>(), "(A)");
        }

        /// Checks that the steps of all incarnations add up (C). The worker takes steps, reports them, and
        /// is sometimes restarted.
        #[test]
        fn steps_add_up_over_all_lives(
            reported in prop::collection::vec((0u64..5, any::<bool>(), 0u8..10), 1..40),
        ) {
            let mut ledger = ReportLedger::new(1);
            let (mut local_step, mut life, mut taken, mut recorded) = (0, 0, 0, 0);
            for (number, (steps, take, again)) in (0..).zip(reported) {
                if again == 0 {
                    (local_step, life) = (0, life + 1);
                }
                local_step += steps;
                taken += steps;
                let mut report = report(number, local_step, 0.5);
                recorded += ledger.record(&peer(life, life), Duration::ZERO, &mut report).unwrap().steps;
                prop_assert_eq!(recorded, taken, "(C)");
                if take {
                    prop_assert_eq!(ledger.take()[&1].steps, taken, "(C)");
                    (taken, recorded) = (0, 0);
                }
            }
        }

        /// Checks that implausible spans are dropped and counted (B). The tasks and the times of the spans
        /// are random.
        #[test]
        fn implausible_spans_are_left_out(
            parts in prop::collection::vec((0u8..4, 0u32..5, any::<i64>(), 0u32..60, any::<i64>(), 0u32..60), 1..50),
        ) {
            let now = 5_000_000;
            let spans: Vec<SpanSpec> = parts.into_iter().map(|(job, index, start, start_bits, took, took_bits)| {
                let job = [JobName::Chief, JobName::Ps, JobName::Worker, JobName::Evaluator][usize::from(job)];
                span(TaskId { job, index }, start >> start_bits, took >> took_bits)
            }).collect();
            let mut report = Report { spans: spans.clone(), ..report(0, 1, 0.5) };
            let recorded = ReportLedger::new(2).record(&peer(3, 1), Duration::from_micros(now), &mut report);
            let near = |us: Option<i64>| us.is_some_and(|us| (-MARGIN_US..now as Micros + MARGIN_US).contains(&us));
            let wanted: Vec<SpanSpec> = spans.iter().filter(|span| {
                let own = span.task == TaskId::worker(1) || [TaskId::ps(0), TaskId::ps(1)].contains(&span.task);
                own && near(Some(span.start_us)) && near(span.start_us.checked_add(span.took_us))
            }).cloned().collect();
            let dropped = (spans.len() - wanted.len()) as u64;
            prop_assert_eq!(recorded, Some(Recorded { steps: 1, spans_dropped: dropped }), "(B)");
            prop_assert_eq!(report.spans, wanted, "(B)");
        }
    }

    #[test]
    fn a_new_life_counts_from_zero() {
        let mut ledger = ReportLedger::new(1);
        let mut record = |peer: Peer, mut report: Report| {
            ledger.record(&peer, Duration::ZERO, &mut report).map(|recorded| recorded.steps)
        };
        assert_eq!(record(peer(3, 1), report(0, 9, 0.5)), Some(9));
        assert_eq!(record(peer(3, 1), report(1, 8, 0.5)), None);
        assert_eq!(record(peer(4, 2), report(0, 2, 0.5)), Some(2));
        assert_eq!((ledger.latest()[&1].local_step, ledger.take()[&1].steps), (LocalStep(2), 11));
    }

    /// Checks that a report is recognised by its number (A). The two reports differ only in their numbers,
    /// or not at all.
    #[test]
    fn a_report_is_known_by_its_number() {
        let passed_on = |numbers: [u64; 2]| {
            let mut ledger = ReportLedger::new(1);
            numbers.map(|number| {
                let mut report = Report { number, ..report(0, 7, f32::NAN) };
                ledger
                    .record(&peer(3, 1), Duration::from_secs(1), &mut report)
                    .map(|_| report.summaries.len())
            })
        };
        assert_eq!(passed_on([4, 5]), [Some(1), Some(1)]);
        assert_eq!(passed_on([4, 4]), [Some(1), Some(0)]);
        assert_eq!(passed_on([5, 4]), [Some(1), None]);
        // Every report without a number counts as new.
        assert_eq!(passed_on([0, 0]), [Some(1), Some(1)]);
    }
}
