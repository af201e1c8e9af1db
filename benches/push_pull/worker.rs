//! A worker without a model: it pushes what its buffers hold, and pulls values that it does not use.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pushpull::PsConfig;
use pushpull_messages::id::{LocalStep, TaskId, VariableId, Version};
use pushpull_ps::Ps;
use pushpull_transport::buffer::{BufferPool, Payload};
use pushpull_transport::{InProcess, RetryConfig, Transport};
use pushpull_worker::{ClientConfig, Parameters};
use tokio_util::sync::CancellationToken;

use crate::case::{Direction, Wire};
use crate::child::{Measured, report, wait_to_begin};
use crate::cluster::{START, Setup};
use crate::figures::percentiles;
use crate::usage;

/// The number of exchanges before the measurement. They fill the pools and take the page faults.
const WARM_UP: u64 = 5;
/// The gradient bytes that a worker may have in flight.
const IN_FLIGHT_BYTES_MAX: u64 = 4 << 30;

/// A worker, and where it is in its exchanges.
struct Exchanger {
    parameters: Parameters,
    direction: Direction,
    /// The number of exchanges in flight.
    in_flight: usize,
    versions: Vec<Version>,
    /// The number of pushes so far.
    pushed: u64,
    variables: u32,
}

impl Exchanger {
    async fn join(
        setup: &Setup,
        index: u32,
        transport: Arc<dyn Transport>,
        pool: &BufferPool,
    ) -> anyhow::Result<Self> {
        let identity = setup.identity(TaskId::worker(index));
        let config = ClientConfig {
            start_timeout: START,
            retry: RetryConfig::default(),
            in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
        };
        let (placement, variables) = (setup.placement(), setup.variables());
        let mut parameters =
            Parameters::connect(&transport, &identity, &placement, &variables, pool, config).await?;
        let joined = parameters.join(pushpull::SyncSpec::ASYNC).await?;
        let (direction, variables) = (setup.case.direction, variables.len() as u32);
        let in_flight = setup.case.in_flight as usize;
        Ok(Self { parameters, direction, in_flight, versions: joined.versions, pushed: 0, variables })
    }

    /// Returns the gradients of a step. Their buffers come from the pool. Only the first exchanges write
    /// them; later ones push what the buffers hold, such as values that were pulled, so that the worker's own
    /// work does not count.
    fn gradients(&self) -> Vec<Payload> {
        let mut gradients = self.parameters.gradients();
        if self.pushed < WARM_UP {
            (0..self.variables).for_each(|variable| gradients.variable_mut(VariableId(variable)).fill(1e-3));
        }
        gradients.into_payloads()
    }

    async fn exchange(&mut self) -> anyhow::Result<()> {
        if self.direction == Direction::Pull {
            self.parameters.pull(false).await?;
            return Ok(());
        }
        let (gradients, step) = (self.gradients(), self.pushed + 1);
        self.versions = match self.direction {
            Direction::Push => {
                self.parameters.push(gradients, LocalStep(step), step, &self.versions).await?.versions
            }
            _ => {
                let pushed =
                    self.parameters.push_pull(gradients, LocalStep(step), step, &self.versions, false);
                pushed.await?.versions
            }
        };
        self.pushed = step;
        Ok(())
    }

    /// Exchanges while `more` returns true for the number of exchanges so far, with one exchange in flight.
    /// Returns the time of each exchange.
    async fn exchange_one_by_one(
        &mut self,
        mut more: impl FnMut(usize) -> bool,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        while more(times.len()) {
            let sent = Instant::now();
            self.exchange().await?;
            times.push(sent.elapsed());
        }
        Ok(times)
    }

    /// Exchanges while `more` returns true for the number of exchanges that have begun, with several
    /// exchanges in flight. Returns the time of each exchange.
    async fn exchange_in_flight(
        &mut self,
        mut more: impl FnMut(usize) -> bool,
    ) -> anyhow::Result<Vec<Duration>> {
        let (mut flying, mut times) = (VecDeque::new(), Vec::new());
        loop {
            while flying.len() < self.in_flight && more(times.len() + flying.len()) {
                let (sent, gradients, step) = (Instant::now(), self.gradients(), self.pushed + 1);
                let versions = &self.versions;
                let begun =
                    self.parameters.begin_push_pull(gradients, LocalStep(step), step, versions, false);
                flying.push_back((sent, begun));
                self.pushed = step;
            }
            let Some((sent, mut exchange)) = flying.pop_front() else { return Ok(times) };
            self.versions = exchange.wait().await?.versions;
            times.push(sent.elapsed());
        }
    }

    async fn exchange_while(&mut self, more: impl FnMut(usize) -> bool) -> anyhow::Result<Vec<Duration>> {
        match self.in_flight {
            1 => self.exchange_one_by_one(more).await,
            _ => self.exchange_in_flight(more).await,
        }
    }

    /// Exchanges until the time that the benchmark has chosen is over, and reports what it measured.
    async fn measure(mut self, setup: &Setup) -> anyhow::Result<()> {
        self.exchange_while(|exchanges| exchanges < WARM_UP as usize).await?;
        let limit = Duration::from_secs_f64(wait_to_begin()?);
        let (began, cpu) = (Instant::now(), usage::cpu_of_self()?);
        let times = self.exchange_while(|_| began.elapsed() < limit).await?;
        let (seconds, cpu_s) = (began.elapsed().as_secs_f64(), usage::cpu_of_self()? - cpu);
        let bytes = times.len() as u64 * setup.case.exchanged();
        let (times_us, peak_bytes) = (percentiles(times), usage::peak_of("self")?);
        report(&Measured { seconds, bytes, times_us, cpu_s, peak_bytes })
    }
}

/// Exchanges with a ps task in another process.
pub(crate) async fn run(setup: &Setup, index: u32) -> anyhow::Result<()> {
    let local = setup.case.transport == Wire::Shared;
    let pool = if local { BufferPool::shared() } else { BufferPool::default() };
    let transport: Arc<dyn Transport> = Arc::new(setup.tcp(pool.clone(), TaskId::worker(index))?);
    Exchanger::join(setup, index, transport, &pool).await?.measure(setup).await
}

/// Exchanges with a ps task in this process.
pub(crate) async fn run_embedded(setup: &Setup) -> anyhow::Result<()> {
    let pool = BufferPool::default();
    let transport: Arc<dyn Transport> = Arc::new(InProcess::new());
    let listener = transport.listen(&setup.ps_address()?).await?;
    let ps = Ps::start(PsConfig::default(), setup.identity(TaskId::ps(0)), listener, &pool)?;
    let _serving = actix_rt::spawn(ps.run(CancellationToken::new()));
    let _chief = setup.lead(&*transport).await?;
    Exchanger::join(setup, 0, transport, &pool).await?.measure(setup).await
}
