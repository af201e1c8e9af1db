//! Who takes part in a job, and which step comes next of each. The chief decides who leaves; workers join by
//! themselves.
//!
//! Wanted properties: (A) a life of a worker that is over, by the chief's word or because a later one has joined, never
//! takes part again. (B) A member's next step never goes down. (C) A worker that has not come yet counts, with step 0,
//! until it leaves. (D) One entry per worker, however often it is started.

use pushpull_messages::id::{GlobalStep, Incarnation};

/// All workers of a job, by index.
#[derive(Debug)]
pub(crate) struct Members {
    workers: Vec<Member>,
    /// The greatest step of which a gradient has been taken.
    furthest: GlobalStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// Has not come yet, and is waited for.
    Expected,
    Here {
        incarnation: Incarnation,
        next: GlobalStep,
    },
    /// The last life that is over, where there was one.
    Gone(Incarnation),
}

impl Members {
    /// Of a job with so many workers: all are expected.
    pub(crate) fn new(workers: u32) -> Self {
        Self { workers: vec![Member::Expected; workers as usize], furthest: GlobalStep(0) }
    }

    /// Every member's next step.
    fn steps(&self) -> impl Iterator<Item = (u32, GlobalStep)> + '_ {
        self.workers.iter().enumerate().filter_map(|(index, member)| match member {
            Member::Expected => Some((index as u32, GlobalStep(0))),
            Member::Here { next, .. } => Some((index as u32, *next)),
            Member::Gone(_) => None,
        })
    }

    /// How many take part, or are waited for.
    pub(crate) fn count(&self) -> usize {
        self.steps().count()
    }

    /// Members whose next step is not beyond `step`, other than those of `except`.
    pub(crate) fn not_beyond(&self, step: GlobalStep, except: impl Fn(u32) -> bool) -> usize {
        self.steps().filter(|&(worker, next)| next <= step && !except(worker)).count()
    }

    /// The least of all next steps; `None` where nobody takes part.
    pub(crate) fn slowest(&self) -> Option<GlobalStep> {
        self.steps().map(|(_, next)| next).min()
    }

    /// The greatest step of which a gradient has been taken.
    pub(crate) const fn furthest(&self) -> GlobalStep {
        self.furthest
    }

    /// A member's next step.
    pub(crate) fn next(&self, worker: u32) -> GlobalStep {
        match self.workers[worker as usize] {
            Member::Here { next, .. } => next,
            Member::Expected | Member::Gone(_) => GlobalStep(0),
        }
    }

    /// A gradient of a member's next step has been taken; `next` comes after it.
    pub(crate) fn took(&mut self, worker: u32, next: GlobalStep) {
        self.furthest = self.furthest.max(self.next(worker));
        self.raise(worker, next);
    }

    /// A member's next step is `step`, unless it is beyond that already.
    pub(crate) fn raise(&mut self, worker: u32, step: GlobalStep) {
        if let Member::Here { next, .. } = &mut self.workers[worker as usize] {
            *next = step.max(*next);
        }
    }

    /// Whether this life of a worker takes part. One that is expected does from now on.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn check(&mut self, worker: u32, incarnation: Incarnation) -> Result<(), String> {
        match self.member(worker)? {
            Member::Expected => {}
            Member::Here { incarnation: known, .. } if known == incarnation => return Ok(()),
            Member::Here { incarnation: known, .. } if known > incarnation => {
                return Err(format!(
                    "worker/{worker} has been started again: incarnation {incarnation} is over"
                ));
            }
            Member::Here { .. } => {
                return Err(format!("worker/{worker} has to join before it pushes or waits"));
            }
            Member::Gone(over) if incarnation <= over => {
                return Err(format!("worker/{worker} counts as gone: incarnation {incarnation} is over"));
            }
            Member::Gone(_) => return Err(format!("worker/{worker} has to join before it pushes or waits")),
        }
        self.workers[worker as usize] = Member::Here { incarnation, next: GlobalStep(0) };
        Ok(())
    }

    /// This life of a worker takes part from now on, where it does not yet: from the step `first` on, or from 0, where
    /// it has been waited for. Gives its next step.
    ///
    /// # Errors
    /// Where that life is over.
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
            // Its earlier life must not count any more where it begins.
            self.workers[worker as usize] = Member::Gone(incarnation);
            let next = first(self);
            self.workers[worker as usize] = Member::Here { incarnation, next };
        }
        self.check(worker, incarnation)?;
        Ok(self.next(worker))
    }

    /// This life of a worker, and every earlier one, is over. Whether that changes anything.
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
            .ok_or_else(|| format!("the job has {workers} worker(s), and no worker/{worker}"))
    }
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
        fn a_life_that_is_over_never_comes_back_and_steps_never_go_down(
            events in prop::collection::vec(event(), 0..100),
        ) {
            let mut members = Members::new(3);
            // Of each worker: the life that takes part, and the greatest that is over.
            let mut here = [None::<u64>; 3];
            let mut over = [0u64; 3];
            let mut expected = [true; 3];
            for event in events {
                let steps: Vec<_> = members.steps().collect();
                match event {
                    Event::Join(worker, life) | Event::Push(worker, life) => {
                        let joins = matches!(event, Event::Join(..));
                        let w = worker as usize;
                        let taken = if joins {
                            members.join(worker, Incarnation(life), |all| all.slowest().unwrap_or(GlobalStep(7))).is_ok()
                        } else {
                            members.check(worker, Incarnation(life)).is_ok()
                        };
                        let fresh = expected[w] || (joins && life > over[w].max(here[w].unwrap_or(0)));
                        prop_assert_eq!(taken, here[w] == Some(life) || fresh, "(A)");
                        if taken {
                            over[w] = over[w].max(here[w].filter(|&known| known != life).unwrap_or(0));
                            (here[w], expected[w]) = (Some(life), false);
                            let next = members.next(worker);
                            members.took(worker, next.next());
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
    fn whoever_is_no_worker_of_the_job_is_told_so() {
        let mut members = Members::new(2);
        let error = members.check(2, Incarnation(1)).unwrap_err();
        assert!(error.contains("2 worker(s)") && error.contains("worker/2"), "{error}");
        assert!(!members.leave(2, Incarnation(1)));
        assert_eq!(members.count(), 2);
    }
}
