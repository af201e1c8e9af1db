//! Tests of the chief's page in a real browser, served by a simulated chief: the content of the page,
//! hostile names, and the message when the chief is away. Like the tests of a real cluster, they find
//! elements by ids and data attributes.

#[path = "../support/browser.rs"]
mod browser;
mod fake_chief;

use std::time::Duration;

use browser::Browser;
use fake_chief::{Chief, TOKEN, Told};
use pushpull_messages::id::{GlobalStep, LocalStep, ShardId, TaskId, Version};
use pushpull_messages::message::{MetricValue, ShardCounters};
use pushpull_messages::observe::{
    Checkpoints, ChiefSnapshot, CurvePoint, Finding, FindingKind, JobPhase, JobSummary, PlacementRow,
    ShardRow, ShardState, TaskRow, WorkerRow, WorkerState,
};
use serde_json::json;

/// The time limit for any change to appear on the page, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

fn job(workers: u32, shards: u32) -> ChiefSnapshot {
    let task = |task: TaskId| {
        let http = Some(format!("10.0.0.{}:9090", task.index % 250));
        TaskRow { task, address: "host:2222".to_owned(), http, reachable: true, lives: 1 }
    };
    let worker = |worker| WorkerRow {
        worker,
        state: WorkerState::Training,
        reported_ms: Some(300),
        local_step: LocalStep(250),
        loss: Some(0.25),
        steps_per_s: 3.5,
        examples_per_s: 448.0,
        staleness: Some(2.5),
        phases_us: vec![("input".to_owned(), 3_000), ("compute".to_owned(), 200_000)],
        ..Default::default()
    };
    let shard = |ps| ShardRow {
        shard: ShardId::new(ps, 0),
        seen_ms: 200,
        version: Version(1000),
        updates_per_s: 14.0,
        busy: 0.3,
        queue: 1,
        waited_us: 100,
        handling_us: 2_000,
        round_trip_us: Some(9_000),
        variables: 2,
        slices: 2,
        bytes: 1 << 20,
        more_bytes: 1 << 20,
        pushes: ShardCounters { received: 1000, applied: 1000, ..Default::default() },
        pulls: 1000,
        staleness: Some(2.5),
        waiting: 0,
        state: ShardState::Serving,
    };
    let ps = (0..shards).map(TaskId::ps);
    ChiefSnapshot {
        job: JobSummary { name: "resnet20".to_owned(), sync: "async".to_owned(), ..Default::default() },
        phase: JobPhase::Training,
        up_ms: 60_000,
        step: GlobalStep(1000),
        last_step: GlobalStep(4000),
        loss: Some(0.25),
        steps_per_s: 14.0,
        examples_per_s: 1792.0,
        evaluation: Some((GlobalStep(900), vec![MetricValue { name: "accuracy".to_owned(), value: 0.9123 }])),
        tasks: ps.chain((0..workers).map(TaskId::worker)).map(task).collect(),
        workers: (0..workers).map(worker).collect(),
        shards: (0..shards).map(shard).collect(),
        checkpoints: Some(Checkpoints { saves: 3, last: Some("step-900".to_owned()), ..Default::default() }),
        ..Default::default()
    }
}

fn point(second: u64) -> CurvePoint {
    CurvePoint {
        at_ms: second * 1000,
        step: GlobalStep(second * 14),
        loss: Some(1.0 / (1.0 + second as f32)),
        examples_per_s: 1792.0,
        metrics: vec![MetricValue { name: "accuracy".to_owned(), value: 0.01 * second as f32 }],
        evaluation: Vec::new(),
        phases_us: vec![("input".to_owned(), 3_000), ("compute".to_owned(), 200_000)],
    }
}

fn told(job: ChiefSnapshot) -> Told {
    Told { job, curves: (0..60).map(point).collect(), ..Default::default() }
}

/// Returns a script that gives the text of the element with this selector.
fn text(selector: &str) -> String {
    format!("document.querySelector({}).textContent", json!(selector))
}

fn live(browser: &mut Browser, chief: &Chief) {
    browser.open(&chief.url());
    browser.wait_for(
        "document.body.dataset.connection === 'live' && !!document.querySelector('[data-worker]')",
        SOON,
    );
}

