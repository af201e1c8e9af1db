//! Calls about the files that a ps task keeps in its memory. Decides nothing.

use std::sync::Arc;

use pushpull_messages::message::{AccessFiles, FileAccess, FilesAccessed, FilesResult};

use super::ReconnectingClient;
use crate::buffer::{Buffer, Payload, Segment};
use crate::error::CallError;

impl ReconnectingClient {
    /// Asks the peer, a ps task, for an operation on the files in its memory. `piece` is the payload of the
    /// request, which only a piece of a file has. Returns the result and the payload of the reply.
    ///
    /// # Errors
    /// The same as those of [`call`](Self::call).
    pub async fn access_files(
        &self,
        access: FileAccess,
        piece: &[u8],
    ) -> Result<(FilesResult, Vec<u8>), CallError> {
        let payload = match piece.is_empty() {
            true => Payload::EMPTY,
            false => Payload::new(vec![Segment::whole(Arc::new(Buffer::copied(piece)))]),
        };
        let (FilesAccessed { result }, found) = self.call(AccessFiles { access }, payload).await?;
        let found = found.segments().first().map(|found| found.as_bytes().to_vec());
        Ok((result, found.unwrap_or_default()))
    }
}
