//! Asynchronous: each push is applied as it comes.
//!
//! Wanted properties: (A) every push up to the last step is applied; (B) exactly `last_step` are, not one more.

use messages::id::{GlobalStep, Version};

use super::{Admission, Policy};

/// Applies everything until the last step.
#[derive(Debug)]
pub(crate) struct Asynchronous {
    last_step: GlobalStep,
}

impl Asynchronous {
    pub(crate) const fn new(last_step: GlobalStep) -> Self {
        Self { last_step }
    }
}

impl Policy for Asynchronous {
    fn admit(&mut self, version: Version) -> Admission {
        if version.0 < self.last_step.0 { Admission::Apply } else { Admission::Stop }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exactly_last_step_pushes_are_applied(last_step in 1u64..100, pushes in 0u64..300) {
            let mut policy = Asynchronous::new(GlobalStep(last_step));
            let mut version = Version(0);
            for push in 0..pushes {
                let admission = policy.admit(version);
                prop_assert_eq!(admission == Admission::Apply, push < last_step);
                if admission == Admission::Apply {
                    version = version.next();
                }
            }
            prop_assert_eq!(version.0, pushes.min(last_step));
        }
    }
}
