//! The columns of a step's batch on a device. They are copied when the step begins, or already while the
//! device computes the step before it. This module must not depend on instructions.
//!
//! Required properties: (A) a step reads the columns of its own batch; (B) a device without room for a second
//! batch copies each batch when its step begins.

use std::collections::BTreeMap;

use pushpull_cuda::{DriverError, Stream};
use pushpull_messages::input::Column;

use super::ahead::Ahead;
use super::device::CudaDevice;
use super::memory::Key;
use crate::feed::{Feed, NextBatch};
use crate::memory::Place;
use crate::program::Program;

/// Returns the columns that a program reads, each with its part of a batch.
fn parts<'a>(
    program: &'a Program,
    columns: &'a [Column],
    first: usize,
) -> impl Iterator<Item = (usize, &'a [u8])> {
    let read = program.columns.iter().enumerate().filter_map(|(column, read)| Some((column, (*read)?.0)));
    read.map(move |(column, elements)| {
        let part = first * elements..(first + program.batch) * elements;
        let bytes = match &columns[column] {
            Column::F32(numbers) => bytemuck::cast_slice(&numbers[part]),
            Column::I32(numbers) => bytemuck::cast_slice(&numbers[part]),
        };
        (column, bytes)
    })
}

/// Brings the columns of a step's batch to where the program reads them. The stream of uploads must be
/// selected.
pub(super) fn upload(program: &Program, device: &mut CudaDevice, feed: Feed<'_>) -> Result<(), DriverError> {
    let own = Ahead { number: feed.number, first: feed.first, examples: program.batch };
    // A batch without a number, such as that of an evaluation, leaves the next one where it is.
    let is_there = feed.number != 0 && device.ahead.take() == Some(own);
    for (column, bytes) in parts(program, feed.columns, feed.first) {
        let place = device.memory.address(&Place::Column(column));
        match device.memory.ahead(column).filter(|_| is_there) {
            Some(ahead) => device.driver.copy(ahead, place, bytes.len() as u64)?,
            None => device.driver.upload(place, bytes)?,
        }
    }
    Ok(())
}

/// Begins to copy the batch of the next step, beside the kernels of this one. Returns the part of it that the
/// device has once all requests are done; `None` if the batch is not known, or there is no room for it.
pub(super) fn upload_next(
    program: &Program,
    device: &mut CudaDevice,
    feed: Feed<'_>,
) -> Result<Option<Ahead>, DriverError> {
    let Some(NextBatch { number, columns, examples }) = feed.next else { return Ok(None) };
    if examples < feed.first + program.batch {
        return Ok(None);
    }
    device.ahead = None;
    let sizes: BTreeMap<Key, u64> = parts(program, columns, feed.first)
        .map(|(column, bytes)| (Key::Ahead(column), bytes.len() as u64))
        .collect();
    if !device.has_room_ahead(sizes)? {
        return Ok(None);
    }
    device.driver.select(Stream::Upload);
    for (column, bytes) in parts(program, columns, feed.first) {
        let ahead = device.memory.ahead(column).expect("there is room for each column");
        device.driver.upload(ahead, bytes)?;
    }
    Ok(Some(Ahead { number, first: feed.first, examples: program.batch }))
}
