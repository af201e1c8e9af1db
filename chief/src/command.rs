//! What hooks, operators, a stopped ps task or a signal may ask of a running job. Data only: the launcher
//! carries it out.

use tokio::sync::mpsc;

/// The largest number of commands from views that may wait to be carried out.
pub(crate) const VIEW_COMMANDS_MAX: usize = 64;

/// A command to a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Saves one more checkpoint, as soon as possible.
    Save,
    /// Ends the job well before its last step: it is evaluated, saved and reported.
    Stop {
        /// The reason, for the report.
        reason: String,
    },
    /// Ends the job before its last step so that another job can go on from there: it is saved and not
    /// evaluated.
    Drain {
        /// The reason, for the log.
        reason: String,
    },
}

/// The commands that wait to be carried out. Those of hooks come from the chief itself and are always taken;
/// those of views may come from anyone, so their number is bounded by [`VIEW_COMMANDS_MAX`].
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

    /// Returns a sender for views.
    pub(crate) fn for_views(&self) -> mpsc::Sender<Command> {
        self.view_sender.clone()
    }

    /// Waits for the next command. Never ends, and loses no command when it is dropped.
    pub(crate) async fn next(&mut self) -> Command {
        tokio::select! {
            Some(command) = self.hook_receiver.recv() => command,
            Some(command) = self.view_receiver.recv() => command,
            else => std::future::pending().await,
        }
    }

    /// Refuses further commands.
    pub(crate) fn close(&mut self) {
        self.hook_receiver.close();
        self.view_receiver.close();
    }
}
