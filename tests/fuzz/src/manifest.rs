//! The target `manifest`: decodes bytes as the manifest of a checkpoint. If the first byte is even, the
//! manifest gets its checksum first.

use pushpull_messages::checkpoint::Part;
use pushpull_messages::id::{GlobalStep, VariableId};
use pushpull_messages::optimizer::RateSpec;
use pushpull_storage::{FORMAT, ManifestError, ManifestSpec};

use crate::corpus::Form;
use crate::fixtures::{self, file_spec, placement, worker_record};
use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "manifest",
    about: &["messages/storage/src/manifest.rs", "messages/src/placement.rs", "messages/src/checkpoint"],
    check,
    stages: &["no manifest", "wrong checksum or format", "contradicts itself", "valid"],
    seeds,
    form: Form::Json,
    ..Target::USUAL
};

/// Returns the file of a manifest with this text.
fn with_checksum(text: &[u8]) -> Vec<u8> {
    let crc32c = crc32c::crc32c(text.trim_ascii());
    [format!("{{\"crc32c\":{crc32c},\"manifest\":").as_bytes(), text, b"}"].concat()
}

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    let Some((&how, text)) = bytes.split_first() else { return 0 };
    let file = if how % 2 == 0 { with_checksum(text) } else { text.to_vec() };
    let manifest = match ManifestSpec::decode(&file) {
        Ok(manifest) => manifest,
        Err(error) => {
            check_error(&error);
            return match error {
                ManifestError::Json(_) | ManifestError::TooLarge(_) => 0,
                ManifestError::Checksum { .. } | ManifestError::Format(_) => 1,
                ManifestError::Invalid(_) => 2,
            };
        }
    };
    let written = manifest.encode().expect("a small manifest");
    let again = ManifestSpec::decode(&written).expect("what was written can be read");
    assert!(again.encode().is_ok_and(|again| again == written), "another manifest was read than was written");
    let index = manifest.index();
    for (position, variable) in manifest.job.graph.variables.iter().enumerate() {
        let (id, rows) = (VariableId(position as u32), variable.rows() as u64);
        assert!(manifest.variable(&variable.name).is_some(), "a variable is found by its name");
        for part in [Part::Value, Part::Average, Part::Slot(0)] {
            let pieces = index.pieces(id, part, 0..rows);
            let bytes: u64 = pieces.iter().map(|piece| piece.from.end - piece.from.start).sum();
            assert!(part != Part::Value || bytes == variable.bytes(), "the pieces of a value cover all rows");
            let _ = index.pieces(id, part, rows / 2..rows.saturating_add(u64::from(how)));
        }
    }
    3
}

/// Returns a valid manifest.
pub(crate) fn manifest(step: u64) -> ManifestSpec {
    ManifestSpec {
        format: FORMAT,
        step: GlobalStep(step),
        saved_ms: 5,
        job: fixtures::job(4, 1),
        placement: placement(),
        files: vec![file_spec(step)],
        workers: vec![worker_record()],
        learning_rate: RateSpec::default(),
        inputs: Default::default(),
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let text = |manifest: &ManifestSpec| serde_json::to_vec(manifest).expect("plain data encodes");
    let mut averaged = manifest(3);
    averaged.learning_rate = RateSpec { factor: 0.5, next: None };
    vec![
        ("plain".to_owned(), [&[0], &text(&manifest(12))[..]].concat()),
        ("rate".to_owned(), [&[0], &text(&averaged)[..]].concat()),
        ("file".to_owned(), [&[1], &manifest(7).encode().expect("a small manifest")[..]].concat()),
    ]
}
