//! Tests that the Python packages `safetensors` and `tensorboard` can read the files that a job has written,
//! and that models can be exchanged with Python.

use std::ffi::OsStr;
use std::fs;

use pushpull::{
    Cluster as LibraryCluster, DatasetSpec, Examples, GraphBuilder, GraphSpec, InitializerSpec, InputSpec,
    Job as LibraryJob, Model, OptimizerSpec,
};

use crate::harness::{Cluster, Job, Program, Running, tool};
use crate::venv::Venv;

use super::{directory, list};

/// A script that opens the given safetensors files, and prints the shape, type and sum of every tensor.
const READ_TENSORS: &str = r#"
import json, sys, pathlib
from safetensors import safe_open
out = {}
for path in sys.argv[1:]:
    with safe_open(path, framework="np") as file:
        for name in file.keys():
            tensor = file.get_tensor(name)
            out[pathlib.Path(path).name + "|" + name] = [list(tensor.shape), str(tensor.dtype), float(tensor.astype("float64").sum())]
print(json.dumps(out))
"#;

/// A script that prints the shape, type and bytes of every tensor of a model, and writes a model with twice
/// the values, in another order and with a tensor more.
const DOUBLE_A_MODEL: &str = r#"
import json, sys, numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
tensors = load_file(sys.argv[1])
print(json.dumps({name: [list(t.shape), str(t.dtype), t.astype("<f4").tobytes().hex()] for name, t in tensors.items()}))
doubled = {name: numpy.array(tensors[name] * 2, dtype="float32") for name in sorted(tensors, reverse=True)}
doubled["another"] = numpy.arange(3, dtype="int64")
save_file(doubled, sys.argv[2])
"#;

/// A script that reads a directory of event files, and prints their content.
const READ_EVENTS: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
print(json.dumps({
    "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: [[e.step, e.histogram_value.num] for e in events.Histograms(tag)] for tag in tags["histograms"]},
    "texts": [tag for tag in tags["tensors"]],
    "graph": [node.name for node in __import__("tensorboard.compat.proto.graph_pb2", fromlist=["GraphDef"]).GraphDef.FromString(events.Graph().SerializeToString()).node] if tags["graph"] else [],
}))
"#;

fn python(venv: &Venv, script: &str, args: &[String]) -> serde_json::Value {
    let args: Vec<_> = args.iter().map(OsStr::new).collect();
    serde_json::from_str(&venv.run(script, &args)).expect("the script prints JSON")
}

#[test]
fn standard_python_packages_read_checkpoints() {
    let Some(venv) = Venv::find("whether Python reads checkpoints") else { return };
    // The chief measures a rate only over 0.1 s or more, so the job must not end sooner.
    const STEPS: u64 = 3000;
    let mut cluster = Cluster::with(1, 2, 2, |dir| {
        Job::with(dir, STEPS, &["--optimizer=adam", "--ema-decay=0.9", "--partitioner=fixed:2"])
    });
    let saved = directory(cluster.dir());
    let events = cluster.dir().join("events");
    cluster.chief_flags = vec![
        format!("--checkpoint-dir={}", saved.display()),
        format!("--summary-dir={}", events.display()),
        "--summary-steps=500".into(),
    ];
    let mut running = Running::of(cluster, &[]);
    let report = running.end_well_without(&[]);
    let dir = running.cluster.dir();
    // The files of the newest checkpoint, and the exported model, are read.
    let newest = list(&saved).into_iter().max_by_key(|entry| entry["step"].as_u64()).expect("it has saved");
    let folder = saved.join(newest["name"].as_str().expect("a name"));
    let model = dir.join("model.safetensors");
    let mut command = tool();
    command.args(["checkpoint", "export"]).arg(&saved).arg(&model);
    Program::run(dir, "export", &mut command).expect(0);
    let mut files: Vec<String> = fs::read_dir(&folder)
        .expect("it is there")
        .map(|entry| entry.expect("an entry").path().display().to_string())
        .filter(|path| path.ends_with(".safetensors"))
        .collect();
    assert_eq!(files.len(), 2);
    files.push(model.display().to_string());
    let read = python(&venv, READ_TENSORS, &files);
    let of = |name: &str| &read[name];
    assert_eq!(of("model.safetensors|dense1/kernel")[0], serde_json::json!([784, 64]));
    assert_eq!(of("model.safetensors|dense1/kernel")[1], "float32");
    let halves =
        ["ps-0-shard-0.safetensors|dense1/kernel[0:392]", "ps-1-shard-0.safetensors|dense1/kernel[392:784]"];
    let sum: f64 =
        halves.iter().map(|name| of(name)[2].as_f64().unwrap_or_else(|| panic!("{name} in {read:#}"))).sum();
    let whole = of("model.safetensors|dense1/kernel")[2].as_f64().expect("a sum");
    assert!((sum - whole).abs() < 1e-6 * (1.0 + whole.abs()), "{sum} and {whole}");
    for beside in ["average", "m", "v"] {
        let name = format!("{}:{beside}", halves[0]);
        assert_eq!(of(&name)[0], serde_json::json!([392, 64]), "{name} in {read:#}");
    }
    let seen = python(&venv, READ_EVENTS, &[events.display().to_string()]);
    let scalars = seen["scalars"].as_object().expect("scalars");
    for tag in ["train/loss", "train/learning_rate", "train/steps_per_second", "eval/loss", "eval/accuracy"] {
        assert!(scalars.contains_key(tag), "{tag} in {:?}", scalars.keys());
    }
    let accuracy = seen["scalars"]["eval/accuracy"][0][1].as_f64().expect("an accuracy");
    assert!((accuracy - report.number("test_accuracy")).abs() < 1e-6, "{accuracy}");
    assert_eq!(seen["scalars"]["eval/accuracy"][0][0], STEPS);
    assert!(seen["histograms"].as_object().is_some_and(|histograms| !histograms.is_empty()), "{seen:#}");
    let graph = seen["graph"].as_array().expect("a graph");
    assert!(
        graph.iter().any(|node| node.as_str().is_some_and(|name| name.starts_with("dense1/"))),
        "{graph:?}"
    );
}

