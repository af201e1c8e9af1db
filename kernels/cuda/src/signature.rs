//! The parameters of kernels, as their text has them. Devices check launches against them, because a card
//! reads whatever stands in memory in place of an argument that is missing.

use crate::driver::{Argument, DriverError};
use crate::source::{KERNEL, Source};

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// A pointer to what the kernel only reads.
    Read,
    /// A pointer to what the kernel reads and writes.
    Write,
    /// An `unsigned int`.
    U32,
    /// An `unsigned long long`.
    U64,
    /// A `float`.
    F32,
}

impl Parameter {
    /// Returns the parameter with this text; `None` if there are no arguments for its type.
    fn parse(text: &str) -> Option<Self> {
        if let Some((target, name)) = text.split_once('*') {
            let is_const = target.split_whitespace().any(|word| word == "const");
            let parameter = if is_const { Self::Read } else { Self::Write };
            return (!name.contains('*')).then_some(parameter);
        }
        let words = text.split_whitespace().filter(|word| *word != "const");
        let mut words: Vec<&str> = words.collect();
        words.pop();
        match words[..] {
            ["float"] => Some(Self::F32),
            ["unsigned"] | ["unsigned", "int"] => Some(Self::U32),
            ["Count"] | ["unsigned", "long", "long"] => Some(Self::U64),
            _ => None,
        }
    }

    /// Returns whether the parameter takes this argument.
    pub(crate) const fn takes(self, argument: &Argument) -> bool {
        matches!(
            (self, argument),
            (Self::Read | Self::Write, Argument::Place(_))
                | (Self::U32, Argument::U32(_))
                | (Self::U64, Argument::U64(_))
                | (Self::F32, Argument::F32(_))
        )
    }
}

/// Returns the names of the kernels of a source with their parameters.
///
/// # Errors
/// If a parameter has a type for which there are no arguments.
pub(crate) fn signatures(source: &Source) -> Result<Vec<(String, Vec<Parameter>)>, DriverError> {
    let fault = |reason| DriverError::Source { name: source.name().to_owned(), reason };
    source.whole_text().split(KERNEL).skip(1).map(signature).collect::<Result<_, String>>().map_err(fault)
}

/// Returns the name and the parameters of the kernel with which a text begins.
fn signature(text: &str) -> Result<(String, Vec<Parameter>), String> {
    let (name, rest) = text.split_once('(').ok_or("a kernel without parameters")?;
    let (parameters, _) = rest.split_once(')').ok_or("a kernel whose parameters do not end")?;
    let parameters = parameters.split(',').map(str::trim).filter(|parameter| !parameter.is_empty());
    let parameter = |text: &str| {
        Parameter::parse(text).ok_or_else(|| {
            format!(
                "the kernel '{name}' has the parameter '{text}', expected a pointer, float, unsigned or Count"
            )
        })
    };
    Ok((name.to_owned(), parameters.map(parameter).collect::<Result<_, String>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_of_parameters_are_understood() {
        use Parameter::{F32, Read, U32, U64, Write};
        let text = "extern \"C\" __global__ void a(float* to, const float *from, float* __restrict__ next,\n    \
                    Count n, unsigned long long m, unsigned k, unsigned int l, const float x) {}\n\
                    extern \"C\" __global__ void b() {}";
        let source = Source::new("source", text);
        let expected = vec![
            ("a".to_owned(), vec![Write, Read, Write, U64, U64, U32, U32, F32]),
            ("b".to_owned(), vec![]),
        ];
        assert_eq!(signatures(&source), Ok(expected));
    }

    #[test]
    fn another_type_is_an_error_that_names_it() {
        for parameter in ["int n", "Step step", "float** all", "double x"] {
            let text = format!("extern \"C\" __global__ void a({parameter}) {{}}");
            let error = signatures(&Source::new("source", &text)).unwrap_err().to_string();
            assert!(error.contains(&format!("'{parameter}'")) && error.contains("'a'"), "{error}");
        }
    }
}
