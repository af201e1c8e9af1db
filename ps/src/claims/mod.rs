//! Decides which chief a ps task obeys. Uses no socket and no clock.
//!
//! Wanted properties: (A) a task obeys at most one chief at a time, and changes to another one only if the
//! chief that it obeys has been away for at least the lease; (B) it obeys only a chief whose claim it has
//! granted; (C) a withdrawn claim stays withdrawn, even if a copy of it arrives later; (D) a repeated claim
//! is granted again; (E) of several chiefs that claim all tasks, at most one gets them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use pushpull_messages::id::Incarnation;
use pushpull_transport::Peer;
use tokio::time::Instant;

/// The identity of one run of the chief.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term {
    pub incarnation: Incarnation,
    /// Distinguishes two runs with the same incarnation.
    pub nonce: u64,
}

impl Term {
    /// Returns the term of a chief.
    pub(crate) const fn of(chief: &Peer) -> Self {
        Self { incarnation: chief.incarnation, nonce: chief.nonce }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:04x}", self.incarnation, self.nonce >> 48)
    }
}

/// The reason why a task refuses a claim or an order of a chief.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    /// The task obeys another chief, or has granted the claim of another chief.
    #[error(
        "it belongs to the chief with term {holder} from {address}, which {}; this chief has term {term}",
        presence(*.away)
    )]
    Taken {
        /// The term of the chief that is refused.
        term: Term,
        /// The term of the other chief.
        holder: Term,
        /// The address from which the other chief has dialled.
        address: String,
        /// How long the other chief has been away; `None` if it is connected.
        away: Option<Duration>,
    },
    /// The claim was withdrawn.
    #[error("claim {attempt} of term {term} was withdrawn, expected a later one")]
    Withdrawn {
        /// The chief's term.
        term: Term,
        /// The number of the attempt.
        attempt: u64,
    },
    /// The task has not granted a claim of the chief.
    #[error(
        "it has granted no claim of term {term}, or the claim has lapsed: start the job again, with the same version on all tasks"
    )]
    Unclaimed {
        /// The chief's term.
        term: Term,
    },
}

/// Describes whether a chief is connected, and what to do if it is.
fn presence(away: Option<Duration>) -> String {
    match away {
        Some(away) => format!("left {} s ago and may come back", away.as_secs()),
        None => "is connected: end one of the two".to_owned(),
    }
}

/// A chief that is connected, that the task obeys, or whose claim was granted.
#[derive(Debug)]
struct Chief {
    /// The address from which the chief dialled last.
    address: String,
    connections: usize,
    /// When the chief's last connection ended; without meaning while the chief is connected.
    left: Option<Instant>,
    /// The number of the latest attempt that the chief has withdrawn; 0 if there is none.
    withdrawn: u64,
}

/// The chiefs of a ps task. One of them is obeyed.
#[derive(Debug)]
pub(crate) struct Claims {
    /// How long a chief may be away before another one gets the task.
    lease: Duration,
    /// All chiefs that the task remembers: the connected chiefs, the chief that the task obeys, and the chief
    /// whose claim was granted. The task remembers the last two even while they are disconnected.
    chiefs: BTreeMap<Term, Chief>,
    /// The chief that is obeyed.
    holder: Option<Term>,
    /// The chief whose claim was granted, with the number of its attempt. Its first order makes it the
    /// holder. Until then, the claim can be withdrawn, and the chief in `holder` can come back and keep the
    /// task.
    claimant: Option<(Term, u64)>,
}

impl Claims {
    /// Returns the claims of a task that obeys no chief yet. A chief that is away for `lease` may lose the
    /// task.
    pub(crate) const fn new(lease: Duration) -> Self {
        Self { lease, chiefs: BTreeMap::new(), holder: None, claimant: None }
    }

    /// Records a new connection of a chief.
    pub(crate) fn connected(&mut self, term: Term, address: &str) {
        let new = Chief { address: String::new(), connections: 0, left: None, withdrawn: 0 };
        let chief = self.chiefs.entry(term).or_insert(new);
        chief.connections += 1;
        address.clone_into(&mut chief.address);
    }

    /// Records the end of a chief's connection.
    pub(crate) fn disconnected(&mut self, term: Term, now: Instant) {
        if let Some(chief) = self.chiefs.get_mut(&term) {
            chief.connections -= 1;
            chief.left = Some(now);
        }
        self.forget();
    }

    /// Returns the number of connections of the chief that the task obeys or, if there is none, of the chief
    /// whose claim was granted. If there is no such chief either, the connections of all chiefs count,
    /// because each chief may claim the task.
    pub(crate) fn connections(&self) -> usize {
        let own = self.holder.or(self.claimant.map(|(term, _)| term));
        let counted = self.chiefs.iter().filter(|(term, _)| own.is_none_or(|own| own == **term));
        counted.map(|(_, chief)| chief.connections).sum()
    }

