//! What workers have reported, kept for whoever looks at the job, and what of it is passed on. Knows no connection but by its
//! number, and no clock.
//!
//! Wanted properties: (A) whatever a worker is connected by, and however often it has to tell the same, its steps are counted
//! once, and what goes with a report is passed on once; (B) spans that are passed on are of the worker that tells them or of a ps
//! task of the cluster, and of a time near the job's; all others are counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pushpull_messages::id::{JobName, TaskId};
use pushpull_messages::message::Report;
use pushpull_messages::observe::{Micros, SpanSpec};
use pushpull_transport::Peer;

use crate::moment::{Reports, WorkerReport};
use crate::overview::Told;

/// So far beyond the chief's start and beyond now a span may be: clocks are not aligned better than they are.
const MARGIN_US: Micros = 3_600_000_000;

/// Of all workers.
#[derive(Debug)]
pub(crate) struct Heard {
    /// How many ps tasks the cluster has.
    ps: u32,
    /// What each has told last, and the number of that report.
    told: BTreeMap<u32, (u64, Told)>,
    /// Since it was taken last.
    reports: Reports,
}

impl Heard {
    pub(crate) fn new(ps: u32) -> Self {
        Self { ps, told: BTreeMap::new(), reports: Reports::default() }
    }

    /// The known life of a worker has reported, at that time. `None` where it has told more since; otherwise the report is to be
    /// passed on, less what was passed on before and spans that make no sense, of which there were so many.
    pub(crate) fn hear(&mut self, peer: &Peer, at: Duration, report: &mut Report) -> Option<u64> {
        let (worker, life) = (peer.task.index, peer.incarnation);
        let snapshot = report.snapshot.take().map(Arc::from);
        let before = self.told.get(&worker).filter(|(_, before)| before.life == life);
        if before
            .is_some_and(|(number, before)| report.number < *number || report.local_step < before.local_step)
        {
            return None;
        }
        // It came over a connection before, too; only its answer was lost.
        if before.is_some_and(|(number, _)| report.number > 0 && report.number == *number) {
            report.summaries.clear();
            report.spans.clear();
        }
        let told = report.spans.len();
        let now = Micros::try_from(at.as_micros()).unwrap_or(Micros::MAX);
        report.spans.retain(|span| self.is_sensible(span, peer.task, now));
        let loss = Some(report.loss).filter(|loss| loss.is_finite());
        let told_now = Told {
            life,
            at,
            local_step: report.local_step,
            loss: loss.or_else(|| before.and_then(|(_, before)| before.loss)),
            spans_lost: report.spans_lost,
            snapshot: snapshot.or_else(|| before.and_then(|(_, before)| before.snapshot.clone())),
        };
        self.told.insert(worker, (report.number, told_now));
        self.reports.add(worker, life, report);
        Some((told - report.spans.len()) as u64)
    }

    fn is_sensible(&self, span: &SpanSpec, worker: TaskId, now: Micros) -> bool {
        let known = match span.task.job {
            JobName::Ps => span.task.index < self.ps,
            _ => span.task == worker,
        };
        let times = -MARGIN_US..now.saturating_add(MARGIN_US);
        known && times.contains(&span.start_us) && times.contains(&span.start_us.saturating_add(span.took_us))
    }

    /// What each worker has told last.
    pub(crate) fn told(&self) -> BTreeMap<u32, Told> {
        self.told.iter().map(|(&worker, (_, told))| (worker, told.clone())).collect()
    }

