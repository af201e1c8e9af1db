//! Tests the properties (A) to (E) of claims that `mod.rs` lists. The tests cover one task under random
//! events, and several chiefs that claim the tasks of one cluster over a network that delays, reorders and
//! repeats messages.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(10);

/// Returns the term of a chief. Two chiefs may have the same incarnation.
fn term(chief: u64) -> Term {
    Term { incarnation: Incarnation(1 + chief / 2), nonce: (chief % 2) << 60 }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Connect,
    Disconnect,
    /// A claim of the chief arrives. If `copy_of` is the number of an earlier claim that can still arrive,
    /// it is a copy of that claim; otherwise, it is a new claim with the next number.
    Claim {
        copy_of: Option<u64>,
    },
    /// The chief's withdrawal of the claim `copy_of` arrives, or of its latest claim if `copy_of` is `None`
    /// or a later number.
    Withdraw {
        copy_of: Option<u64>,
    },
    Order,
    Wait(u64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let copy_of = || prop::option::of(1u64..6);
    prop_oneof![
        4 => Just(Event::Connect),
        3 => Just(Event::Disconnect),
        5 => copy_of().prop_map(|copy_of| Event::Claim { copy_of }),
        2 => copy_of().prop_map(|copy_of| Event::Withdraw { copy_of }),
        5 => Just(Event::Order),
        2 => (0u64..15).prop_map(Event::Wait),
    ]
}

/// What a test knows of a chief.
#[derive(Clone, Debug)]
struct Known {
    connections: usize,
    left: Instant,
    attempts: u64,
    withdrawn: u64,
    /// The number of an attempt. Messages of this attempt and of earlier ones can no longer arrive, not even
    /// as copies, because the connections over which they were sent are closed.
    gone: u64,
}

impl Known {
    fn is_here(&self, now: Instant) -> bool {
        self.connections > 0 || now - self.left < LEASE
    }
}

/// The claims of one task, and what the test knows about its chiefs, from which the expected replies follow.
struct OneTask {
    claims: Claims,
    chiefs: BTreeMap<Term, Known>,
    now: Instant,
    obeyed: Option<Term>,
    /// The chief whose claim was granted last, and the number of that claim. `None` if the chief has then
    /// given an order or withdrawn the claim.
    claimant: Option<(Term, u64)>,
}

impl OneTask {
    /// Returns true if `other`, the chief that has the task, is not `chief` and is still here.
    fn is_taken(&self, chief: Term, other: Option<Term>) -> bool {
        other.is_some_and(|other| other != chief && self.chiefs[&other].is_here(self.now))
    }

    fn happen(&mut self, chief: Term, event: Event) -> Result<(), TestCaseError> {
        let now = self.now;
        let new = Known { connections: 0, left: now, attempts: 0, withdrawn: 0, gone: 0 };
        let known = self.chiefs.entry(chief).or_insert(new);
        match event {
            Event::Wait(seconds) => self.now += Duration::from_secs(seconds),
            Event::Connect => {
                known.connections += 1;
                self.claims.connected(chief, "here");
            }
            // Without a connection, no message of the chief can arrive.
            _ if known.connections == 0 => {}
            Event::Disconnect => {
                (known.connections, known.left) = (known.connections - 1, now);
                if known.connections == 0 {
                    known.gone = known.withdrawn;
                }
                self.claims.disconnected(chief, now);
            }
            Event::Claim { copy_of } => self.claim(chief, copy_of)?,
            Event::Withdraw { copy_of } => {
                let attempt = copy_of.unwrap_or(known.attempts).min(known.attempts);
                known.withdrawn = known.withdrawn.max(attempt);
                self.claimant = self.claimant.filter(|&(other, granted)| other != chief || granted > attempt);
                self.claims.withdraw(chief, attempt);
            }
            Event::Order => self.order(chief)?,
        }
        Ok(())
    }

    fn claim(&mut self, chief: Term, copy_of: Option<u64>) -> Result<(), TestCaseError> {
        let (now, obeyed) = (self.now, self.obeyed);
        let known = self.chiefs.get_mut(&chief).expect("it is connected");
        let attempt = match copy_of {
            Some(earlier) if earlier > known.gone && earlier <= known.attempts => earlier,
            _ => known.attempts + 1,
        };
        known.attempts = known.attempts.max(attempt);
        let withdrawn = attempt <= known.withdrawn;
        let taken =
            self.is_taken(chief, obeyed) || self.is_taken(chief, self.claimant.map(|(other, _)| other));
        match self.claims.claim(chief, attempt, now) {
            Ok(()) if obeyed == Some(chief) => {}
            Ok(()) => {
                prop_assert!(!taken, "(A)");
                prop_assert!(!withdrawn, "(C)");
                prop_assert_eq!(self.claims.claim(chief, attempt, now), Ok(()), "(D)");
                self.claimant = Some((chief, attempt));
            }
            Err(ClaimError::Taken { term, holder, .. }) => {
                prop_assert!(taken && term == chief && holder != chief && obeyed != Some(chief));
            }
            Err(error) => prop_assert!(withdrawn, "{error}"),
        }
        Ok(())
    }

    fn order(&mut self, chief: Term) -> Result<(), TestCaseError> {
        let taken = self.is_taken(chief, self.obeyed);
        let granted = self.claimant.is_some_and(|(claimant, _)| claimant == chief);
        match self.claims.order(chief, self.now) {
            Ok(()) if self.obeyed == Some(chief) => {}
            Ok(()) => {
                prop_assert!(!taken, "(A)");
                prop_assert!(granted, "(B)");
                (self.obeyed, self.claimant) = (Some(chief), None);
            }
            Err(error) => {
                prop_assert!(self.obeyed != Some(chief) && (taken || !granted), "{error}");
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn a_task_obeys_one_chief_at_a_time(
        events in prop::collection::vec((0u64..4, any_event()), 0..120),
    ) {
        let (claims, now) = (Claims::new(LEASE), Instant::now());
        let mut task = OneTask { claims, chiefs: BTreeMap::new(), now, obeyed: None, claimant: None };
        for (chief, event) in events {
            task.happen(term(chief), event)?;
            let connected = task.chiefs.values().filter(|known| known.connections > 0).count();
            prop_assert!(task.claims.chiefs.len() <= connected + 2, "the number of chiefs is bounded");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Claim(u64),
    Withdraw(u64),
    Order,
}

/// A chief that claims all tasks: the first one, then all others at once. The chief withdraws its claim if a
/// task refuses the claim, and gives orders once all tasks have granted it.
#[derive(Clone, Debug, Default)]
struct Claiming {
    attempt: u64,
    /// The tasks whose replies to the claim the chief still awaits.
    awaited: Vec<usize>,
    first_granted: bool,
    refused: bool,
    /// Whether the chief gives orders.
    orders: bool,
}

/// A cluster with several chiefs. A message that is on its way may be repeated, and other messages may
/// overtake it.
struct Cluster {
    tasks: Vec<Claims>,
    chiefs: Vec<Claiming>,
    on_the_way: Vec<(usize, usize, Sent)>,
    now: Instant,
    /// For each task, the chief that the task has obeyed, if any.
    obeyed: Vec<Option<usize>>,
}

impl Cluster {
    fn new(tasks: usize, chiefs: usize) -> Self {
        let connected = |_| {
            let mut claims = Claims::new(LEASE);
            (0..chiefs).for_each(|chief| claims.connected(term(chief as u64), "here"));
            claims
        };
        let tasks: Vec<_> = (0..tasks).map(connected).collect();
        let (chiefs, obeyed) = (vec![Claiming::default(); chiefs], vec![None; tasks.len()]);
        Self { tasks, chiefs, on_the_way: Vec::new(), now: Instant::now(), obeyed }
    }

    fn send(&mut self, chief: usize, tasks: impl IntoIterator<Item = usize>, sent: Sent) {
        self.on_the_way.extend(tasks.into_iter().map(|task| (chief, task, sent)));
    }

    /// Lets a chief that awaits no reply begin its next attempt.
    fn begin(&mut self, chief: usize) {
        let claiming = &mut self.chiefs[chief];
        if claiming.orders || !claiming.awaited.is_empty() {
            return;
        }
        let attempt = claiming.attempt + 1;
        *claiming = Claiming { attempt, awaited: vec![0], ..Claiming::default() };
        self.send(chief, [0], Sent::Claim(attempt));
    }

    /// Delivers the message at index `which` of `on_the_way`. If `again` is true, the message also stays on
    /// its way, so that it arrives once more.
    fn deliver(&mut self, which: usize, again: bool) -> Result<(), TestCaseError> {
        let (chief, task, sent) = self.on_the_way[which];
        if !again {
            self.on_the_way.swap_remove(which);
        }
        let (claims, now, own) = (&mut self.tasks[task], self.now, term(chief as u64));
        match sent {
            Sent::Withdraw(attempt) => claims.withdraw(own, attempt),
            Sent::Order => {
                prop_assert_eq!(claims.order(own, now), Ok(()), "all tasks have granted the claim");
                prop_assert!(self.obeyed[task].is_none_or(|obeyed| obeyed == chief), "(A)");
                self.obeyed[task] = Some(chief);
            }
            Sent::Claim(attempt) => {
                let granted = claims.claim(own, attempt, now).is_ok();
                self.hear(chief, task, attempt, granted);
            }
        }
        Ok(())
    }

    /// Passes a task's reply to the chief that sent the claim. The chief ignores repeated replies and
    /// replies to its earlier attempts.
    fn hear(&mut self, chief: usize, task: usize, attempt: u64, granted: bool) {
        let all = self.tasks.len();
        let claiming = &mut self.chiefs[chief];
        let Some(place) = claiming.awaited.iter().position(|&awaited| awaited == task) else { return };
        if attempt != claiming.attempt {
            return;
        }
        claiming.awaited.remove(place);
        claiming.refused |= !granted;
        if !claiming.awaited.is_empty() {
            return;
        }
        if claiming.refused {
            return self.send(chief, 0..all, Sent::Withdraw(attempt));
        }
        if !std::mem::replace(&mut claiming.first_granted, true) && all > 1 {
            claiming.awaited.extend(1..all);
            return self.send(chief, 1..all, Sent::Claim(attempt));
        }
        claiming.orders = true;
        self.send(chief, 0..all, Sent::Order);
    }
}

proptest! {
    /// Checks that at most one chief gets all tasks (E), and that one of the chiefs does in the end.
    #[test]
    fn one_chief_gets_all_tasks_or_none(
        tasks in 1usize..5,
        chiefs in 1usize..4,
        moves in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4), 0..200),
    ) {
        let mut cluster = Cluster::new(tasks, chiefs);
        for (which, kind) in moves {
            match kind {
                0 => cluster.begin(which.index(chiefs)),
                _ if cluster.on_the_way.is_empty() => {}
                _ => cluster.deliver(which.index(cluster.on_the_way.len()), kind == 1)?,
            }
            prop_assert!(cluster.chiefs.iter().filter(|chief| chief.orders).count() <= 1, "(E)");
        }
        // From now on every message arrives, once and in order.
        for _ in 0..3 {
            while !cluster.on_the_way.is_empty() {
                let (first, rest) = (cluster.on_the_way.remove(0), cluster.on_the_way.len());
                cluster.on_the_way.push(first);
                cluster.deliver(rest, false)?;
            }
            (0..chiefs).for_each(|chief| cluster.begin(chief));
        }
        let leader = cluster.chiefs.iter().position(|chief| chief.orders);
        prop_assert!(leader.is_some(), "{:?}", cluster.chiefs);
        prop_assert!(cluster.obeyed.iter().all(|obeyed| *obeyed == leader), "(E)");
    }
}

#[test]
fn a_chief_that_is_away_loses_its_task_only_to_an_order() {
    let (now, [first, second]) = (Instant::now(), [0, 2].map(term));
    let mut claims = Claims::new(LEASE);
    [first, second].into_iter().for_each(|chief| claims.connected(chief, "there"));
    claims.claim(first, 1, now).unwrap();
    claims.order(first, now).unwrap();
    let refused = claims.claim(second, 1, now).unwrap_err().to_string();
    assert_eq!(
        refused,
        "it belongs to the chief with term 1-0000 from there, which is connected: end one of the two; this chief has term 2-0000"
    );
    claims.disconnected(first, now);
    let early = now + LEASE - Duration::from_secs(1);
    let refused = claims.claim(second, 2, early).unwrap_err().to_string();
    assert!(refused.contains("which left 9 s ago and may come back; this chief"), "{refused}");
    // The second chief's claim is granted and withdrawn, so the first one has lost nothing.
    let late = now + LEASE;
    claims.claim(second, 3, late).unwrap();
    claims.withdraw(second, 3);
    assert_eq!(claims.order(second, late), Err(ClaimError::Unclaimed { term: second }));
    assert!(claims.claim(second, 3, late).is_err(), "(C)");
    claims.connected(first, "there");
    claims.order(first, late).unwrap();
    claims.disconnected(first, late);
    // An order of the second chief takes the task.
    let later = late + LEASE;
    claims.claim(second, 4, later).unwrap();
    claims.order(second, later).unwrap();
    claims.connected(first, "there");
    assert!(matches!(claims.order(first, later), Err(ClaimError::Taken { .. })), "(A)");
    // The first chief learns of it even if it gives no order.
    assert!(matches!(claims.observe(first, later), Err(ClaimError::Taken { .. })));
    claims.observe(second, later).unwrap();
}

#[test]
fn a_chief_that_never_began_stops_no_task_of_another() {
    let (now, [first, second]) = (Instant::now(), [0, 2].map(term));
    let mut claims = Claims::new(LEASE);
    [first, second].into_iter().for_each(|chief| claims.connected(chief, "there"));
    // The first chief waits for other ps tasks, and has claimed none.
    claims.claim(second, 1, now).unwrap();
    assert!(matches!(claims.stop(second, now), Err(ClaimError::Taken { holder, .. }) if holder == first));
    claims.disconnected(first, now);
    assert_eq!(claims.stop(second, now), Ok(()), "nobody else is there");
    claims.connected(first, "there");
    assert_eq!(claims.stop(second, now), Ok(()), "it is obeyed already");
}
