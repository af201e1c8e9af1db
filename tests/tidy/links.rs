//! Checks the documentation: the targets of links exist, the book lists its pages, and the README is short.
//! Parses only the necessary parts of Markdown: fences, code spans, inline links and headings.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{self, File, hold, top};

/// The pages of the book, and the page that lists them.
const BOOK: &str = "docs/src/";
const SUMMARY: &str = "docs/src/SUMMARY.md";
const README_BYTES_MAX: usize = 8192;

#[test]
fn every_relative_link_leads_somewhere() {
    hold(
        "A link in Markdown is relative to its file, and its file and heading must exist. Correct the link, or restore \
         its target:",
        &broken(&tree::texts(), &|path| top().join(path).exists()),
    );
}

#[test]
fn a_link_to_nowhere_is_noticed() {
    let text = "# Top\n[a](b.md) [b](docs/src/a.md#one-two) [c](#top) [d](docs) [e](https://x.org/y.md)\n\
                `[f](f.md)`\n```md\n[g](g.md)\n# No heading\n```\n[h](docs/src/a.md#three) [i](#no-heading)\n\
                ![j](j.png \"a title\") [`k`](../k.md)\n";
    let page = "# One, `two`!\n[out](../../README.md)\n[in](b/c.md)\n";
    let files = [File::new("README.md", text), File::new("docs/src/a.md", page)];
    let exists = |path: &str| files.iter().any(|file| file.path == path) || path == "docs";
    assert_eq!(
        broken(&files, &exists),
        [
            "README.md:2: b.md does not exist",
            "README.md:8: docs/src/a.md has no heading #three",
            "README.md:8: README.md has no heading #no-heading",
            "README.md:9: j.png does not exist",
            "README.md:9: ../k.md is outside of the repository",
            "docs/src/a.md:2: README.md is not a page of the book",
            "docs/src/a.md:3: docs/src/b/c.md does not exist",
        ]
    );
}

#[test]
fn the_book_lists_all_its_pages() {
    hold(
        "A page that docs/src/SUMMARY.md does not list is not in the book. Add it there, or delete it:",
        &unlisted(&tree::texts()),
    );
}

#[test]
fn a_page_outside_the_summary_is_noticed() {
    let mut files = vec![File::new("docs/src/a/b.md", ""), File::new("docs/book.md", "")];
    assert_eq!(unlisted(&files), ["docs/src/SUMMARY.md: missing"]);
    files.push(File::new(SUMMARY, "# Summary\n- [A](a/a.md)\n"));
    assert_eq!(unlisted(&files), ["docs/src/a/b.md"]);
    files.push(File::new(SUMMARY, "# Summary\n  - [B](./a/b.md)\n"));
    files.swap_remove(2);
    assert_eq!(unlisted(&files), Vec::<String>::new());
}

#[test]
fn rust_in_the_book_is_compiled() {
    hold(
        "A page with Rust needs an item in src/book.rs or src/lib.rs, so that its examples are compiled and run. Add the item:",
        &uncompiled(&tree::texts()),
    );
}

#[test]
fn rust_that_is_not_compiled_is_noticed() {
    let book = "#[doc = include_str!(\"../docs/src/a.md\")]\npub struct A;\n";
    let page = |path| File::new(path, "# A\n```rust,no_run\nf();\n```\n");
    let files = [File::new("src/book.rs", book), page("docs/src/a.md"), page("docs/src/b.md"), page("b.md")];
    assert_eq!(uncompiled(&files), ["docs/src/b.md"]);
    assert_eq!(uncompiled(&files[1..]), ["docs/src/a.md", "docs/src/b.md"]);
    let library = [File::new("src/lib.rs", book), page("docs/src/a.md")];
    assert_eq!(uncompiled(&library), Vec::<String>::new());
}

#[test]
fn the_readme_is_short() {
    hold(
        "The README is limited to one page. Move text to the book, and link to it from the README:",
        &too_long(&tree::texts()),
    );
}

#[test]
fn a_long_readme_is_noticed() {
    let readme = |bytes| [File::new("README.md", &"x".repeat(bytes)), File::new("a.md", &"x".repeat(9000))];
    assert_eq!(too_long(&readme(README_BYTES_MAX)), Vec::<String>::new());
    assert_eq!(too_long(&readme(8193)), ["README.md: 8193 bytes, at most 8192"]);
}

#[test]
fn headings_become_anchors() {
    let text = "# A & b: `c-d_e`\n## [Linked](x.md) 1.0\n## Twice\n### Twice\n#tag\n```\n# code\n```\n";
    let expected = ["a--b-c-d_e", "linked-10", "twice", "twice-1"].map(String::from);
    assert_eq!(anchors(text), BTreeSet::from(expected));
}

