//! Checks that the tests exist that the book's page on security names: each name is that of a module which
//! contains tests. Reads the last column of the table of threats.

use crate::tree::{self, File, hold};

const PAGE: &str = "docs/src/guide/security.md";
const HEADING: &str = "## Threats";

#[test]
fn threats_name_modules_with_tests() {
    hold(
        "The table of threats names tests that do not exist. Name the module that contains the test:",
        &unproved(&tree::texts()),
    );
}

#[test]
fn a_threat_without_a_test_is_noticed() {
    let page = "# Security\n`none`\n## Threats\n| who | what | tests |\n|---|---|---|\n| `x` | y | `a::b`, `c` |\n\
                | x | y | `session::d`, `e` |\n| x | y | [page](f.md) |\n## More\n| x | `g` |\n";
    let mut files = vec![
        File::new(PAGE, page),
        File::new("tests/cluster/a/b.rs", "fn b() {}\n"),
        File::new("tests/cluster/c/mod.rs", "mod deep;\n"),
        File::new("tests/cluster/c/deep.rs", "#[test]\nfn c() {}\n"),
        File::new("tests/cluster/d.rs", "#[test]\nfn d() {}\n"),
        File::new("tests/cluster/e.rs", "// #[test]\nfn e() {}\n"),
    ];
    let [a, d, e] = ["6: a::b", "7: session::d", "7: e"].map(|name| format!("{PAGE}:{name}"));
    assert_eq!(unproved(&files), [a, d, e]);
    files[0] = File::new(PAGE, "# Security\n## Threats\n| who | what | tests |\n");
    assert_eq!(unproved(&files), [format!("{PAGE}: the table below '{HEADING}' names no test")]);
}

/// Returns a complaint for each named module that contains no test.
fn unproved(files: &[File]) -> Vec<String> {
    let page = files.iter().find(|file| file.path == PAGE);
    let named = page.map_or_else(Vec::new, |page| named(&page.text));
    if named.is_empty() {
        return vec![format!("{PAGE}: the table below '{HEADING}' names no test")];
    }
    let missing = named.into_iter().filter(|(_, name)| !has_test(files, name));
    missing.map(|(line, name)| format!("{PAGE}:{line}: {name}")).collect()
}

/// Returns the code spans of the last column, each with the number of its line.
fn named(text: &str) -> Vec<(usize, &str)> {
    let lines = (1..).zip(text.lines()).skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows =
        lines.take_while(|(_, line)| !line.starts_with("## ")).filter(|(_, line)| line.starts_with('|'));
    rows.filter_map(|(number, row)| Some((number, row.trim_end().trim_end_matches('|').rsplit_once('|')?.1)))
        .flat_map(|(number, cell)| cell.split('`').skip(1).step_by(2).map(move |name| (number, name)))
        .collect()
}

/// Returns whether a module, or one in its folder, contains a test.
fn has_test(files: &[File], name: &str) -> bool {
    let path = match name.strip_prefix("session::") {
        Some(name) => format!("tests/session/{}", name.replace("::", "/")),
        None => format!("tests/cluster/{}", name.replace("::", "/")),
    };
    tree::under(files, &path).any(|file| file.text.lines().any(|line| line.trim() == "#[test]"))
}
