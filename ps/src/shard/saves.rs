//! The saves that the chief requested, each level of checkpoints by itself: the next one, and the one that is
//! being written. A cut is the snapshot of the shard that a save writes. Wanted properties: (A) every request
//! is answered once; of two requests for one save, the newer gets the result; (B) a cut has the version that
//! was requested; (C) there are at most two cuts of each level; (D) a save that was written is not written
//! again; (E) the saves of one level do not change those of the other.

use pushpull_messages::checkpoint::Level;
use pushpull_messages::id::Version;
use pushpull_messages::message::{Save, SaveResult, Saved};

use super::answer::{Answer, Asker};
use super::cut::Cut;

/// The saves of one shard.
#[derive(Debug)]
pub(super) struct Saves<R> {
    directory: LevelSaves<R>,
    memory: LevelSaves<R>,
}

/// The saves of one level.
#[derive(Debug)]
struct LevelSaves<R> {
    next: Option<Next<R>>,
    writing: Option<(Save, Asker<R>)>,
    /// The last save that was written to its file, with its result.
    written: Option<(Save, SaveResult)>,
}

#[derive(Debug)]
struct Next<R> {
    save: Save,
    asker: Asker<R>,
    /// The snapshot that the save writes, taken when the shard reaches the save's version. It waits here
    /// while another save is being written.
    cut: Option<Cut>,
}

impl<R> Default for Saves<R> {
    fn default() -> Self {
        Self { directory: LevelSaves::default(), memory: LevelSaves::default() }
    }
}

impl<R> Saves<R> {
    const fn level(&mut self, level: Level) -> &mut LevelSaves<R> {
        match level {
            Level::Directory => &mut self.directory,
            Level::Memory => &mut self.memory,
        }
    }

    fn levels(&mut self) -> [&mut LevelSaves<R>; 2] {
        [&mut self.directory, &mut self.memory]
    }

    /// Accepts a request to save a shard that is at `version`. Returns the answer that is now due, if any.
    /// The answer belongs to this request, to an older request for the same save, or to an older request
    /// whose save is replaced by `save`.
    pub(super) fn request(&mut self, save: Save, asker: Asker<R>, version: Version) -> Option<Answer<R>> {
        self.level(Level::of(&save.store)).request(save, asker, version)
    }

    /// Returns the saves for which a cut has to be taken now, at `version`.
    pub(super) fn due(&self, version: Version) -> impl Iterator<Item = &Save> {
        [&self.directory, &self.memory].into_iter().filter_map(move |saves| saves.due(version))
    }

    /// Keeps the cut of a save that [`due`](Self::due) has returned, until it is written.
    pub(super) fn store(&mut self, cut: Cut) {
        self.level(Level::of(&cut.save.store)).store(cut);
    }

    /// Begins to write the next save of a level, and returns its cut. Returns `None` if no such cut has been
    /// taken yet, or if another save of its level is being written.
    pub(super) fn begin(&mut self) -> Option<Cut> {
        self.levels().into_iter().find_map(LevelSaves::begin)
    }

    /// Ends the save of a level that is being written, and returns the answer with its result.
    pub(super) fn finish(&mut self, level: Level, result: SaveResult) -> Answer<R> {
        self.level(level).finish(result)
    }

    /// Drops the next saves, because the shard is created again. Returns the answers to their requests.
    pub(super) fn abandon(&mut self) -> Vec<Answer<R>> {
        self.levels().into_iter().filter_map(LevelSaves::abandon).collect()
    }
}

impl<R> Default for LevelSaves<R> {
    fn default() -> Self {
        Self { next: None, writing: None, written: None }
    }
}

impl<R> LevelSaves<R> {
    /// Accepts a request to save a shard that is at `version`. Returns the answer that is now due, if any.
    /// The answer belongs to this request, to an older request for the same save, or to an older request
    /// whose save is replaced by `save`.
    fn request(&mut self, save: Save, asker: Asker<R>, version: Version) -> Option<Answer<R>> {
        if let Some((_, result)) = self.written.as_ref().filter(|(written, _)| *written == save) {
            return Some(saved(asker, result.clone()));
        }
        let writing = self.writing.as_mut().map(|(writing, asker)| (&*writing, asker));
        let next = self.next.as_mut().map(|next| (&next.save, &mut next.asker));
        if let Some((_, older)) = writing.into_iter().chain(next).find(|(known, _)| **known == save) {
            return Some(older.supersede(asker));
        }
        if version > save.at {
            return Some(saved(asker, SaveResult::Past(version)));
        }
        self.next.replace(Next { save, asker, cut: None }).map(Next::replaced)
    }

    /// Returns the save for which a cut has to be taken now, at `version`.
    fn due(&self, version: Version) -> Option<&Save> {
        let next = self.next.as_ref().filter(|next| next.cut.is_none())?;
        debug_assert!(version <= next.save.at, "version {version} is past {:?}", next.save);
        (next.save.at == version).then_some(&next.save)
    }

    /// Keeps the cut of the save that [`due`](Self::due) has returned, until it is written.
    fn store(&mut self, cut: Cut) {
        self.next.as_mut().expect("a save is due").cut = Some(cut);
    }

    /// Begins to write the next save, and returns its cut. Returns `None` if that cut has not been taken
    /// yet, or if another save is being written.
    fn begin(&mut self) -> Option<Cut> {
        if self.writing.is_some() {
            return None;
        }
        let Next { save, asker, cut } = self.next.take_if(|next| next.cut.is_some())?;
        self.writing = Some((save, asker));
        cut
    }

    /// Ends the save that is being written, and returns the answer with its result.
    fn finish(&mut self, result: SaveResult) -> Answer<R> {
        let (save, asker) = self.writing.take().expect("a save is being written");
        // A save that failed is not remembered, so that it can be requested again.
        if matches!(result, SaveResult::Written { .. }) {
            self.written = Some((save, result.clone()));
        }
        saved(asker, result)
    }

    /// Drops the next save, because the shard is created again. Returns the answer to the request for that
    /// save, if any.
    fn abandon(&mut self) -> Option<Answer<R>> {
        self.written = None;
        self.next.take().map(Next::replaced)
    }
}

impl<R> Next<R> {
    fn replaced(self) -> Answer<R> {
        saved(self.asker, SaveResult::Replaced)
    }
}

fn saved<R>(asker: Asker<R>, result: SaveResult) -> Answer<R> {
    Answer::message(asker.reply, Saved { result })
}
