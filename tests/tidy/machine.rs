//! No file knows the machine that it was written on: neither its paths nor where it fetches packages from.

use crate::source::is_word;
use crate::tree::{self, File, hold};

/// Split, so that this file does not name them.
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
/// Where every package of Cargo.lock that is not ours comes from: the default registry, as cargo spells it.
const SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

#[test]
fn no_file_names_a_path_of_a_machine() {
    hold(
        "Say the path relative to the repository, or take it as an argument; examples of paths begin with /data or \
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
        "Packages come from the default registry, by name; which host serves it is for each machine's own \
         configuration to say:",
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
        "Cargo.lock takes a package from elsewhere than the default registry; use a published version:",
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

/// The lines that hold one of some strings which is not the end of a longer word or the path of a URL.
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
