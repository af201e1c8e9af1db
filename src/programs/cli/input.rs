//! The flags that say how the workers read the training set.

use clap::{Args, ValueEnum};
use pushpull_messages::input::{INTERLEAVE_MAX, InputSpec, SKIPPED_RECORDS_MAX, ShuffleSpec, StreamSpec};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stream {
    Auto,
    Always,
    Never,
}

/// The flags of the training set. A flag that is not given leaves the example's own setting.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct InputArgs {
    /// Order of the examples: full, buffer:N (a random one of the next N examples) or none
    #[arg(long, value_name = "HOW", value_parser = shuffle)]
    shuffle: Option<ShuffleSpec>,
    /// Read the examples from their files in each epoch instead of holding them in memory; auto does so for
    /// large files, unless the whole set is shuffled
    #[arg(long, value_enum, value_name = "WHEN")]
    stream: Option<Stream>,
    /// Number of files that a worker reads at a time, an example from each in turn
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(INTERLEAVE_MAX)))]
    interleave: Option<u32>,
    /// Number of damaged records that each worker skips before the job fails
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=SKIPPED_RECORDS_MAX))]
    skip_bad_records: Option<u64>,
    /// Continue from a checkpoint although the names or sizes of the training files have changed
    #[arg(long)]
    accept_changed_files: bool,
}

fn shuffle(text: &str) -> Result<ShuffleSpec, String> {
    match (text, text.strip_prefix("buffer:").map(str::parse)) {
        ("full", _) => Ok(ShuffleSpec::Full),
        ("none", _) => Ok(ShuffleSpec::None),
        (_, Some(Ok(size @ 1..))) => Ok(ShuffleSpec::Buffer(size)),
        _ => Err("expected full, none or buffer:N with N of at least 1".into()),
    }
}

impl InputArgs {
    /// Returns `input` with the settings of those flags that are given.
    pub(super) fn apply(&self, input: InputSpec) -> InputSpec {
        let stream = self.stream.map(|stream| match stream {
            Stream::Auto => StreamSpec::Auto,
            Stream::Always => StreamSpec::Always,
            Stream::Never => StreamSpec::Never,
        });
        InputSpec {
            shuffle: self.shuffle.unwrap_or(input.shuffle),
            stream: stream.unwrap_or(input.stream),
            interleave: self.interleave.unwrap_or(input.interleave),
            skip_bad_records: self.skip_bad_records.unwrap_or(input.skip_bad_records),
            accept_changed_files: self.accept_changed_files || input.accept_changed_files,
            ..input
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_read_from_its_flag() {
        assert_eq!(shuffle("full"), Ok(ShuffleSpec::Full));
        assert_eq!(shuffle("none"), Ok(ShuffleSpec::None));
        assert_eq!(shuffle("buffer:70"), Ok(ShuffleSpec::Buffer(70)));
        for bad in ["", "buffer", "buffer:", "buffer:0", "buffer:-1", "buffer:x", "half"] {
            assert!(shuffle(bad).is_err(), "{bad}");
        }
    }
}
