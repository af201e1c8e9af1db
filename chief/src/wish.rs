//! What is wished for while a job trains, by hooks, by a ps task that was told to stop, or by a signal. Words only: who
//! fulfils them is the chief's matter.

/// Something that the chief shall see to, besides the training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Another checkpoint, as soon as can be.
    Save,
    /// The job ends well before its last step: evaluated, saved and reported.
    Stop {
        /// Why, for the report.
        reason: String,
    },
    /// The job ends before its last step, for another one to go on: saved, and not evaluated.
    Drain {
        /// Why, for the log.
        reason: String,
    },
}
