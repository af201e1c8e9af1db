//! The variants of the job that are compared: each is a change of the plain job's settings.

use pushpull::EncodingSpec::{self, Bf16, Int8, TopK};
use pushpull::{CompressionSpec, JobSpec};

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
    Variant { name: "bf16", change: |job| compress(job, Bf16, Bf16) },
    Variant { name: "int8", change: |job| compress(job, Int8, Int8) },
    Variant {
        name: "int8, pipeline 2",
        change: |job| {
            compress(job, Int8, Int8);
            job.pipeline = 2;
        },
    },
    Variant { name: "top-k 0.01, values bf16", change: |job| compress(job, TopK { fraction: 0.01 }, Bf16) },
];

fn compress(job: &mut JobSpec, gradients: EncodingSpec, values: EncodingSpec) {
    job.compression = vec![CompressionSpec::new("*").gradients(gradients).values(values)];
}

/// Returns the plain variant, and those whose names contain one of the texts; all if there are no texts.
pub(crate) fn chosen(only: &[String]) -> Vec<&'static Variant> {
    let wanted = |variant: &&Variant| {
        only.is_empty() || variant.name == PLAIN || only.iter().any(|text| variant.name.contains(text))
    };
    VARIANTS.iter().filter(wanted).collect()
}
