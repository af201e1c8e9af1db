//! Reading a command line: underscores are as good as dashes, and every error is one line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Parser};

use super::{Defaults, settings};
use crate::exit::{Failure, Outcome, finish};

/// Reads the command line, runs the program, and gives its exit status: 0 where it did what it was started for, 2
/// where it was called wrongly, 1 where it failed, and 128 + n where signal n ended it early.
pub fn main<Args: Parser>(run: impl FnOnce(Args) -> Outcome) -> ExitCode {
    start(Args::command(), run)
}

/// The same for an example whose [`TrainArgs`](super::TrainArgs) have defaults of their own.
///
/// # Panics
/// Where `Args` does not flatten the flags that every example takes.
pub fn main_with<Args: Parser>(defaults: Defaults, run: impl FnOnce(Args) -> Outcome) -> ExitCode {
    start(defaults.apply(Args::command()), run)
}

fn start<Args: Parser>(mut command: Command, run: impl FnOnce(Args) -> Outcome) -> ExitCode {
    let matches = command.try_get_matches_from_mut(with_dashes(std::env::args_os()));
    let args = matches.and_then(|matches| {
        settings::remember(&command, &matches);
        Args::from_arg_matches(&matches)
    });
    match args.map_err(|error| error.format(&mut command)) {
        Ok(args) => finish(run(args)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // A closed pipe is no failure of ours.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        Err(error) => finish(Err(Failure::Usage(one_line(&error)))),
    }
}

/// `--ps_hosts` is `--ps-hosts`: both spellings are in use.
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

fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let said = text.split("Usage:").next().unwrap_or(text);
    let said = said.split("For more information").next().unwrap_or(said);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    format!("{}; see --help", lines.join("; "))
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
    fn underscores_are_as_good_as_dashes() {
        let args = read(&["--some_model=mlp", "--task_index", "3"]).unwrap();
        assert_eq!((args.some_model.as_deref(), args.task_index), (Some("mlp"), Some(3)));
    }

    #[test]
    fn errors_are_one_line_that_names_the_key_and_the_valid_values() {
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
