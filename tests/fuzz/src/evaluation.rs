//! The target `evaluation`: decodes bytes as the record of an evaluation, and a text as the name of a
//! checkpoint.

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::id::{GlobalStep, Incarnation};
use pushpull_messages::message::{Evaluation, MetricValue};
use pushpull_storage::{EvaluationRecord, RecordError};

use crate::corpus::Form;
use crate::target::{Target, check_error};

pub(crate) const TARGET: Target = Target {
    name: "evaluation",
    about: &["messages/storage/src/evaluation.rs", "messages/src/checkpoint/name.rs"],
    check,
    stages: &["no record", "breaks a rule", "valid"],
    seeds,
    form: Form::Json,
    content: |_| 0,
    ..Target::USUAL
};

/// Checks one input.
fn check(bytes: &[u8]) -> usize {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(name) = text.parse::<CheckpointName>()
    {
        assert!(name.to_string() == text, "a name is written as it was read");
        return 2;
    }
    match EvaluationRecord::decode(bytes) {
        Ok(record) => {
            let written = record.encode();
            let again = EvaluationRecord::decode(&written).expect("what was written can be read");
            assert!(again.encode() == written, "another record was read than was written");
            let file = EvaluationRecord::file(record.checkpoint);
            let name = file.rsplit('/').next().and_then(EvaluationRecord::checkpoint_of);
            assert!(name == Some(record.checkpoint), "the name of the file names the checkpoint");
            2
        }
        Err(error) => {
            check_error(&error);
            usize::from(!matches!(error, RecordError::Json(_)))
        }
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let checkpoint = CheckpointName { step: GlobalStep(7), life: Incarnation(2) };
    let metrics = ["accuracy", "loss"].map(|name| MetricValue { name: name.into(), value: 0.25 });
    let evaluation = Evaluation { loss: 0.5, metrics: metrics.into(), examples: 3, variables_crc32c: 5 };
    let record = EvaluationRecord { checkpoint, step: checkpoint.step, evaluation, at_ms: 11 };
    vec![("record".to_owned(), record.encode()), ("name".to_owned(), checkpoint.to_string().into_bytes())]
}
