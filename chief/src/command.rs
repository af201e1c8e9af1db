//! The commands that hooks, operators, a stopped ps task or a signal may give to a running job. Data only:
//! the launcher carries them out.

use tokio::sync::mpsc;

/// The largest number of queued commands from HTTP endpoints and other views; further ones are refused.
pub(crate) const VIEW_COMMANDS_MAX: usize = 64;

/// A command to a running job.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Makes one more checkpoint, as soon as possible.
    Save,
    /// Multiplies the learning rate of the job's schedule by a factor from now on.
    LearningRate {
        /// The factor; finite and greater than 0. It replaces the factor of an earlier command.
        factor: f32,
    },
    /// Ends the job successfully before its last step: the job is evaluated, saved and reported.
    Stop {
        /// The reason; printed in the report.
        reason: String,
    },
    /// Ends the job before its last step so that another job can continue it: the job is saved, but not
    /// evaluated.
    Drain {
        /// The reason; written to the log.
        reason: String,
    },
}

/// A queue of commands that wait to be carried out. Commands of hooks come from the chief itself and are
/// always accepted. Commands of views, such as the HTTP endpoint, may come from any client, so their number
/// is bounded by [`VIEW_COMMANDS_MAX`].
#[derive(Debug)]
pub(crate) struct CommandQueue {
    hook_sender: mpsc::UnboundedSender<Command>,
    hook_receiver: mpsc::UnboundedReceiver<Command>,
    view_sender: mpsc::Sender<Command>,
    view_receiver: mpsc::Receiver<Command>,
}

impl CommandQueue {
    pub(crate) fn new() -> Self {
        let (hook_sender, hook_receiver) = mpsc::unbounded_channel();
        let (view_sender, view_receiver) = mpsc::channel(VIEW_COMMANDS_MAX);
        Self { hook_sender, hook_receiver, view_sender, view_receiver }
    }

    /// Returns a sender for the chief's own hooks.
    pub(crate) fn for_hooks(&self) -> mpsc::UnboundedSender<Command> {
        self.hook_sender.clone()
    }

    /// Returns the sender with which views send commands to the chief.
    pub(crate) fn for_views(&self) -> mpsc::Sender<Command> {
        self.view_sender.clone()
    }

    /// Waits for the next command. After the queue has been closed and emptied, waits forever. No command is
    /// lost if the returned future is dropped.
    pub(crate) async fn next(&mut self) -> Command {
        tokio::select! {
            biased;
            Some(command) = self.hook_receiver.recv() => command,
            Some(command) = self.view_receiver.recv() => command,
            else => std::future::pending().await,
        }
    }

    /// Closes the queue: further commands are refused.
    pub(crate) fn close(&mut self) {
        self.hook_receiver.close();
        self.view_receiver.close();
    }
}
