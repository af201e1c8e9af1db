//! Decides, from what the shards hold, how a chief continues a job that an earlier run of the chief has
//! begun. Sends no messages. Wanted properties: (A) a job is continued only if every shard holds it, with one
//! placement and the settings that this chief would choose; (B) of all appointments of a worker, the one with
//! the greatest number counts, and an incarnation that has left one shard counts as gone; (C) if some shards
//! know a change and others wait for it, the change is completed.

use pushpull_messages::checkpoint::StartSpec;
use pushpull_messages::id::{GlobalStep, Incarnation, PlacementEpoch, ShardId, Version};
use pushpull_messages::message::{CreateShard, HeldShard};
use pushpull_messages::optimizer::{RateChange, RateSpec};

use crate::error::ChiefError;

/// The job that all shards hold, and what the earlier run of the chief has left undone.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunningJob {
    /// The latest epoch of the placement.
    pub epoch: PlacementEpoch,
    /// The smallest version of any shard that owns slices.
    pub version: Version,
    /// The learning rate at this version.
    pub rate: RateSpec,
    /// The membership of each worker, indexed by worker.
    pub workers: Vec<HeldWorker>,
    /// The greatest number of any worker's appointment.
    pub appointed: u64,
    /// The number of batches that each worker has drawn, as far as the shards know; indexed by worker.
    pub drawn: Vec<u64>,
    /// The incarnations that have left, each with the worker's index. Some shards may not know that they have
    /// left.
    pub departures: Vec<(u32, Incarnation)>,
    /// The change of the learning rate for which some shards wait.
    pub change: Option<HalfChange>,
    /// The early stop of the job; `None` if no shard knows of one.
    pub stop: Option<HalfStop>,
}

/// What the earlier run of the chief has decided about a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldWorker {
    /// The worker was never appointed.
    Absent,
    /// This incarnation takes part. `joined` is true if the incarnation has joined at least one shard.
    Here { incarnation: Incarnation, joined: bool },
    /// This incarnation has left.
    Gone(Incarnation),
}

/// A change of the learning rate that is not complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HalfChange {
    /// Some shards know the change.
    Known(RateChange),
    /// No shard knows the change yet. The field is the factor of the learning rate to set.
    Unknown(f32),
}

impl HalfChange {
    /// Returns the factor of the learning rate after the change.
    pub const fn factor(self) -> f32 {
        match self {
            Self::Known(change) => change.factor,
            Self::Unknown(factor) => factor,
        }
    }
}

/// A stop before the job's last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HalfStop {
    /// Whether another job will continue from the step at which the shards stop.
    pub drains: bool,
    /// The step at which the shards stop; `None` if they have not all agreed on one step.
    pub step: Option<GlobalStep>,
}

/// What the shards hold of the chief's job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// No worker has used the shards, so the job can begin.
    Unused,
    /// All shards hold the running job.
    Running(RunningJob),
    /// Some shards hold the running job, but `shard` has lost its variables, or has an earlier placement.
    Lost { shard: ShardId, job: RunningJob },
}

