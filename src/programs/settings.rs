//! What a program was called with, as its endpoint shows it. Knows neither clap nor HTTP.

use std::sync::{Arc, OnceLock};

use serde::Serialize;

/// One flag of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// The flag without its dashes, or the name of an environment variable.
    pub(crate) name: String,
    /// The value, `None` where none was given and there is no default. Secrets are hidden.
    pub(crate) value: Option<String>,
    /// Where the value comes from: `command line`, `environment` or `default`.
    pub(crate) from: Option<&'static str>,
}

/// A program's name and all its flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) program: String,
    pub(crate) flags: Vec<Setting>,
}

/// The settings of one call of a program. Clones share them. They are empty until the whole command line is
/// read, and stay empty where a program did not read one.
#[derive(Clone, Debug, Default)]
pub(crate) struct CalledWith(Arc<OnceLock<Settings>>);

impl CalledWith {
    /// Sets them. Later calls change nothing.
    pub(crate) fn set(&self, settings: Settings) {
        // A command line is read once.
        let _ = self.0.set(settings);
    }

    /// Returns them.
    pub(crate) fn settings(&self) -> Settings {
        self.0.get().cloned().unwrap_or_default()
    }
}
