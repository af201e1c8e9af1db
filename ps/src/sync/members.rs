//! The membership of a job, and each member's next step. The chief decides which incarnation of a worker may
//! join, and which has left. Wanted properties: (A) only the incarnation that the chief has appointed last
//! becomes a member, and an incarnation that has left stays away until it is appointed again; (B) a member's
//! next step never decreases; (C) a worker that has not joined yet counts as a member at step 0 until it
//! leaves; (D) there is one entry per worker, however often it restarts.

use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::message::HeldMember;

use super::appointments::Appointments;

/// The workers of a job, by index.
#[derive(Debug)]
pub(crate) struct Members {
    workers: Vec<Member>,
    appointments: Appointments,
    /// The greatest step for which a gradient was accepted.
    furthest: GlobalStep,
    /// How often a worker became a member or left.
    changes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// The worker has not joined yet, and the others wait for it.
    Expected,
    Here {
        incarnation: Incarnation,
        next: GlobalStep,
    },
    /// The worker has left.
    Gone,
}

impl Members {
    /// Returns the membership of a job with `workers` workers, none of which has joined yet.
    pub(crate) fn new(workers: u32) -> Self {
        let appointments = Appointments::new(workers);
        let workers = vec![Member::Expected; workers as usize];
        Self { workers, appointments, furthest: GlobalStep(0), changes: 0 }
    }

