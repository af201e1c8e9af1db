//! The record of a checkpoint's evaluation, which an evaluator writes to the store. This module does not
//! evaluate checkpoints.

use serde::{Deserialize, Serialize};

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::graph::METRICS_MAX;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::{Evaluation, MetricValue};
use pushpull_messages::variable::VARIABLE_NAME_BYTES_MAX;

/// The folder of the records in the store.
pub const EVALUATIONS: &str = "eval";
/// The largest size of a record, in bytes.
pub const RECORD_BYTES_MAX: u64 = 4 << 20;

/// The record of a checkpoint's evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationRecord {
    /// The checkpoint that was evaluated.
    pub checkpoint: CheckpointName,
    /// The number of updates that the checkpoint contains.
    pub step: GlobalStep,
    /// The result of the evaluation.
    pub evaluation: Evaluation,
    /// The time of the evaluation, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The reason why a record of an evaluation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The text is not a record in JSON.
    #[error("not the record of an evaluation: {0}")]
    Json(String),
    /// The record has too many bytes or metrics, or a name in it is too long.
    #[error("the record of an evaluation has {got} {what}, expected at most {max} {what}")]
    TooMany {
        /// What was counted, such as bytes or metrics.
        what: &'static str,
        /// The largest number allowed.
        max: u64,
        /// The number found.
        got: u64,
    },
    /// The step in the record differs from the step of its checkpoint.
    #[error("the record of an evaluation has step {step}, expected the step of {checkpoint}")]
    Step {
        /// The step that the record names.
        step: GlobalStep,
        /// The checkpoint that the record names.
        checkpoint: CheckpointName,
    },
}

/// The JSON form of a record. JSON can only express finite numbers, so `null` stands for NaN and the
/// infinities.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    checkpoint: CheckpointName,
    step: GlobalStep,
    loss: Option<f32>,
    metrics: Vec<Metric>,
    examples: u64,
    variables_crc32c: u32,
    at_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metric {
    name: String,
    value: Option<f32>,
}

fn finite(number: f32) -> Option<f32> {
    Some(number).filter(|number| number.is_finite())
}

impl EvaluationRecord {
    /// Returns the path of a checkpoint's record in the store.
    pub fn file(checkpoint: CheckpointName) -> String {
        format!("{EVALUATIONS}/{checkpoint}.json")
    }

    /// Returns the checkpoint whose record is called `file` in the folder [`EVALUATIONS`]. Returns `None` if
    /// no record can have this name.
    pub fn checkpoint_of(file: &str) -> Option<CheckpointName> {
        file.strip_suffix(".json")?.parse().ok()
    }

    /// Encodes the record as the JSON of its file.
    pub fn encode(&self) -> Vec<u8> {
        let Self { checkpoint, step, evaluation, at_ms } = self;
        let metrics = evaluation.metrics.iter();
        let metrics =
            metrics.map(|metric| Metric { name: metric.name.clone(), value: finite(metric.value) }).collect();
        let text = Text {
            checkpoint: *checkpoint,
            step: *step,
            loss: finite(evaluation.loss),
            metrics,
            examples: evaluation.examples,
            variables_crc32c: evaluation.variables_crc32c,
            at_ms: *at_ms,
        };
        serde_json::to_vec(&text).expect("plain data encodes")
    }

    /// Decodes and checks a record. Numbers that were not finite become NaN.
    ///
    /// # Errors
    /// If `bytes` is too long or is not a record, if the record has too many metrics or too long a name, or
    /// if its step is not the step of its checkpoint.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let within = |what, max: u64, got: usize| match got as u64 {
            got if got > max => Err(RecordError::TooMany { what, max, got }),
            _ => Ok(()),
        };
        within("bytes", RECORD_BYTES_MAX, bytes.len())?;
        let text: Text = serde_json::from_slice(bytes)
            .map_err(|error| RecordError::Json(pushpull_messages::job::told(&error)))?;
        let Text { checkpoint, step, loss, metrics, examples, variables_crc32c, at_ms } = text;
        within("metrics", METRICS_MAX as u64, metrics.len())?;
        for metric in &metrics {
            within("bytes in a metric's name", VARIABLE_NAME_BYTES_MAX as u64, metric.name.len())?;
        }
        if step != checkpoint.step {
            return Err(RecordError::Step { step, checkpoint });
        }
        let number = |number: Option<f32>| number.unwrap_or(f32::NAN);
        let metrics = metrics.into_iter();
        let metrics =
            metrics.map(|Metric { name, value }| MetricValue { name, value: number(value) }).collect();
        let evaluation = Evaluation { loss: number(loss), metrics, examples, variables_crc32c };
        Ok(Self { checkpoint, step, evaluation, at_ms })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pushpull_messages::id::Incarnation;

    fn record(loss: f32, accuracy: f32) -> EvaluationRecord {
        let checkpoint = CheckpointName { step: GlobalStep(7), life: Incarnation(2) };
        let metrics = vec![MetricValue { name: "accuracy".into(), value: accuracy }];
        let evaluation = Evaluation { loss, metrics, examples: 3, variables_crc32c: 5 };
        EvaluationRecord { checkpoint, step: checkpoint.step, evaluation, at_ms: 11 }
    }

    proptest! {
        /// Checks that a record that is encoded and decoded stays the same, except that infinite numbers
        /// become NaN.
        #[test]
        fn a_record_round_trips(loss: u32, accuracy: u32) {
            let (loss, accuracy) = (f32::from_bits(loss), f32::from_bits(accuracy));
            let got = EvaluationRecord::decode(&record(loss, accuracy).encode()).unwrap();
            for (got, want) in [(got.evaluation.loss, loss), (got.evaluation.metrics[0].value, accuracy)] {
                if want.is_finite() {
                    prop_assert_eq!(got.to_bits(), want.to_bits());
                } else {
                    prop_assert!(got.is_nan());
                }
            }
            let other = EvaluationRecord { evaluation: got.evaluation.clone(), ..record(0.0, 0.0) };
            prop_assert_eq!(got.checkpoint, other.checkpoint);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..150, to: u8) {
            let _ = EvaluationRecord::decode(&bytes);
            let mut changed = record(0.5, 0.25).encode();
            let at = at % changed.len();
            changed[at] = to;
            let _ = EvaluationRecord::decode(&changed);
        }
    }

    #[test]
    fn an_invalid_record_is_refused() {
        let good = record(0.5, 0.25);
        let name = EvaluationRecord::file(good.checkpoint);
        assert_eq!(name, "eval/step-7-0000000000000002.json");
        assert_eq!(EvaluationRecord::checkpoint_of(&name["eval/".len()..]), Some(good.checkpoint));
        assert_eq!(EvaluationRecord::checkpoint_of("x.json"), None);
        let error = |bytes: &[u8]| EvaluationRecord::decode(bytes).unwrap_err().to_string();
        assert!(error(b"{}").starts_with("not the record of an evaluation: "));
        assert!(error(&vec![b' '; RECORD_BYTES_MAX as usize + 1]).contains("at most 4194304 bytes"));
        let odd = EvaluationRecord { step: GlobalStep(8), ..good.clone() };
        assert!(error(&odd.encode()).contains("has step 8, expected the step of step-7-"));
        let mut many = good;
        many.evaluation.metrics = vec![many.evaluation.metrics[0].clone(); METRICS_MAX + 1];
        assert!(error(&many.encode()).contains("at most 1024 metrics"));
    }
}
