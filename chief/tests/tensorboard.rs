//! Checks event files by reading them with TensorBoard itself.

#[path = "../../tests/support/venv.rs"]
mod venv;

use std::collections::BTreeMap;

use pushpull_chief::tensorboard::EventWriter;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::input::{DatasetSpec, InputSpec};
use pushpull_messages::job::JobSpec;
use pushpull_messages::summary::{HistogramSpec, ImageSpec, SummarySpec, SummaryValue};
use pushpull_messages::variable::InitializerSpec;
use serde_json::{Value, json};

use venv::Venv;

const SCRIPT: &str = r#"
import io, json, sys
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.graph_pb2 import GraphDef

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
events.Reload()
tags = events.Tags()

def picture(event):
    image = Image.open(io.BytesIO(event.encoded_image_string))
    return {"size": [event.width, event.height], "decoded": list(image.size), "mode": image.mode,
            "pixels": list(image.tobytes())}

def histogram(event):
    h = event.histogram_value
    return {"step": event.step, "min": h.min, "max": h.max, "num": h.num, "sum": h.sum, "sum_squares": h.sum_squares,
            "buckets": [list(pair) for pair in zip(h.bucket_limit, h.bucket)]}

def node(n):
    return {"op": n.op, "inputs": list(n.input),
            "shape": [d.size for d in n.attr["_output_shapes"].list.shape[0].dim]}

print(json.dumps({
    "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: [histogram(e) for e in events.Histograms(tag)] for tag in tags["histograms"]},
    "images": {tag: [picture(e) for e in events.Images(tag)] for tag in tags["images"]},
    "texts": {tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)] for tag in tags["tensors"]},
    "text_tags": sorted(events.PluginTagToContent("text")),
    "graph": {n.name: node(n) for n in GraphDef.FromString(events.Graph().SerializeToString()).node},
}))
"#;

fn job() -> JobSpec {
    let mut g = GraphBuilder::new("linear");
    let x = g.input("features", [3]);
    let labels = g.labels("labels");
    let kernel = g.variable("dense/kernel", [3, 2], InitializerSpec::Zeros);
    let logits = g.matmul(x, kernel);
    let loss = g.softmax_cross_entropy(logits, labels);
    let digits = |seed| DatasetSpec::Digits { seed, examples: 10 };
    let input = InputSpec::new(digits(1), digits(2));
    JobSpec { batch_size: 5, ..JobSpec::new(g.finish(loss, &[]).unwrap(), input, 10) }
}

fn named(tag: &str, step: u64, value: SummaryValue) -> SummarySpec {
    SummarySpec { tag: tag.into(), step: GlobalStep(step), value }
}

fn image(channels: u8) -> ImageSpec {
    let pixels = (0..6 * channels).map(|at| at * 10).collect();
    ImageSpec { width: 3, height: 2, channels, pixels }
}

#[test]
fn tensorboard_reads_what_was_written() {
    let Some(venv) = Venv::find("what TensorBoard reads of an event file") else { return };
    let folder = tempfile::tempdir().unwrap();
    let histogram = HistogramSpec {
        min: 0.0,
        max: 3.0,
        count: 5.0,
        sum: 6.0,
        sum_squares: 14.0,
        buckets: vec![(0.5, 2.0), (1.5, 1.0), (3.5, 2.0)],
    };
    // The first run was cut off after step 40, and the second continues from step 20.
    let mut first = EventWriter::create(folder.path()).unwrap();
    first.begin(&job(), GlobalStep(0)).unwrap();
    let losses = [(10, 0.5), (20, 0.25), (40, 9.0)];
    for (step, loss) in losses {
        first.write(&[SummarySpec::scalar("train/loss", GlobalStep(step), loss)]).unwrap();
    }
    let mut second = EventWriter::create(folder.path()).unwrap();
    second.begin(&job(), GlobalStep(20)).unwrap();
    let summaries = [
        SummarySpec::scalar("train/loss", GlobalStep(30), 0.125),
        SummarySpec::scalar("eval/accuracy", GlobalStep(30), 0.75),
        named("staleness", 30, SummaryValue::Histogram(histogram)),
        named("grey", 30, SummaryValue::Image(image(1))),
        named("colours", 30, SummaryValue::Image(image(3))),
        named("notes", 31, SummaryValue::Text("**bold** é".into())),
    ];
    second.write(&summaries).unwrap();
    let read: BTreeMap<String, Value> =
        serde_json::from_str(&venv.run(SCRIPT, &[folder.path().as_os_str()])).unwrap();
    // The values that were plotted from step 20 on are discarded.
    assert_eq!(
        read["scalars"],
        json!({"train/loss": [[10, 0.5], [30, 0.125]], "eval/accuracy": [[30, 0.75]]})
    );
    let expected = json!({"staleness": [{
        "step": 30, "min": 0.0, "max": 3.0, "num": 5.0, "sum": 6.0, "sum_squares": 14.0,
        "buckets": [[0.5, 2.0], [1.5, 1.0], [3.5, 2.0]],
    }]});
    assert_eq!(read["histograms"], expected);
    let picture = |channels: u8, mode: &str| json!([{"size": [3, 2], "decoded": [3, 2], "mode": mode, "pixels": image(channels).pixels}]);
    assert_eq!(read["images"], json!({"grey": picture(1, "L"), "colours": picture(3, "RGB")}));
    assert_eq!(read["text_tags"], json!(["job", "notes"]));
    assert_eq!(read["texts"]["notes"], json!(["**bold** é"]));
    let table = read["texts"]["job"][0].as_str().unwrap();
    assert!(table.contains("| model | linear |\n") && table.contains("| batch_size | 5 |\n"), "{table}");
    let node = |op: &str, inputs: &[&str], shape: &[u32]| json!({"op": op, "inputs": inputs, "shape": shape});
    let graph = json!({
        "features": node("Placeholder", &[], &[5, 3]),
        "labels": node("Placeholder", &[], &[5]),
        "dense/kernel": node("VariableV2", &[], &[3, 2]),
        "mat_mul": node("mat_mul", &["features", "dense/kernel"], &[5, 2]),
        "softmax_cross_entropy": node("softmax_cross_entropy", &["mat_mul", "labels"], &[]),
    });
    assert_eq!(read["graph"], graph);
}
