//! Chooses the devices of a graph that several clients build alike: variables are placed on ps tasks, and all
//! other operations on a worker.

use std::sync::Arc;

use parking_lot::Mutex;
use pushpull_messages::cluster::ClusterSpec;
use pushpull_messages::device::{OpDeviceError, OpDeviceSpec};
use pushpull_messages::graph::{GraphSpec, NodeSpec, Op};
use pushpull_messages::id::JobName;

use super::ps_strategy::{PsOp, PsStrategy, RoundRobin};

/// Chooses a device for each operation of a graph, for replicas that share variables. Variables get a ps
/// task, which a strategy chooses, and all other operations get the worker's device.
///
/// An operation that requests a part of a device in a scope within the setter's keeps this part. If it
/// requests another job than the setter's, the strategy is not asked.
///
/// ```
/// use pushpull::{GraphBuilder, InitializerSpec, ReplicaDeviceSetter};
///
/// let setter = ReplicaDeviceSetter::new(2).worker_device("/job:worker/task:1")?;
/// let mut g = GraphBuilder::new("replica");
/// g.device_fn(setter.into_fn(), |g| {
///     let kernel = g.variable("kernel", [], InitializerSpec::Zeros); // on /job:ps/task:0
///     let bias = g.variable("bias", [], InitializerSpec::Zeros); // on /job:ps/task:1
///     g.add(kernel, bias) // on /job:worker/task:1
/// });
/// let graph = g.finish_session()?;
/// let devices: Vec<String> = graph.nodes.iter().map(|node| node.device.unwrap().to_string()).collect();
/// assert_eq!(devices, ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReplicaDeviceSetter {
    ps_tasks: u32,
    ps_device: OpDeviceSpec,
    worker_device: OpDeviceSpec,
    merge_devices: bool,
    cluster: Option<ClusterSpec>,
    ps_ops: Vec<String>,
    strategy: Option<Box<dyn PsStrategy>>,
}

impl ReplicaDeviceSetter {
    /// Makes a setter for `ps_tasks` ps tasks: variables are placed on the tasks of `/job:ps` in turn, and
    /// all other operations on `/job:worker`. If `ps_tasks` is 0, the setter requests no devices at all.
    pub fn new(ps_tasks: u32) -> Self {
        let of = |job| OpDeviceSpec { job: Some(job), ..OpDeviceSpec::default() };
        Self {
            ps_tasks,
            ps_device: of(JobName::Ps),
            worker_device: of(JobName::Worker),
            merge_devices: true,
            cluster: None,
            ps_ops: vec!["variable".to_owned()],
            strategy: None,
        }
    }

    /// Takes the number of ps tasks from a cluster: the number of tasks of the job in the device of the ps
    /// tasks. This replaces the number that the setter was made with.
    #[must_use]
    pub fn cluster(mut self, cluster: &ClusterSpec) -> Self {
        self.cluster = Some(cluster.clone());
        self
    }

    /// Sets the device of the ps tasks; the default is `/job:ps`. The strategy adds the task. With the empty
    /// text, variables are placed like other operations.
    ///
    /// # Errors
    /// If the text is not a device.
    pub fn ps_device(mut self, device: &str) -> Result<Self, OpDeviceError> {
        self.ps_device = device.parse()?;
        Ok(self)
    }

    /// Sets the device of all operations that are not placed on ps tasks, such as `/job:worker/task:1`; the
    /// default is `/job:worker`.
    ///
    /// # Errors
    /// If the text is not a device.
    pub fn worker_device(mut self, device: &str) -> Result<Self, OpDeviceError> {
        self.worker_device = device.parse()?;
        Ok(self)
    }

    /// Sets whether the parts that an operation's device leaves out are filled in, which is the default. If
    /// not, an operation that requests a device gets exactly this device.
    #[must_use]
    pub const fn merge_devices(mut self, merge: bool) -> Self {
        self.merge_devices = merge;
        self
    }

