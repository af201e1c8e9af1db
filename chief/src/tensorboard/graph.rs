//! The job's graph in the form that TensorBoard draws. Slashes in names separate scopes, and every node
//! lists the shape of its output, as computed for one worker's batch. Writes no file.

use std::collections::BTreeMap;

use prost::Message;
use pushpull_messages::graph::{GraphSpec, NodeSpec, Op};
use pushpull_messages::job::JobSpec;
use pushpull_messages::tensor::{DType, TensorSpec};
use serde_json::Value as Json;

use super::proto::{
    Attr, AttrList, AttrValue, DT_BOOL, DT_DOUBLE, DT_FLOAT, DT_INT32, DT_INT64, DT_STRING, DT_UINT8, Dim,
    GraphDef, NodeDef, TensorShape, Versions,
};

/// The value of `GraphDef.versions.producer` that a release of TensorFlow 2 writes.
const PRODUCER: i32 = 1882;

/// Encodes the graph of a job that has been validated.
pub(super) fn encode(job: &JobSpec) -> Vec<u8> {
    let graph = &job.graph;
    let tensors = graph.infer(job.batch_size as usize).unwrap_or_default();
    let written = job.to_value();
    let node = |(position, node): (usize, &NodeSpec)| {
        let op = &written["graph"]["nodes"][position]["op"];
        define(graph, node, op, tensors.get(position))
    };
    let nodes = graph.nodes.iter().enumerate().map(node).collect();
    GraphDef { node: nodes, versions: Some(Versions { producer: PRODUCER }) }.encode_to_vec()
}

fn define(graph: &GraphSpec, node: &NodeSpec, op: &Json, output: Option<&TensorSpec>) -> NodeDef {
    let mut attr = BTreeMap::new();
    let mut insert = |name: String, value| attr.insert(name, Attr { value: Some(value) });
    for (name, value) in numbers(op) {
        insert(name.clone(), AttrValue::Text(value.to_string().into_bytes()));
    }
    if let Op::Variable { variable } = node.op {
        let variable = &graph.variables[variable.index()];
        let text = if variable.trainable { "true" } else { "false" };
        insert("trainable".into(), AttrValue::Text(text.into()));
    }
    if let Some(TensorSpec { shape, dtype }) = output {
        let dim = shape.0.iter().map(|&size| Dim { size: size as i64 }).collect();
        let shape = TensorShape { dim };
        let dtype = match dtype {
            DType::F32 => DT_FLOAT,
            DType::I32 => DT_INT32,
            DType::I64 => DT_INT64,
            DType::F64 => DT_DOUBLE,
            DType::Bool => DT_BOOL,
            DType::U8 => DT_UINT8,
            DType::Text => DT_STRING,
        };
        insert("dtype".into(), AttrValue::Type(dtype));
        insert("shape".into(), AttrValue::Shape(shape.clone()));
        insert("_output_shapes".into(), AttrValue::List(AttrList { shape: vec![shape] }));
    }
    NodeDef {
        name: node.name.clone(),
        op: operation(&node.op).to_owned(),
        input: node.inputs.iter().map(|input| graph.nodes[input.index()].name.clone()).collect(),
        device: node.device.map(|device| device.to_string()).unwrap_or_default(),
        attr,
    }
}

/// Returns the name of an operation. Operations that TensorBoard draws in a special way have TensorFlow's
/// names.
const fn operation(op: &Op) -> &'static str {
    match op {
        Op::Input { .. } => "Placeholder",
        Op::Variable { .. } => "VariableV2",
        Op::Constant { .. } => "Const",
        other => other.name(),
    }
}

/// Returns the attributes of an operation. `op` is the operation's JSON in a job file: an object that maps
/// the operation's name to its attributes, or only the name if the operation has no attributes.
fn numbers(op: &Json) -> impl Iterator<Item = (&String, &Json)> {
    op.as_object().into_iter().flat_map(|op| op.values()).filter_map(Json::as_object).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::job;

    #[test]
    fn nodes_have_their_inputs_and_output_shapes() {
        let job = JobSpec { batch_size: 5, ..job() };
        let graph = GraphDef::decode(&encode(&job)[..]).unwrap();
        let ops: Vec<&str> = graph.node.iter().map(|node| &node.op[..]).collect();
        assert_eq!(ops, ["Placeholder", "Placeholder", "VariableV2", "mat_mul", "softmax_cross_entropy"]);
        let product = &graph.node[3];
        assert_eq!(product.input, ["features", "kernel"]);
        let shape = |extents: [i64; 2]| TensorShape { dim: extents.map(|size| Dim { size }).into() };
        let attr = |name: &str| product.attr[name].value.clone().unwrap();
        assert_eq!(attr("shape"), AttrValue::Shape(shape([5, 2])));
        assert_eq!(attr("_output_shapes"), AttrValue::List(AttrList { shape: vec![shape([5, 2])] }));
        assert_eq!(attr("transpose_a"), AttrValue::Text(b"false".into()));
        assert_eq!(graph.node[2].attr["trainable"].value, Some(AttrValue::Text(b"true".into())));
    }
}
