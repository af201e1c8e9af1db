//! Tests that write the flags of all programs as a page of the book, and compare them with a list of names
//! that must not change. The flags are taken from the programs' definitions in clap.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};

use super::chief::ChiefArgs;
use super::evaluator::EvaluatorArgs;
use super::ps::PsArgs;
use super::server::ServerArgs;
use super::tool::ToolArgs;
use super::train::TrainArgs;
use super::worker::WorkerArgs;

/// The path of the book's page.
const PAGE: &str = "docs/src/reference/flags.md";
/// The path of the list of names.
const NAMES: &str = "tests/golden/flags.txt";
/// The flags that exist only with a Cargo feature that is off by default.
const OPTIONAL: [&str; 1] = ["otlp-endpoint"];

/// Returns every program and every tool with its full name.
fn programs() -> Vec<(String, Command)> {
    let roles = [
        PsArgs::command(),
        ServerArgs::command(),
        WorkerArgs::command(),
        ChiefArgs::command(),
        EvaluatorArgs::command(),
        TrainArgs::command().name("example"),
        ToolArgs::command(),
    ];
    let mut programs = Vec::new();
    for role in roles {
        with_tools(role.get_name().to_owned(), role, &mut programs);
    }
    programs
}

fn with_tools(name: String, mut command: Command, programs: &mut Vec<(String, Command)>) {
    command.build();
    let tools: Vec<Command> =
        command.get_subcommands().filter(|tool| tool.get_name() != "help").cloned().collect();
    let is_group = !tools.is_empty();
    for tool in tools {
        with_tools(format!("{name} {}", tool.get_name()), tool, programs);
    }
    if !is_group {
        programs.push((name, command));
    }
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        let id = arg.get_id().as_str();
        !["help", "version"].contains(&id) && !OPTIONAL.contains(&arg.get_long().unwrap_or(id))
    })
}

/// Returns the flag as it is written on a command line, with the name of its value.
fn written(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let value = values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    match (arg.get_long(), arg.get_action().takes_values()) {
        (Some(long), true) => format!("--{long} {value}"),
        (Some(long), false) => format!("--{long}"),
        (None, _) => value,
    }
}

fn default(arg: &Arg) -> Option<String> {
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let values = values.collect::<Vec<_>>().join(",");
    (arg.get_action().takes_values() && !values.is_empty()).then_some(values)
}

/// Returns one line for each flag: program, flag, value, environment variable, other spellings, default.
fn names() -> String {
    let mut text = String::new();
    for (program, command) in programs() {
        for arg in flags(&command) {
            let _ = write!(text, "{program}: {}", written(arg));
            if let Some(variable) = arg.get_env() {
                let _ = write!(text, " env={}", variable.to_string_lossy());
            }
            for alias in arg.get_all_aliases().unwrap_or_default() {
                let _ = write!(text, " alias=--{alias}");
            }
            if let Some(default) = default(arg) {
                let _ = write!(text, " default={default}");
            }
            text.push('\n');
        }
    }
    text
}

/// Returns the text of the book's page.
fn page() -> String {
    let mut text = String::from(
        "# Flags\n\n\
         Every program and its flags, as `--help` shows them. `example` stands for the flags that every example takes. \
         `--flag_name` means the same as `--flag-name`. This page is generated from the programs: change their flags, \
         not this file.\n",
    );
    for (program, command) in programs() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n## `{program}`\n\n{about}.\n");
        let mut headings: Vec<Option<&str>> = Vec::new();
        for heading in flags(&command).map(Arg::get_help_heading) {
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        for heading in headings {
            if let Some(heading) = heading {
                let _ = write!(text, "\n### {heading}\n");
            }
            text += "\n| flag | default | meaning |\n|---|---|---|\n";
            for arg in flags(&command).filter(|arg| arg.get_help_heading() == heading) {
                text += &row(arg);
            }
        }
    }
    text
}

fn row(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    // A default that depends on other flags is only part of the help text, and not known to clap.
    let (meaning, told) = match help.split_once(" [default: ") {
        Some((meaning, rest)) => (meaning.to_owned(), rest.strip_suffix(']').map(ToOwned::to_owned)),
        None => (help, None),
    };
    let default = default(arg).map(|value| format!("`{value}`")).or(told).unwrap_or_default();
    let mut meaning = meaning;
    if let Some(variable) = arg.get_env() {
        let _ = write!(meaning, "; also by the variable `{}`", variable.to_string_lossy());
    }
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| arg.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() && values != ["`true`", "`false`"] {
        let _ = write!(meaning, ": {}", values.join(", "));
    }
    let cell = |text: &str| text.replace('|', "\\|");
    let mut row = format!("| `{}` | {} | {} |", cell(&written(arg)), cell(&default), cell(&meaning));
    row = row.replace("|  |", "| |");
    row + "\n"
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[test]
fn names_and_defaults_of_flags_stay() {
    let committed = std::fs::read_to_string(path(NAMES)).unwrap_or_default();
    let now = names();
    let lost: Vec<_> = committed.lines().filter(|line| !now.lines().any(|own| own == *line)).collect();
    let new: Vec<_> = now.lines().filter(|line| !committed.lines().any(|own| own == *line)).collect();
    assert!(
        lost.is_empty() && new.is_empty(),
        "scripts rely on these names; edit {NAMES} only for a change that is announced to users\nlost: {lost:#?}\nnew: {new:#?}"
    );
}

#[test]
fn each_program_says_what_it_prints_of_the_placement() {
    let help = |program: &str| {
        let (_, command) = programs().into_iter().find(|(name, _)| name == program).expect("such a program");
        let flag =
            command.get_arguments().find(|arg| arg.get_long() == Some("log-placement")).expect("such a flag");
        flag.get_help().expect("it is documented").to_string()
    };
    assert_eq!(help("pushpull-chief"), "Print where every variable lives");
    assert!(help("pushpull-worker").starts_with("Print where every operation runs"));
}

#[test]
fn the_flags_page_of_the_book_is_current() {
    let now = page();
    if std::env::var_os("UPDATE_FLAGS_PAGE").is_some() {
        std::fs::create_dir_all(path(PAGE).parent().expect("it is in a folder")).unwrap();
        std::fs::write(path(PAGE), &now).unwrap();
    }
    let committed = std::fs::read_to_string(path(PAGE)).unwrap_or_default();
    assert!(
        committed == now,
        "{PAGE} is stale: run UPDATE_FLAGS_PAGE=1 cargo test -p pushpull --lib flags_page, and commit it"
    );
}
