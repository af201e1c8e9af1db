//! The pushes whose gradients are still arriving. They have no effect yet; the shard only prepares for them.

use pushpull_messages::message::{Push, PushId};
use pushpull_transport::buffer::Payload;

use super::draft::Preparation;

/// A push whose gradients are still arriving.
pub(super) struct ArrivingPush {
    /// The number of the connection on which the push arrives. Only one push at a time arrives on it.
    connection: u64,
    pub push: Push,
    pub gradients: Payload,
    pub preparation: Preparation,
}

/// The pushes that are arriving at one shard, at most one for each connection.
#[derive(Default)]
pub(super) struct ArrivingPushes(Vec<ArrivingPush>);

impl ArrivingPushes {
    /// Adds a push. It takes the place of an earlier push on the same connection, which has arrived by now.
    pub(super) fn begin(&mut self, connection: u64, push: Push, gradients: Payload) {
        self.end(connection);
        self.0.push(ArrivingPush { connection, push, gradients, preparation: Preparation::default() });
    }

    /// Removes the push that arrives on `connection`, if there is one.
    pub(super) fn end(&mut self, connection: u64) {
        self.0.retain(|arriving| arriving.connection != connection);
    }

    /// Removes the push `id`, which has arrived on `connection`, and returns what was done for it.
    pub(super) fn take(&mut self, connection: u64, id: &PushId) -> Preparation {
        let found = |arriving: &ArrivingPush| arriving.connection == connection && arriving.push.id == *id;
        let at = self.0.iter().position(found);
        at.map(|at| self.0.remove(at).preparation).unwrap_or_default()
    }

    /// Takes out the push that arrives on `connection`, to prepare for it, and returns its place.
    pub(super) fn take_out(&mut self, connection: u64) -> Option<(usize, ArrivingPush)> {
        let at = self.0.iter().position(|arriving| arriving.connection == connection)?;
        Some((at, self.0.remove(at)))
    }

    /// Puts a push back to the place from which it was taken.
    pub(super) fn put_back(&mut self, at: usize, arriving: ArrivingPush) {
        self.0.insert(at, arriving);
    }

    /// Decides whether a push of which `arrived` gradients have arrived is to be drafted. There is one draft at
    /// a time, because an update makes all other drafts useless. The draft passes on to another push only if
    /// twice as many gradients of that push have arrived: then it is likely to be complete first.
    pub(super) fn pass_draft(&mut self, arrived: usize) -> bool {
        let drafted = self.0.iter_mut().find(|other| other.preparation.draft.is_some());
        let Some(ArrivingPush { preparation, .. }) = drafted else { return true };
        let passes = preparation.draft.as_ref().is_some_and(|draft| arrived > 2 * draft.len());
        if passes {
            preparation.draft = None;
        }
        passes
    }

    /// Drops the draft of a push that has been overtaken by an update.
    pub(super) fn drop_drafts(&mut self) {
        for arriving in &mut self.0 {
            arriving.preparation.draft = None;
        }
    }
}
