//! Updates of slices on a device, which go on while the next ones begin: the device copies the values of one
//! slice while it computes those of another. The values that are on their way are bounded.

use std::collections::VecDeque;

use pushpull_cuda::DriverError;
use pushpull_kernels::cpu::Threads;

use super::slice::Slice;
use super::threads::for_each;

/// The number of bytes of values that may be on their way from a device, unless one slice has more.
const BYTES_MAX: usize = 64 << 20;

/// Begins the update of each slice, and waits until all are done. `threads` may share the slices, but not if
/// a slice is on a device.
///
/// # Errors
/// If the device fails. The slices must not be used again.
pub(super) fn update_each<T: Send>(
    slices: &mut [(&mut Slice, T)],
    threads: Threads,
    begin: &(impl Fn(&mut Slice, &mut T) -> Result<(), DriverError> + Sync),
) -> Result<(), DriverError> {
    if threads != Threads::One {
        return for_each(slices, threads, &|(slice, with)| begin(slice, with));
    }
    let (mut begun, mut bytes) = (VecDeque::new(), 0);
    for (slice, with) in slices {
        begin(slice, with)?;
        if slice.is_begun() {
            bytes += slice.bytes();
            begun.push_back(&mut **slice);
        }
        while bytes > BYTES_MAX
            && let Some(oldest) = begun.pop_front()
        {
            bytes -= oldest.bytes();
            oldest.finish()?;
        }
    }
    begun.into_iter().try_for_each(Slice::finish)
}
