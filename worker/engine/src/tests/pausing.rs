//! Tests of runs that pause: one thread can run all parts of several runs of the same cut graph, whatever it
//! runs next, and whichever value arrives next.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use pushpull_messages::graph::{GraphBuilder, ReductionOp};
use pushpull_messages::id::NodeId;
use pushpull_messages::input::Column;

use super::cut::{Pieces, bits, uncut};
use super::flights::{Flight, Message, Sink, Source, fly};
use super::gradients::any_choices;
use super::random_graph::RandomGraph;
use super::trial::{Bounds, Trial};
use crate::{ColumnRef, ColumnSource, Edge, Executor, Lost, Part, Progress, StepFault};

/// Runs the parts once for each of `runs`, all runs at the same time on this thread. Returns the wanted
/// values of each run.
fn run_together(mut parts: Vec<Part>, runs: &[Pieces], seed: u64) -> Vec<BTreeMap<NodeId, Column>> {
    let programs: Vec<_> = parts.iter_mut().map(|part| part.program.take().map(Arc::new)).collect();
    let (mut flights, mut transit) = (Vec::new(), Vec::new());
    for (run, pieces) in runs.iter().enumerate() {
        let begin = |(part, program): (&Part, &Option<Arc<_>>)| {
            let executor = program.clone().map(Executor::new);
            let sources = part.receives.iter().map(|edge| Source::Edge(edge.key)).collect();
            let sink = |edge: &Edge| Sink::new(edge.spec.shape.elements(), Some(edge.clone()));
            Flight::begin(run, executor, pieces.trial.random, sources, part.sends.iter().map(sink).collect())
        };
        flights.push(parts.iter().zip(&programs).map(begin).collect());
        let given = parts.iter().flat_map(|part| &part.gives);
        let value = |edge: &Edge| pieces.given(edge.given.unwrap());
        transit.extend(given.map(|edge| Message { run, value: value(edge), edge: edge.clone() }));
    }
    fly(&mut flights, transit, seed);
    let wanted = |flights: &Vec<Flight>| {
        let of_part = |(part, flight): (&Part, &Flight)| {
            let value =
                |&(node, index): &(NodeId, usize)| (node, flight.arrived[&part.receives[index].key].clone());
            part.wanted.iter().map(value).collect::<Vec<_>>()
        };
        parts.iter().zip(flights).flat_map(of_part).collect()
    };
    flights.iter().map(wanted).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn one_thread_can_run_all_parts_of_several_runs(
        choices in any_choices(1..12),
        end: [u8; 6],
        seed: u64,
        parts in 1u32..5,
    ) {
        let (graph, bounds) = RandomGraph::new(2, false).draw(&choices, end);
        let trial = |run| Trial::smooth(&graph, &bounds, 2, seed.wrapping_add(run));
        let trials: Vec<Trial> = (0..3).filter_map(trial).collect();
        let Some(first) = trials.first() else { return Ok(()) };
        let mut pieces = Pieces::new(first);
        pieces.train();
        pieces.spread(parts, seed);
        let runs: Vec<Pieces> = trials.iter().map(|trial| pieces.on(trial)).collect();
        let values = run_together(pieces.compile().unwrap(), &runs, seed);
        for (trial, values) in trials.iter().zip(&values) {
            prop_assert_eq!(bits(values), uncut(trial));
        }
    }
}

#[test]
fn a_run_that_begins_drops_the_one_before() {
    let mut g = GraphBuilder::new("two");
    let (a, b) = (g.input("a", [2]), g.input("b", [2]));
    let sum = g.reduce(ReductionOp::Sum, a, &[0, 1], false);
    let product = g.mul(b, sum);
    let loss = g.l2_loss(product);
    let trial = Trial::new(&g.finish(loss, &[]).unwrap(), &Bounds::new(), 2, 1.0, 1);
    let mut pieces = Pieces::new(&trial);
    pieces.wanted.push((loss, 0));
    let program = pieces.compile().unwrap().remove(0).program.unwrap();
    let (mut executor, mut sent) = (Executor::new(program), vec![vec![f32::NAN]]);
    let [zeros, ones] = [0.0, 1.0].map(|value| Some(Column::F32(vec![value; 4])));
    let mut advance = |executor: &mut Executor, columns: [&Option<Column>; 2], expected| {
        let progress = executor.advance(&Arrived(columns), &mut sent);
        assert_eq!(progress, Ok(expected));
    };
    executor.begin(0);
    advance(&mut executor, [&None, &ones], Progress::Waits(0));
    advance(&mut executor, [&zeros, &None], Progress::Waits(1));
    executor.begin(0);
    advance(&mut executor, [&None, &ones], Progress::Waits(0));
    advance(&mut executor, [&ones, &ones], Progress::Ended);
    // The sum is 4, so half the sum of the four squares is 32.
    assert_eq!(sent, [[32.0]]);
}

#[test]
fn an_error_ends_a_run_and_spoils_no_other() {
    let mut g = GraphBuilder::new("classes");
    let (logits, labels) = (g.input("logits", [3]), g.labels("labels"));
    let loss = g.softmax_cross_entropy(logits, labels);
    let trial = Trial::new(&g.finish(loss, &[]).unwrap(), &Bounds::new(), 2, 1.0, 1);
    let mut pieces = Pieces::new(&trial);
    pieces.wanted.push((loss, 0));
    let program = pieces.compile().unwrap().remove(0).program.unwrap();
    let (mut executor, mut sent) = (Executor::new(program), vec![vec![f32::NAN]]);
    let logits = Some(Column::F32(vec![0.0; 6]));
    let [good, bad] = [2, 3].map(|label| Some(Column::I32(vec![0, label])));
    for _ in 0..2 {
        executor.begin(0);
        assert_eq!(executor.advance(&Arrived([&logits, &None]), &mut sent), Ok(Progress::Waits(1)));
        let error = executor.advance(&Arrived([&logits, &bad]), &mut sent).unwrap_err();
        assert!(matches!(error.fault, StepFault::Label(_)), "{error}");
        executor.begin(0);
        assert_eq!(executor.advance(&Arrived([&logits, &good]), &mut sent), Ok(Progress::Ended));
        assert!((sent[0][0] - 3.0f32.ln()).abs() < 1e-6);
    }
}

/// The columns of a program that have arrived.
struct Arrived<'a>([&'a Option<Column>; 2]);

impl ColumnSource for Arrived<'_> {
    fn is_ready(&self, index: usize) -> bool {
        self.0[index].is_some()
    }

    fn column(&self, index: usize) -> Result<ColumnRef<'_>, Lost> {
        Ok(self.0[index].as_ref().expect("only ready columns are read").into())
    }
}
