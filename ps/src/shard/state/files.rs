//! The file requests of a shard, and the saves that need them. The state machine does not access files: its
//! caller executes the requests.

use std::sync::Arc;

use pushpull_messages::checkpoint::Level;
use pushpull_messages::message::{CreateShard, Save, SaveResult};

use super::{ShardState, created};
use crate::shard::answer::{Answer, Asker};
use crate::shard::cut::Cut;

/// A read or write of a file that a shard requests from its caller. A shard has at most one read and one
/// write of each level in progress. The caller passes the result back to the shard.
#[derive(Debug)]
pub enum FileRequest {
    /// Read the values that the shard begins with, and pass them to [`ShardState::restored`].
    Read(Arc<CreateShard>),
    /// Write this snapshot of the shard to a file, and pass the result to [`ShardState::written`].
    Write(Cut),
}

impl<R> ShardState<R> {
    /// Returns the next file request, or `None`. The caller must call this after every request to the shard,
    /// until it returns `None`.
    pub fn take_file_request(&mut self) -> Option<FileRequest> {
        let reads = self.discards_read;
        if let Some(creating) = self.creating.as_mut().filter(|creating| !reads && !creating.requested) {
            creating.requested = true;
            return Some(FileRequest::Read(Arc::clone(&creating.create)));
        }
        self.saves.begin().map(FileRequest::Write)
    }

    /// Accepts a request for a save. The shard will be saved when it reaches the version that `save` names.
    pub fn save(&mut self, save: Save, connection: u64, reply: R) -> Vec<Answer<R>> {
        let contents = match created(&mut self.contents, self.id) {
            Ok(contents) => contents,
            Err(refusal) => return vec![Answer::refused(reply, refusal)],
        };
        let answer = self.saves.request(save, Asker { reply, connection }, contents.version);
        self.cut_if_due();
        answer.into_iter().collect()
    }

    /// Ends the save of a level whose snapshot was being written. `result` says whether the write succeeded.
    ///
    /// # Panics
    /// If no snapshot of this level was being written.
    pub fn written(&mut self, level: Level, result: SaveResult) -> Vec<Answer<R>> {
        vec![self.saves.finish(level, result)]
    }

    /// If saves of the current version were requested, takes a snapshot of the shard for each of them to
    /// write. Called at the end of every request that may make a new version.
    pub(super) fn cut_if_due(&mut self) {
        let Some(contents) = &self.contents else { return };
        let cuts: Vec<_> = self.saves.due(contents.version).map(|save| contents.cut(save.clone())).collect();
        for cut in cuts {
            match cut {
                Ok(cut) => self.saves.store(cut),
                Err(error) => return self.lose(error),
            }
        }
    }
}
