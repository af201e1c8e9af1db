//! Writes the predictions of a model as rows of text, CSV or JSON, one row for each example, and an
//! evaluation as a table.

use std::io::{self, Write};

use pushpull_messages::graph::{GraphError, GraphSpec, Op, OutputSpec};
use pushpull_messages::message::Evaluation;

use crate::model::{Predictions, greatest};

/// The format of predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RowFormat {
    /// A line for each example: the class if an output has scores of classes, otherwise the numbers
    #[default]
    Text,
    /// A header, and a row with the classes and all numbers for each example
    Csv,
    /// A JSON object with the classes and all numbers for each example, one per line
    Json,
}

/// An output of a model, and how its rows are written.
struct Output {
    name: String,
    /// The number of elements for each example.
    elements: usize,
    /// Whether the output is a single number for each example, not a list of numbers.
    is_scalar: bool,
    /// The number of classes, if the elements are scores of classes. It is the size of the last axis.
    classes: Option<usize>,
}

impl Output {
    fn new(graph: &GraphSpec, output: &OutputSpec, example: &[usize]) -> Self {
        Self {
            name: output.name.clone(),
            elements: example.iter().product(),
            is_scalar: example.is_empty(),
            classes: example.last().copied().filter(|_| has_scores(graph, output)),
        }
    }

    /// Returns the class of each list of scores in a row; `None` if the row has no scores.
    fn classes(&self, row: &[f32]) -> Option<Vec<usize>> {
        Some(row.chunks_exact(self.classes?).map(greatest).collect())
    }

    /// Returns the names of the columns of a CSV file.
    fn header(&self) -> Vec<String> {
        let indexed = |name: &str, count: usize, single: bool| -> Vec<String> {
            match single {
                true => vec![name.to_owned()],
                false => (0..count).map(|index| format!("{name}[{index}]")).collect(),
            }
        };
        let mut names = Vec::new();
        if let Some(classes) = self.classes {
            let lists = self.elements / classes;
            names.extend(indexed(&format!("{}.class", self.name), lists, lists == 1));
        }
        names.extend(indexed(&self.name, self.elements, self.is_scalar));
        names
    }
}

/// Returns true if an output has scores of classes: if it is a softmax or its logarithm, or if a
/// cross-entropy, accuracy or top-k operation of the graph compares it with labels.
fn has_scores(graph: &GraphSpec, output: &OutputSpec) -> bool {
    let is_softmax = matches!(graph.nodes[output.node.index()].op, Op::Softmax { .. } | Op::LogSoftmax);
    is_softmax
        || graph.nodes.iter().any(|node| {
            matches!(node.op, Op::SoftmaxCrossEntropy | Op::Accuracy | Op::TopK { .. })
                && node.inputs.first() == Some(&output.node)
        })
}

/// A writer of rows to a file or to standard output.
pub(crate) struct Rows<'a> {
    out: &'a mut dyn Write,
    format: RowFormat,
    outputs: Vec<Output>,
    /// The number of examples that have been written.
    written: u64,
}

impl<'a> Rows<'a> {
    /// Creates a writer of rows with the outputs of `graph`, which must be valid.
    ///
    /// # Errors
    /// Returns an error if the shapes of the outputs cannot be inferred.
    pub(crate) fn new(
        out: &'a mut dyn Write,
        format: RowFormat,
        graph: &GraphSpec,
    ) -> Result<Self, GraphError> {
        let tensors = graph.infer(1)?;
        let output = |own: &OutputSpec| Output::new(graph, own, &tensors[own.node.index()].shape.0[1..]);
        Ok(Self { out, format, outputs: graph.outputs.iter().map(output).collect(), written: 0 })
    }

    /// Writes the rows of a batch of predictions.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be written.
    pub(crate) fn write(&mut self, predictions: &Predictions) -> io::Result<()> {
        if self.written == 0 && self.format == RowFormat::Csv {
            let names = self.outputs.iter().flat_map(Output::header).map(|name| quoted(&name));
            let names: Vec<String> = std::iter::once("example".to_owned()).chain(names).collect();
            writeln!(self.out, "{}", names.join(","))?;
        }
        let tensors: Vec<_> = predictions.iter().map(|(_, tensor)| tensor).collect();
        let examples = tensors.first().map_or(0, |tensor| tensor.shape[0]);
        for index in 0..examples {
            let rows: Vec<&[f32]> = tensors.iter().filter_map(|tensor| tensor.row(index)).collect();
            let line = match self.format {
                RowFormat::Text => self.text(&rows),
                RowFormat::Csv => self.csv(&rows),
                RowFormat::Json => self.json(&rows)?,
            };
            writeln!(self.out, "{line}")?;
            self.written += 1;
        }
        Ok(())
    }