    /// Sets the names of the operations that are placed on ps tasks, as [`Op::name`] returns them. The
    /// default is `variable` alone.
    #[must_use]
    pub fn ps_ops<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.ps_ops = names.into_iter().map(str::to_owned).collect();
        self
    }

    /// Sets how a ps task is chosen, such as
    /// [`GreedyLoadBalancing`](crate::GreedyLoadBalancing) or a closure `|op: &PsOp<'_>| task`. The default
    /// is to choose the tasks in turn.
    #[must_use]
    pub fn strategy(mut self, strategy: impl PsStrategy + 'static) -> Self {
        self.strategy = Some(Box::new(strategy));
        self
    }

    /// Returns the function for [`GraphBuilder::device_fn`](crate::GraphBuilder::device_fn). Its clones share
    /// the strategy, so that one setter can serve several scopes.
    pub fn into_fn(self) -> impl Fn(&NodeSpec, &GraphSpec) -> OpDeviceSpec + Clone + Send + Sync + 'static {
        let Self { ps_tasks, ps_device, worker_device, merge_devices, cluster, ps_ops, strategy } = self;
        let ps_tasks = match (cluster, ps_device.job) {
            (None, _) => ps_tasks,
            (Some(cluster), Some(job)) => cluster.addresses(job).len() as u32,
            (Some(_), None) => 0,
        };
        let strategy = strategy.unwrap_or_else(|| Box::new(RoundRobin::new(ps_tasks.max(1))));
        let strategy = Arc::new(Mutex::new(strategy));
        move |node: &NodeSpec, graph: &GraphSpec| {
            let requested = node.device.unwrap_or_default();
            if ps_tasks == 0 || (!merge_devices && !requested.is_unrestricted()) {
                return requested;
            }
            let is_ps_op = ps_ops.iter().any(|name| name == node.op.name());
            if !is_ps_op || ps_device.is_unrestricted() {
                return worker_device.merge(requested);
            }
            let mut device = ps_device;
            // Another job that the operation requests may have fewer tasks.
            if device.job.is_some() && requested.job.is_none_or(|job| Some(job) == device.job) {
                let variable = match node.op {
                    Op::Variable { variable } => graph.variables.get(variable.index()),
                    _ => None,
                };
                device.task = Some(strategy.lock().task(&PsOp { node, variable }));
            }
            device.merge(requested)
        }
    }
}

