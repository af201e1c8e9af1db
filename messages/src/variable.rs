//! The specs of variables: name, shape, initializer and requested device. The placement says which shards own
//! a variable.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::excerpt::excerpt;
use crate::id::{JobName, ShardId};
use crate::tensor::{DType, Shape, TensorSpec};

/// The maximum number of bytes in a variable's name.
pub const VARIABLE_NAME_BYTES_MAX: usize = 256;
/// The name that safetensors files reserve for their metadata; no variable may have it.
const RESERVED_NAME: &str = "__metadata__";
/// The maximum number of elements in one variable, and in all variables of a graph together: 2^40. This is
/// far more than one shard can store, but small enough to avoid overflows of sizes in bytes.
pub const VARIABLE_ELEMENTS_MAX: usize = 1 << 40;

/// A variable: a tensor that is stored on the ps tasks, or on the tasks of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariableSpec {
    /// The variable's name, unique in the graph, such as `dense1/kernel`.
    pub name: String,
    /// The shape; all extents are above 0.
    pub shape: Shape,
    /// The type of the elements. Training jobs only have variables of `f32`; sessions have all types.
    #[serde(default = "floats", skip_serializing_if = "is_floats")]
    pub dtype: DType,
    /// The initial values.
    pub initializer: InitializerSpec,
    /// Whether the optimizer trains the variable. If not, the shard subtracts each push from the variable's
    /// value without using the optimizer. The moving averages of batch normalisation are updated in this
    /// way.
    #[serde(default = "yes", skip_serializing_if = "is_trained")]
    pub trainable: bool,
    /// The device that the user requests for the variable, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceSpec>,
}

const fn yes() -> bool {
    true
}

/// Returns true if the field has its default value, `true`. A job file then omits the field.
const fn is_trained(trainable: &bool) -> bool {
    *trainable
}

const fn floats() -> DType {
    DType::F32
}

/// Returns true if the field has its default value, `f32`. A job file then omits the field.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_floats(dtype: &DType) -> bool {
    matches!(dtype, DType::F32)
}

/// An error in a variable's spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// The name is empty, too long, or has characters that are not allowed.
    #[error(
        "variable name '{0}' is not valid, expected 1 to {VARIABLE_NAME_BYTES_MAX} bytes of letters, digits, '_', '.', '-' and '/'"
    )]
    Name(String),
    /// The name is reserved in the files of models and checkpoints.
    #[error(
        "variable name '{RESERVED_NAME}' is reserved for the metadata of safetensors files: use another name"
    )]
    Reserved,
    /// The shape has an extent of 0 or too many axes, or the variables have too many elements.
    #[error(
        "variable '{name}' has shape {shape}, expected at most 8 extents, all at least 1, and at most 2^40 elements in all variables together"
    )]
    Shape {
        /// The name of the variable.
        name: String,
        /// The shape of the variable.
        shape: Shape,
    },
    /// A number of the initializer is out of range.
    #[error("variable '{name}': {what} of the initializer must be {expected}, but is {value}")]
    Initializer {
        /// The name of the variable.
        name: String,
        /// The name of the number, such as `stddev`.
        what: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The value found, as text. If it were a float, an error about NaN would not equal itself.
        value: String,
    },
    /// A variable of a training job has elements of another type than `f32`.
    #[error(
        "variable '{name}' has the type {dtype}, expected f32: only sessions have variables of other types"
    )]
    OfSessions {
        /// The name of the variable.
        name: String,
        /// The type of the variable's elements.
        dtype: DType,
    },
    /// The initializer does not fit the type of the elements.
    #[error("the initializer of variable '{name}' does not fit the type {dtype}, expected {expected}")]
    InitializerType {
        /// The name of the variable.
        name: String,
        /// The type of the variable's elements.
        dtype: DType,
        /// The initializers that this type can have.
        expected: &'static str,
    },
}

