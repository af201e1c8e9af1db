//! The identity of a process whose certificate was made elsewhere. The files are read again when connections
//! are made, so that a new certificate is used without a restart. Wanted properties: (A) new files are used
//! if they could have been given at the start, and are of the same job; (B) otherwise the old ones stay in
//! use; (C) files are read at most once in [`EVERY`], and no connection waits for that; (D) at most one
//! warning is logged in [`WARN_EVERY`], and none about files that were only being replaced.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pushpull_messages::observe::unix_time;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::blocking;
use crate::place::Place;
use crate::settings::Settings;
use crate::tls_files::{Contents, Material, TlsFiles, TlsFilesError};

/// The shortest time between two looks at the files. Two files that are replaced one after the other are
/// seldom replaced further apart.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// The shortest time between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The identity of a process whose certificate is in files.
pub(crate) struct Reloaded {
    files: TlsFiles,
    pub(crate) place: Place,
    job: String,
    current: Mutex<Arc<Settings>>,
    looks: Mutex<Looks>,
    /// The time of the last warning that the certificate in use is not valid.
    time_warned: Mutex<Option<Instant>>,
    /// Taken while the files are being read.
    reading: Arc<Semaphore>,
}

/// What was found at the last look.
struct Looks {
    /// When the files were last read.
    at: Instant,
    /// The number of the contents in use.
    used: [u8; 32],
    /// Whether the files could not be used when they were last read.
    failed: bool,
    warned: Option<Instant>,
}

/// What a look at the files has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The files were not read, because the last look was a moment ago.
    TooEarly,
    /// The files are those in use.
    Same,
    /// The files are new, and used from now on.
    New,
    /// The files cannot be used.
    Unusable {
        /// Whether a warning was logged.
        warned: bool,
    },
}

impl Reloaded {
    /// Reads the files for the first time.
    pub(crate) fn new(files: TlsFiles, place: Place) -> Result<Self, TlsFilesError> {
        let contents = files.read()?;
        let material = checked(&files, &contents, &place)?;
        let job = material.verifier.job().to_owned();
        let current = Mutex::new(Arc::new(settings(&files, material)?));
        let looks = Looks { at: Instant::now(), used: contents.digest(), failed: false, warned: None };
        Ok(Self {
            files,
            place,
            job,
            current,
            looks: Mutex::new(looks),
            time_warned: Mutex::default(),
            reading: Arc::new(Semaphore::new(1)),
        })
    }

    /// Returns the current settings. If it is time to, begins to read the files again: what is new is used
    /// for the connections after this one.
    pub(crate) fn current(self: &Arc<Self>) -> Arc<Settings> {
        let _ = self.begin_look();
        Arc::clone(&self.current.lock())
    }

    /// Begins to read the files again if it is time to, on a thread for blocking work: a network file system
    /// may hang, and the connections of this task must not. At most one look is in progress.
    pub(crate) fn begin_look(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        let is_time = self.looks.try_lock()?.is_time(Instant::now());
        let place = Arc::clone(&self.reading).try_acquire_owned().ok().filter(|_| is_time)?;
        let files = Arc::clone(self);
        blocking::begin(move || {
            let _place = place;
            files.look(Instant::now());
        })
    }

    /// Reads the files again, unless that was done a moment ago or is being done.
    pub(crate) fn look(&self, now: Instant) -> Found {
        let Some(mut looks) = self.looks.try_lock() else { return Found::TooEarly };
        if !looks.is_time(now) {
            return Found::TooEarly;
        }
        looks.at = now;
        match self.renewed(looks.used) {
            Ok(None) => {
                looks.failed = false;
                Found::Same
            }
            Ok(Some((settings, used))) => {
                *self.current.lock() = Arc::new(settings);
                looks.used = used;
                looks.failed = false;
                tracing::info!("new files of this task's certificate are used");
                Found::New
            }
            Err(error) => {
                // The first failure may be that of files that are being replaced.
                let again = std::mem::replace(&mut looks.failed, true);
                let warned = again && may_warn(&mut looks.warned, now);
                if warned {
                    tracing::warn!(
                        "the files of this task's certificate cannot be used, the old ones stay in use: {error}"
                    );
                }
                Found::Unusable { warned }
            }
        }
    }

    /// Warns if the certificate in use is not valid now.
    pub(crate) fn check_time(&self, now: Instant) {
        let current = Arc::clone(&self.current.lock());
        let Some(certified) = &current.certified else { return };
        let Err(error) = current.verifier.check(&certified.chain, unix_time()) else { return };
        if may_warn(&mut self.time_warned.lock(), now) {
            tracing::warn!("other tasks refuse this one from now on: {error}");
        }
    }

    /// Returns the settings and the number of files that differ from those in use.
    fn renewed(&self, used: [u8; 32]) -> Result<Option<(Settings, [u8; 32])>, TlsFilesError> {
        let contents = self.files.read()?;
        let digest = contents.digest();
        if digest == used {
            return Ok(None);
        }
        let material = checked(&self.files, &contents, &self.place)?;
        if material.verifier.job() != self.job {
            return Err(TlsFilesError::Names {
                path: self.files.certificate.clone(),
                got: format!("the job '{}'", material.verifier.job()),
                expected: format!("the job '{}'", self.job),
            });
        }
        Ok(Some((settings(&self.files, material)?, digest)))
    }
}

impl Looks {
    /// Returns whether the last look is long ago.
    fn is_time(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) >= EVERY
    }
}

/// Returns whether a warning may be logged now. If so, the next one of its kind has to wait.
fn may_warn(warned: &mut Option<Instant>, now: Instant) -> bool {
    let may = warned.is_none_or(|at| now.saturating_duration_since(at) >= WARN_EVERY);
    if may {
        *warned = Some(now);
    }
    may
}

/// Checks the files of the process at `place`.
fn checked(files: &TlsFiles, contents: &Contents, place: &Place) -> Result<Material, TlsFilesError> {
    let tasks = place.own_tasks().ok_or_else(|| TlsFilesError::NotListed(place.task().to_string()))?;
    Material::of_tasks(files, contents, &tasks, unix_time())
}

fn settings(files: &TlsFiles, material: Material) -> Result<Settings, TlsFilesError> {
    Settings::of_files(material)
        .map_err(|error| TlsFilesError::Tls { path: files.certificate.clone(), reason: error.to_string() })
}

impl std::fmt::Debug for Reloaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (files, job, task) = (&self.files, &self.job, self.place.task());
        f.debug_struct("Reloaded")
            .field("files", files)
            .field("job", job)
            .field("task", &task)
            .finish_non_exhaustive()
    }
}