impl std::fmt::Debug for ReplicaDeviceSetter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicaDeviceSetter")
            .field("ps_tasks", &self.ps_tasks)
            .field("ps_device", &self.ps_device)
            .field("worker_device", &self.worker_device)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pushpull_messages::graph::GraphBuilder;
    use pushpull_messages::variable::InitializerSpec;

    use super::*;
    use crate::session::{GreedyLoadBalancing, byte_size_load_fn};

    /// Returns the device of each node that `build` adds under a setter; empty if it requests none.
    fn devices(setter: ReplicaDeviceSetter, build: impl FnOnce(&mut GraphBuilder)) -> Vec<String> {
        let mut g = GraphBuilder::new("g");
        g.device_fn(setter.into_fn(), build);
        let graph = g.finish_session().unwrap();
        graph.nodes.iter().map(|node| node.device.unwrap_or_default().to_string()).collect()
    }

    fn three(g: &mut GraphBuilder) {
        let variable = |g: &mut GraphBuilder, name: &str| g.variable(name, [2], InitializerSpec::Zeros);
        let plain = variable(g, "plain");
        g.device("/cpu:1", |g| variable(g, "on_cpu"));
        g.device("/job:worker", |g| variable(g, "on_worker"));
        g.device("/job:ps/task:7", |g| variable(g, "on_seven"));
        let last = variable(g, "last");
        g.device("/gpu:0", |g| g.add(plain, last));
    }

    #[test]
    fn variables_take_turns_and_keep_requested_parts() {
        let setter = ReplicaDeviceSetter::new(3).worker_device("/job:worker/task:4/cpu:0").unwrap();
        let expected = [
            "/job:ps/task:0",
            "/job:ps/task:1/device:CPU:1",
            "/job:worker",
            "/job:ps/task:7",
            "/job:ps/task:0",
            "/job:worker/task:4/device:GPU:0",
        ];
        assert_eq!(devices(setter, three), expected);
    }

    #[test]
    fn without_merging_requests_stay_as_they_are() {
        let setter = ReplicaDeviceSetter::new(2).merge_devices(false);
        let expected = [
            "/job:ps/task:0",
            "/device:CPU:1",
            "/job:worker",
            "/job:ps/task:7",
            "/job:ps/task:1",
            "/device:GPU:0",
        ];
        assert_eq!(devices(setter, three), expected);
    }

    #[test]
    fn a_cluster_gives_the_number_of_tasks() {
        let params = ("params".parse().unwrap(), vec!["p:1", "p:2"]);
        let two = ClusterSpec::new([params, (JobName::Worker, vec!["w:1"])]).unwrap();
        let setter = || ReplicaDeviceSetter::new(9).ps_device("/job:params/cpu:0").unwrap();
        let got = devices(setter().cluster(&two), |g| {
            for name in ["a", "b", "c"] {
                g.variable(name, [], InitializerSpec::Zeros);
            }
        });
        let expected = [0, 1, 0].map(|task| format!("/job:params/task:{task}/device:CPU:0"));
        assert_eq!(got, expected);
        let none = ClusterSpec::new([(JobName::Worker, vec!["w:1"])]).unwrap();
        let got = devices(setter().cluster(&none), three);
        assert_eq!(got[0], "", "without ps tasks, the setter requests nothing");
        assert_eq!(got[5], "/device:GPU:0");
    }

    #[test]
    fn other_operations_may_count_as_variables() {
        let setter = ReplicaDeviceSetter::new(2).ps_ops(["constant"]);
        let got = devices(setter, |g| {
            g.variable("v", [], InitializerSpec::Zeros);
            g.value(1.0f32);
            g.value(vec![1i64, 2]);
        });
        assert_eq!(got, ["/job:worker", "/job:ps/task:0", "/job:ps/task:1"]);
    }

    #[test]
    fn a_closure_is_a_strategy() {
        let own = |op: &PsOp<'_>| u32::from(op.variable.is_some_and(|variable| variable.name == "b"));
        let got = devices(ReplicaDeviceSetter::new(2).strategy(own), |g| {
            for name in ["a", "b", "c"] {
                g.variable(name, [], InitializerSpec::Zeros);
            }
        });
        assert_eq!(got, [0, 1, 0].map(|task| format!("/job:ps/task:{task}")));
    }

    #[test]
    fn scopes_of_one_setter_share_its_turns() {
        let choose = ReplicaDeviceSetter::new(2).into_fn();
        let mut g = GraphBuilder::new("g");
        for name in ["a", "b"] {
            g.device_fn(choose.clone(), |g| g.variable(name, [], InitializerSpec::Zeros));
        }
        let graph = g.finish_session().unwrap();
        assert_eq!(graph.nodes[1].device, Some("/job:ps/task:1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn every_variable_is_on_one_of_the_tasks(
            sizes in prop::collection::vec(1usize..1000, 1..30),
            tasks in 1u32..7,
            greedy: bool,
            merge: bool,
        ) {
            let setter = ReplicaDeviceSetter::new(tasks).merge_devices(merge);
            let setter = match greedy {
                true => setter.strategy(GreedyLoadBalancing::new(tasks, byte_size_load_fn)),
                false => setter,
            };
            let got = devices(setter, |g| {
                for (position, &size) in sizes.iter().enumerate() {
                    g.variable(&format!("v{position}"), [size], InitializerSpec::Zeros);
                }
            });
            let allowed: Vec<String> = (0..tasks).map(|task| format!("/job:ps/task:{task}")).collect();
            prop_assert!(got.iter().all(|device| allowed.contains(device)), "{got:?}");
            if !greedy {
                let turns = (0..sizes.len()).map(|position| &allowed[position % tasks as usize]);
                prop_assert!(got.iter().eq(turns), "{got:?}");
            }
        }
    }
}
