//! Checks that no gradient is lost or applied twice: with SGD, a value is the initial one minus the learning
//! rate times the sum of the gradients of all pushes that were applied. The check adds up whole shards.

use std::collections::{BTreeMap, HashMap, HashSet};

use pushpull_kernels::cpu::{Encoding, Threads};
use pushpull_messages::compression::EncodingSpec;
use pushpull_messages::id::{RequestId, ShardId, TaskId};
use pushpull_messages::message::{CreateShard, Message, PushId, Verdict};
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::placement::SliceSpec;
use pushpull_messages::sync::SyncSpec;
use pushpull_transport::buffer::{Payload, Segment};
use pushpull_transport::wire::Envelope;

/// How far the sum of a shard's values may be off because of rounding.
const TOLERANCE: f64 = 5e-4;

/// The sums of all shards in one life of a job.
#[derive(Debug, Default)]
pub struct Sums {
    shards: BTreeMap<ShardId, Shard>,
    /// The requests that have arrived, by sender, receiver and number.
    requests: BTreeMap<(TaskId, TaskId, RequestId), Request>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    shard: ShardId,
    /// The push, if the request is one.
    push: Option<PushId>,
}

#[derive(Debug)]
struct Shard {
    epoch: u64,
    /// The learning rate; `None` if it changes, or if updates have other terms.
    rate: Option<f64>,
    /// For each gradient of a push, its number of elements, and its encoding if it has one.
    sent: Vec<(usize, Option<Encoding>)>,
    /// Whether the values in the replies to pushes are exact.
    exact: bool,
    /// The version with which the shard was created, once it has said so.
    began: Option<u64>,
    /// The sum of the values at that version, once a reply had them.
    initial: Option<f64>,
    /// The sum of the gradients of each push that has arrived.
    gradients: HashMap<PushId, f64>,
    /// The pushes that the shard says it has applied, and the sum of their gradients.
    applied: HashSet<PushId>,
    sum: f64,
    /// The greatest version in a reply.
    newest: u64,
}

impl Shard {
    fn new(create: &CreateShard) -> Self {
        let at_once =
            matches!(create.sync, SyncSpec::Async { staleness_lr: false } | SyncSpec::Bounded { .. });
        let rate = match create.update.optimizer {
            OptimizerSpec::Sgd { learning_rate } if at_once => Some(f64::from(learning_rate)),
            _ => None,
        };
        let mut sent: Vec<_> =
            create.placement.on_shard(create.shard).map(|(_, slice)| sent(create, slice)).collect();
        // The last slice is sent first.
        sent.reverse();
        Self {
            epoch: create.placement.epoch.0,
            rate,
            sent,
            exact: create.compression.iter().all(|entry| entry.values.is_none()),
            began: None,
            initial: None,
            gradients: HashMap::new(),
            applied: HashSet::new(),
            sum: 0.0,
            newest: 0,
        }
    }

    /// Returns the sum of all elements of the gradients of a push; 0 if the shard will refuse them.
    fn sum_of_gradients(&self, payload: &Payload) -> f64 {
        let gradients = payload.segments().iter().zip(&self.sent);
        let sums = gradients.map(|(segment, &(elements, encoding))| match encoding {
            Some(encoding) if segment.len() == encoding.bytes(elements) => {
                let mut numbers = vec![0.0; elements];
                let decoded = encoding.decode(&mut numbers, segment.as_bytes(), Threads::One).is_ok();
                numbers.iter().filter(|_| decoded).map(|&x| f64::from(x)).sum()
            }
            _ => segment.as_f32().iter().map(|&x| f64::from(x)).sum::<f64>(),
        });
        sums.sum()
    }