/// Returns what the shards hold of the chief's job. `wanted` returns the request with which this chief would
/// create a shard at a placement epoch.
///
/// # Errors
/// Returns an error if the shards serve another job.
pub(super) fn find(
    shards: &[(ShardId, Option<HeldShard>)],
    wanted: impl Fn(ShardId, PlacementEpoch, &StartSpec) -> CreateShard,
) -> Result<Found, ChiefError> {
    let own_creation =
        |shard: ShardId, created: &CreateShard| wanted(shard, created.placement.epoch, &created.start);
    // A ps task that was started again with another number of shards changes the placement, but not the job.
    let is_own = |own: CreateShard, created: &CreateShard| {
        *created == CreateShard { placement: created.placement.clone(), ..own }
    };
    let mut own = Vec::new();
    let mut lacks = None;
    for (shard, holds) in shards {
        match holds {
            Some(held) if is_own(own_creation(*shard, &held.created), &held.created) => {
                if held.created != own_creation(*shard, &held.created) {
                    lacks = lacks.or(Some(*shard));
                }
                own.push((*shard, held));
            }
            Some(other) if is_used(other) => return Err(ChiefError::OtherJob { shard: *shard }),
            _ => lacks = lacks.or(Some(*shard)),
        }
    }
    let epoch = |held: &HeldShard| held.created.placement.epoch;
    let Some(newest) = own.iter().map(|(_, held)| epoch(held)).max() else { return Ok(Found::Unused) };
    lacks = lacks.or(own.iter().find(|(_, held)| epoch(held) < newest).map(|&(shard, _)| shard));
    let held: Vec<_> = own.into_iter().map(|(_, held)| held).collect();
    if let Some(shard) = lacks {
        // A later epoch shows that the job has rolled back, so it was running.
        let used = newest > PlacementEpoch(1) || held.iter().any(|held| is_used(held));
        return Ok(if used { Found::Lost { shard, job: running(&held, newest) } } else { Found::Unused });
    }
    // Workers use the shards only after all were created in the same way, so these have not been used yet.
    if held.iter().any(|other| other.created.start != held[0].created.start) {
        return Ok(Found::Unused);
    }
    Ok(Found::Running(running(&held, newest)))
}

/// Returns whether the shard owns slices. The others count no steps.
fn has_slices(held: &HeldShard) -> bool {
    held.created.placement.shards_with_slices().contains(&held.created.shard)
}

/// Returns whether workers may have used the job of this shard. They do not touch a shard without slices, but
/// it hears of each appointment before a worker touches any other one.
fn is_used(held: &HeldShard) -> bool {
    held.touched || (!has_slices(held) && held.members.iter().any(|member| member.number > 0))
}

/// Returns the running job of these shards; there is at least one.
fn running(held: &[&HeldShard], epoch: PlacementEpoch) -> RunningJob {
    let counting: Vec<&HeldShard> = held.iter().copied().filter(|held| has_slices(held)).collect();
    let all = held;
    let held = if counting.is_empty() { all } else { &counting };
    let least = *held.iter().min_by_key(|held| held.version).expect("there is a first shard");
    let workers = least.created.workers;
    let drawn = |worker: u32| {
        let records = held.iter().flat_map(|held| &held.workers);
        records.filter(|record| record.worker == worker).map(|record| record.drawn).max().unwrap_or(0)
    };
    let (change, known) = change(held);
    RunningJob {
        epoch,
        version: least.version,
        rate: rate(least, known),
        workers: (0..workers).map(|worker| worker_of(all, worker)).collect(),
        appointed: appointed(all),
        drawn: (0..workers).map(drawn).collect(),
        departures: departures(all, workers),
        change,
        stop: stop(held),
    }
}

/// Returns the greatest number of any worker's appointment.
fn appointed(held: &[&HeldShard]) -> u64 {
    held.iter().flat_map(|held| &held.members).map(|member| member.number).max().unwrap_or(0)
}

/// Returns what has been decided about a worker.
fn worker_of(held: &[&HeldShard], worker: u32) -> HeldWorker {
    let all = || held.iter().map(|held| held.members[worker as usize]);
    let number = all().map(|member| member.number).max().unwrap_or(0);
    let last = || all().filter(|member| member.number == number);
    let Some(incarnation) = last().find_map(|member| member.appointed) else { return HeldWorker::Absent };
    if last().any(|member| member.left) {
        return HeldWorker::Gone(incarnation);
    }
    HeldWorker::Here { incarnation, joined: all().any(|member| member.member == Some(incarnation)) }
}

