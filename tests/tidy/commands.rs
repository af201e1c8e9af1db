//! Checks the commands in Markdown: a task that other hosts can reach proves who it is, and no command shows
//! a secret to other users. Reads the fences with `sh`, and the code spans that begin with a program.

use crate::tree::{self, File, hold};

/// The programs of tasks, each with what it may prove its identity with.
const TASKS: &[(&str, &[&str])] = &[
    ("pushpull-chief", AUTHORITY),
    ("pushpull-ps", JOIN),
    ("pushpull-server", EITHER),
    ("pushpull-worker", EITHER),
];
const AUTHORITY: &[&str] = &["--authority", "PUSHPULL_AUTHORITY", "--tls-cert", "PUSHPULL_TLS_CERT"];
const JOIN: &[&str] = &["--join-file", "PUSHPULL_JOIN", "--tls-cert", "PUSHPULL_TLS_CERT"];
const EITHER: &[&str] =
    &["--authority", "PUSHPULL_AUTHORITY", "--join-file", "PUSHPULL_JOIN", "--tls-cert", "PUSHPULL_TLS_CERT"];
const INSECURE: &[&str] = &["--insecure", "PUSHPULL_INSECURE"];
/// The signs of a task in a command of another program, such as an example.
const CLUSTER: &[&str] = &["TF_CONFIG=", "--cluster-spec", "--worker-hosts"];
/// The commands whose output is a secret.
const SECRETS: &[&str] = &["pushpull join new", "pushpull join token", "pushpull join client"];
/// The names of files with secrets, as the ignore files have them.
const ENDINGS: &[&str] = &[".authority", ".join", ".token", ".client"];

#[test]
fn documented_tasks_prove_who_they_are() {
    hold(
        "A task that other hosts can reach ends with an error without these flags. Add one of them to the command:",
        &complaints(&tree::texts(), unproved),
    );
}

#[test]
fn a_task_without_a_join_string_is_noticed() {
    let text = "```sh\nC='chief|c:2222' # the job's\nc0$ pushpull-chief --cluster-spec \"$C\" --join-file f\n\
                pushpull-ps --cluster-spec \"$C\"\npushpull-worker --ps-hosts 127.0.0.1:2222 --devices cuda:0\n\
                w0$ TF_CONFIG='{\"cluster\":\n  1}' \\\n  mnist\nw1$ bin/pushpull-worker --insecure\n\
                w3$ pushpull-worker --cluster-spec \"$C\" --tls-cert w3.crt\n\
                w2$ ls\n  ```\n`pushpull-server --cluster_spec='local|localhost:2222'`, and\n\
                `pushpull-server --cluster-spec 'x|h:2222'`, `--cluster-spec 'x|h:2222'`\n\
                ```text\np0$ pushpull-ps\n```\n";
    assert_eq!(
        complaints(&[File::new("a.md", text), File::new("a.rs", text)], unproved),
        [
            "a.md:3: pushpull-chief needs --authority or --tls-cert",
            "a.md:4: pushpull-ps needs --join-file or --tls-cert",
            "a.md:6: the task needs --authority or --join-file or --tls-cert",
            "a.md:14: pushpull-server needs --authority or --join-file or --tls-cert",
        ]
    );
}

#[test]
fn documented_commands_keep_secrets() {
    hold("Other users could read a secret. Change the command:", &complaints(&tree::texts(), shown));
}

#[test]
fn a_shown_secret_is_noticed() {
    let text = "```sh\numask 077; pushpull join new --authority a.authority > a.join\n\
                (umask 077; bin/pushpull join token --join-file a.join > a.token)  # a token\n\
                (umask 077; pushpull join client --join-file a.join > client)\n\
                (umask 077; pushpull join new --authority key > a.join)\npushpull join token --join-file a.join\n\
                ```\n`curl -H \"Authorization: Bearer $TOKEN\" http://h`\n";
    let umask = "put the command into (umask 077; …), so that only the owner can read the file";
    let name = "end the file's name with .authority, .join, .token, .client, which git ignores";
    assert_eq!(
        complaints(&[File::new("a.md", text)], shown),
        [
            format!("a.md:2: {umask}"),
            format!("a.md:4: {name}"),
            format!("a.md:5: {name}"),
            "a.md:8: other users see command lines: give curl the header with -H @FILE".to_owned(),
        ]
    );
}

/// A command in a page.
struct Command {
    /// The number of its first line, from 1.
    line: usize,
    /// The command in one line, without comments, and with the values of the variables that the page sets.
    text: String,
}

/// Returns what a rule says about the commands of all pages.
fn complaints(files: &[File], rule: fn(&str) -> Option<String>) -> Vec<String> {
    let pages = files.iter().filter(|file| file.path.ends_with(".md"));
    let found = pages.flat_map(|page| commands(&page.text).into_iter().map(move |command| (page, command)));
    let wrong = found.filter_map(|(page, Command { line, text })| {
        rule(&text).map(|complaint| format!("{}:{line}: {complaint}", page.path))
    });
    wrong.collect()
}

