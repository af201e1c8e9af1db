//! Reads command lines: underscores count as dashes, and every error is one line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Parser};

use super::example_defaults::Defaults;
use super::observe::carry;
use super::settings::settings;
use crate::programs::exit::{Failure, Outcome, finish};
use crate::programs::settings::CalledWith;

/// Reads the command line, runs the program, and returns its exit status: 0 on success, 1 if the program
/// failed, 2 if the command line was wrong, and 128 + n if signal n ended the program early.
pub fn main<Args: Parser>(run: impl FnOnce(Args) -> Outcome) -> ExitCode {
    exit(start(Args::command(), std::env::args_os(), run))
}

/// Runs a program as [`main`] does, but replaces the default values of [`TrainArgs`](super::TrainArgs) by
/// `defaults`, the example's own.
///
/// # Panics
/// Panics if `Args` does not flatten [`TrainArgs`](super::TrainArgs).
pub fn main_with<Args: Parser>(defaults: Defaults, run: impl FnOnce(Args) -> Outcome) -> ExitCode {
    exit(start(defaults.apply(Args::command()), std::env::args_os(), run))
}

/// Runs a program with the given arguments. The first argument is the program's name. Any number of programs
/// can run in one process, if each runs on a thread of its own.
///
/// # Errors
/// Returns the failure that [`main`] would print. Also returns a [`Failure::Usage`] if help or the version
/// is requested.
pub fn main_from<Args: Parser>(
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
    run: impl FnOnce(Args) -> Outcome,
) -> Outcome {
    match start(Args::command(), arguments.into_iter().map(Into::into), run) {
        Started::Ended(outcome) => outcome,
        Started::Shown(text) => Err(Failure::usage(text)),
    }
}

/// The result of starting a program.
enum Started {
    /// The program has run, or its command line was wrong.
    Ended(Outcome),
    /// Help or the version was requested.
    Shown(clap::Error),
}

fn exit(started: Started) -> ExitCode {
    match started {
        Started::Ended(outcome) => finish(outcome),
        Started::Shown(text) => {
            // An error here means that the reader has closed the pipe.
            let _ = text.print();
            ExitCode::SUCCESS
        }
    }
}

fn start<Args: Parser>(
    command: Command,
    arguments: impl Iterator<Item = OsString>,
    run: impl FnOnce(Args) -> Outcome,
) -> Started {
    let called_with = CalledWith::default();
    let mut command = carry(command, &called_with);
    let matches = command.try_get_matches_from_mut(with_dashes(arguments));
    let args = matches.and_then(|matches| {
        called_with.set(settings(&command, &matches));
        Args::from_arg_matches(&matches)
    });
    match args.map_err(|error| error.format(&mut command)) {
        Ok(args) => Started::Ended(run(args)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Started::Shown(error)
        }
        Err(error) => Started::Ended(Err(Failure::Usage(one_line(&error)))),
    }
}

/// Replaces underscores by dashes in the names of flags, because users write both `--ps_hosts` and
/// `--ps-hosts`.
fn with_dashes(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut verbatim = false;
    args.map(move |arg| {
        verbatim |= arg == "--";
        match arg.to_str() {
            Some(text) if text.starts_with("--") && !verbatim => {
                let (name, value) =
                    text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
                let name = name.replace('_', "-");
                value.map_or(name.clone(), |value| format!("{name}={value}")).into()
            }
            _ => arg,
        }
    })
}

/// Returns an error of the flags on one line. Its parts are joined by semicolons; a list follows its colon.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let said = text.split("Usage:").next().unwrap_or(text);
    let said = said.split("For more information").next().unwrap_or(said);
    let mut line = String::new();
    for part in said.lines().map(str::trim).filter(|part| !part.is_empty()) {
        line.push_str(match &*line {
            "" => "",
            // A list follows.
            before if before.ends_with(':') => " ",
            _ => "; ",
        });
        line.push_str(part);
    }
    format!("{line}; see --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, value_parser = ["mlp", "cnn"])]
        some_model: Option<String>,
        #[arg(long)]
        task_index: Option<u32>,
    }

    fn read(args: &[&str]) -> Result<Args, String> {
        let args = std::iter::once("program").chain(args.iter().copied()).map(OsString::from);
        Args::try_parse_from(with_dashes(args)).map_err(|error| one_line(&error))
    }

    #[test]
    fn underscores_count_as_dashes() {
        let args = read(&["--some_model=mlp", "--task_index", "3"]).unwrap();
        assert_eq!((args.some_model.as_deref(), args.task_index), (Some("mlp"), Some(3)));
    }

    #[test]
    fn missing_flags_are_listed_in_the_line() {
        #[derive(Debug, Parser)]
        struct Needs {
            #[arg(long)]
            job: String,
            #[arg(long)]
            out: String,
        }
        let error = Needs::try_parse_from(["program"]).map_err(|error| one_line(&error)).unwrap_err();
        let expected =
            "the following required arguments were not provided: --job <JOB>; --out <OUT>; see --help";
        assert_eq!(error, expected);
    }

    #[test]
    fn errors_name_the_flag_and_the_valid_values() {
        for (args, expected) in [
            (&["--some-model", "rnn"][..], "'rnn'"),
            (&["--some-model", "rnn"], "[possible values: mlp, cnn]"),
            (&["--task-index", "x"], "--task-index"),
            (&["--task-indx", "1"], "'--task-index'"),
            (&["--some-model"], "--some-model"),
        ] {
            let error = read(args).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
