//! Tests of the chief's page in a real browser, with a running job.

use std::time::{Duration, Instant};

use pushpull_messages::id::TaskId;

use crate::browser::Browser;
use crate::harness::{Cluster, ENDLESS, Endpoint, Job, PATIENCE, Running};

/// The time limit for the page to show that a worker has died.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

#[test]
fn a_browser_sees_curves_move_and_a_killed_worker_turn_red() {
    let Some(mut browser) = Browser::find("the chief's page") else { return };
    let cluster = Cluster::with(1, 2, 3, |dir| Job::with(dir, ENDLESS, &[]));
    let mut running = Running::of(cluster, &[]);
    let chief = Endpoint::of(&mut running.chief);
    browser.open(&format!("http://{}/", chief.0));
    for worker in 0..3 {
        browser.wait_for(&state_is(worker, "training"), PATIENCE);
    }
    let curve = "document.querySelector('#chart-loss path.line')?.getAttribute('d')";
    browser.wait_for(&format!("({curve} || '').length > 20"), PATIENCE);
    let first = browser.evaluate(curve);
    browser.wait_for(&format!("{curve} !== {first}"), PATIENCE);
    // The other workers leave the processor to the chief and the browser, whose time is limited.
    let slowed = running.slowed(&[0, 2]);
    running.workers[1].kill();
    let killed = Instant::now();
    let gone = "['away', 'lost'].includes(document.querySelector('[data-worker=\"1\"]').dataset.state)";
    browser.wait_for(gone, SEEN_WITHIN.saturating_sub(killed.elapsed()));
    // The state must also be visible as the colour red.
    let color = "getComputedStyle(document.querySelector('[data-worker=\"1\"] .glyph')).color";
    let color = browser.evaluate(color);
    let rgb: Vec<u32> = color
        .as_str()
        .and_then(|color| color.strip_prefix("rgb(")?.strip_suffix(')'))
        .map(|rgb| rgb.split(", ").filter_map(|part| part.parse().ok()).collect())
        .unwrap_or_default();
    assert!(rgb.len() == 3 && rgb[0] > 2 * rgb[1] && rgb[0] > 2 * rgb[2], "{color} is no red");
    drop(slowed);
    browser.wait_for(&state_is(0, "training"), PATIENCE);
    // After a restart, the worker is shown as training again.
    running.workers[1] = running.cluster.start(TaskId::worker(1));
    browser.wait_for(&state_is(1, "training"), PATIENCE);
    // The page loads nothing from other servers, and reports no errors.
    let elsewhere = "performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))";
    browser.wait_for(elsewhere, PATIENCE);
    assert_eq!(browser.complaints(), [""; 0]);
    // When the chief is gone, the page says so, and keeps showing the last data.
    running.kill_all();
    browser.wait_for("document.querySelector('#connection').dataset.state === 'broken'", PATIENCE);
    browser.wait_for("document.querySelectorAll('[data-worker]').length >= 3", PATIENCE);
}

fn state_is(worker: u32, state: &str) -> String {
    format!("document.querySelector('[data-worker=\"{worker}\"]')?.dataset.state === '{state}'")
}
