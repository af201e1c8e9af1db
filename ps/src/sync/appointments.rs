//! The chief's appointments: which incarnation of each worker may be a member. Incarnations have no order,
//! because they may come from clocks that are wrong; the chief numbers its appointments instead. Wanted
//! properties: (A) of all appointments of a worker that have arrived, in any order and however often, the one
//! with the greatest number counts; (B) an incarnation that was dismissed stays dismissed until a later
//! appointment; (C) there is one entry per worker, however often it restarts.

use pushpull_messages::id::Incarnation;
use pushpull_messages::message::HeldMember;

/// The last appointment of every worker, by index.
#[derive(Debug)]
pub(super) struct Appointments(Vec<Appointment>);

/// The last appointment of one worker.
#[derive(Clone, Copy, Debug, Default)]
struct Appointment {
    /// The number of the appointment; 0 if there was none.
    number: u64,
    /// The incarnation that may be a member; `None` if none was appointed, or if it has left.
    incarnation: Option<Incarnation>,
    /// The incarnation that has left; `None` if none has left since the last appointment.
    left: Option<Incarnation>,
}

impl Appointments {
    /// Returns the appointments of a job with `workers` workers, none of which is appointed yet.
    pub(super) fn new(workers: u32) -> Self {
        Self(vec![Appointment::default(); workers as usize])
    }

    /// Records an appointment if its number is greater than that of the worker's last appointment. Returns
    /// whether it was recorded.
    ///
    /// # Panics
    /// If the job has no such worker.
    pub(super) fn appoint(&mut self, worker: u32, incarnation: Incarnation, number: u64) -> bool {
        let last = &mut self.0[worker as usize];
        let later = number > last.number;
        if later {
            *last = Appointment { number, incarnation: Some(incarnation), left: None };
        }
        later
    }

    /// Records that an incarnation has left. If it was the appointed one, ends its appointment and returns
    /// true.
    ///
    /// # Panics
    /// If the job has no such worker.
    pub(super) fn dismiss(&mut self, worker: u32, incarnation: Incarnation) -> bool {
        let last = &mut self.0[worker as usize];
        let known = last.incarnation == Some(incarnation);
        if known {
            last.left = last.incarnation.take();
        }
        known
    }

    /// Returns whether the worker was ever appointed.
    ///
    /// # Panics
    /// If the job has no such worker.
    pub(super) fn knows(&self, worker: u32) -> bool {
        self.0[worker as usize].number > 0
    }

    /// Checks that an incarnation of a worker may be a member.
    ///
    /// # Errors
    /// Returns the reason if the worker's appointed incarnation is another one, or if it has no appointed
    /// incarnation.
    ///
    /// # Panics
    /// If the job has no such worker.
    pub(super) fn check(&self, worker: u32, incarnation: Incarnation) -> Result<(), String> {
        match self.0[worker as usize].incarnation {
            Some(appointed) if appointed == incarnation => Ok(()),
            Some(_) => Err(format!(
                "the chief has appointed another incarnation of worker/{worker} than {incarnation}: incarnation {incarnation} has ended, or is a second start of the task"
            )),
            None if self.knows(worker) => {
                Err(format!("worker/{worker} is no longer a member: its incarnation {incarnation} has ended"))
            }
            None => Err(format!(
                "the chief has not appointed worker/{worker} yet, so its incarnation {incarnation} cannot take part"
            )),
        }
    }

    /// Returns the last appointment of a worker, for a later run of the chief.
    ///
    /// # Panics
    /// If the job has no such worker.
    pub(super) fn held(&self, worker: u32) -> HeldMember {
        let Appointment { number, incarnation, left } = self.0[worker as usize];
        HeldMember { number, appointed: incarnation.or(left), left: left.is_some(), member: None }
    }

    /// Returns the greatest number of all appointments; 0 if there was none.
    pub(super) fn greatest(&self) -> u64 {
        self.0.iter().map(|last| last.number).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Checks (A) and (C): whatever the incarnations are, only the numbers decide.
        #[test]
        fn the_latest_appointment_counts_in_any_order(
            incarnations in prop::collection::vec(any::<u64>(), 1..8),
            arrivals in prop::collection::vec((0u32..2, any::<prop::sample::Index>()), 0..40),
        ) {
            let mut appointments = Appointments::new(2);
            let mut latest = [None::<usize>; 2];
            for (worker, which) in arrivals {
                let which = which.index(incarnations.len());
                let number = which as u64 + 1;
                let later = appointments.appoint(worker, Incarnation(incarnations[which]), number);
                let known = &mut latest[worker as usize];
                prop_assert_eq!(later, known.is_none_or(|known| which > known), "(A)");
                *known = (*known).max(Some(which));
                for (worker, latest) in (0..).zip(latest) {
                    for incarnation in &incarnations {
                        let appointed = latest.is_some_and(|latest| incarnations[latest] == *incarnation);
                        prop_assert_eq!(appointments.check(worker, Incarnation(*incarnation)).is_ok(), appointed);
                    }
                    prop_assert_eq!(appointments.knows(worker), latest.is_some());
                }
                let greatest = latest.iter().flatten().max().map_or(0, |&which| which as u64 + 1);
                prop_assert_eq!(appointments.greatest(), greatest);
                prop_assert_eq!(appointments.0.len(), 2, "(C)");
            }
        }
    }

    #[test]
    fn the_refusal_says_what_the_chief_has_decided() {
        let mut appointments = Appointments::new(1);
        let first = Incarnation(9);
        let reason = |appointments: &Appointments| appointments.check(0, first).unwrap_err();
        assert!(reason(&appointments).contains("has not appointed worker/0 yet"));
        appointments.appoint(0, Incarnation(3), 1);
        assert!(reason(&appointments).contains("another incarnation of worker/0 than 9"));
        appointments.dismiss(0, Incarnation(3));
        assert!(reason(&appointments).contains("worker/0 is no longer a member"));
    }

    #[test]
    fn a_dismissed_incarnation_needs_another_appointment() {
        let mut appointments = Appointments::new(1);
        let (first, second) = (Incarnation(9), Incarnation(3));
        assert!(appointments.appoint(0, first, 4) && !appointments.dismiss(0, second));
        assert!(appointments.check(0, first).is_ok() && appointments.dismiss(0, first));
        // A copy of the appointment arrives late.
        assert!(!appointments.appoint(0, first, 4) && appointments.check(0, first).is_err(), "(B)");
        assert!(appointments.appoint(0, second, 5) && appointments.check(0, second).is_ok());
        assert!(appointments.appoint(0, first, 6) && appointments.check(0, first).is_ok());
    }
}
