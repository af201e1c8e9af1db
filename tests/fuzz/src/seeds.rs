//! Valid graphs of training jobs and of sessions, from which fuzzing begins.

use pushpull_messages::graph::{GraphBuilder, GraphSpec, Op, Padding, ReductionOp, Stride, UnaryOp, Window};
use pushpull_messages::id::NodeId;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::{DType, TensorSpec};
use pushpull_messages::variable::InitializerSpec;

const ZEROS: InitializerSpec = InitializerSpec::Zeros;

/// Returns the graphs of training jobs.
pub fn training_graphs() -> Vec<GraphSpec> {
    vec![mlp(), images(), attention(), clicks(), elements()]
}

/// Returns the graphs of sessions: those of training jobs, and one for each group of operations that only
/// sessions have.
pub fn session_graphs() -> Vec<GraphSpec> {
    let own = [choices(), variables(), steps()].map(|g| g.finish_session().expect("a valid graph"));
    training_graphs().into_iter().chain(own).collect()
}

fn choices() -> GraphBuilder {
    let mut g = GraphBuilder::new("choices");
    let x = g.placeholder("x", TensorSpec::f32([2, 5]));
    let fed = g.placeholder("fed", TensorSpec::new(DType::I64, [2, 1]));
    let whole = g.cast(x, DType::I64);
    let sum = g.add(whole, fed);
    let many = g.add_n(&[sum, whole, sum]);
    let less = g.less(many, fed);
    let equal = g.equal(whole, sum);
    let both = g.logical_and(less, equal);
    let neither = g.logical_not(both);
    let chosen = g.select(neither, whole, sum);
    let best = g.argmax(chosen, 1);
    let top = g.top_values(chosen, 2);
    let places = g.top_indices(chosen, 3);
    let text = g.text("hello");
    let same = g.equal(text, text);
    let said = g.select(same, text, text);
    let said = g.identity(said);
    g.group(&[best, top, places, said]);
    g
}

fn variables() -> GraphBuilder {
    let mut g = GraphBuilder::new("variables");
    let count = g.variable_of("count", [3], DType::I64, ZEROS);
    let one = g.value(1i64);
    let wide = g.value(vec![1i64, 2, 3]);
    let next = g.mul(wide, one);
    let added = g.device("/job:ps/task:1/device:CPU:0", |g| g.assign_add(count, next));
    let float = g.variable("float", [2, 2], InitializerSpec::Normal { mean: 0.0, stddev: 1.0 });
    let product = g.matmul(float, float);
    let set = g.assign_sub(float, product);
    let initialized = g.initialize();
    g.group(&[added, set, initialized]);
    g
}

fn steps() -> GraphBuilder {
    let mut g = GraphBuilder::new("steps");
    let x = g.input("x", [4]);
    let labels = g.labels("labels");
    let hidden = g.device("/job:worker/task:1", |g| dense(g, "hidden", x, [4, 3]));
    let hidden = g.relu(hidden);
    let logits = dense(&mut g, "logits", hidden, [3, 2]);
    let loss = g.softmax_cross_entropy(logits, labels);
    g.minimize(&OptimizerSpec::sgd(0.1), loss);
    g
}

fn dense(g: &mut GraphBuilder, name: &str, x: NodeId, sizes: [usize; 2]) -> NodeId {
    let kernel =
        g.variable(&format!("{name}/kernel"), sizes, InitializerSpec::Normal { mean: 0.0, stddev: 1.0 });
    let bias = g.variable(&format!("{name}/bias"), [sizes[1]], ZEROS);
    let product = g.matmul(x, kernel);
    g.bias_add(product, bias)
}

fn mlp() -> GraphSpec {
    let mut g = GraphBuilder::new("mlp");
    let x = g.input("x", [6]);
    let labels = g.labels("labels");
    let x = dense(&mut g, "hidden", x, [6, 4]);
    let x = g.relu(x);
    let x = g.dropout(x, 0.5);
    let logits = dense(&mut g, "logits", x, [4, 3]);
    let loss = g.softmax_cross_entropy(logits, labels);
    let metrics = [("accuracy", g.accuracy(logits, labels)), ("top", g.top_k(logits, labels, 2))];
    g.finish(loss, &metrics).expect("a valid graph")
}