/// Returns a graph whose output is the features times a kernel times a scalar.
fn product() -> GraphSpec {
    let mut g = GraphBuilder::new("product");
    let x = g.input("features", [2]);
    let kernel = g.variable("product/kernel", [2, 3], InitializerSpec::HeNormal);
    let scale = g.variable("scale", [], InitializerSpec::Constant { value: 0.7 });
    let x = g.matmul(x, kernel);
    let x = g.mul(x, scale);
    g.output("product", x);
    let loss = g.l2_loss(x);
    g.finish(loss, &[]).expect("a graph")
}

#[test]
fn a_model_goes_to_python_and_comes_back() {
    let Some(venv) = Venv::find("whether Python exchanges models") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| temporary.path().join(format!("{name}.safetensors")));
    let points =
        |seed| DatasetSpec::Linear { seed, examples: 60, weights: vec![1.0; 2], bias: 0.0, noise: 0.0 };
    let job = LibraryJob::new(product(), InputSpec::new(points(0), points(1)));
    let job = job.optimizer(OptimizerSpec::sgd(0.001)).batch_size(10).steps(12);
    let trained = job.train(LibraryCluster::embedded(1, 1)).expect("it trains");
    trained.save(&ours).expect("it is saved");
    let paths = [&ours, &theirs].map(|path| path.display().to_string());
    let read = python(&venv, DOUBLE_A_MODEL, &paths);
    assert_eq!(read.as_object().map(serde_json::Map::len), Some(2), "{read}");
    for (name, tensor) in trained.values() {
        let bytes = tensor.values.iter().flat_map(|value| value.to_le_bytes());
        let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(read[name], serde_json::json!([tensor.shape, "float32", hex]), "{name}");
    }

    let model = Model::load_with(product(), &theirs).expect("the names and shapes are right");
    for ((name, own), (_, doubled)) in trained.values().zip(model.values()) {
        let expected: Vec<f32> = own.values.iter().map(|value| value * 2.0).collect();
        assert_eq!((own.shape, &expected[..]), (doubled.shape, doubled.values), "{name}");
    }
    let examples = Examples::f32("features", [2], vec![0.3, -1.1, 2.5, 0.9]).expect("two examples");
    let [own, doubled] = [trained.model(), &model].map(|model| model.predict(&examples).expect("they fit"));
    // Doubling is exact, and so is the product of two doubled factors.
    let own: Vec<f32> = own.output("product").expect("an output").values.iter().map(|x| x * 4.0).collect();
    assert_eq!(doubled.output("product").expect("an output").values, own);
}