impl VariableSpec {
    /// Checks the variable's spec on its own, without the rest of the graph.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self) -> Result<(), VariableError> {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
        if self.name.is_empty() || self.name.len() > VARIABLE_NAME_BYTES_MAX || !self.name.bytes().all(letter)
        {
            return Err(VariableError::Name(excerpt(&self.name, 64)));
        }
        if self.name == RESERVED_NAME {
            return Err(VariableError::Reserved);
        }
        match self.shape.checked_elements() {
            Some(elements) if (1..=VARIABLE_ELEMENTS_MAX).contains(&elements) && self.shape.rank() <= 8 => {}
            _ => {
                return Err(VariableError::Shape { name: self.name.clone(), shape: self.shape.clone() });
            }
        }
        for (what, value, may_be_negative) in self.initializer.numbers() {
            if !value.is_finite() || (value < 0.0 && !may_be_negative) {
                let (name, value) = (self.name.clone(), value.to_string());
                let expected = if may_be_negative { "finite" } else { "finite and at least 0" };
                return Err(VariableError::Initializer { name, what, expected, value });
            }
        }
        self.validate_type()
    }

    /// Checks that the initializer fits the type of the elements.
    fn validate_type(&self) -> Result<(), VariableError> {
        let dtype = self.dtype;
        let (low, high, expected) = match (dtype, &self.initializer) {
            (DType::F32, _) | (_, InitializerSpec::Zeros) => return Ok(()),
            (DType::Text, _) => {
                let (name, expected) = (self.name.clone(), "zeros, which are empty texts");
                return Err(VariableError::InitializerType { name, dtype, expected });
            }
            (DType::F64, InitializerSpec::Constant { .. }) => return Ok(()),
            (DType::I32, _) => (-f32::exp2(31.0), f32::exp2(31.0), "an integer below 2^31"),
            (DType::I64 | DType::F64, _) => (-f32::exp2(63.0), f32::exp2(63.0), "an integer below 2^63"),
            (DType::U8, _) => (0.0, 256.0, "an integer from 0 to 255"),
            (DType::Bool, _) => (0.0, 2.0, "0 or 1"),
        };
        let name = self.name.clone();
        match self.initializer {
            InitializerSpec::Constant { value } if value.fract() == 0.0 && (low..high).contains(&value) => {
                Ok(())
            }
            InitializerSpec::Constant { value } => {
                Err(VariableError::Initializer { name, what: "value", expected, value: value.to_string() })
            }
            _ => Err(VariableError::InitializerType { name, dtype, expected: "zeros or a constant" }),
        }
    }

    /// Checks the variable's spec as [`validate`](Self::validate) does, and that a training job can have the
    /// variable.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate_for_job(&self) -> Result<(), VariableError> {
        self.validate()?;
        match self.dtype {
            DType::F32 => Ok(()),
            dtype => Err(VariableError::OfSessions { name: self.name.clone(), dtype }),
        }
    }

    /// Returns the shape and the type of the elements.
    pub fn tensor(&self) -> TensorSpec {
        TensorSpec { shape: self.shape.clone(), dtype: self.dtype }
    }

    /// Returns the number of elements in one row along axis 0; a scalar has one row of one element.
    pub fn row_elements(&self) -> usize {
        self.shape.0.iter().skip(1).product()
    }

    /// Returns the extent of axis 0; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.0.first().copied().unwrap_or(1)
    }

    /// Returns the number of the random stream that generates the initial values: the 64-bit FNV-1a hash of
    /// the name. The values therefore do not depend on the order of the variables or on their placement.
    pub fn random_stream(&self) -> u64 {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        self.name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// Returns the size of all elements in bytes. The contents of texts are not counted, only their lengths.
    pub fn bytes(&self) -> u64 {
        let text_bytes = size_of::<u32>();
        self.shape.elements() as u64 * self.dtype.bytes().unwrap_or(text_bytes) as u64
    }
}

/// An initializer: how the initial values of a variable are chosen. Glorot's and He's initializers scale with
/// the fan-in and fan-out, which follow from the variable's shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum InitializerSpec {
    /// All elements are 0.
    Zeros,
    /// All elements have the same value.
    Constant {
        /// The value of each element.
        value: f32,
    },
    /// A uniform distribution from `low` to `high`.
    Uniform {
        /// The lower bound.
        low: f32,
        /// The upper bound.
        high: f32,
    },
    /// A normal distribution.
    Normal {
        /// The mean.
        mean: f32,
        /// The standard deviation.
        stddev: f32,
    },
    /// A normal distribution. A value that is more than two standard deviations from the mean is drawn
    /// again.
    TruncatedNormal {
        /// The mean.
        mean: f32,
        /// The standard deviation before truncation.
        stddev: f32,
    },
    /// A uniform distribution within ±sqrt(6 / (fan_in + fan_out)): Glorot and Bengio, AISTATS 2010.
    GlorotUniform,
    /// A truncated normal distribution with variance 2 / fan_in: He et al., ICCV 2015.
    HeNormal,
}

