//! Tests of tasks that are killed during a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Long, Servers};

#[test]
fn a_killed_task_fails_only_the_runs_that_need_it() {
    let mut servers = Servers::start(&[("worker", 3)], &[]);
    let [first, second, third] = [0, 1, 2].map(|index| format!("/job:worker/task:{index}"));
    let (long, short) = (Long::new(&first, &third, 4000), Long::new(&first, &third, 1));
    let near = Long::new(&second, &first, 1);
    let [session, other] = [servers.session("worker/0"), servers.session_in("worker/1", "other")];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let undisturbed = scope.spawn(|| {
            let mut runs = 0;
            while !over.load(Ordering::Relaxed) {
                near.run(&other).unwrap();
                runs += 1;
            }
            runs
        });
        let run = scope.spawn(|| long.run(&session));
        long.wait_until_begun(&servers.session("worker/0"), 1);
        servers.program("worker/2").kill();
        let killed = Instant::now();
        let error = run.join().unwrap().unwrap_err();
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}: {error}", killed.elapsed());
        assert!(error.contains("worker/2") && !error.contains('\n'), "{error}");

        let error = short.run(&session).unwrap_err();
        assert!(error.contains("worker/2"), "{error}");
        servers.restart("worker/2");
        assert!(short.run(&session).unwrap() > 0.0);
        over.store(true, Ordering::Relaxed);
        assert!(undisturbed.join().unwrap() > 0);
    });
}

#[test]
fn a_session_ends_with_its_own_server() {
    let mut servers = Servers::start(&[("worker", 2)], &[]);
    let [first, second] = [0, 1].map(|index| format!("/job:worker/task:{index}"));
    let (long, short) = (Long::new(&second, &second, 4000), Long::new(&first, &second, 1));
    let session = servers.session("worker/0");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| long.run(&session));
        long.wait_until_begun(&servers.session("worker/1"), 1);
        servers.program("worker/0").kill();
        let killed = Instant::now();
        let error = run.join().unwrap().unwrap_err();
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}: {error}", killed.elapsed());
        assert!(error.contains("worker/0") && !error.contains('\n'), "{error}");
    });
    servers.restart("worker/0");
    assert_eq!(short.run(&servers.session("worker/0")), Ok(Long::sum()));
}