    fn text(&self, rows: &[&[f32]]) -> String {
        let output = |(output, row): (&Output, &&[f32])| match output.classes(row) {
            Some(classes) => joined(&classes, " "),
            None => joined(row, " "),
        };
        let outputs: Vec<String> = self.outputs.iter().zip(rows).map(output).collect();
        outputs.join("\t")
    }

    fn csv(&self, rows: &[&[f32]]) -> String {
        let mut cells = vec![self.written.to_string()];
        for (output, row) in self.outputs.iter().zip(rows) {
            cells.extend(output.classes(row).map(|classes| joined(&classes, ",")));
            cells.push(joined(row, ","));
        }
        cells.join(",")
    }

    /// Returns the rows of one example as a JSON object. A number that is not finite becomes `null`, because
    /// JSON cannot express it.
    fn json(&self, rows: &[&[f32]]) -> serde_json::Result<String> {
        let (mut outputs, mut all_classes) = (Vec::new(), Vec::new());
        for (output, row) in self.outputs.iter().zip(rows) {
            let name = serde_json::to_string(&output.name)?;
            // The numbers are encoded as `f32`, which gives the shortest decimal with the same bits.
            let numbers = match output.is_scalar {
                true => serde_json::to_string(&row[0])?,
                false => serde_json::to_string(row)?,
            };
            match output.classes(row).as_deref() {
                Some([class]) => all_classes.push(format!("{name}:{class}")),
                Some(classes) => all_classes.push(format!("{name}:{}", serde_json::to_string(classes)?)),
                None => {}
            }
            outputs.push(format!("{name}:{numbers}"));
        }
        let classes = match all_classes.is_empty() {
            true => String::new(),
            false => format!(",\"classes\":{{{}}}", all_classes.join(",")),
        };
        Ok(format!("{{\"example\":{}{classes},\"outputs\":{{{}}}}}", self.written, outputs.join(",")))
    }
}

/// Joins numbers, each written as the shortest decimal that is read back as the same bits.
fn joined<T: std::fmt::Debug>(numbers: &[T], separator: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:?}")).collect();
    numbers.join(separator)
}