impl InitializerSpec {
    fn numbers(&self) -> Vec<(&'static str, f32, bool)> {
        match *self {
            Self::Zeros | Self::GlorotUniform | Self::HeNormal => vec![],
            Self::Constant { value } => vec![("value", value, true)],
            Self::Uniform { low, high } => {
                vec![("low", low, true), ("high", high, true), ("high - low", high - low, false)]
            }
            Self::Normal { mean, stddev } | Self::TruncatedNormal { mean, stddev } => {
                vec![("mean", mean, true), ("stddev", stddev, false)]
            }
        }
    }

    /// Returns the initializer with its scale computed for a variable of this shape. `GlorotUniform` becomes
    /// `Uniform`, `HeNormal` becomes `TruncatedNormal`, and the others are unchanged.
    ///
    /// A matrix `[in, out]` has the fan-in `in` and the fan-out `out`. A convolution's kernel `[height,
    /// width, in, out]` has the fan-in `height · width · in` and the fan-out `height · width · out`. For a
    /// vector, the fan-in and the fan-out are its length; for a scalar, they are 1.
    #[must_use]
    pub fn resolve(&self, shape: &Shape) -> Self {
        match self {
            Self::GlorotUniform => {
                let (fan_in, fan_out) = fans(shape);
                let limit = (6.0 / (fan_in + fan_out)).sqrt() as f32;
                Self::Uniform { low: -limit, high: limit }
            }
            Self::HeNormal => {
                // The standard deviation of a standard normal distribution that is truncated at ±2.
                const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;
                let stddev = (2.0 / fans(shape).0).sqrt() / TRUNCATED_STDDEV;
                Self::TruncatedNormal { mean: 0.0, stddev: stddev as f32 }
            }
            plain => plain.clone(),
        }
    }
}

fn fans(shape: &Shape) -> (f64, f64) {
    match shape.0.as_slice() {
        [] => (1.0, 1.0),
        [length] => (*length as f64, *length as f64),
        [window @ .., fan_in, fan_out] => {
            let window: f64 = window.iter().map(|&extent| extent as f64).product();
            (window * *fan_in as f64, window * *fan_out as f64)
        }
    }
}

/// The device of a variable: a shard, written `/job:ps/task:1` or `/job:ps/task:1/shard:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceSpec {
    /// The shard on which the variable is placed; the first shard of the task if `/shard:N` is left out.
    pub shard: ShardId,
}

/// The error for a text that is not a valid device for a variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device '{0}' is not valid for a variable, expected a ps task, such as '/job:ps/task:0' or '/job:ps/task:0/shard:1'"
)]
pub struct DeviceError(String);

impl FromStr for DeviceSpec {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let error = || DeviceError(text.chars().take(64).collect());
        let mut parts = text.strip_prefix('/').ok_or_else(error)?.split('/');
        let mut next = |key: &str| match parts.next() {
            None => Ok(None),
            Some(part) => match part.split_once(':') {
                Some((found, value)) if found == key => Ok(Some(value)),
                _ => Err(error()),
            },
        };
        if next("job")? != Some(JobName::Ps.as_str()) {
            return Err(error());
        }
        let number = |value: Option<&str>| value.map(|value| value.parse().map_err(|_| error())).transpose();
        let ps = number(next("task")?)?.ok_or_else(error)?;
        let shard = number(next("shard")?)?.unwrap_or(0);
        if parts.next().is_some() {
            return Err(error());
        }
        Ok(Self { shard: ShardId::new(ps, shard) })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/job:ps/task:{}", self.shard.ps)?;
        if self.shard.shard > 0 {
            write!(f, "/shard:{}", self.shard.shard)?;
        }
        Ok(())
    }
}

impl TryFrom<String> for DeviceSpec {
    type Error = DeviceError;

    fn try_from(text: String) -> Result<Self, DeviceError> {
        text.parse()
    }
}

