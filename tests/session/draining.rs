//! Tests of servers that a signal ends: the run in progress finishes, and no more runs begin.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Long, Servers};

#[test]
fn a_signal_lets_the_run_in_progress_finish() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut servers = Servers::start(&[("local", 1)], &["--drain-s=60"]);
        let device = "/job:local/task:0";
        let (long, short) = (Long::new(device, device, 50), Long::new(device, device, 1));
        let (session, other) = (servers.session("local/0"), servers.session("local/0"));
        std::thread::scope(|scope| {
            let run = scope.spawn(|| long.run(&session));
            long.wait_until_begun(&other, 1);
            let server = servers.program("local/0");
            server.signal(signal);
            server.wait_for("waiting for the runs in progress");
            let error = short.run(&other).unwrap_err();
            assert!(error.contains("the server is stopping") || error.contains("lost"), "{error}");
            assert_eq!(run.join().unwrap(), Ok(Long::sum()));
            server.wait_within(Duration::from_secs(10)).expect(0);
        });
    }
}

#[test]
fn a_run_that_does_not_end_in_time_is_lost() {
    let mut servers = Servers::start(&[("local", 1)], &["--drain-s=0"]);
    let device = "/job:local/task:0";
    let long = Long::new(device, device, 4000);
    let (session, other) = (servers.session("local/0"), servers.session("local/0"));
    std::thread::scope(|scope| {
        let run = scope.spawn(|| long.run(&session));
        long.wait_until_begun(&other, 1);
        servers.program("local/0").signal(Signal::TERM);
        servers.program("local/0").wait_within(Duration::from_secs(10)).expect(0);
        let error = run.join().unwrap().unwrap_err();
        assert!(!error.contains('\n') && error.contains("has not ended in time"), "{error}");
    });
}
