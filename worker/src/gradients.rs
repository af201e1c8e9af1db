//! The gradients of one step, written where they are sent from: one pooled buffer a shard.

use std::sync::Arc;

use kernels::cpu::{Threads, accumulate};
use messages::buffer::{Buffer, BufferPool, Payload, Segment};
use messages::id::VariableId;

use crate::layout::Layout;

/// Memory for every variable's gradient. What is in it is left over from earlier steps until it is written.
#[derive(Debug)]
pub struct Gradients {
    layout: Arc<Layout>,
    shards: Vec<Buffer>,
    /// For a variable of several slices: all of it in one piece, until it is sent.
    pieces: Vec<Option<Buffer>>,
}

impl Gradients {
    /// From the pool.
    pub fn take(layout: &Arc<Layout>, pool: &BufferPool) -> Self {
        let pieces = layout.variables.iter().map(|variable| {
            let split = variable.parts.len() > 1;
            split.then(|| pool.take(variable.elements * 4))
        });
        Self {
            shards: layout.shards.iter().map(|shard| pool.take(shard.bytes)).collect(),
            pieces: pieces.collect(),
            layout: Arc::clone(layout),
        }
    }

    /// One variable's gradient, row-major, to be written whole.
    pub fn variable_mut(&mut self, variable: VariableId) -> &mut [f32] {
        match &mut self.pieces[variable.index()] {
            Some(piece) => piece.as_f32_mut(),
            None => {
                let part = &self.layout.variable(variable).parts[0];
                &mut self.shards[part.shard].as_f32_mut()[self.layout.floats(part)]
            }
        }
    }

    /// Adds the same variables' gradients of another device.
    ///
    /// # Panics
    /// Where the other is of another layout.
    pub fn add(&mut self, other: &Self) {
        assert!(Arc::ptr_eq(&self.layout, &other.layout), "gradients of another layout");
        for (variable, layout) in self.layout.variables.iter().enumerate() {
            let own = match &mut self.pieces[variable] {
                Some(piece) => piece.as_f32_mut(),
                None => {
                    let part = &layout.parts[0];
                    &mut self.shards[part.shard].as_f32_mut()[self.layout.floats(part)]
                }
            };
            accumulate(own, other.variable(VariableId(variable as u32)), Threads::One);
        }
    }

    /// One variable's gradient, row-major.
    pub fn variable(&self, variable: VariableId) -> &[f32] {
        match &self.pieces[variable.index()] {
            Some(piece) => piece.as_f32(),
            None => {
                let part = &self.layout.variable(variable).parts[0];
                &self.shards[part.shard].as_f32()[self.layout.floats(part)]
            }
        }
    }

    /// What is sent to each shard, one segment a slice.
    pub fn into_payloads(mut self) -> Vec<Payload> {
        for (variable, piece) in self.layout.variables.iter().zip(&self.pieces) {
            let Some(piece) = piece else { continue };
            for part in &variable.parts {
                let into = &mut self.shards[part.shard].as_f32_mut()[self.layout.floats(part)];
                into.copy_from_slice(&piece.as_f32()[part.first_element..part.first_element + part.elements]);
            }
        }
        let payload = |(buffer, shard): (Buffer, &crate::layout::ShardLayout)| {
            let buffer = Arc::new(buffer);
            let segment = |&(start, bytes): &(usize, usize)| Segment::new(Arc::clone(&buffer), start, bytes);
            Payload::new(shard.segments.iter().map(segment).collect())
        };
        self.shards.into_iter().zip(&self.layout.shards).map(payload).collect()
    }
}
