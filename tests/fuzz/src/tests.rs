//! A small run of each target: its valid inputs come as far as they can, and some thousand others cause no
//! panic.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Target;
use crate::numbers::Numbers;

/// The number of inputs that each target checks, if they take no longer than [`TIME_MAX`].
const INPUTS: u64 = 2000;
const TIME_MAX: Duration = Duration::from_millis(200);

#[test]
fn drawn_inputs_cause_no_panic() {
    for target in Target::ALL {
        let (corpus, mut input, began) = (target.corpus().unwrap(), Vec::new(), Instant::now());
        for number in (0..INPUTS).take_while(|_| began.elapsed() < TIME_MAX) {
            (target.draw)(&corpus, &mut Numbers::of_input(1, number), &mut input);
            let stage = (target.check)(&input);
            assert!(stage < target.stages.len(), "{}: {stage} is no stage", target.name);
        }
    }
}

#[test]
fn valid_inputs_come_as_far_as_they_can() {
    for target in Target::ALL {
        let corpus = target.corpus().unwrap();
        assert!(corpus.inputs().len() > 0, "{} has valid inputs", target.name);
        let furthest = corpus.inputs().map(|input| (target.check)(input)).max().unwrap();
        assert_eq!(furthest, target.stages.len() - 1, "{}: {}", target.name, target.stages[furthest]);
    }
}

#[test]
fn an_input_is_determined_by_its_seed_and_number() {
    let target = Target::find("message").unwrap();
    let corpus = target.corpus().unwrap();
    let draw = |seed, number| {
        let mut input = Vec::new();
        (target.draw)(&corpus, &mut Numbers::of_input(seed, number), &mut input);
        input
    };
    assert_eq!(draw(1, 7), draw(1, 7));
    assert!((0..20).any(|number| draw(1, number) != draw(2, number)));
}

#[test]
fn what_a_target_is_about_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for target in Target::ALL {
        assert!(!target.about.is_empty(), "{} is about some code", target.name);
        for path in target.about {
            assert!(root.join(path).exists(), "{}: {path} does not exist", target.name);
        }
    }
}