/// Returns a name as a field of a CSV file.
fn quoted(name: &str) -> String {
    match name.contains([',', '"']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

/// Writes the loss and the metrics of an evaluation.
///
/// # Errors
/// Returns an error if they cannot be written.
pub(crate) fn write_evaluation(out: &mut dyn Write, format: RowFormat, all: &Evaluation) -> io::Result<()> {
    let metrics = all.metrics.iter().map(|metric| (metric.name.as_str(), metric.value));
    let numbers: Vec<(&str, f32)> = std::iter::once(("loss", all.loss)).chain(metrics).collect();
    match format {
        RowFormat::Text => {
            writeln!(out, "{:<14} {}", "examples", all.examples)?;
            numbers.iter().try_for_each(|(name, value)| writeln!(out, "{name:<14} {value:?}"))
        }
        RowFormat::Csv => {
            let names: Vec<String> = numbers.iter().map(|(name, _)| quoted(name)).collect();
            let values: Vec<f32> = numbers.iter().map(|&(_, value)| value).collect();
            writeln!(out, "examples,{}\n{},{}", names.join(","), all.examples, joined(&values, ","))
        }
        RowFormat::Json => {
            let metric = |(name, value): &(&str, f32)| {
                Ok(format!("{}:{}", serde_json::to_string(name)?, serde_json::to_string(value)?))
            };
            let metrics: serde_json::Result<Vec<String>> = numbers[1..].iter().map(metric).collect();
            let (loss, metrics) = (serde_json::to_string(&all.loss)?, metrics?.join(","));
            writeln!(out, "{{\"examples\":{},\"loss\":{loss},\"metrics\":{{{metrics}}}}}", all.examples)
        }
    }
}

#[cfg(test)]
mod tests {
    use pushpull_messages::message::MetricValue;
    use serde_json::{Value, json};

    use super::*;
    use crate::{GraphBuilder, ReductionOp};

    /// Returns a graph with two outputs: the scores of three classes, and their sum.
    fn graph() -> GraphSpec {
        let mut g = GraphBuilder::new("known");
        let x = g.input("features", [3]);
        let labels = g.labels("labels");
        let scores = g.scale(x, 1.0);
        let sum = g.reduce(ReductionOp::Sum, scores, &[1], false);
        g.output("scores", scores);
        g.output("the, sum", sum);
        let loss = g.softmax_cross_entropy(scores, labels);
        g.finish(loss, &[]).unwrap()
    }

    /// Returns the text that is written for two batches of one example each.
    fn written(format: RowFormat) -> String {
        let (graph, mut out) = (graph(), Vec::new());
        let mut rows = Rows::new(&mut out, format, &graph).unwrap();
        for (scores, sum) in [([0.5, 2.0, -1.0], 1.5), ([0.1, f32::NAN, 1e-20], f32::NAN)] {
            let outputs = [scores.to_vec(), vec![sum]];
            rows.write(&Predictions::new(&graph, outputs.into_iter(), 1).unwrap()).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_has_the_class_and_numbers_without_classes() {
        assert_eq!(written(RowFormat::Text), "1\t1.5\n0\tNaN\n");
    }

    #[test]
    fn csv_has_one_header_and_every_number() {
        let expected = "example,scores.class,scores[0],scores[1],scores[2],\"the, sum\"\n\
                        0,1,0.5,2.0,-1.0,1.5\n\
                        1,0,0.1,NaN,1e-20,NaN\n";
        assert_eq!(written(RowFormat::Csv), expected);
    }

    #[test]
    fn each_line_of_json_is_an_object() {
        let text = written(RowFormat::Json);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let first = json!({"example": 0, "classes": {"scores": 1},
                           "outputs": {"scores": [0.5, 2.0, -1.0], "the, sum": 1.5}});
        let second = json!({"example": 1, "classes": {"scores": 0},
                            "outputs": {"scores": [0.1, null, 1e-20], "the, sum": null}});
        assert_eq!(lines, [first, second]);
        assert!(text.contains("[0.1,null,1e-20]"), "the shortest decimals: {text}");
    }

    #[test]
    fn a_sequence_has_a_class_at_each_position() {
        let mut g = GraphBuilder::new("sequence");
        let x = g.input("features", [2, 2]);
        let labels = g.input("labels", []);
        let likely = g.softmax(x);
        g.output("likely", likely);
        let mean = g.reduce(ReductionOp::Mean, likely, &[1, 2], false);
        let loss = g.mean_squared_error(mean, labels);
        let (graph, mut out) = (g.finish(loss, &[]).unwrap(), Vec::new());
        let predictions = Predictions::new(&graph, [vec![0.25, 0.75, 1.0, 0.0]].into_iter(), 1).unwrap();
        Rows::new(&mut out, RowFormat::Text, &graph).unwrap().write(&predictions).unwrap();
        Rows::new(&mut out, RowFormat::Csv, &graph).unwrap().write(&predictions).unwrap();
        let expected = "1 0\nexample,likely.class[0],likely.class[1],likely[0],likely[1],likely[2],likely[3]\n\
                        0,1,0,0.25,0.75,1.0,0.0\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn an_evaluation_is_a_table_in_every_format() {
        let metrics = vec![MetricValue { name: "accuracy".into(), value: 0.975 }];
        let all = Evaluation { loss: 0.25, metrics, examples: 40, variables_crc32c: 0 };
        let written = |format| {
            let mut out = Vec::new();
            write_evaluation(&mut out, format, &all).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            written(RowFormat::Text),
            "examples       40\nloss           0.25\naccuracy       0.975\n"
        );
        assert_eq!(written(RowFormat::Csv), "examples,loss,accuracy\n40,0.25,0.975\n");
        assert_eq!(
            written(RowFormat::Json),
            "{\"examples\":40,\"loss\":0.25,\"metrics\":{\"accuracy\":0.975}}\n"
        );
    }
}
