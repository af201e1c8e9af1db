//! Which workers hold up the others, from what is known of the last seconds. Knows no shard and no clock.
//!
//! Wanted properties: (A) where all workers are about alike, or all wait for the shards, nothing is found; (B) a worker whose own
//! time for a step is half as much again as the others', and 2 ms more, is found, and no other one; (C) a worker that says nothing,
//! or is at something else than the exchange for much longer than usual, is found while others are neither, whether anybody takes a
//! step or not, and no other one; (D) nobody is called innocent of what cannot be told.

use std::time::Duration;

use pushpull_messages::observe::{Finding, FindingKind, Phases, WorkerRow};
use pushpull_messages::sync::SyncSpec;

use super::findings::{AllEvidence, Cause, Evidence, SEEN};
use super::others::{Others, shown};

/// So much longer than the others a slow worker takes for a step, in relation and at least.
const SLOW: (f64, u64) = (1.5, 2_000);
/// So many times as long as usual a worker is at something that stands.
const STANDS: u32 = 5;
/// So long it may be at something for the first time: devices warm up, and files are opened.
const FIRST: Duration = Duration::from_secs(30);
/// Who has told of no step for so long does not go on: that is told about once a second.
const STOOD: Duration = Duration::from_secs(2);
/// The phase in which a worker waits for the shards, and so for others.
const EXCHANGE: &str = "exchange";

/// A worker that trains.
#[derive(Clone, Debug)]
pub(crate) struct Trainer<'a> {
    pub row: &'a WorkerRow,
    /// In which phase of a step it was when it reported last, and for how long; `None` where it was in none.
    pub at: Option<(&'a str, Duration)>,
    /// Since it has told of a step, or has begun.
    pub stood: Duration,
    /// How long its phases took for each of its last steps, in microseconds, however long ago these were.
    pub usual_us: &'a [(String, u64)],
}

impl Trainer<'_> {
    fn name(&self) -> String {
        format!("worker/{}", self.row.worker)
    }

    /// It has not reported for so long.
    fn silent(&self) -> Option<Duration> {
        self.row.reported_ms.map(Duration::from_millis).filter(|&silent| silent >= SEEN)
    }

    fn is_heard(&self) -> bool {
        self.row.reported_ms.is_some() && self.silent().is_none()
    }

    /// It takes a step a second, or more, and has not just ceased to; one whose steps take seconds may seem to stand when it does not.
    fn goes_on(&self) -> bool {
        self.is_heard() && self.row.steps_per_s >= 1.0 && self.stood < STOOD
    }

    /// What it is at for much longer than usual, if that is its own, and how long that takes otherwise.
    fn stands(&self) -> Option<(&str, Duration, Option<u64>)> {
        let (name, lasts) = self.at.filter(|&(name, _)| name != EXCHANGE && self.is_heard())?;
        let usual = self.usual_us.iter().find(|(phase, _)| phase == name).map(|&(_, us)| us);
        let long = usual.map_or(FIRST, |us| Duration::from_micros(us).saturating_mul(STANDS).max(SEEN));
        (lasts >= long).then_some((name, lasts, usual))
    }

    /// It takes no step, and that is not told by what it is at.
    fn is_stuck(&self, sync: SyncSpec) -> bool {
        let unknown = match self.at {
            // Where nobody waits for anybody, that is a slow way to the shards.
            Some((name, _)) => name == EXCHANGE && matches!(sync, SyncSpec::Async { .. }),
            // It has begun, or has trained to its end.
            None => self.row.local_step.0 == 0,
        };
        unknown && self.is_heard() && self.row.steps_per_s <= 0.0 && self.stood >= SEEN
    }

    fn own(&self) -> Option<u64> {
        time(self.row, |phase| phase != EXCHANGE)
    }

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