fn images() -> GraphSpec {
    let mut g = GraphBuilder::new("images");
    let x = g.input("x", [6, 6, 2]);
    let labels = g.labels("labels");
    let kernel = g.variable("kernel", [3, 3, 2, 4], ZEROS);
    let y = g.conv2d(x, kernel, Stride { stride: [1, 1], padding: Padding::Same });
    let affine = ["gamma", "beta"].map(|name| g.variable(name, [4], ZEROS));
    let moving = ["mean", "variance"].map(|name| g.untrained(name, [4], ZEROS));
    let y = g.batch_norm(y, affine, moving, 1e-3, 0.9);
    let y = g.relu(y);
    let more = g.variable("more", [2, 2, 4, 4], ZEROS);
    let y = g.conv2d(y, more, Stride { stride: [2, 2], padding: Padding::Valid });
    let most = g.max_pool2d(y, Window::tiles(2));
    let mean = g.average_pool2d(y, Window { window: [2, 2], stride: [1, 1], padding: Padding::Same });
    let flat = g.example_shape(most).expect("a valid graph").elements();
    let most = g.reshape(most, [flat]);
    let mean = g.global_average_pool(mean);
    let both = g.concat(&[most, mean], 1);
    let logits = dense(&mut g, "logits", both, [flat + 4, 3]);
    let loss = g.softmax_cross_entropy(logits, labels);
    g.finish(loss, &[]).expect("a valid graph")
}

fn attention() -> GraphSpec {
    let mut g = GraphBuilder::new("attention");
    let words = g.ids("words", [4]);
    let next = g.ids("next", [4]);
    let table = g.variable("table", [5, 6], ZEROS);
    let places = g.variable("places", [4, 6], ZEROS);
    let x = g.embedding(table, words);
    let x = g.add(x, places);
    let affine = ["gamma", "beta"].map(|name| g.variable(name, [6], ZEROS));
    let normed = g.layer_norm(x, affine, 1e-5);
    let [query, key, value] = ["query", "key", "value"].map(|name| {
        let y = dense(&mut g, name, normed, [6, 6]);
        let heads = g.reshape(y, [4, 2, 3]);
        g.transpose(heads, &[0, 2, 1, 3])
    });
    let scores = g.matmul_transposed(query, key, [false, true]);
    let scores = g.scale(scores, 0.5);
    let shares = g.causal_softmax(scores);
    let mixed = g.matmul(shares, value);
    let mixed = g.transpose(mixed, &[0, 2, 1, 3]);
    let mixed = g.reshape(mixed, [4, 6]);
    let x = g.add(x, mixed);
    let y = g.unary(UnaryOp::Gelu, x);
    let logits = dense(&mut g, "logits", y, [6, 5]);
    let loss = g.softmax_cross_entropy(logits, next);
    g.finish(loss, &[]).expect("a valid graph")
}

fn clicks() -> GraphSpec {
    let mut g = GraphBuilder::new("clicks");
    let x = g.input("x", [3]);
    let shares = g.input("shares", [1]);
    let clicked = g.ids("clicked", [1]);
    let score = dense(&mut g, "score", x, [3, 1]);
    let label = g.to_float(clicked);
    let off = g.mean_squared_error(label, score);
    let loss = g.sigmoid_cross_entropy(score, shares);
    let loss = g.add(loss, off);
    let auc = g.push("auc", Op::AucCounts { bins: 16 }, &[score, clicked]);
    g.finish(loss, &[("auc", auc)]).expect("a valid graph")
}

fn elements() -> GraphSpec {
    let mut g = GraphBuilder::new("elements");
    let x = g.input("x", [2, 3]);
    let scale = g.variable("scale", [1, 3], ZEROS);
    let side = g.variable("side", [2, 1], ZEROS);
    let mut y = g.mul(x, scale);
    y = g.sub(y, side);
    for op in [
        UnaryOp::Tanh,
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Abs,
        UnaryOp::Sqrt,
        UnaryOp::Neg,
        UnaryOp::Sigmoid,
        UnaryOp::LeakyRelu { slope: 0.1 },
    ] {
        y = g.unary(op, y);
    }
    let most = g.reduce(ReductionOp::Max, y, &[2], true);
    let mean = g.reduce(ReductionOp::Mean, y, &[1], true);
    let y = g.div(most, mean);
    let y = g.log_softmax(y);
    let y = g.slice(y, 1, 0, 1);
    let loss = g.l2_loss(y);
    let penalty = g.l2_loss(scale);
    let loss = g.add(loss, penalty);
    g.finish(loss, &[]).expect("a valid graph")
}