    /// What was reported since it was taken last.
    pub(crate) fn take(&mut self) -> BTreeMap<u32, WorkerReport> {
        self.reports.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::id::{GlobalStep, Incarnation, LocalStep};
    use pushpull_messages::observe::WorkerSnapshot;
    use pushpull_messages::summary::SummarySpec;

    use super::*;

    fn span(task: TaskId, start_us: Micros, took_us: Micros) -> SpanSpec {
        let (lane, name) = ("trainer".into(), "compute".into());
        SpanSpec { task, lane, name, push: None, local_step: None, start_us, took_us }
    }

    fn peer(life: u64, connection: u64) -> Peer {
        let (task, incarnation) = (TaskId::worker(1), Incarnation(life));
        Peer { task, incarnation, connection, address: String::new(), http: None }
    }

    /// The report of that number.
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
            summaries: vec![SummarySpec::scalar("a", GlobalStep(number), 1.0)],
            snapshot: Some(Box::new(snapshot)),
            spans: vec![span(TaskId::worker(1), number as Micros, 1)],
            spans_lost: 0,
        }
    }

    /// What becomes of a report whose connection breaks before it is answered.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Lost,
        Heard,
        /// After that many reports.
        HeardLate(u64),
    }

    proptest! {
        /// (A): the worker tells each report until it is answered, each time over a newer connection.
        #[test]
        fn reports_count_once_over_all_connections(
            reports in prop::collection::vec(
                (0u64..5, prop::collection::vec(prop_oneof![
                    Just(Fate::Lost), Just(Fate::Heard), (0u64..4).prop_map(Fate::HeardLate),
                ], 0..3)),
                1..30,
            ),
        ) {
            let mut heard = Heard::new(1);
            let (mut connection, mut known, mut step) = (1, 0, 0);
            let (mut spans, mut summaries, mut late) = (Vec::new(), 0, Vec::new());
            let mut hear = |heard: &mut Heard, over: u64, mut report: Report| {
                if over < known {
                    return;
                }
                known = over;
                if heard.hear(&peer(3, over), Duration::from_secs(1), &mut report).is_some() {
                    spans.extend(report.spans.iter().map(|span| span.start_us));
                    summaries += report.summaries.len();
                }
            };
            let told = reports.len();
            for (number, (steps, fates)) in (0..).zip(reports) {
                step += steps;
                let report = report(number, step, if steps > 0 { 0.5 } else { f32::NAN });
                for fate in fates {
                    match fate {
                        Fate::Lost => {}
                        Fate::Heard => hear(&mut heard, connection, report.clone()),
                        Fate::HeardLate(after) => late.push((number + after, connection, report.clone())),
                    }
                    connection += 1;
                }
                hear(&mut heard, connection, report);
                for (_, over, report) in late.extract_if(.., |(at, ..)| *at <= number) {
                    hear(&mut heard, over, report);
                }
                prop_assert_eq!(heard.told()[&1].local_step.0, step, "(A)");
            }
            let all = heard.take()[&1];
            prop_assert_eq!((all.steps, all.local_step.0), (step, step), "(A)");
            prop_assert_eq!(all.loss, (step > 0).then_some(0.5));
            prop_assert_eq!((spans, summaries), ((0..told as Micros).collect(), told), "(A)");
        }

        /// (B).
        #[test]
        fn spans_of_nobody_and_of_no_time_are_left_out(
            told in prop::collection::vec((0u8..4, 0u32..5, any::<i64>(), 0u32..60, any::<i64>(), 0u32..60), 1..50),
        ) {
            let now = 5_000_000;
            let spans: Vec<SpanSpec> = told.into_iter().map(|(job, index, start, start_bits, took, took_bits)| {
                let job = [JobName::Chief, JobName::Ps, JobName::Worker, JobName::Evaluator][usize::from(job)];
                span(TaskId { job, index }, start >> start_bits, took >> took_bits)
            }).collect();
            let mut report = Report { spans: spans.clone(), ..report(0, 1, 0.5) };
            let left_out = Heard::new(2).hear(&peer(3, 1), Duration::from_micros(now), &mut report);
            let near = |us: Option<i64>| us.is_some_and(|us| (-MARGIN_US..now as Micros + MARGIN_US).contains(&us));
            let wanted: Vec<SpanSpec> = spans.iter().filter(|span| {
                let own = span.task == TaskId::worker(1) || [TaskId::ps(0), TaskId::ps(1)].contains(&span.task);
                own && near(Some(span.start_us)) && near(span.start_us.checked_add(span.took_us))
            }).cloned().collect();
            prop_assert_eq!(left_out, Some((spans.len() - wanted.len()) as u64), "(B)");
            prop_assert_eq!(report.spans, wanted, "(B)");
        }
    }

    #[test]
    fn another_life_counts_anew() {
        let mut heard = Heard::new(1);
        assert_eq!(heard.hear(&peer(3, 1), Duration::ZERO, &mut report(0, 9, 0.5)), Some(0));
        assert_eq!(heard.hear(&peer(3, 1), Duration::ZERO, &mut report(1, 8, 0.5)), None);
        assert_eq!(heard.hear(&peer(4, 2), Duration::ZERO, &mut report(0, 2, 0.5)), Some(0));
        assert_eq!((heard.told()[&1].local_step, heard.take()[&1].steps), (LocalStep(2), 11));
    }

    /// (A) of two reports that look the same: by their numbers they are one, or two.
    #[test]
    fn a_report_is_known_by_its_number_and_not_by_its_looks() {
        let passed_on = |numbers: [u64; 2]| {
            let mut heard = Heard::new(1);
            numbers.map(|number| {
                let mut report = Report { number, ..report(0, 7, f32::NAN) };
                heard.hear(&peer(3, 1), Duration::from_secs(1), &mut report).map(|_| report.summaries.len())
            })
        };
        assert_eq!(passed_on([4, 5]), [Some(1), Some(1)]);
        assert_eq!(passed_on([4, 4]), [Some(1), Some(0)]);
        assert_eq!(passed_on([5, 4]), [Some(1), None]);
        // Of who does not number them, each is new.
        assert_eq!(passed_on([0, 0]), [Some(1), Some(1)]);
    }
}
