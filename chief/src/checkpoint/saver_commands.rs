//! The commands to the savers of both levels of checkpoints. Decides nothing.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::saver::SaverCommand;

/// The channels of commands to the savers: that of the job's directory, and that of the memory of the ps
/// tasks. A saver that the job does not have ignores its commands.
#[derive(Clone, Debug)]
pub(crate) struct SaverCommands {
    directory: UnboundedSender<SaverCommand>,
    memory: UnboundedSender<SaverCommand>,
}

impl SaverCommands {
    /// Returns the channels, and their ends for the saver of the directory and for that of the memory.
    pub(crate) fn new() -> (Self, [UnboundedReceiver<SaverCommand>; 2]) {
        let ((directory, of_directory), (memory, of_memory)) = (unbounded_channel(), unbounded_channel());
        (Self { directory, memory }, [of_directory, of_memory])
    }

    /// Sends a command. Both savers get those about the state of the shards. All others concern checkpoints
    /// that outlast the job, which are those of the directory.
    pub(crate) fn send(&self, command: SaverCommand) {
        use SaverCommand::{Begin, Resume, Suspend};
        // A send fails if the saver has ended, or if the job does not have it.
        if matches!(command, Begin(_) | Suspend | Resume) {
            let _ = self.memory.send(command.clone());
        }
        let _ = self.directory.send(command);
    }
}
