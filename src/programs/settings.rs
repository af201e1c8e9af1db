//! The flags that a program was started with, as its endpoint shows them. This module must not depend on
//! clap or HTTP.

use std::sync::{Arc, OnceLock};

use serde::Serialize;

/// One flag of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// The flag without its dashes, or the name of an environment variable.
    pub(crate) name: String,
    /// The value; `None` if the flag was not given and has no default. Secrets are hidden.
    pub(crate) value: Option<String>,
    /// The origin of the value: `command line`, `environment` or `default`.
    pub(crate) from: Option<&'static str>,
}

/// A program's name and all its flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) program: String,
    pub(crate) flags: Vec<Setting>,
}

/// The settings of one run of a program. Clones share them. They are empty until the whole command line has
/// been read. They stay empty in a program without a command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct CalledWith(Arc<OnceLock<Settings>>);

impl CalledWith {
    /// Stores the settings. Only the first call has an effect.
    pub(crate) fn set(&self, settings: Settings) {
        // An error here means that the settings have been stored already.
        let _ = self.0.set(settings);
    }

    /// Returns the settings.
    pub(crate) fn settings(&self) -> Settings {
        self.0.get().cloned().unwrap_or_default()
    }
}