/// Returns the incarnations that have left, each with the worker's index. Some shards may still count them as
/// members, or let them join.
fn departures(held: &[&HeldShard], workers: u32) -> Vec<(u32, Incarnation)> {
    let mut departures = Vec::new();
    for worker in 0..workers {
        let HeldWorker::Gone(gone) = worker_of(held, worker) else { continue };
        let mut left: Vec<_> = held
            .iter()
            .map(|held| held.members[worker as usize])
            .flat_map(|member| [member.member, member.appointed.filter(|_| !member.left)])
            .flatten()
            .chain([gone])
            .collect();
        left.sort_unstable();
        left.dedup();
        departures.extend(left.into_iter().map(|incarnation| (worker, incarnation)));
    }
    departures
}

/// Returns the change for which shards wait, and the newest change that a shard knows.
fn change(held: &[&HeldShard]) -> (Option<HalfChange>, Option<RateChange>) {
    let next = held.iter().filter_map(|held| held.rate.next).max_by_key(|change| change.from);
    let Some(waits) = held.iter().filter(|held| held.hold.is_some()).max_by_key(|held| held.hold) else {
        return (None, next);
    };
    let from = waits.hold.expect("this shard waits");
    // A shard that has passed the version either has made the change, or was never told to wait; in the
    // second case no shard knows a change, and the factor stays as it is.
    let passed = held.iter().find(|held| held.hold.is_none() && held.version > from);
    let made = passed.map(|passed| RateChange { from, factor: passed.rate.at(passed.version).factor });
    let known = next.filter(|change| change.from == from).or(made.filter(|_| next.is_none()));
    let change = known.map_or(HalfChange::Unknown(waits.rate.at(waits.version).factor), HalfChange::Known);
    (Some(change), known.or(next))
}

/// Returns the learning rate at the version of the shard `least`. The change `known` counts as made if this
/// version has reached it, and as the next change otherwise.
fn rate(least: &HeldShard, known: Option<RateChange>) -> RateSpec {
    match known {
        Some(change) if change.from <= least.version => RateSpec { factor: change.factor, next: None },
        next => RateSpec { next, ..least.rate.at(least.version) },
    }
}

