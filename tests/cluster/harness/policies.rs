//! Runs the body of a test under several synchronisation policies.

/// Calls `test` with each policy, each in a thread of its own: most of the jobs of such a test wait for other
/// processes most of the time, and none of them should train only because the test attends to another one.
///
/// # Panics
/// Panics if one of the calls panics.
pub(crate) fn under_each(policies: &[&str], test: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        for &policy in policies {
            let test = &test;
            let thread = std::thread::Builder::new().name(policy.to_owned());
            thread.spawn_scoped(scope, move || test(policy)).expect("a thread can be started");
        }
    });
}
