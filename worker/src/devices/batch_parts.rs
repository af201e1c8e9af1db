//! Splits a batch among the devices of a worker. This module must not depend on devices.

use std::ops::Range;

use super::error::ReplicaError;

/// Splits a batch of `examples` examples into one part for each of `devices` devices. The parts are
/// consecutive ranges, and their sizes differ by at most 1.
///
/// # Errors
/// If there are fewer examples than devices.
pub(crate) fn parts(examples: usize, devices: usize) -> Result<Vec<Range<usize>>, ReplicaError> {
    if devices == 0 || examples < devices {
        return Err(ReplicaError::Share { examples, devices });
    }
    let bound = |device: usize| device * (examples / devices) + device.min(examples % devices);
    Ok((0..devices).map(|device| bound(device)..bound(device + 1)).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_follow_each_other_and_differ_by_one_at_most(devices in 1usize..20, more in 0usize..50) {
            let examples = devices + more;
            let parts = parts(examples, devices).unwrap();
            prop_assert_eq!(parts.len(), devices);
            let mut next = 0;
            for part in &parts {
                prop_assert_eq!(part.start, next);
                prop_assert!(part.len() == examples / devices || part.len() == examples / devices + 1);
                next = part.end;
            }
            prop_assert_eq!(next, examples);
        }
    }

    #[test]
    fn a_batch_smaller_than_the_devices_is_refused() {
        let error = parts(3, 4).unwrap_err().to_string();
        assert!(error.contains("3 examples") && error.contains("4 devices"), "{error}");
    }
}
