//! The cards that are open in this process. When a process ends, the driver and the libraries are taken
//! down, while other threads still run: a thread that calls them then crashes. So the end of the process
//! waits until all cards are closed.

use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

use super::cuda;

/// The longest time for which the end of the process waits. A card is closed when its work is done.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The number of cards that are open.
static OPEN: Mutex<usize> = Mutex::new(0);
static CLOSED: Condvar = Condvar::new();

/// A card that is open, until this value is dropped.
#[derive(Debug)]
pub(super) struct Open(());

impl Open {
    /// Counts a card. The driver must be loaded.
    pub fn count() -> Self {
        static DRIVER: Once = Once::new();
        DRIVER.call_once(wait_at_exit);
        *OPEN.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }

    /// Lets the end of the process wait before the library for products is taken down, which was loaded after
    /// the driver.
    pub fn with_library() {
        static LIBRARY: Once = Once::new();
        LIBRARY.call_once(wait_at_exit);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        *OPEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        CLOSED.notify_all();
    }
}

/// Waits at the end of the process. What was loaded last is taken down first, so this must be called after
/// whatever must outlive the cards was loaded.
fn wait_at_exit() {
    cuda::at_exit(wait);
}

extern "C" fn wait() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    // After that time, what is still open is left as it is.
    drop(CLOSED.wait_timeout_while(open, WAIT_MAX, |open| *open > 0));
}
