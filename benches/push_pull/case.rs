//! What is measured: which variables, in which direction, over which transport.

use pushpull::OptimizerSpec;
use serde::{Deserialize, Serialize};

/// One measurement of the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Case {
    pub direction: Direction,
    pub variables: Variables,
    pub transport: Wire,
    pub adam: bool,
    pub workers: u32,
    /// The number of exchanges that a worker has in flight. With 1, it waits for the reply before it begins
    /// the next exchange.
    pub in_flight: u32,
    /// Whether a task looks for the next message for a short time before its thread sleeps, as tasks do by
    /// default.
    pub spins: bool,
}

/// What a worker asks for in each exchange.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Direction {
    Push,
    Pull,
    PushPull,
}

/// The variables of the job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Variables {
    /// 25 variables of 4 MB.
    Dense,
    /// One variable of 400 MB.
    Huge,
    /// One variable of 800 KB.
    Medium,
    /// One variable of 4 KB.
    Small,
    /// 200 variables of 4 KB.
    Many,
    /// The variables of an MLP 784-512-512-10.
    Mlp,
}

/// How worker and ps are connected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Wire {
    Tcp,
    /// A Unix socket and shared memory.
    Shared,
    InProcess,
    /// TCP with TLS, between tasks that have proved who they are.
    Tls,
}

/// A limit of the machine that a measurement is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// This number of raw sockets at once, each with one stream in one direction between two processes.
    Sockets(u32),
    /// Messages of 4 KB to and fro between two processes.
    PingPong,
    /// Copies of 4 MB in memory.
    Copy,
}

impl Variables {
    /// Returns the number of elements of each variable.
    pub(crate) fn elements(self) -> Vec<usize> {
        match self {
            Self::Dense => vec![1_000_000; 25],
            Self::Huge => vec![100_000_000],
            Self::Medium => vec![204_800],
            Self::Small => vec![1024],
            Self::Many => vec![1024; 200],
            Self::Mlp => vec![784 * 512, 512, 512 * 512, 512, 512 * 10, 10],
        }
    }

    /// Returns the number of bytes of all variables.
    pub(crate) fn bytes(self) -> u64 {
        self.elements().iter().map(|&elements| elements as u64 * 4).sum()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Dense => "25x4MB",
            Self::Huge => "1x400MB",
            Self::Medium => "1x800KB",
            Self::Small => "1x4KB",
            Self::Many => "200x4KB",
            Self::Mlp => "mlp",
        }
    }
}

impl Case {
    /// Returns all cases.
    pub(crate) fn all() -> Vec<Self> {
        use Direction::{Pull, Push, PushPull};
        use Variables::{Dense, Huge, Many, Medium, Mlp, Small};
        let case = |direction, variables| Self {
            direction,
            variables,
            transport: Wire::Tcp,
            adam: false,
            workers: 1,
            in_flight: 1,
            spins: true,
        };
        let adam = |case| Self { adam: true, ..case };
        let tls = |case| Self { transport: Wire::Tls, ..case };
        let shared = |case| Self { transport: Wire::Shared, ..case };
        let inside = |case| Self { transport: Wire::InProcess, ..case };
        let by = |workers, case| Self { workers, ..case };
        let flying = |in_flight, case| Self { in_flight, ..case };
        let sleeping = |case| Self { spins: false, ..case };
        vec![
            case(Push, Dense),
            case(Pull, Dense),
            case(PushPull, Dense),
            adam(case(Push, Dense)),
            case(PushPull, Huge),
            by(2, case(PushPull, Dense)),
            by(4, case(PushPull, Huge)),
            by(8, case(PushPull, Mlp)),
            case(PushPull, Mlp),
            case(PushPull, Small),
            sleeping(case(PushPull, Small)),
            case(PushPull, Many),
            sleeping(case(PushPull, Many)),
            case(PushPull, Medium),
            sleeping(case(PushPull, Medium)),
            flying(2, case(PushPull, Dense)),
            flying(2, case(PushPull, Mlp)),
            flying(4, case(PushPull, Small)),
            tls(case(Push, Dense)),
            tls(case(Pull, Dense)),
            tls(case(PushPull, Dense)),
            tls(case(PushPull, Mlp)),
            tls(case(PushPull, Small)),
            shared(case(Push, Dense)),
            shared(case(Pull, Dense)),
            shared(case(PushPull, Dense)),
            shared(adam(case(Push, Dense))),
            shared(by(2, case(PushPull, Dense))),
            shared(flying(2, case(PushPull, Dense))),
            shared(case(PushPull, Huge)),
            shared(by(8, case(PushPull, Mlp))),
            shared(case(PushPull, Mlp)),
            shared(case(PushPull, Small)),
            sleeping(shared(case(PushPull, Small))),
            shared(case(PushPull, Many)),
            inside(case(PushPull, Dense)),
            inside(case(PushPull, Huge)),
            inside(case(PushPull, Small)),
        ]
    }

    /// Returns the name of the workload, without the transport.
    pub(crate) fn workload(&self) -> String {
        let direction = match self.direction {
            Direction::Push => "push",
            Direction::Pull => "pull",
            Direction::PushPull => "push_pull",
        };
        let optimizer = if self.adam { "adam" } else { "sgd" };
        let workers = if self.workers > 1 { format!(" {} workers", self.workers) } else { String::new() };
        let flying =
            if self.in_flight > 1 { format!(" {} in flight", self.in_flight) } else { String::new() };
        let sleeping = if self.spins { "" } else { " without spinning" };
        format!("{direction} {} {optimizer}{workers}{flying}{sleeping}", self.variables.name())
    }

    /// Returns how a worker waits: `closed` if it waits for each reply before it begins the next exchange.
    pub(crate) fn mode(&self) -> String {
        match self.in_flight {
            1 => "closed".to_owned(),
            more => format!("pipelined {more}"),
        }
    }

    /// Returns the name of the transport.
    pub(crate) const fn transport(&self) -> &'static str {
        match self.transport {
            Wire::Tcp => "tcp",
            Wire::Tls => "tls",
            Wire::Shared => "shared_memory",
            Wire::InProcess => "in_process",
        }
    }

    /// Returns the name of the case.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.workload(), self.transport())
    }

    /// Returns the optimizer that the shard applies. Its rate is so small that no value overflows.
    pub(crate) fn optimizer(&self) -> OptimizerSpec {
        match self.adam {
            true => OptimizerSpec::adam(1e-6),
            false => OptimizerSpec::sgd(1e-6),
        }
    }

    /// Returns the number of bytes of values and gradients in one exchange, both directions added.
    pub(crate) fn exchanged(&self) -> u64 {
        let directions = if self.direction == Direction::PushPull { 2 } else { 1 };
        directions * self.variables.bytes()
    }

    /// Returns the limit that the case is compared with: its throughput, or its median time if it is small.
    pub(crate) fn limit(&self) -> Limit {
        match self.variables {
            Variables::Small | Variables::Many | Variables::Medium => Limit::PingPong,
            _ => Limit::Sockets(self.workers.min(2)),
        }
    }
}

impl Limit {
    /// Returns the limits that these cases need, and the copy in memory.
    pub(crate) fn of(cases: &[Case]) -> Vec<Self> {
        let mut limits: Vec<Self> = cases.iter().map(Case::limit).chain([Self::Copy]).collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }

    /// Returns the name of the limit.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Sockets(1) => "raw socket, one way".to_owned(),
            Self::Sockets(pairs) => format!("{pairs} raw sockets, one way"),
            Self::PingPong => "ping-pong of 4 KB".to_owned(),
            Self::Copy => "copy in memory".to_owned(),
        }
    }
}
