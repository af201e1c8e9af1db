//! Updates of slices on a device. The device works on the next ones while the host takes the values of
//! earlier ones from the memory through which they come back, which is bounded.

use std::collections::VecDeque;

use pushpull_cuda::DriverError;
use pushpull_kernels::cpu::Threads;

use super::slice::Slice;
use super::threads::for_each;

/// The number of bytes of that memory, unless the results of one slice need more.
const BYTES_MAX: usize = if cfg!(test) { 128 << 10 } else { 64 << 20 };

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
        for_each(slices, threads, &|(slice, with)| begin(slice, with))?;
        debug_assert!(slices.iter().all(|(slice, _)| !slice.is_begun()), "a slice on a device");
        return Ok(());
    }
    let (mut begun, mut bytes): (VecDeque<&mut Slice>, _) = (VecDeque::new(), 0);
    for (slice, with) in slices {
        bytes += slice.in_flight_bytes();
        while bytes > BYTES_MAX
            && let Some(oldest) = begun.pop_front()
        {
            bytes -= oldest.in_flight_bytes();
            oldest.finish()?;
        }
        begin(slice, with)?;
        if slice.is_begun() {
            begun.push_back(slice);
        } else {
            bytes -= slice.in_flight_bytes();
        }
    }
    begun.into_iter().try_for_each(Slice::finish)
}
