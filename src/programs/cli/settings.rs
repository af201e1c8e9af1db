//! Lists the settings of a command line: every flag, its value, and where the value comes from. Secrets are
//! hidden.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use pushpull_storage::without_passwords;

use super::join::JOIN_ENV;
use crate::programs::http::TOKEN_ENV;
use crate::programs::settings::{Setting, Settings};

/// Returns the settings of a command line that clap has read. An environment variable with a secret
/// that is set is listed as well, without its value.
pub(super) fn settings(command: &Command, matches: &ArgMatches) -> Settings {
    let mut flags = read(command, matches);
    for secret in [TOKEN_ENV, JOIN_ENV] {
        flags.extend(std::env::var_os(secret).map(|_| Setting {
            name: secret.to_owned(),
            value: Some("(hidden)".to_owned()),
            from: Some("environment"),
        }));
    }
    Settings { program: command.get_name().to_owned(), flags }
}

fn read(command: &Command, matches: &ArgMatches) -> Vec<Setting> {
    let given = command.get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()));
    let mut settings: Vec<Setting> = given.map(|arg| setting(arg, matches)).collect();
    if let Some((name, matches)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        settings.extend(read(command, matches));
    }
    settings
}

fn setting(arg: &Arg, matches: &ArgMatches) -> Setting {
    let id = arg.get_id().as_str();
    let name = arg.get_long().unwrap_or(id).to_owned();
    let from = matches.value_source(id).and_then(|source| match source {
        ValueSource::CommandLine => Some("command line"),
        ValueSource::EnvVariable => Some("environment"),
        ValueSource::DefaultValue => Some("default"),
        _ => None,
    });
    let raw = matches.get_raw(id).map(|values| {
        let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
        values.join(",")
    });
    let value = raw.filter(|_| from.is_some());
    let value =
        value.map(|value| if name.contains("token") { "(hidden)".into() } else { without_passwords(&value) });
    Setting { name, value, from }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "program")]
    struct Program {
        #[arg(long, default_value_t = 3)]
        steps: u64,
        #[arg(long)]
        location: Option<String>,
        #[arg(long)]
        http_token_file: Option<String>,
        #[arg(long)]
        rename: Vec<String>,
        #[arg(long)]
        quick: bool,
        #[arg(long)]
        nothing: Option<String>,
    }

    #[test]
    fn settings_show_every_flag_and_no_secret() {
        let mut command = Program::command();
        let flags = [
            "program",
            "--location=s3://key:secret@bucket/a@b",
            "--http-token-file=/etc/token",
            "--rename=a",
            "--rename=b",
        ];
        let matches = command.try_get_matches_from_mut(flags).unwrap();
        let told = read(&command, &matches);
        let of = |name: &str| {
            let setting = told.iter().find(|setting| setting.name == name).expect("it is a flag");
            (setting.value.as_deref(), setting.from)
        };
        assert_eq!(of("steps"), (Some("3"), Some("default")));
        assert_eq!(of("location"), (Some("s3://(hidden)@bucket/a@b"), Some("command line")));
        assert_eq!(of("http-token-file"), (Some("(hidden)"), Some("command line")));
        assert_eq!(of("rename"), (Some("a,b"), Some("command line")));
        assert_eq!(of("quick"), (Some("false"), Some("default")));
        assert_eq!(of("nothing"), (None, None));
        assert_eq!(told.len(), 6);
    }
}
