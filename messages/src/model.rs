//! The description of a trained model. The model's file contains it together with the values.

use serde::{Deserialize, Serialize};

use crate::graph::{GraphError, GraphSpec};
use crate::input::{InputSpecError, MapSpec};
use crate::job::{BATCH_SIZE_MAX, JobSpec, told};
use crate::out_of_range::OutOfRange;

/// The maximum number of map stages of a model.
pub const STAGES_MAX: usize = 1024;

/// What a model needs besides its values: the graph, and how the data are prepared for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The graph.
    pub graph: GraphSpec,
    /// The map stages of the job's input. They also apply to the examples for which the model makes
    /// predictions.
    #[serde(default)]
    pub map: Vec<MapSpec>,
    /// The number of examples in a batch of an evaluation.
    pub batch_size: u32,
}

/// An error in the description of a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelSpecError {
    /// The text is not valid JSON, or the JSON does not describe a model.
    #[error("{0}")]
    Json(String),
    /// The graph is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A map stage is invalid.
    #[error(transparent)]
    Input(#[from] InputSpecError),
    /// Another setting is out of range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

impl ModelSpec {
    /// Returns the description of the model that a job trains.
    pub fn of(job: &JobSpec) -> Self {
        Self { graph: job.graph.clone(), map: job.input.map.clone(), batch_size: job.batch_size }
    }

    /// Parses and checks the text of a description.
    ///
    /// # Errors
    /// If the text is not JSON, or if it describes an invalid model.
    pub fn from_json(text: &str) -> Result<Self, ModelSpecError> {
        let model: Self = serde_json::from_str(text).map_err(|error| ModelSpecError::Json(told(&error)))?;
        model.graph.validate(1)?;
        if model.map.len() > STAGES_MAX {
            let (expected, got) = (format!("at most {STAGES_MAX} stages"), model.map.len());
            return Err(OutOfRange::new("map", expected, got).into());
        }
        model.map.iter().try_for_each(MapSpec::validate)?;
        if !(1..=BATCH_SIZE_MAX).contains(&model.batch_size) {
            let expected = format!("from 1 to {BATCH_SIZE_MAX}");
            return Err(OutOfRange::new("batch_size", expected, model.batch_size).into());
        }
        Ok(model)
    }

    /// Returns the description as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data encodes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::input::StageSpec;

    #[test]
    fn the_settings_of_a_model_are_bounded() {
        let job = fixtures::job(4, 1);
        let stage = MapSpec::new("features", StageSpec::Scale { factor: 0.5, offset: 0.0 });
        let model = |stages| ModelSpec { map: vec![stage.clone(); stages], ..ModelSpec::of(&job) };
        for stages in [0, STAGES_MAX] {
            assert_eq!(ModelSpec::from_json(&model(stages).to_json()).unwrap(), model(stages));
        }
        let refused = |model: ModelSpec| ModelSpec::from_json(&model.to_json()).unwrap_err().to_string();
        assert_eq!(refused(model(STAGES_MAX + 1)), "map must be at most 1024 stages, but is 1025");
        for batch_size in [0, BATCH_SIZE_MAX + 1] {
            let refused = refused(ModelSpec { batch_size, ..model(0) });
            assert_eq!(refused, format!("batch_size must be from 1 to 1048576, but is {batch_size}"));
        }
    }
}
