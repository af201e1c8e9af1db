//! Tasks of one host share memory only on Linux. On other systems, no value of these types exists.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::line::Line;

#[derive(Debug)]
pub(crate) enum Arena {}

impl Arena {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn take(self: &Arc<Self>, _: usize) -> Option<Block> {
        match **self {}
    }
}

pub(super) enum Block {}

impl Block {
    pub(super) fn place(&self) -> (&Arc<Arena>, usize) {
        match *self {}
    }
}

impl Deref for Block {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        match *self {}
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [Line] {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Region {}

impl Region {
    pub(super) fn bytes(&self, _: usize, _: usize) -> &[u8] {
        match *self {}
    }
}
