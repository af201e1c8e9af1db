//! Finds workers that hold up the others. Reads no clock. Wanted properties: (A) no worker is found if all
//! are about equally fast, or all wait for the shards; (B) a worker is slow if its steps without the phase
//! `exchange` take at least 1.5 times as long as the others' and at least 2 ms longer; (C) a worker is silent
//! if others report but it does not; it is stalled if it, unlike most workers, stays much longer than usual
//! in a phase other than the exchange; both hold even if no worker takes steps; (D) a cause is unclear if the
//! data do not show whether it applies. If (B) or (C) holds for one worker only, no other worker is found.

use std::time::Duration;

use pushpull_messages::observe::{Finding, FindingKind, Phases, WorkerRow};
use pushpull_messages::sync::SyncSpec;

use super::evidence::{AllEvidence, Cause, EVIDENCE_MIN, Evidence};
use super::peer_times::{PeerTimes, shown};

/// The limits for a slow worker: its time for a step is at least this many times as long as that of the
/// others, and at least this many microseconds longer.
const SLOW: (f64, u64) = (1.5, 2_000);
/// A worker is stalled if its current phase has lasted for at least this many times the usual time of the
/// phase.
const STALL_FACTOR: u32 = 5;
/// The time limit for the first run of a phase, in which devices warm up and files are opened.
const FIRST_STEP_MAX: Duration = Duration::from_secs(30);
/// The longest time for which an active worker may report no new step. Reports come about once a second.
const STEP_REPORT_MAX: Duration = Duration::from_secs(2);
/// The name of the phase in which a worker waits for the shards, and thereby for other workers.
const EXCHANGE: &str = "exchange";

/// A worker that trains, with the data for judging whether it holds up the others.
#[derive(Clone, Debug)]
pub(crate) struct Trainer<'a> {
    pub row: &'a WorkerRow,
    /// The phase of the worker at its last report, and how long the phase had lasted by then. `None` if the
    /// worker was outside of a step.
    pub at: Option<(&'a str, Duration)>,
    /// The time since the worker last reported a new step or, before the first such report, since the worker
    /// began to train.
    pub stood: Duration,
    /// The usual time of each phase of the worker's steps, in microseconds. These times remain known after
    /// the worker has stopped taking steps.
    pub usual_us: &'a [(String, u64)],
}

impl Trainer<'_> {
    fn name(&self) -> String {
        format!("worker/{}", self.row.worker)
    }

    /// Returns the time since the last report of the worker, if it is at least [`EVIDENCE_MIN`].
    fn silent(&self) -> Option<Duration> {
        self.row.reported_ms.map(Duration::from_millis).filter(|&silent| silent >= EVIDENCE_MIN)
    }

    fn reports(&self) -> bool {
        self.row.reported_ms.is_some() && self.silent().is_none()
    }

    /// Returns whether the worker takes at least one step per second, and has recently reported a new step.
    /// Slower workers do not count, because they cannot be distinguished from workers that have stopped.
    fn goes_on(&self) -> bool {
        self.reports() && self.row.steps_per_s >= 1.0 && self.stood < STEP_REPORT_MAX
    }

    /// Returns the phase of the worker if the phase is not the exchange and lasts much longer than usual.
    /// Also returns how long the phase has lasted, and its usual time if known.
    fn stalled(&self) -> Option<(&str, Duration, Option<u64>)> {
        let (name, lasts) = self.at.filter(|&(name, _)| name != EXCHANGE && self.reports())?;
        let usual = self.usual_us.iter().find(|(phase, _)| phase == name).map(|&(_, us)| us);
        let long = usual.map_or(FIRST_STEP_MAX, |us| {
            Duration::from_micros(us).saturating_mul(STALL_FACTOR).max(EVIDENCE_MIN)
        });
        (lasts >= long).then_some((name, lasts, usual))
    }

    /// Returns whether the worker takes no steps and its phase does not show the reason.
    fn is_stuck(&self, sync: SyncSpec) -> bool {
        let unknown = match self.at {
            // Under `async`, no worker waits for other workers, so a long exchange means a slow connection
            // to the shards.
            Some((name, _)) => name == EXCHANGE && matches!(sync, SyncSpec::Async { .. }),
            // A worker outside of a step has just begun, or has finished.
            None => self.row.local_step.0 == 0,
        };
        unknown && self.reports() && self.row.steps_per_s <= 0.0 && self.stood >= EVIDENCE_MIN
    }

    /// Returns the time of a step without the exchange, in microseconds.
    fn own(&self) -> Option<u64> {
        time(self.row, |phase| phase != EXCHANGE)
    }

    /// Returns the time of a whole step, in microseconds.
    fn whole(&self) -> Option<u64> {
        time(self.row, |_| true)
    }
}

fn time(row: &WorkerRow, counts: impl Fn(&str) -> bool) -> Option<u64> {
    let phases = || row.phases_us.iter().filter(|(name, _)| counts(name));
    phases().next()?;
    Some(phases().fold(0, |sum, (_, us)| sum.saturating_add(*us)))
}

fn phase(row: &WorkerRow, name: &str) -> Option<u64> {
    row.phases_us.iter().find(|(phase, _)| phase == name).map(|&(_, us)| us)
}

