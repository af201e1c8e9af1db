//! Tests of workers and ps tasks whose devices run CUDA kernels. The device is emulated; without a card, the
//! programs say what is missing.

use std::sync::Arc;

use pushpull::nn::{Layer, conv2d, dense, flatten, max_pool};
use pushpull::{
    DatasetSpec, Embedded, GraphBuilder, GraphSpec, InputSpec, JobProgress, JobReport, JobSpec, MakeDevice,
    OptimizerSpec, SyncSpec,
};
use pushpull_cuda::{Compiler, Driver, Emulator, Precision};
use pushpull_worker::CudaReplica;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::harness::{Job, Program, tool};

/// The convolutional network of the example `mnist`, with fewer channels.
fn cnn() -> GraphSpec {
    let mut g = GraphBuilder::new("cnn");
    let images = g.input("features", [28, 28]);
    let labels = g.labels("labels");
    let x = g.reshape(images, [28, 28, 1]);
    let x = conv2d("conv1", 4, [3, 3]).relu().apply(&mut g, x);
    let x = max_pool(2).apply(&mut g, x);
    let x = conv2d("conv2", 8, [3, 3]).relu().apply(&mut g, x);
    let x = max_pool(2).apply(&mut g, x);
    let x = flatten().apply(&mut g, x);
    let x = dense("dense1", 16).relu().apply(&mut g, x);
    let logits = dense("logits", 10).apply(&mut g, x);
    let loss = g.softmax_cross_entropy(logits, labels);
    let accuracy = g.accuracy(logits, labels);
    g.finish(loss, &[("accuracy", accuracy)]).expect("a graph")
}

/// The task whose device is emulated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Worker,
    Ps,
}

/// Trains the network with one ps and one worker. One of them may have an emulated device.
fn train(emulated: Option<(Role, &Compiler)>) -> JobReport {
    let digits = |seed, examples| DatasetSpec::Digits { seed, examples };
    let job = JobSpec {
        batch_size: 8,
        seed: 5,
        sync: SyncSpec::SYNC,
        optimizer: OptimizerSpec::adam(0.01),
        ..JobSpec::new(cnn(), InputSpec::new(digits(1, 200), digits(2, 24)), 25)
    };
    let mut cluster = Embedded::new(1, 1);
    if let Some((role, compiler)) = emulated {
        let compiler = compiler.clone();
        match role {
            Role::Worker => {
                cluster.worker_config.replica = Arc::new(move |config| {
                    Ok(Box::new(CudaReplica::new(
                        config,
                        Box::new(Emulator::start(&compiler, 1)?),
                        1.0,
                        Precision::F32,
                    )?))
                });
            }
            Role::Ps => {
                let open = move || Ok(Box::new(Emulator::start(&compiler, 1)?) as Box<dyn Driver + Send>);
                cluster.ps_config.device = Some(MakeDevice::new(open));
            }
        }
    }
    let (tell, _told) = watch::channel(JobProgress::default());
    let run = cluster.run(job, tell, CancellationToken::new());
    actix_rt::System::new().block_on(run).expect("the job trains to its end")
}

#[test]
fn an_emulated_card_trains_to_the_losses_of_the_processor() {
    let compiler = match Compiler::find(concat!(env!("CARGO_TARGET_TMPDIR"), "/emulator")) {
        Ok(compiler) => compiler,
        Err(error) => {
            eprintln!("SKIPPED: {error}, so training on CUDA devices is NOT tested.");
            return;
        }
    };
    let cpu = train(None);
    let numbers = |report: &JobReport| {
        [report.train_loss, report.evaluation.loss, report.evaluation.metrics[0].value].map(f64::from)
    };
    // A network that knows nothing has the loss ln 10 = 2.3.
    assert!(cpu.evaluation.loss < 2.0, "the network learns: {cpu:?}");
    for role in [Role::Worker, Role::Ps] {
        let emulated = train(Some((role, &compiler)));
        println!(
            "losses and accuracy: {:?} on the processor, {:?} {role:?}",
            numbers(&cpu),
            numbers(&emulated)
        );
        for (cpu, emulated) in numbers(&cpu).into_iter().zip(numbers(&emulated)) {
            assert!((cpu - emulated).abs() < 1e-4, "{emulated} on the {role:?}, {cpu} on the processor");
        }
    }
}

#[test]
fn without_a_card_the_tool_says_what_is_missing() {
    let Err(missing) = pushpull_cuda::cards() else {
        eprintln!("SKIPPED: this host has a card, so the error without one is NOT tested.");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let job = Job::new(dir.path(), 30);
    for (flag, device) in [
        ("--devices", "cuda:0"),
        ("--devices", "all"),
        ("--devices", "cuda:0,cpu:0"),
        ("--ps-device", "cuda:0"),
    ] {
        let mut command = tool();
        command.args(["local", "--ps=1", "--workers=1", flag, device, "--job"]);
        Program::run(dir.path(), "local", command.arg(job.path()))
            .expect(1)
            .says(&format!("error: {flag}={device}: {missing}"));
    }
}