    /// Grants or refuses the claim of a chief. An attempt is refused if the chief has withdrawn it.
    pub(crate) fn claim(&mut self, term: Term, attempt: u64, now: Instant) -> Result<(), ClaimError> {
        if self.holder == Some(term) {
            return Ok(());
        }
        let claimant = self.claimant.map(|(term, _)| term);
        if let Some(taken) =
            [self.holder, claimant].into_iter().find_map(|other| self.taken(term, other, now))
        {
            return Err(taken);
        }
        match self.chiefs.get(&term) {
            Some(chief) if attempt <= chief.withdrawn => Err(ClaimError::Withdrawn { term, attempt }),
            Some(_) => {
                self.claimant = Some((term, attempt));
                self.forget();
                Ok(())
            }
            None => Err(ClaimError::Unclaimed { term }),
        }
    }

    /// Withdraws the claims of a chief up to and including `attempt`, even claims that arrive later.
    pub(crate) fn withdraw(&mut self, term: Term, attempt: u64) {
        if let Some(chief) = self.chiefs.get_mut(&term) {
            chief.withdrawn = chief.withdrawn.max(attempt);
        }
        if self.claimant.is_some_and(|(claimant, claimed)| claimant == term && claimed <= attempt) {
            self.claimant = None;
            self.forget();
        }
    }

    /// Checks that the task obeys an order of a chief. The first order of the chief whose claim was granted
    /// makes this chief the one that the task obeys.
    ///
    /// # Errors
    /// Refuses the order if the task belongs to another chief, or has not granted this chief's claim.
    pub(crate) fn order(&mut self, term: Term, now: Instant) -> Result<(), ClaimError> {
        if self.holder == Some(term) {
            return Ok(());
        }
        if let Some(taken) = self.taken(term, self.holder, now) {
            return Err(taken);
        }
        match self.claimant {
            Some((claimant, _)) if claimant == term => {
                (self.holder, self.claimant) = (Some(term), None);
                self.forget();
                Ok(())
            }
            other => Err(other
                .and_then(|(other, _)| self.taken(term, Some(other), now))
                .unwrap_or(ClaimError::Unclaimed { term })),
        }
    }

    /// Checks that the task obeys a chief's order to stop, as [`order`](Self::order) does for other orders.
    /// A chief whose first order is to stop is also refused while another chief is connected, because the
    /// other chief may be about to claim the task.
    ///
    /// # Errors
    /// Those of [`order`](Self::order).
    pub(crate) fn stop(&mut self, term: Term, now: Instant) -> Result<(), ClaimError> {
        let connected = |(&other, chief): (&Term, &Chief)| (chief.connections > 0).then_some(other);
        let mut others = self.chiefs.iter().filter_map(connected).filter(|&other| other != term);
        if self.holder != Some(term)
            && let Some(taken) = others.find_map(|other| self.taken(term, Some(other), now))
        {
            return Err(taken);
        }
        self.order(term, now)
    }

    /// Checks that a chief may see the shards: any chief may, unless the task obeys another one. A chief that
    /// has lost the task learns this from the refusal.
    ///
    /// # Errors
    /// Refuses the chief if the task obeys another one.
    pub(crate) fn observe(&self, term: Term, now: Instant) -> Result<(), ClaimError> {
        self.taken(term, self.holder, now).map_or(Ok(()), Err)
    }

    /// Returns the refusal of the chief with the term `term` if `other` is another chief that is connected
    /// or has been away for less than the lease.
    fn taken(&self, term: Term, other: Option<Term>, now: Instant) -> Option<ClaimError> {
        let holder = other.filter(|&other| other != term)?;
        let chief = self.chiefs.get(&holder)?;
        let away = match chief.left {
            Some(left) if chief.connections == 0 => Some(now.duration_since(left)),
            _ => None,
        };
        let address = chief.address.clone();
        away.is_none_or(|away| away < self.lease).then_some(ClaimError::Taken { term, holder, address, away })
    }

    /// Forgets every chief that is not connected, is not obeyed, and has no granted claim. None of its
    /// messages can arrive any more. The number of remembered chiefs is then at most the number of
    /// connections plus two.
    fn forget(&mut self) {
        let claimant = self.claimant.map(|(term, _)| term);
        let kept = [self.holder, claimant];
        self.chiefs.retain(|term, chief| chief.connections > 0 || kept.contains(&Some(*term)));
    }
}

#[cfg(test)]
mod tests;