/// Returns what a task lacks that other hosts can reach.
fn unproved(command: &str) -> Option<String> {
    let program = command.split_whitespace().find_map(|word| {
        let name = word.rsplit('/').next()?;
        TASKS.iter().find(|(task, _)| *task == name)
    });
    let others = CLUSTER.iter().any(|sign| command.contains(sign)).then_some(&("the task", EITHER));
    let (name, proofs) = program.or(others)?;
    let proves = proofs.iter().chain(INSECURE).any(|proof| command.contains(proof));
    let flags: Vec<&str> = proofs.iter().copied().filter(|proof| proof.starts_with("--")).collect();
    (is_far(command) && !proves).then(|| format!("{name} needs {}", flags.join(" or ")))
}

/// Returns whether a command runs on another host, as its prompt says, or names one. An address has a port of
/// four digits; `cuda:0` is none.
fn is_far(command: &str) -> bool {
    let has_prompt = command.split_whitespace().next().is_some_and(|word| word.ends_with('$'));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let far = command.match_indices(':').any(|(at, _)| {
        let host = command[..at].rsplit(|c| !is_part(c)).next().unwrap_or_default();
        let digits = command[at + 1..].chars().take_while(char::is_ascii_digit).count();
        digits >= 4 && !host.is_empty() && host != "localhost" && !host.starts_with("127.")
    });
    has_prompt || far
}

/// Returns how a command shows a secret to other users.
fn shown(command: &str) -> Option<String> {
    if command.contains("Bearer $") {
        return Some("other users see command lines: give curl the header with -H @FILE".to_owned());
    }
    let (before, file) = command.rsplit_once('>')?;
    if !SECRETS.iter().any(|secret| before.contains(secret)) {
        return None;
    }
    if !command.starts_with("(umask 077; ") {
        return Some(
            "put the command into (umask 077; …), so that only the owner can read the file".to_owned(),
        );
    }
    let authority = before.split_once("--authority ").and_then(|(_, rest)| rest.split_whitespace().next());
    let mut files = [Some(file.trim().trim_end_matches(')')), authority].into_iter().flatten();
    let is_ignored = |file: &str| ENDINGS.iter().any(|ending| file.ends_with(ending));
    (!files.all(is_ignored))
        .then(|| format!("end the file's name with {}, which git ignores", ENDINGS.join(", ")))
}

/// Returns the commands of a page in the order of their lines.
fn commands(page: &str) -> Vec<Command> {
    let mut found = Vec::new();
    // The language and the lines of the fence that is open.
    let mut fence: Option<(&str, Vec<(usize, &str)>)> = None;
    for (number, line) in (1..).zip(page.lines()) {
        fence = match (line.trim().strip_prefix("```"), fence) {
            (Some(language), None) => Some((language, Vec::new())),
            (Some(_), Some((language, lines))) => {
                found.extend(if language == "sh" { split(&lines) } else { Vec::new() });
                None
            }
            (None, Some((language, mut lines))) => {
                lines.push((number, line));
                Some((language, lines))
            }
            (None, None) => {
                found.extend(spans(number, line));
                None
            }
        };
    }
    found
}

/// Returns the code spans of a line that begin with a program.
fn spans(line: usize, prose: &str) -> Vec<Command> {
    let is_program = |span: &&str| ["pushpull", "curl", "sed"].iter().any(|name| span.starts_with(name));
    let spans = prose.split('`').skip(1).step_by(2).filter(is_program);
    spans.map(|text| Command { line, text: text.to_owned() }).collect()
}

/// Splits the lines of a script into commands. A command goes on in the next line within quotes and after a
/// backslash.
fn split(lines: &[(usize, &str)]) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let mut variables: Vec<(String, String)> = Vec::new();
    let (mut quote, mut goes_on) = (None, false);
    for &(line, text) in lines {
        if !goes_on {
            commands.push(Command { line, text: String::new() });
        }
        let command = commands.last_mut().expect("one was just pushed, or goes on");
        for (at, c) in text.char_indices() {
            match quote {
                Some(open) if c == open => quote = None,
                None if c == '#' && !text[..at].ends_with(|before: char| !before.is_whitespace()) => break,
                None if c == '\'' || c == '"' => quote = Some(c),
                _ => {}
            }
            command.text.push(c);
        }
        command.text = command.text.trim().to_owned();
        goes_on = quote.is_some() || command.text.ends_with('\\');
        for (name, value) in &variables {
            command.text = command.text.replace(name, value);
        }
        let set =
            command.text.split_once("='").and_then(|(name, value)| Some((name, value.strip_suffix('\'')?)));
        if let Some((name, value)) = set
            && !name.contains(' ')
        {
            variables.push((format!("${name}"), value.to_owned()));
        }
        command.text.push_str(if goes_on { " " } else { "" });
    }
    commands
}
