//! The variants of the job that are compared: each is a change of the plain job's settings.

use pushpull::JobSpec;

/// One variant of the job.
pub(crate) struct Variant {
    pub name: &'static str,
    /// Changes the settings of the plain job.
    pub change: fn(&mut JobSpec),
}

/// The variant that the others are compared with: values and gradients travel as `f32`, and each step of a
/// worker begins after the previous one was answered.
pub(crate) const PLAIN: &str = "plain f32";

/// All variants. The plain one comes first.
const VARIANTS: &[Variant] = &[
    Variant { name: PLAIN, change: |_| {} },
    Variant { name: "pipeline 2", change: |job| job.pipeline = 2 },
    Variant { name: "pipeline 3", change: |job| job.pipeline = 3 },
];

/// Returns the plain variant, and those whose names contain one of the texts; all if there are no texts.
pub(crate) fn chosen(only: &[String]) -> Vec<&'static Variant> {
    let wanted = |variant: &&Variant| {
        only.is_empty() || variant.name == PLAIN || only.iter().any(|text| variant.name.contains(text))
    };
    VARIANTS.iter().filter(wanted).collect()
}