impl From<DeviceSpec> for String {
    fn from(device: DeviceSpec) -> Self {
        device.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_strings_round_trip() {
        for text in ["/job:ps/task:0", "/job:ps/task:12", "/job:ps/task:1/shard:3"] {
            assert_eq!(text.parse::<DeviceSpec>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "/",
            "ps/0",
            "/job:worker/task:0",
            "/job:ps",
            "/job:ps/task:x",
            "/job:ps/task:0/gpu:0",
            "/job:ps/task:0/shard:0/x:1",
        ] {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn scaled_initializers_use_the_fans_of_the_shape() {
        let InitializerSpec::Uniform { low, high } =
            InitializerSpec::GlorotUniform.resolve(&[784, 512].into())
        else {
            panic!("glorot is uniform")
        };
        assert_eq!(low, -high);
        assert!((high - (6.0f32 / 1296.0).sqrt()).abs() < 1e-7);
        let InitializerSpec::TruncatedNormal { stddev, .. } =
            InitializerSpec::HeNormal.resolve(&[3, 3, 16, 32].into())
        else {
            panic!("he is a truncated normal")
        };
        assert!((stddev * 0.879_625_7 - (2.0f32 / 144.0).sqrt()).abs() < 1e-6);
    }

    #[test]
    fn a_job_file_omits_the_type_f32() {
        let json = r#"{"name":"v","shape":[2],"initializer":"zeros"}"#;
        let variable: VariableSpec = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&variable).unwrap(), json);
        variable.validate_for_job().unwrap();
        let other = VariableSpec { dtype: DType::Text, ..variable };
        let json = serde_json::to_string(&other).unwrap();
        assert_eq!(serde_json::from_str::<VariableSpec>(&json).unwrap(), other);
        other.validate().unwrap();
        let error = other.validate_for_job().unwrap_err().to_string();
        assert!(error.starts_with("variable 'v' has the type text, expected f32"), "{error}");
    }

    #[test]
    fn an_initializer_fits_the_type_of_the_elements() {
        let valid = |dtype, initializer| {
            let (name, shape) = ("v".to_owned(), [2].into());
            VariableSpec { name, shape, dtype, initializer, trainable: true, device: None }.validate()
        };
        let constant = |value| InitializerSpec::Constant { value };
        for dtype in DType::ALL {
            assert!(valid(dtype, InitializerSpec::Zeros).is_ok());
            assert_eq!(valid(dtype, InitializerSpec::GlorotUniform).is_ok(), dtype == DType::F32);
            assert_eq!(valid(dtype, constant(1.0)).is_ok(), dtype != DType::Text);
            assert_eq!(valid(dtype, constant(0.5)).is_ok(), matches!(dtype, DType::F32 | DType::F64));
            assert_eq!(valid(dtype, constant(-1.0)).is_ok(), dtype.is_number() && dtype != DType::U8);
            assert_eq!(valid(dtype, constant(256.0)).is_ok(), dtype.is_number() && dtype != DType::U8);
        }
        assert!(valid(DType::I32, constant(-f32::exp2(31.0))).is_ok());
        let error = valid(DType::I32, constant(f32::exp2(31.0))).unwrap_err().to_string();
        assert!(error.contains("value of the initializer must be an integer below 2^31"), "{error}");
    }

    #[test]
    fn an_error_names_the_invalid_variable() {
        let good = VariableSpec {
            name: "dense/kernel".into(),
            shape: [2, 3].into(),
            dtype: DType::F32,
            initializer: InitializerSpec::Zeros,
            trainable: true,
            device: None,
        };
        good.validate().unwrap();
        let with = |change: fn(&mut VariableSpec)| {
            let mut variable = good.clone();
            change(&mut variable);
            variable.validate().unwrap_err().to_string()
        };
        assert!(with(|v| v.name = "a b".into()).contains("'a b'"));
        assert!(with(|v| v.name = "__metadata__".into()).contains("'__metadata__' is reserved"));
        assert!(with(|v| v.shape = [2, 0].into()).contains("[2, 0]"));
        assert!(with(|v| v.shape = [usize::MAX, 2].into()).contains("dense/kernel"));
        assert!(with(|v| v.initializer = InitializerSpec::Constant { value: f32::NAN }).contains("NaN"));
        assert!(
            with(|v| v.initializer = InitializerSpec::Uniform { low: 1.0, high: 0.0 }).contains("high - low")
        );
    }
}
