//! The membership of a job, and each member's next step. The chief decides which worker leaves; workers join
//! on their own. Wanted properties: (A) an incarnation of a worker ends when the chief decides so or when a
//! later incarnation joins, and is then never a member again; (B) a member's next step never decreases; (C)
//! a worker that has not joined yet counts as a member at step 0 until it leaves; (D) there is one entry per
//! worker, however often it restarts.

use pushpull_messages::id::{GlobalStep, Incarnation};

/// The workers of a job, by index.
#[derive(Debug)]
pub(crate) struct Members {
    workers: Vec<Member>,
    /// The greatest step for which a gradient was accepted.
    furthest: GlobalStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// The worker has not joined yet, and the others wait for it.
    Expected,
    Here {
        incarnation: Incarnation,
        next: GlobalStep,
    },
    /// The worker has left; the field is the last of its ended incarnations.
    Gone(Incarnation),
}

impl Members {
    /// Returns the membership of a job with `workers` workers, none of which has joined yet.
    pub(crate) fn new(workers: u32) -> Self {
        Self { workers: vec![Member::Expected; workers as usize], furthest: GlobalStep(0) }
    }

    /// Iterates over the members with their next steps.
    fn steps(&self) -> impl Iterator<Item = (u32, GlobalStep)> + '_ {
        self.workers.iter().enumerate().filter_map(|(index, member)| match member {
            Member::Expected => Some((index as u32, GlobalStep(0))),
            Member::Here { next, .. } => Some((index as u32, *next)),
            Member::Gone(_) => None,
        })
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
            Member::Expected | Member::Gone(_) => GlobalStep(0),
        }
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

    /// Accepts a request from this incarnation of a worker if the incarnation is a member. If the worker is
    /// still expected, the incarnation becomes a member.
    ///
    /// # Errors
    /// Returns the reason if this incarnation has ended, if it replaces an earlier one and has not
    /// joined yet, or if the job has no such worker.
    pub(crate) fn admit(&mut self, worker: u32, incarnation: Incarnation) -> Result<(), String> {
        match self.member(worker)? {
            Member::Expected => {}
            Member::Here { incarnation: known, .. } if known == incarnation => return Ok(()),
            Member::Here { incarnation: known, .. } if known > incarnation => {
                return Err(format!(
                    "worker/{worker} has restarted: its incarnation {incarnation} has ended"
                ));
            }
            Member::Here { .. } => {
                return Err(must_join(worker));
            }
            Member::Gone(over) if incarnation <= over => {
                return Err(format!(
                    "worker/{worker} is no longer a member: its incarnation {incarnation} has ended"
                ));
            }
            Member::Gone(_) => return Err(must_join(worker)),
        }
        self.workers[worker as usize] = Member::Here { incarnation, next: GlobalStep(0) };
        Ok(())
    }

    /// Makes this incarnation of a worker a member if it is not a member yet, and returns its next step. A
    /// worker that was still expected begins at step 0; any other new incarnation begins at the step that
    /// `first` returns.
    ///
    /// # Errors
    /// Returns the reason if this incarnation has ended, or if the job has no such worker.
    pub(crate) fn join(
        &mut self,
        worker: u32,
        incarnation: Incarnation,
        first: impl FnOnce(&Self) -> GlobalStep,
    ) -> Result<GlobalStep, String> {
        let later = match self.member(worker)? {
            Member::Expected => false,
            Member::Here { incarnation: known, .. } => incarnation > known,
            Member::Gone(over) => incarnation > over,
        };
        if later {
            // The earlier incarnation must no longer count when the first step is chosen.
            self.workers[worker as usize] = Member::Gone(incarnation);
            let next = first(self);
            self.workers[worker as usize] = Member::Here { incarnation, next };
        }
        self.admit(worker, incarnation)?;
        Ok(self.next(worker))
    }

    /// Ends this incarnation of a worker and every earlier one. Returns whether that changes anything.
    pub(crate) fn leave(&mut self, worker: u32, incarnation: Incarnation) -> bool {
        let Ok(member) = self.member(worker) else { return false };
        let over = match member {
            Member::Expected => true,
            Member::Here { incarnation: known, .. } => known <= incarnation,
            Member::Gone(known) => known < incarnation,
        };
        if over {
            self.workers[worker as usize] = Member::Gone(incarnation);
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

fn must_join(worker: u32) -> String {
    format!("worker/{worker} must join before it pushes or pulls the values for a step")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Join(u32, u64),
        Push(u32, u64),
        Leave(u32, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let who = || (0u32..3, 1u64..5);
        prop_oneof![
            who().prop_map(|(worker, life)| Event::Join(worker, life)),
            who().prop_map(|(worker, life)| Event::Push(worker, life)),
            who().prop_map(|(worker, life)| Event::Leave(worker, life)),
        ]
    }

    proptest! {
        #[test]
        fn a_life_that_is_over_stays_over_and_steps_never_decrease(
            events in prop::collection::vec(event(), 0..100),
        ) {
            let mut members = Members::new(3);
            // For each worker: the incarnation that is a member, and the greatest one that has ended.
            let mut here = [None::<u64>; 3];
            let mut over = [0u64; 3];
            let mut expected = [true; 3];
            for event in events {
                let steps: Vec<_> = members.steps().collect();
                match event {
                    Event::Join(worker, life) | Event::Push(worker, life) => {
                        let joins = matches!(event, Event::Join(..));
                        let w = worker as usize;
                        let accepted = if joins {
                            members.join(worker, Incarnation(life), |all| all.slowest().unwrap_or(GlobalStep(7))).is_ok()
                        } else {
                            members.admit(worker, Incarnation(life)).is_ok()
                        };
                        let fresh = expected[w] || (joins && life > over[w].max(here[w].unwrap_or(0)));
                        prop_assert_eq!(accepted, here[w] == Some(life) || fresh, "(A)");
                        if accepted {
                            over[w] = over[w].max(here[w].filter(|&known| known != life).unwrap_or(0));
                            (here[w], expected[w]) = (Some(life), false);
                            let next = members.next(worker);
                            members.pushed(worker, next.next());
                            prop_assert!(members.furthest() >= next);
                        }
                    }
                    Event::Leave(worker, life) => {
                        let w = worker as usize;
                        members.leave(worker, Incarnation(life));
                        if expected[w] || here[w].is_some_and(|known| known <= life) {
                            (here[w], expected[w]) = (None, false);
                        }
                        over[w] = if here[w].is_none() { over[w].max(life) } else { over[w] };
                    }
                }
                for worker in 0..3 {
                    let counts = expected[worker] || here[worker].is_some();
                    prop_assert_eq!(members.steps().any(|(index, _)| index as usize == worker), counts, "(C)");
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
        let error = members.admit(2, Incarnation(1)).unwrap_err();
        assert!(error.contains("2 worker(s)") && error.contains("worker/2"), "{error}");
        assert!(!members.leave(2, Incarnation(1)));
        assert_eq!(members.count(), 2);
    }
}