    /// Sees the values of a version. They are predictable if no later version is known, and as many pushes
    /// are known as lead to it: these are then the pushes that it has.
    fn saw_values(&mut self, version: u64, values: f64) -> Result<(), String> {
        let (Some(rate), Some(began)) = (self.rate, self.began) else { return Ok(()) };
        if version == began {
            self.initial = Some(values);
        }
        self.newest = self.newest.max(version);
        let knows_all = version == self.newest && version - began == self.applied.len() as u64;
        let Some(initial) = self.initial.filter(|_| knows_all) else { return Ok(()) };
        let expected = initial - rate * self.sum;
        if (values - expected).abs() <= TOLERANCE {
            return Ok(());
        }
        Err(format!(
            "the values of version {version} add up to {values}, but the applied pushes give {expected}"
        ))
    }
}

impl Sums {
    /// Sees that a message has arrived.
    ///
    /// # Errors
    /// If the message has values that do not follow from the pushes that were applied.
    pub fn saw(&mut self, from: TaskId, to: TaskId, envelope: &Envelope) -> Result<(), String> {
        let Envelope { request, message, payload } = envelope;
        let mut asks = |shard, push| {
            let shard = ShardId::new(to.index, shard);
            self.requests.insert((from, to, *request), Request { shard, push });
            shard
        };
        match message {
            Message::CreateShard(create) => {
                let shard = asks(create.shard.shard, None);
                let known = self.shards.get(&shard).map(|known| known.epoch);
                if known.is_none_or(|epoch| epoch < create.placement.epoch.0) {
                    self.shards.insert(shard, Shard::new(create));
                    self.requests.retain(|_, request| request.shard != shard);
                    self.requests.insert((from, to, *request), Request { shard, push: None });
                }
            }
            Message::SetLearningRate(set) => {
                let shard = asks(set.shard, None);
                self.shards.entry(shard).and_modify(|shard| shard.rate = None);
            }
            Message::Pull(pull) if !pull.averages => drop(asks(pull.shard, None)),
            Message::Push(push) => {
                let shard = asks(push.shard, Some(push.id));
                if let Some(shard) = self.shards.get_mut(&shard) {
                    shard.gradients.insert(push.id, shard.sum_of_gradients(payload));
                }
            }
            _ => return self.saw_reply(from, to, envelope),
        }
        Ok(())
    }

    fn saw_reply(&mut self, from: TaskId, to: TaskId, envelope: &Envelope) -> Result<(), String> {
        let Some(request) = self.requests.remove(&(to, from, envelope.request)) else { return Ok(()) };
        let Some(shard) = self.shards.get_mut(&request.shard) else { return Ok(()) };
        let version = match &envelope.message {
            Message::ShardCreated(created) => {
                shard.began = Some(created.version.0);
                return Ok(());
            }
            Message::Pushed(pushed) => {
                let id = request.push.filter(|_| pushed.verdict == Verdict::Applied);
                if let Some(id) = id.filter(|id| shard.applied.insert(*id)) {
                    shard.sum += shard.gradients.remove(&id).unwrap_or_default();
                }
                if pushed.slices.is_empty() || !shard.exact {
                    shard.newest = shard.newest.max(pushed.version.0);
                    return Ok(());
                }
                pushed.version
            }
            Message::Pulled(pulled) => pulled.version,
            _ => return Ok(()),
        };
        shard
            .saw_values(version.0, sum(&envelope.payload))
            .map_err(|error| format!("{}: a gradient was lost or counted twice: {error}", request.shard))
    }
}

/// Returns the number of elements of a slice, and the encoding of its gradients.
fn sent(create: &CreateShard, slice: SliceSpec) -> (usize, Option<Encoding>) {
    let elements = slice.elements(&create.variables[slice.variable.index()]);
    let encoding = create.sent_as(slice).gradients.map(|encoding| match encoding {
        EncodingSpec::Fp16 => Encoding::Fp16,
        EncodingSpec::Bf16 => Encoding::Bf16,
        EncodingSpec::Int8 => Encoding::Int8,
        EncodingSpec::TopK { fraction } => Encoding::TopK { fraction },
    });
    (elements, encoding.filter(|encoding| encoding.shrinks(elements)))
}

/// Returns the sum of all elements.
fn sum(payload: &Payload) -> f64 {
    payload.segments().iter().flat_map(Segment::as_f32).map(|&x| f64::from(x)).sum()
}