/// Returns the early stop of the job, or `None` if no shard knows of one.
fn stop(held: &[&HeldShard]) -> Option<HalfStop> {
    let stopping = held.iter().find(|held| held.end < held.created.last_step)?;
    let drains = held.iter().any(|held| held.drains);
    let agreed = held.iter().all(|held| held.end == stopping.end);
    Some(HalfStop { drains, step: agreed.then_some(stopping.end) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::checkpoint::WorkerRecord;
    use pushpull_messages::job::JobSpec;
    use pushpull_messages::message::HeldMember;
    use pushpull_messages::placement::Placement;

    use super::super::ps_tasks::creation;
    use super::*;
    use crate::job::tests::{job, placement};

    const SHARD: ShardId = ShardId::new(0, 0);

    fn here(number: u64, life: u64) -> HeldMember {
        let life = Some(Incarnation(life));
        HeldMember { number, appointed: life, left: false, member: life }
    }

    /// Returns a shard of `job` that a worker has used.
    fn held_by(job: &JobSpec) -> HeldShard {
        HeldShard {
            created: creation(job, 2, &placement(), SHARD, &StartSpec::Initialise),
            version: Version(4),
            began: Version(0),
            touched: true,
            end: job.last_step,
            drains: false,
            rate: RateSpec::default(),
            hold: None,
            workers: vec![WorkerRecord::new(0, 3)],
            members: vec![here(1, 1), HeldMember::default()],
        }
    }

    fn held() -> HeldShard {
        held_by(&job())
    }

    fn search(shards: Vec<Option<HeldShard>>) -> Result<Found, String> {
        let shards: Vec<_> = shards.into_iter().map(|held| (SHARD, held)).collect();
        let wanted = |shard, epoch, start: &StartSpec| {
            creation(&job(), 2, &Placement { epoch, ..placement() }, shard, start)
        };
        find(&shards, wanted).map_err(|error| error.to_string())
    }

    fn found(shards: Vec<Option<HeldShard>>) -> Result<Option<RunningJob>, String> {
        search(shards).map(|found| match found {
            Found::Running(job) => Some(job),
            _ => None,
        })
    }

    /// Returns a shard whose job has rolled back.
    fn at_epoch(epoch: u64, touched: bool) -> HeldShard {
        let placement = Placement { epoch: PlacementEpoch(epoch), ..placement() };
        let created = creation(&job(), 2, &placement, SHARD, &StartSpec::Initialise);
        HeldShard { created, touched, ..held() }
    }

    #[test]
    fn a_job_without_all_of_its_shards_is_lost() {
        let lost = |shards| match search(shards) {
            Ok(Found::Lost { job, .. }) => Some(job.epoch.0),
            _ => None,
        };
        assert_eq!(lost(vec![Some(at_epoch(1, true)), None]), Some(1));
        assert_eq!(lost(vec![Some(at_epoch(1, false)), None]), None, "no worker has used it");
        assert_eq!(lost(vec![Some(at_epoch(2, false)), None]), Some(2), "it has rolled back before");
        assert_eq!(lost(vec![Some(at_epoch(1, true)), Some(at_epoch(2, false))]), Some(2), "(A)");
        // Its ps task was started again with another number of shards.
        let mut other = at_epoch(1, true);
        other.created.placement.shards.push(ShardId::new(0, 9));
        assert_eq!(lost(vec![Some(other), Some(at_epoch(1, true))]), Some(1));
        let whole = found(vec![Some(at_epoch(2, false)), Some(at_epoch(2, true))]).unwrap();
        assert_eq!(whole.map(|job| job.epoch), Some(PlacementEpoch(2)));
    }

    #[test]
    fn only_a_job_that_all_shards_hold_goes_on() {
        let untouched = |held: HeldShard| HeldShard { touched: false, ..held };
        let other = held_by(&JobSpec { seed: 7, ..job() });
        assert_eq!(found(vec![None, None]), Ok(None));
        assert_eq!(found(vec![None, Some(untouched(held()))]), Ok(None));
        assert_eq!(found(vec![Some(untouched(other.clone())), Some(untouched(held()))]), Ok(None));
        assert!(found(vec![Some(untouched(held())), Some(untouched(held()))]).unwrap().is_some());
        let wrong = found(vec![Some(other), Some(held())]).unwrap_err();
        assert!(wrong.contains("serves another job"), "(A) {wrong}");
        let job = found(vec![Some(HeldShard { version: Version(5), ..held() }), Some(held())]).unwrap();
        let job = job.expect("it runs");
        assert_eq!((job.version, job.drawn, job.stop, job.change), (Version(4), vec![3, 0], None, None));
    }

    /// Returns a shard of the job that owns no slices.
    fn without_slices() -> HeldShard {
        let empty = ShardId::new(0, 1);
        let mut created = held().created;
        created.placement.shards.push(empty);
        created.shard = empty;
        let (version, workers) = (Version(0), Vec::new());
        HeldShard { created, version, touched: false, workers, ..held() }
    }

    #[test]
    fn a_shard_without_slices_counts_no_steps() {
        let mut with_slices = held();
        with_slices.created.placement.shards.push(ShardId::new(0, 1));
        let (empty, with_slices) = (without_slices(), with_slices);
        let job = running(&[&empty, &with_slices], PlacementEpoch(1));
        assert_eq!((job.version, job.drawn, job.stop), (Version(4), vec![3, 0], None));
        assert!(matches!(job.workers[0], HeldWorker::Here { .. }));
        assert_eq!(running(&[&empty], PlacementEpoch(1)).version, Version(0), "the others are lost");
    }

    #[test]
    fn a_shard_without_slices_knows_that_the_job_has_begun() {
        let new = HeldShard { members: vec![HeldMember::default(); 2], ..without_slices() };
        assert!(is_used(&without_slices()) && !is_used(&new));
        assert!(is_used(&held()) && !is_used(&HeldShard { touched: false, ..held() }));
    }

    #[test]
    fn a_half_told_stop_is_completed() {
        let stop = |end, drains| HeldShard { end: GlobalStep(end), drains, ..held() };
        let found = |shards: [HeldShard; 2]| found(shards.map(Some).into()).unwrap().expect("it runs").stop;
        assert_eq!(found([stop(6, false), held()]), Some(HalfStop { drains: false, step: None }));
        assert_eq!(found([stop(6, true), stop(8, true)]), Some(HalfStop { drains: true, step: None }));
        let agreed = Some(HalfStop { drains: true, step: Some(GlobalStep(6)) });
        assert_eq!(found([stop(6, true), stop(6, true)]), agreed);
    }

    #[test]
    fn a_half_told_change_is_completed() {
        let found = |shards: [HeldShard; 2]| found(shards.map(Some).into()).unwrap().expect("it runs");
        let waits = |at| HeldShard { hold: Some(Version(at)), ..held() };
        let change = RateChange { from: Version(6), factor: 0.5 };
        let knows = HeldShard { rate: RateSpec { next: Some(change), factor: 1.0 }, ..held() };
        let job = found([waits(6), knows.clone()]);
        assert_eq!((job.change, job.rate.next), (Some(HalfChange::Known(change)), Some(change)), "(C)");
        // This shard has made the change already.
        let rate = RateSpec { next: None, factor: 0.5 };
        let made = HeldShard { version: Version(7), rate, ..held() };
        assert_eq!(found([waits(6), made]).change, Some(HalfChange::Known(change)), "(C)");
        // This shard knows the change, and has reached its version exactly.
        let reached = HeldShard { version: Version(6), ..knows.clone() };
        let job = found([HeldShard { version: Version(6), ..waits(6) }, reached]);
        assert_eq!(job.change, Some(HalfChange::Known(change)), "(C)");
        assert_eq!(job.rate, RateSpec { factor: 0.5, next: None });
        // No shard knows a change from the version for which the last of them waits.
        assert_eq!(found([waits(6), waits(8)]).change, Some(HalfChange::Unknown(1.0)));
        assert_eq!(found([knows.clone(), knows]).change, None);
    }

    fn any_member() -> impl Strategy<Value = HeldMember> {
        (0u64..4, any::<bool>(), prop::option::of(1u64..4)).prop_map(|(number, left, member)| {
            // Each appointment has an incarnation of its own.
            let appointed = (number > 0).then_some(Incarnation(number));
            let left = left && number > 0;
            let member = member.filter(|&life| life <= number && !(left && life == number));
            HeldMember { number, appointed, left, member: member.map(Incarnation) }
        })
    }

    proptest! {
        #[test]
        fn the_last_appointment_counts_unless_it_has_left_a_shard(
            shards in prop::collection::vec(any_member(), 1..4),
        ) {
            let held: Vec<_> =
                shards.iter().map(|&member| HeldShard { members: vec![member], ..held() }).collect();
            let held: Vec<_> = held.iter().collect();
            let number = shards.iter().map(|member| member.number).max().unwrap();
            let left = shards.iter().any(|member| member.number == number && member.left);
            let joined = shards.iter().any(|member| member.member == Some(Incarnation(number)));
            prop_assert_eq!(appointed(&held), number);
            let worker = worker_of(&held, 0);
            prop_assert_eq!(worker, match number {
                0 => HeldWorker::Absent,
                life if left => HeldWorker::Gone(Incarnation(life)),
                life => HeldWorker::Here { incarnation: Incarnation(life), joined },
            }, "(B)");
            let departures = departures(&held, 1);
            for member in &shards {
                // A worker that has left is a member nowhere after the departures.
                let stays = member.member.filter(|life| !departures.contains(&(0, *life)));
                prop_assert!(!left || stays.is_none(), "(B)");
            }
            prop_assert!(left || departures.is_empty());
        }
    }
}
