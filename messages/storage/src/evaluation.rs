//! What an evaluation of a checkpoint came to, as an evaluator leaves it in the store for others to read.

use serde::{Deserialize, Serialize};

use pushpull_messages::checkpoint::CheckpointName;
use pushpull_messages::graph::METRICS_MAX;
use pushpull_messages::id::GlobalStep;
use pushpull_messages::message::{Evaluation, MetricValue};
use pushpull_messages::variable::VARIABLE_NAME_BYTES_MAX;

/// The folder of the store that the records are in.
pub const EVALUATIONS: &str = "eval";
/// Most bytes of a record.
pub const RECORD_BYTES_MAX: u64 = 4 << 20;

/// What an evaluation of a checkpoint came to.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationRecord {
    /// Of which one.
    pub checkpoint: CheckpointName,
    /// The updates that are in it.
    pub step: GlobalStep,
    /// What it came to.
    pub evaluation: Evaluation,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Why a record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It is none.
    #[error("not the record of an evaluation: {0}")]
    Json(String),
    /// Too much of something.
    #[error("the record of an evaluation may have at most {max} {what}, and has {got}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// That many.
        max: u64,
        /// What it has.
        got: u64,
    },
    /// It is of another step than its checkpoint.
    #[error("the record of an evaluation is of step {step}, and its checkpoint is {checkpoint}")]
    Step {
        /// By the record.
        step: GlobalStep,
        /// The checkpoint.
        checkpoint: CheckpointName,
    },
}

/// JSON has no number that is not finite: `null` stands for all of these.
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
    /// What the record of a checkpoint is called in the store.
    pub fn file(checkpoint: CheckpointName) -> String {
        format!("{EVALUATIONS}/{checkpoint}.json")
    }

    /// Of which checkpoint a file in the folder of records is.
    pub fn checkpoint_of(file: &str) -> Option<CheckpointName> {
        file.strip_suffix(".json")?.parse().ok()
    }

    /// What its file holds: JSON.
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

    /// Reads and checks one. What was not finite is NaN.
    ///
    /// # Errors
    /// Where it is no record, is too large, or contradicts itself.
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
        /// A record is read as it was written; what is not finite as NaN.
        #[test]
        fn a_record_is_read_as_it_was_written(loss: u32, accuracy: u32) {
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

        /// Any bytes are read or refused.
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
    fn what_is_no_record_is_told() {
        let good = record(0.5, 0.25);
        let name = EvaluationRecord::file(good.checkpoint);
        assert_eq!(name, "eval/step-7-0000000000000002.json");
        assert_eq!(EvaluationRecord::checkpoint_of(&name["eval/".len()..]), Some(good.checkpoint));
        assert_eq!(EvaluationRecord::checkpoint_of("x.json"), None);
        let told = |bytes: &[u8]| EvaluationRecord::decode(bytes).unwrap_err().to_string();
        assert!(told(b"{}").starts_with("not the record of an evaluation: "));
        assert!(told(&vec![b' '; RECORD_BYTES_MAX as usize + 1]).contains("at most 4194304 bytes"));
        let odd = EvaluationRecord { step: GlobalStep(8), ..good.clone() };
        assert!(told(&odd.encode()).contains("is of step 8, and its checkpoint is step-7-"));
        let mut many = good;
        many.evaluation.metrics = vec![many.evaluation.metrics[0].clone(); METRICS_MAX + 1];
        assert!(told(&many.encode()).contains("at most 1024 metrics"));
    }
}