#[test]
fn a_job_is_shown_as_it_goes_on() {
    let Some(mut browser) = Browser::find("the chief's page") else { return };
    let mut told = told(job(4, 2));
    told.job.workers[2].state = WorkerState::Lost;
    told.job.tasks.retain(|row| row.task != TaskId::worker(3));
    told.job.findings = vec![Finding {
        kind: FindingKind::OverloadedShard,
        name: "ps/1/shard/0".to_owned(),
        reason: "busy 97 % of the time".to_owned(),
    }];
    told.placement = vec![PlacementRow {
        variable: "dense/kernel".to_owned(),
        shape: "784x512".to_owned(),
        rows: (0, 392),
        bytes: 802_816,
        shard: ShardId::new(1, 0),
    }];
    told.log = vec![json!({ "at_ms": 1, "level": "warn", "task": "worker/2", "text": "worker/2 is lost" })];
    let chief = Chief::telling(told);
    live(&mut browser, &chief);

    assert_eq!(browser.evaluate(&text("#name")), "resnet20");
    assert_eq!(browser.evaluate(&text("#metric")), "91.23 %");
    let states = "[...document.querySelectorAll('[data-worker]')].map(one => one.dataset.state).join()";
    assert_eq!(browser.evaluate(states), "training,training,lost,training");
    assert_eq!(browser.evaluate(&text("[data-worker='2'] .state")), "lost");
    let why = text("[data-finding='overloaded_shard'][data-name='ps/1/shard/0']");
    assert_eq!(browser.evaluate(&why), "ps/1/shard/0 is overloadedbusy 97 % of the time");
    let marked = "document.querySelector('[data-shard=\"ps/1/shard/0\"]').classList.contains('found')";
    assert_eq!(browser.evaluate(marked), true);
    let link = |task: &str| format!("document.querySelector('#row-{task} a')?.href ?? null");
    assert_eq!(browser.evaluate(&link("worker-1")), "http://10.0.0.1:9090/");
    assert_eq!(browser.evaluate(&link("worker-3")), json!(null));
    browser.wait_for(&format!("{} === 'worker/2 is lost'", text("#log [data-level='warn'] .what")), SOON);
    assert_eq!(browser.evaluate("document.querySelector('#wishes').hidden"), true);

    // New points are added to the curves.
    browser.wait_for("Number(document.querySelector('#chart-loss').dataset.points) === 60", SOON);
    chief.tell(|told| {
        told.curves.push(point(60));
        told.job.step = GlobalStep(1014);
    });
    browser.wait_for("Number(document.querySelector('#chart-loss').dataset.points) === 61", SOON);
    browser.wait_for(&format!("{}.replace(/\\s/g, '') === '1014'", text("#step")), SOON);

    // The placement is requested from the chief when it is opened.
    browser.evaluate("document.querySelector('[data-placement=\"ps/1/shard/0\"]').click()");
    browser.wait_for("!!document.querySelector('[data-placement-of=\"ps/1/shard/0\"]')", SOON);
    let row =
        "[...document.querySelectorAll('[data-placement-of] td')].map(cell => cell.textContent).join('|')";
    assert_eq!(browser.evaluate(row), "dense/kernel|784x512|0 to 391|784 KiB");

    // A table can be sorted by any column.
    browser.evaluate("document.querySelectorAll('#workers th button')[0].click()");
    let first = "document.querySelector('#workers tbody tr').id";
    assert_eq!(browser.evaluate(first), "row-worker-3");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_page_without_its_chief_says_so_and_comes_back() {
    let Some(mut browser) = Browser::find("the chief's page without its chief") else { return };
    let mut first = told(job(1, 1));
    let line = |at_ms: u64| json!({ "at_ms": at_ms, "level": "INFO", "task": "chief/0", "text": format!("{at_ms}") });
    first.log = [5, 6, 7].map(line).into();
    let chief = Chief::telling(first);
    live(&mut browser, &chief);
    chief.tell(|told| told.away = true);
    browser.wait_for("document.body.dataset.connection === 'broken'", SOON);
    let banner = browser.evaluate(&text("#banner"));
    assert!(
        banner.as_str().is_some_and(|text| text.starts_with("No connection to the chief since")),
        "{banner}"
    );
    assert_eq!(browser.evaluate("document.querySelectorAll('[data-worker]').length"), 1);
    browser.wait_for("getComputedStyle(document.querySelector('main')).filter === 'grayscale(1)'", SOON);
    // The chief has dropped some of the log lines that it sent before. The page still shows the newest line
    // first.
    chief.tell(|told| (told.away, told.log) = (false, [7, 8, 9].map(line).into()));
    browser.wait_for(
        "[...document.querySelectorAll('#log .what')].map((what) => what.textContent).join() === '9,8,7,6,5'",
        SOON,
    );
    browser.wait_for(
        "document.body.dataset.connection === 'live' && document.querySelector('#banner').hidden",
        SOON,
    );

    chief.tell(|told| {
        (told.job.phase, told.job.step, told.over) = (JobPhase::Ended, GlobalStep(4000), true);
        told.job.workers[0].state = WorkerState::Finished;
    });
    browser.wait_for("document.body.dataset.connection === 'ended'", SOON);
    let banner = browser.evaluate(&text("#banner"));
    assert!(banner.as_str().is_some_and(|text| text.contains("trained to its last step")), "{banner}");
    browser.wait_for("document.querySelector('[data-worker]').dataset.state === 'finished'", SOON);
    // The page keeps this state, even if there is no server any more.
    drop(chief);
    assert_eq!(browser.evaluate("document.body.dataset.connection"), "ended");
}

#[test]
fn names_are_text_whatever_is_in_them() {
    let Some(mut browser) = Browser::find("that names on the chief's page are text") else { return };
    let evil = "<img src=x onerror=\"document.title='bad'\"><script>document.title='bad'</script>";
    let mut job = job(1, 1);
    job.job.name = evil.to_owned();
    job.reason = Some(evil.to_owned());
    job.workers[0].phases_us = vec![(evil.to_owned(), 1)];
    job.evaluation = Some((GlobalStep(1), vec![MetricValue { name: evil.to_owned(), value: 0.5 }]));
    job.findings =
        vec![Finding { kind: FindingKind::SlowWorker, name: evil.to_owned(), reason: evil.to_owned() }];
    for row in &mut job.tasks {
        row.http = Some("javascript:alert(1)//:80".to_owned());
    }
    let mut told = told(job);
    told.curves.push(CurvePoint {
        metrics: vec![MetricValue { name: evil.to_owned(), value: 0.5 }],
        evaluation: vec![MetricValue { name: evil.to_owned(), value: 0.5 }],
        phases_us: vec![(evil.to_owned(), 1)],
        ..point(70)
    });
    told.log = vec![json!({ "at_ms": 1, "level": evil, "task": evil, "text": evil })];
    let chief = Chief::telling(told);
    live(&mut browser, &chief);
    browser.wait_for(&format!("{} === {}", text("#log .what"), json!(evil)), SOON);
    assert_eq!(browser.evaluate(&text("#name")), evil);
    assert_eq!(
        browser.evaluate("document.querySelectorAll('img, main script, [style*=javascript]').length"),
        0
    );
    assert_eq!(browser.evaluate("document.querySelectorAll('a[href^=javascript]').length"), 0);
    assert_ne!(browser.evaluate("document.title"), "bad");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn two_hundred_workers_fit_on_a_phone() {
    let Some(mut browser) = Browser::find("the chief's page on a phone") else { return };
    let chief = Chief::telling(told(job(200, 40)));
    browser.resize(390, 844);
    browser.prefer("dark");
    live(&mut browser, &chief);
    browser.wait_for("document.querySelectorAll('[data-worker]').length === 200", SOON);
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth"), 390);
    let tile = browser.evaluate("document.querySelector('[data-worker=\"199\"]').offsetWidth");
    assert!(tile.as_u64().is_some_and(|width| (40..100).contains(&width)), "a tile is {tile} wide");
    let background = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    assert_eq!(background, "rgb(13, 16, 20)", "it is dark for whoever prefers that");
    browser.prefer("light");
    browser.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(245, 246, 248)'", SOON);
    let picture = tempfile::tempdir().expect("a temporary folder");
    let picture = picture.path().join("phone.png");
    browser.screenshot(&picture, true);
    let png = std::fs::read(picture).expect("it was written");
    assert!(png.starts_with(b"\x89PNG\r\n") && png.len() > 20_000, "{} bytes", png.len());
}

#[test]
fn whoever_knows_the_token_may_wish() {
    let Some(mut browser) = Browser::find("the buttons of the chief's page") else { return };
    let chief = Chief::telling(told(ChiefSnapshot { accepts_wishes: true, ..job(1, 1) }));
    live(&mut browser, &chief);
    let enter = |token: &str| {
        format!(
            "document.querySelector('#token').value = '{token}'; document.querySelector('#token-form .primary').click()"
        )
    };
    browser.evaluate("document.querySelector('#save').click()");
    browser.wait_for("document.querySelector('#token-dialog').open", SOON);
    browser.evaluate(&enter("wrong"));
    browser.wait_for(&format!("{}.includes('refused this token')", text("#token-why")), SOON);
    browser.evaluate(&enter(TOKEN));
    browser.wait_for(&format!("{} === 'The chief will save.'", text("#wish-said")), SOON);
    assert_eq!(chief.tell(|told| std::mem::take(&mut told.wishes)), ["/save"]);

    // The job is stopped only after a confirmation.
    browser.evaluate("document.querySelector('#stop').click()");
    browser.wait_for("document.querySelector('#stop-dialog').open", SOON);
    browser.evaluate("document.querySelector('#stop-cancel').click()");
    assert_eq!(browser.evaluate("document.querySelector('#stop-dialog').open"), false);
    browser.evaluate("document.querySelector('#stop').click()");
    browser.evaluate("document.querySelector('#stop-form .danger').click()");
    browser.wait_for(&format!("{} === 'The chief will stop the job.'", text("#wish-said")), SOON);
    assert_eq!(chief.tell(|told| told.wishes.clone()), ["/stop"]);
    let kept = "localStorage.length + sessionStorage.length + document.cookie.length";
    assert_eq!(browser.evaluate(kept), 0, "no script can read what the browser keeps");
}
