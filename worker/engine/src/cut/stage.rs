//! A stage of a job's graph: its program, and the values that it receives and sends. This module must not
//! depend on the whole graph.

use std::ops::Range;
use std::sync::Arc;

use pushpull_messages::id::VariableId;

use super::edge::Edge;
use crate::program::Program;

/// A stage of a job's graph: the part that one task of a replica runs.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The program, which [`Executor::begin`](crate::Executor::begin) and
    /// [`Executor::advance`](crate::Executor::advance) run; `None` if the stage computes nothing.
    pub program: Option<Arc<Program>>,
    /// The values that arrive from other stages in each run, each of them once, in the order of their keys.
    pub arrives: Vec<Edge>,
    /// For each column of the program, where its value comes from.
    pub columns: Vec<Origin>,
    /// For each variable of the program's sink, where its value goes. A value that goes to several places has
    /// a variable for each of them.
    pub sends: Vec<Destination>,
    /// The values that this stage holds and other stages need. They are sent when a run begins. A value that
    /// several stages need is listed once for each of them.
    pub gives: Vec<(Held, Edge)>,
    /// The values that this stage wants and its program does not compute: those that arrive, and results that
    /// are variables or columns. Several entries may have the same origin, and a column of the program may
    /// have it, too.
    pub delivered: Vec<(Origin, Wanted)>,
    /// The variables of this stage whose gradients are zero, because the loss does not depend on them; empty
    /// in an evaluation. In training, each other variable of this stage is wanted once, in `sends` or in
    /// `delivered`.
    pub unused: Vec<VariableId>,
}

/// A value that a stage holds when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A column of the batch, by its index in the column specs. Only stage 0 holds columns.
    Column(usize),
    /// The value of a variable that the stage owns.
    Variable(VariableId),
}

/// The place where a stage finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The stage holds the value.
    Held(Held),
    /// The value arrives from another stage. The number is the index of its edge in [`Stage::arrives`].
    Arrives(usize),
}

/// A value that a stage wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The gradient of a variable that the stage owns.
    Gradient(VariableId),
    /// The elements of the results with these indices. The results are the loss and, in an evaluation, the
    /// elements of each metric in the graph's order. Only stage 0 wants results.
    Results(Range<usize>),
}

/// The place where a value goes that a stage computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The value is sent to another stage, which is `to` of the edge.
    Sent(Edge),
    /// The stage itself wants the value.
    Wanted(Wanted),
}
