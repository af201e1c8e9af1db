//! Saves that were asked for: one that is to come, and one that is being written. Knows neither slices nor files.
//!
//! Wanted properties: (A) every question is answered once, and the newer of two equal ones with what became of the save;
//! (B) a cut is of the version that was asked for; (C) there are two cuts at most; (D) what is written is not written again.

use pushpull_messages::id::Version;
use pushpull_messages::message::{Save, SaveResult, Saved};
use pushpull_transport::buffer::Payload;

use super::cut::Cut;
use super::waiting::{Answer, Asker};

/// The saves of one shard.
#[derive(Debug)]
pub(super) struct Saves<R> {
    next: Option<Next<R>>,
    writing: Option<(Save, Asker<R>)>,
    /// The last that is in its file.
    written: Option<(Save, SaveResult)>,
}

#[derive(Debug)]
struct Next<R> {
    save: Save,
    asker: Asker<R>,
    /// From its version on; it waits while another is being written.
    cut: Option<Cut>,
}

impl<R> Default for Saves<R> {
    fn default() -> Self {
        Self { next: None, writing: None, written: None }
    }
}

fn saved<R>(asker: Asker<R>, result: SaveResult) -> Answer<R> {
    Answer { reply: asker.reply, result: Ok((Saved { result }.into(), Payload::EMPTY)) }
}

impl<R> Saves<R> {
    /// A save is asked for, of a shard at that version. Gives the answer that is due: to this question, to an older one
    /// of the same, or to that for the save whose place it takes.
    pub(super) fn ask(&mut self, save: Save, asker: Asker<R>, version: Version) -> Option<Answer<R>> {
        if let Some((_, result)) = self.written.as_ref().filter(|(written, _)| *written == save) {
            return Some(saved(asker, result.clone()));
        }
        let writing = self.writing.as_mut().map(|(writing, asker)| (&*writing, asker));
        let next = self.next.as_mut().map(|next| (&next.save, &mut next.asker));
        if let Some((_, older)) = writing.into_iter().chain(next).find(|(known, _)| **known == save) {
            return Some(older.again(asker));
        }
        if version > save.at {
            return Some(saved(asker, SaveResult::Past(version)));
        }
        self.next.replace(Next { save, asker, cut: None }).map(Next::replaced)
    }

    /// The save whose moment has come.
    pub(super) fn due(&self, version: Version) -> Option<&Save> {
        let next = self.next.as_ref().filter(|next| next.cut.is_none())?;
        debug_assert!(version <= next.save.at, "{version} has gone by {:?}", next.save);
        (next.save.at == version).then_some(&next.save)
    }

    /// Here is the cut for it.
    pub(super) fn cut(&mut self, cut: Cut) {
        self.next.as_mut().expect("a save is due").cut = Some(cut);
    }

    /// What is to be written now: nothing while something is being written.
    pub(super) fn begin(&mut self) -> Option<Cut> {
        if self.writing.is_some() {
            return None;
        }
        let Next { save, asker, cut } = self.next.take_if(|next| next.cut.is_some())?;
        self.writing = Some((save, asker));
        cut
    }

    /// What became of the one that was being written.
    pub(super) fn finish(&mut self, result: SaveResult) -> Answer<R> {
        let (save, asker) = self.writing.take().expect("one is finished that was begun");
        // One that failed may be tried again.
        if matches!(result, SaveResult::Written { .. }) {
            self.written = Some((save, result.clone()));
        }
        saved(asker, result)
    }

    /// The shard begins anew: the one that is to come never will. Gives the answer to it.
    pub(super) fn give_up(&mut self) -> Option<Answer<R>> {
        self.written = None;
        self.next.take().map(Next::replaced)
    }
}

impl<R> Next<R> {
    fn replaced(self) -> Answer<R> {
        saved(self.asker, SaveResult::Replaced)
    }
}