    /// Iterates over the members with their next steps.
    fn steps(&self) -> impl Iterator<Item = (u32, GlobalStep)> + '_ {
        self.workers.iter().enumerate().filter_map(|(index, member)| match member {
            Member::Expected => Some((index as u32, GlobalStep(0))),
            Member::Here { next, .. } => Some((index as u32, *next)),
            Member::Gone => None,
        })
    }

    /// Returns the membership of each worker, indexed by worker.
    pub(crate) fn held(&self) -> Vec<HeldMember> {
        let held = |worker| HeldMember { member: self.incarnation(worker), ..self.appointments.held(worker) };
        (0..self.workers.len() as u32).map(held).collect()
    }

    /// Returns the number of members, including workers that have not joined yet.
    pub(crate) fn count(&self) -> usize {
        self.steps().count()
    }

    /// Iterates over the indices of the members, in ascending order.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.steps().map(|(index, _)| index)
    }

    /// Returns the incarnation of a worker that is a member; `None` if it has not joined yet or has left.
    pub(crate) fn incarnation(&self, worker: u32) -> Option<Incarnation> {
        match self.workers.get(worker as usize) {
            Some(&Member::Here { incarnation, .. }) => Some(incarnation),
            _ => None,
        }
    }

    /// Returns how often a worker became a member or left.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of members whose next step is at most `step`, not counting those for which `except`
    /// returns true.
    pub(crate) fn not_beyond(&self, step: GlobalStep, except: impl Fn(u32) -> bool) -> usize {
        self.steps().filter(|&(worker, next)| next <= step && !except(worker)).count()
    }

    /// Returns the smallest of all members' next steps; `None` if there are no members.
    pub(crate) fn slowest(&self) -> Option<GlobalStep> {
        self.steps().map(|(_, next)| next).min()
    }

    /// Returns the greatest step for which a gradient was accepted.
    pub(crate) const fn furthest(&self) -> GlobalStep {
        self.furthest
    }

    /// Returns a member's next step.
    pub(crate) fn next(&self, worker: u32) -> GlobalStep {
        match self.workers[worker as usize] {
            Member::Here { next, .. } => next,
            Member::Expected | Member::Gone => GlobalStep(0),
        }
    }

    /// Returns the step after a member's next step. A job may have as many steps as a number can count, and a
    /// worker may wait for the last of them at once, so that step is followed by itself.
    pub(crate) fn following(&self, worker: u32) -> GlobalStep {
        GlobalStep(self.next(worker).0.saturating_add(1))
    }

    /// Records that a shard accepted a member's gradient. The member's next step becomes `next`.
    pub(crate) fn pushed(&mut self, worker: u32, next: GlobalStep) {
        self.furthest = self.furthest.max(self.next(worker));
        self.raise(worker, next);
    }

    /// Raises a member's next step to `step`. Does nothing if the next step is already greater.
    pub(crate) fn raise(&mut self, worker: u32, step: GlobalStep) {
        if let Member::Here { next, .. } = &mut self.workers[worker as usize] {
            *next = step.max(*next);
        }
    }

    /// Records that the chief has appointed an incarnation of a worker, which may then join. Returns the
    /// incarnation that the appointment ends, if there is one. It stays a member until
    /// [`leave`](Self::leave).
    ///
    /// # Errors
    /// Returns the reason if the job has no such worker.
    pub(crate) fn appoint(
        &mut self,
        worker: u32,
        incarnation: Incarnation,
        number: u64,
    ) -> Result<Option<Incarnation>, String> {
        self.member(worker)?;
        let later = self.appointments.appoint(worker, incarnation, number);
        Ok(self.incarnation(worker).filter(|&member| later && member != incarnation))
    }

    /// Returns whether this incarnation of a worker may join.
    pub(crate) fn is_appointed(&self, worker: u32, incarnation: Incarnation) -> bool {
        self.member(worker).is_ok() && self.appointments.check(worker, incarnation).is_ok()
    }

    /// Returns the greatest number of all appointments; 0 if there was none.
    pub(crate) fn appointed(&self) -> u64 {
        self.appointments.greatest()
    }

    /// Accepts a request from this incarnation of a worker if the incarnation is a member. If the worker is
    /// still expected and the incarnation is appointed, it becomes a member.
    ///
    /// # Errors
    /// Returns the reason if this incarnation is not appointed, if it has not joined yet, or if the job has
    /// no such worker.
    pub(crate) fn admit(&mut self, worker: u32, incarnation: Incarnation) -> Result<(), String> {
        let member = self.member(worker)?;
        if matches!(member, Member::Here { incarnation: known, .. } if known == incarnation) {
            return Ok(());
        }
        self.appointments.check(worker, incarnation)?;
        if member != Member::Expected {
            return Err(format!("worker/{worker} must join before it pushes or pulls the values for a step"));
        }
        self.workers[worker as usize] = Member::Here { incarnation, next: GlobalStep(0) };
        self.changes += 1;
        Ok(())
    }

    /// Makes this incarnation of a worker a member if it is appointed and not a member yet, and returns its
    /// next step. A worker that was still expected begins at step 0. Any other worker begins at the step that
    /// `first` returns.
    ///
    /// # Errors
    /// Returns the reason if this incarnation is not appointed, or if the job has no such worker.
    pub(crate) fn join(
        &mut self,
        worker: u32,
        incarnation: Incarnation,
        first: impl FnOnce(&Self) -> GlobalStep,
    ) -> Result<GlobalStep, String> {
        let is_new = match self.member(worker)? {
            Member::Expected => false,
            Member::Here { incarnation: known, .. } => incarnation != known,
            Member::Gone => true,
        };
        if is_new {
            self.appointments.check(worker, incarnation)?;
            // The earlier incarnation must no longer count when the first step is chosen.
            self.workers[worker as usize] = Member::Gone;
            let next = first(self);
            self.workers[worker as usize] = Member::Here { incarnation, next };
            self.changes += 1;
        }
        self.admit(worker, incarnation)?;
        Ok(self.next(worker))
    }

    /// Ends this incarnation of a worker. Returns whether that changes the membership.
    pub(crate) fn leave(&mut self, worker: u32, incarnation: Incarnation) -> bool {
        let Ok(member) = self.member(worker) else { return false };
        let appointed = self.appointments.dismiss(worker, incarnation);
        let over = match member {
            Member::Expected => appointed || !self.appointments.knows(worker),
            Member::Here { incarnation: known, .. } => known == incarnation,
            Member::Gone => false,
        };
        if over {
            self.workers[worker as usize] = Member::Gone;
            self.changes += 1;
        }
        over
    }

    fn member(&self, worker: u32) -> Result<Member, String> {
        let workers = self.workers.len();
        self.workers
            .get(worker as usize)
            .copied()
            .ok_or_else(|| format!("the job has {workers} worker(s), but no worker/{worker}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Appoint(u32, u64, u64),
        Join(u32, u64),
        Push(u32, u64),
        Leave(u32, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let who = || (0u32..3, 1u64..5);
        prop_oneof![
            (who(), 1u64..9).prop_map(|((worker, life), number)| Event::Appoint(worker, life, number)),
            who().prop_map(|(worker, life)| Event::Join(worker, life)),
            who().prop_map(|(worker, life)| Event::Push(worker, life)),
            who().prop_map(|(worker, life)| Event::Leave(worker, life)),
        ]
    }

    /// What a plain model knows of a worker.
    #[derive(Clone, Copy, Default)]
    struct Known {
        /// The number of the last appointment; 0 if there was none.
        number: u64,
        appointed: Option<u64>,
        here: Option<u64>,
        /// Whether it has joined or left.
        came: bool,
    }

    #[test]
    fn the_last_step_of_all_is_followed_by_itself() {
        let mut members = Members::new(1);
        members.appoint(0, Incarnation(1), 1).unwrap();
        members.join(0, Incarnation(1), |_| GlobalStep(0)).unwrap();
        assert_eq!(members.following(0), GlobalStep(1));
        members.raise(0, GlobalStep(u64::MAX));
        members.pushed(0, members.following(0));
        assert_eq!((members.next(0), members.furthest()), (GlobalStep(u64::MAX), GlobalStep(u64::MAX)));
    }

    proptest! {
        #[test]
        fn only_the_chief_decides_who_is_a_member(events in prop::collection::vec(event(), 0..100)) {
            let mut members = Members::new(3);
            let mut known = [Known::default(); 3];
            for event in events {
                let steps: Vec<_> = members.steps().collect();
                match event {
                    Event::Appoint(worker, life, number) => {
                        let model = &mut known[worker as usize];
                        let later = number > model.number;
                        let ends = model.here.filter(|&here| later && here != life).map(Incarnation);
                        prop_assert_eq!(members.appoint(worker, Incarnation(life), number), Ok(ends));
                        if later {
                            (model.number, model.appointed) = (number, Some(life));
                        }
                    }
                    Event::Join(worker, life) | Event::Push(worker, life) => {
                        let joins = matches!(event, Event::Join(..));
                        let model = &mut known[worker as usize];
                        let accepted = if joins {
                            members.join(worker, Incarnation(life), |all| all.slowest().unwrap_or(GlobalStep(7))).is_ok()
                        } else {
                            members.admit(worker, Incarnation(life)).is_ok()
                        };
                        let fresh = model.appointed == Some(life) && (joins || !model.came);
                        prop_assert_eq!(accepted, model.here == Some(life) || fresh, "(A)");
                        if accepted {
                            (model.here, model.came) = (Some(life), true);
                            let next = members.next(worker);
                            members.pushed(worker, next.next());
                            prop_assert!(members.furthest() >= next);
                        }
                    }
                    Event::Leave(worker, life) => {
                        let model = &mut known[worker as usize];
                        let expected = !model.came && (model.number == 0 || model.appointed == Some(life));
                        let over = expected || model.here == Some(life);
                        prop_assert_eq!(members.leave(worker, Incarnation(life)), over);
                        if over {
                            (model.here, model.came) = (None, true);
                        }
                        model.appointed = model.appointed.filter(|&appointed| appointed != life);
                    }
                }
                for (worker, model) in (0..).zip(&known) {
                    let counts = !model.came || model.here.is_some();
                    prop_assert_eq!(members.steps().any(|(index, _)| index == worker), counts, "(C)");
                }
                if !matches!(event, Event::Join(..)) {
                    prop_assert!(
                        steps.iter().all(|&(worker, step)| !members.steps().any(|(w, now)| w == worker && now < step)),
                        "(B)"
                    );
                }
                prop_assert_eq!(members.workers.len(), 3, "(D)");
            }
        }
    }

    #[test]
    fn a_worker_outside_the_job_is_refused() {
        let mut members = Members::new(2);
        for error in [
            members.admit(2, Incarnation(1)).unwrap_err(),
            members.appoint(2, Incarnation(1), 1).unwrap_err(),
        ] {
            assert!(error.contains("2 worker(s)") && error.contains("worker/2"), "{error}");
        }
        assert!(!members.leave(2, Incarnation(1)));
        assert_eq!(members.count(), 2);
    }
}