/// What speaks against workers, all of which train.
pub(super) fn slow_workers(training: &[Trainer<'_>], sync: SyncSpec) -> AllEvidence {
    let count = |is: &dyn Fn(&Trainer<'_>) -> bool| training.iter().filter(|trainer| is(trainer)).count();
    // Where nobody else trains there is nobody to be slower than.
    let alone = training.len() == 1;
    let (heard, going) = (count(&|trainer| trainer.is_heard()), count(&|trainer| trainer.goes_on()));
    let standing = count(&|trainer| trainer.stands().is_some());
    let paces = Paces::of(training, sync);
    let mut all = AllEvidence::default();
    for trainer in training {
        let standing = Standing { heard, going, standing };
        let mut unclear = |causes: &[Cause]| {
            let causes = causes.iter().filter(|&&cause| !(alone && cause == Cause::Slower));
            all.unclear.extend(causes.map(|&cause| (trainer.name(), cause)));
        };
        let told = match standing.judge(trainer, sync) {
            Told::Against(cause, reason, lasted) => Some((cause, reason, lasted)),
            Told::Nothing => {
                if !paces.can_tell(trainer) {
                    unclear(&[Cause::Slower]);
                }
                paces.slower(trainer).map(|reason| (Cause::Slower, reason, Duration::ZERO))
            }
            Told::Unclear => {
                unclear(&[Cause::Silent, Cause::Standing, Cause::Slower]);
                None
            }
        };
        if let Some((cause, reason, lasted)) = told {
            let finding = Finding { kind: FindingKind::SlowWorker, name: trainer.name(), reason };
            all.against.push(Evidence { finding, lasted, cause });
        }
    }
    all
}

/// What can be told of one worker that does not go on.
enum Told {
    Against(Cause, String, Duration),
    Nothing,
    Unclear,
}

/// How many workers are at what.
struct Standing {
    heard: usize,
    going: usize,
    standing: usize,
}

impl Standing {
    fn judge(&self, trainer: &Trainer<'_>, sync: SyncSpec) -> Told {
        let others = if self.going > 0 { "others go on" } else { "others wait" };
        if let Some(silent) = trainer.silent() {
            // Where nobody is heard, it may be the chief who does not listen.
            return match self.heard {
                0 => Told::Unclear,
                _ => {
                    let reason = format!("it has not reported for {} s, and {others}", silent.as_secs());
                    Told::Against(Cause::Silent, reason, silent)
                }
            };
        }
        if trainer.row.reported_ms.is_none() {
            let reason = || format!("it has not reported since it began, and {others}");
            return match (self.going, self.heard) {
                (0, 0) => Told::Unclear,
                (0, _) if trainer.stood < FIRST => Told::Unclear,
                (0, _) => Told::Against(Cause::Silent, reason(), trainer.stood),
                _ => Told::Against(Cause::Silent, reason(), Duration::ZERO),
            };
        }
        if let Some((name, lasts, usual)) = trainer.stands() {
            // Where most stand, they are alike.
            if self.standing * 2 > self.heard {
                return Told::Unclear;
            }
            let usual = usual.map_or_else(String::new, |us| format!(", usually {}", shown(us)));
            let lasting = shown(u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX));
            let reason = format!("it has been at its {name} for {lasting}{usual}, and {others}");
            return Told::Against(Cause::Standing, reason, lasts);
        }
        match trainer.is_stuck(sync) {
            true if self.going > 0 => {
                Told::Against(Cause::Standing, "it takes no step, and others go on".into(), Duration::ZERO)
            }
            true => Told::Unclear,
            false => Told::Nothing,
        }
    }
}

/// How long all workers take for their steps.
struct Paces {
    own: Others,
    /// Where an exchange that takes long is a slow way to the shards.
    whole: Option<Others>,
    phases: Vec<(&'static str, Others)>,
}

impl Paces {
    fn of(training: &[Trainer<'_>], sync: SyncSpec) -> Self {
        let others =
            |time: &dyn Fn(&Trainer<'_>) -> Option<u64>| training.iter().filter_map(time).collect::<Others>();
        let names = Phases::default().iter().map(|(name, _)| name);
        Self {
            own: others(&|trainer| trainer.own()),
            // Where nobody waits for anybody.
            whole: matches!(sync, SyncSpec::Async { .. }).then(|| others(&|trainer| trainer.whole())),
            phases: names
                .into_iter()
                .map(|name| (name, others(&|trainer| phase(trainer.row, name))))
                .collect(),
        }
    }

    fn can_tell(&self, trainer: &Trainer<'_>) -> bool {
        let own = trainer.own();
        own.is_some() && self.own.median(own).is_some()
    }

    /// It takes longer for its steps.
    fn slower(&self, trainer: &Trainer<'_>) -> Option<String> {
        let behind_a_slow_way = || self.whole.as_ref()?.beyond(trainer.whole(), SLOW);
        let (time, usual) = self.own.beyond(trainer.own(), SLOW).or_else(behind_a_slow_way)?;
        let excess = |(name, others): &&(&str, Others)| {
            let own = phase(trainer.row, name);
            own.unwrap_or(0).saturating_sub(others.median(own).unwrap_or(0))
        };
        let most = self.phases.iter().max_by_key(excess).map_or("", |(name, _)| name);
        Some(format!("its steps take {}, the others' {}: {most}", shown(time), shown(usual)))
    }
}

#[cfg(test)]
#[path = "slow_tests.rs"]
mod tests;