/// Returns a complaint for each relative link in Markdown files that has no target.
fn broken(files: &[File], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let pages: BTreeMap<&str, &str> = files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let mut complaints = Vec::new();
    for (&path, text) in &pages {
        for (line, link) in links(text) {
            let wrong = match resolved(path, &link) {
                Some((target, anchor)) => fault(path, &target, anchor, &pages, exists),
                None => Some(format!("{link} is outside of the repository")),
            };
            complaints.extend(wrong.map(|wrong| format!("{path}:{line}: {wrong}")));
        }
    }
    complaints
}

/// Returns what is wrong with a link from a page to a heading of a target; `None` if the link is correct.
fn fault(
    page: &str,
    target: &str,
    anchor: Option<&str>,
    pages: &BTreeMap<&str, &str>,
    exists: &dyn Fn(&str) -> bool,
) -> Option<String> {
    if !exists(target) {
        return Some(format!("{target} does not exist"));
    }
    // The book is published without the other files of the repository.
    if page.starts_with(BOOK) && !target.starts_with(BOOK) {
        return Some(format!("{target} is not a page of the book"));
    }
    let (anchor, text) = (anchor?, pages.get(target)?);
    (!anchors(text).contains(anchor)).then(|| format!("{target} has no heading #{anchor}"))
}

/// Returns the path of a link's target relative to the top of the repository, and its anchor. Returns `None`
/// if the target is outside of the repository.
fn resolved<'a>(page: &str, link: &'a str) -> Option<(String, Option<&'a str>)> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    if path.is_empty() {
        return Some((page.to_owned(), anchor));
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some((parts.join("/"), anchor))
}

/// Returns the lines outside of code fences, each with its number (from 1) and without code spans.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut in_fence = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_fence ^= is_fence;
        let without_code = || line.split('`').step_by(2).collect::<String>();
        (!in_fence && !is_fence).then(|| (index + 1, without_code()))
    })
}

/// Returns the targets of relative links and pictures, each with the number of its line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose(text) {
        for (at, start) in prose.match_indices("](") {
            let rest = &prose[at + start.len()..];
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !is_elsewhere {
                found.push((line, target.to_owned()));
            }
        }
    }
    found
}

/// Returns the anchors that GitHub and mdBook make from a text's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    let prose: BTreeSet<usize> = prose(text).map(|(line, _)| line).collect();
    let lines = (1..).zip(text.lines()).filter(|(number, _)| prose.contains(number));
    for (_, line) in lines {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || line.len() - title.len() > 6 || !title.starts_with(' ') {
            continue;
        }
        let slug = slug(&without_targets(title.trim()));
        let before = times.entry(slug.clone()).or_default();
        anchors.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    anchors
}

/// Removes the targets of links from a title.
fn without_targets(title: &str) -> String {
    let mut words = String::new();
    let mut rest = title;
    while let Some((before, after)) = rest.split_once("](") {
        words += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    words + rest
}

fn slug(title: &str) -> String {
    let letter = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
        _ => None,
    };
    title.to_lowercase().chars().filter_map(letter).collect()
}

/// Returns the pages of the book that its summary does not list.
fn unlisted(files: &[File]) -> Vec<String> {
    let Some(summary) = files.iter().find(|file| file.path == SUMMARY) else {
        return vec![format!("{SUMMARY}: missing")];
    };
    let listed: BTreeSet<String> = links(&summary.text)
        .iter()
        .filter_map(|(_, link)| resolved(SUMMARY, link))
        .map(|(target, _)| target)
        .collect();
    let pages = files.iter().map(|file| &file.path).filter(|path| path.ends_with(".md"));
    let missing = pages.filter(|path| path.starts_with(BOOK) && *path != SUMMARY && !listed.contains(*path));
    missing.cloned().collect()
}

/// Returns those pages of the book, and the README, that contain Rust which is not compiled as a test.
fn uncompiled(files: &[File]) -> Vec<String> {
    // The documentation of the crate includes a page, too.
    let includes = |file: &&File| ["src/book.rs", "src/lib.rs"].contains(&file.path.as_str());
    let books: Vec<&File> = files.iter().filter(includes).collect();
    let is_compiled = |path: &str| {
        let item = format!("include_str!(\"../{path}\")");
        books.iter().any(|book| book.text.contains(&item))
    };
    let pages = files.iter().filter(|file| file.path.starts_with(BOOK) || file.path == "README.md");
    let with_rust = pages.filter(|page| page.text.lines().any(|line| line.starts_with("```rust")));
    with_rust.filter(|page| !is_compiled(&page.path)).map(|page| page.path.clone()).collect()
}

fn too_long(files: &[File]) -> Vec<String> {
    let readme = files.iter().filter(|file| file.path == "README.md");
    let long = readme.map(|file| file.text.len()).filter(|&bytes| bytes > README_BYTES_MAX);
    long.map(|bytes| format!("README.md: {bytes} bytes, at most {README_BYTES_MAX}")).collect()
}
