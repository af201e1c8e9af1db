//! Checks that no file depends on the machine on which it was written: no file contains a path of that
//! machine or the host of a package registry.

use crate::source::is_word;
use crate::tree::{self, File, hold};

/// The strings are split, so that this file does not contain them.
const PATHS: &[&[&str]] = &[&["/wo", "rk/"], &["/ro", "ot/"], &["/ho", "me/"], &["/Us", "ers/"]];
const HOSTS: &[&[&str]] = &[
    &["index.crates", ".io"],
    &["static.crates", ".io"],
    &["py", "pi.org"],
    &["pythonhosted", ".org"],
    &["registry.npm", "js.org"],
    &["proxy.go", "lang.org"],
    &["dock", "er.io"],
    &["gh", "cr.io"],
    &["gc", "r.io"],
    &["qu", "ay.io"],
];
/// The source of all packages in Cargo.lock that are not ours: the default registry, as cargo writes it.
const SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

#[test]
fn no_file_names_a_path_of_a_machine() {
    hold(
        "Write the path relative to the repository, or take it as an argument. Paths in examples begin with /data or \
         /tmp:",
        &naming(&tree::texts(), PATHS),
    );
}

#[test]
fn a_path_of_a_machine_is_noticed() {
    let [path, url] = ["see /wo|rk/x", "https://example.org/wo|rk/x"].map(|text| text.replace('|', ""));
    let files = [File::new("README.md", &format!("fine\n{path}\n{url}\n"))];
    assert_eq!(naming(&files, PATHS), [format!("README.md:2: {}", PATHS[0].concat())]);
}

#[test]
fn no_file_names_the_host_of_a_registry() {
    hold(
        "Packages come from the default registry, by name. The host of the registry belongs only into the configuration \
         of each machine:",
        &naming(&tree::texts(), HOSTS),
    );
}

#[test]
fn the_host_of_a_registry_is_noticed() {
    let files =
        [File::new("a.toml", "x = 1\nindex = \"https://index.crates|.io/\"\n".replace('|', "").as_str())];
    assert_eq!(naming(&files, HOSTS), [format!("a.toml:2: {}", HOSTS[0].concat())]);
}

#[test]
fn packages_come_from_the_default_registry() {
    hold(
        "Cargo.lock contains a package that is not from the default registry; use a published version:",
        &other_sources(&tree::texts()),
    );
}

#[test]
fn another_source_is_noticed() {
    let git = "source = \"git+https://example.org/x\"";
    let files =
        [File::new("Cargo.lock", &format!("name = \"a\"\n{SOURCE}\n{git}\n")), File::new("b.lock", git)];
    assert_eq!(other_sources(&files), [format!("Cargo.lock:3: {git}")]);
    assert_eq!(other_sources(&[]), ["Cargo.lock: missing"]);
}

/// Returns the lines that contain a banned string, unless it is the end of a longer word or a path within a
/// URL.
fn naming(files: &[File], banned: &[&[&str]]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let named = |parts: &&&[&str]| {
                let mut at = line.match_indices(&parts.concat()).map(|(at, _)| at).collect::<Vec<_>>();
                at.retain(|at| !line[..*at].ends_with(is_word));
                !at.is_empty()
            };
            let found = banned.iter().filter(named);
            complaints.extend(found.map(|parts| format!("{}:{}: {}", file.path, index + 1, parts.concat())));
        }
    }
    complaints
}

fn other_sources(files: &[File]) -> Vec<String> {
    let Some(lock) = files.iter().find(|file| file.path == "Cargo.lock") else {
        return vec!["Cargo.lock: missing".to_owned()];
    };
    let lines = lock.text.lines().enumerate();
    let other = lines.filter(|(_, line)| line.starts_with("source = ") && *line != SOURCE);
    other.map(|(index, line)| format!("Cargo.lock:{}: {line}", index + 1)).collect()
}