/// Returns the evidence that workers in `training` hold up the others.
pub(super) fn slow_workers(training: &[Trainer<'_>], sync: SyncSpec) -> AllEvidence {
    let count = |is: &dyn Fn(&Trainer<'_>) -> bool| training.iter().filter(|trainer| is(trainer)).count();
    // A worker that trains alone cannot be slower than others.
    let alone = training.len() == 1;
    let (reporting, going) = (count(&|trainer| trainer.reports()), count(&|trainer| trainer.goes_on()));
    let stalled = count(&|trainer| trainer.stalled().is_some());
    let paces = StepTimes::of(training, sync);
    let mut all = AllEvidence::default();
    for trainer in training {
        let group = GroupActivity { reporting, going, stalled };
        let mut unclear = |causes: &[Cause]| {
            let causes = causes.iter().filter(|&&cause| !(alone && cause == Cause::Slower));
            all.unclear.extend(causes.map(|&cause| (trainer.name(), cause)));
        };
        let evidence = match group.judge(trainer, sync) {
            Assessment::Against(cause, reason, lasted) => Some((cause, reason, lasted)),
            Assessment::Nothing => {
                if !paces.can_tell(trainer) {
                    unclear(&[Cause::Slower]);
                }
                paces.slower(trainer).map(|reason| (Cause::Slower, reason, Duration::ZERO))
            }
            Assessment::Unclear => {
                unclear(&[Cause::Silent, Cause::Stalled, Cause::Slower]);
                None
            }
        };
        if let Some((cause, reason, lasted)) = evidence {
            let finding = Finding { kind: FindingKind::SlowWorker, name: trainer.name(), reason };
            all.against.push(Evidence { finding, lasted, cause });
        }
    }
    all
}

/// The result of judging one worker.
enum Assessment {
    Against(Cause, String, Duration),
    Nothing,
    Unclear,
}

/// The number of workers that report, the number that take steps, and the number that are stalled.
struct GroupActivity {
    reporting: usize,
    going: usize,
    stalled: usize,
}

impl GroupActivity {
    /// Decides whether a worker is silent or stalled.
    fn judge(&self, trainer: &Trainer<'_>, sync: SyncSpec) -> Assessment {
        let others = if self.going > 0 { "other workers go on" } else { "other workers wait" };
        if let Some(silent) = trainer.silent() {
            // If no worker reports, the chief may be at fault.
            return match self.reporting {
                0 => Assessment::Unclear,
                _ => {
                    let reason = format!("it has not reported for {} s, and {others}", silent.as_secs());
                    Assessment::Against(Cause::Silent, reason, silent)
                }
            };
        }
        if trainer.row.reported_ms.is_none() {
            let reason = || format!("it has not reported since it began, and {others}");
            return match (self.going, self.reporting) {
                (0, 0) => Assessment::Unclear,
                (0, _) if trainer.stood < FIRST_STEP_MAX => Assessment::Unclear,
                (0, _) => Assessment::Against(Cause::Silent, reason(), trainer.stood),
                _ => Assessment::Against(Cause::Silent, reason(), Duration::ZERO),
            };
        }
        if let Some((name, lasts, usual)) = trainer.stalled() {
            // If most workers are stalled, none of them is at fault.
            if self.stalled * 2 > self.reporting {
                return Assessment::Unclear;
            }
            let usual = usual.map_or_else(String::new, |us| format!(", usually {}", shown(us)));
            let lasting = shown(u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX));
            let reason = format!("it has been in the phase {name} for {lasting}{usual}, and {others}");
            return Assessment::Against(Cause::Stalled, reason, lasts);
        }
        match trainer.is_stuck(sync) {
            true if self.going > 0 => Assessment::Against(
                Cause::Stalled,
                "it takes no step, and other workers go on".into(),
                Duration::ZERO,
            ),
            true => Assessment::Unclear,
            false => Assessment::Nothing,
        }
    }
}

/// The step times of all workers.
struct StepTimes {
    own: PeerTimes,
    /// The times of whole steps; `None` unless the policy is `async`. Under `async`, no worker waits for
    /// other workers, so a long exchange means a slow connection to the shards.
    whole: Option<PeerTimes>,
    phases: Vec<(&'static str, PeerTimes)>,
}

impl StepTimes {
    fn of(training: &[Trainer<'_>], sync: SyncSpec) -> Self {
        let others = |time: &dyn Fn(&Trainer<'_>) -> Option<u64>| {
            training.iter().filter_map(time).collect::<PeerTimes>()
        };
        let names = Phases::default().iter().map(|(name, _)| name);
        Self {
            own: others(&|trainer| trainer.own()),
            // Under other policies, workers wait for each other in the exchange.
            whole: matches!(sync, SyncSpec::Async { .. }).then(|| others(&|trainer| trainer.whole())),
            phases: names
                .into_iter()
                .map(|name| (name, others(&|trainer| phase(trainer.row, name))))
                .collect(),
        }
    }

    /// Returns whether the worker's times can be compared with those of others.
    fn can_tell(&self, trainer: &Trainer<'_>) -> bool {
        let own = trainer.own();
        own.is_some() && self.own.median(own).is_some()
    }

    /// Returns the reason for a finding if the worker's steps take much longer than those of the other
    /// workers; `None` otherwise.
    fn slower(&self, trainer: &Trainer<'_>) -> Option<String> {
        let slow_connection = || self.whole.as_ref()?.beyond(trainer.whole(), SLOW);
        let (time, usual) = self.own.beyond(trainer.own(), SLOW).or_else(slow_connection)?;
        let excess = |(name, others): &&(&str, PeerTimes)| {
            let own = phase(trainer.row, name);
            own.unwrap_or(0).saturating_sub(others.median(own).unwrap_or(0))
        };
        let most = self.phases.iter().max_by_key(excess).map_or("", |(name, _)| name);
        Some(format!(
            "its steps take {}, those of others {}; most of the difference is in {most}",
            shown(time),
            shown(usual)
        ))
    }
}

#[cfg(test)]
mod tests;
