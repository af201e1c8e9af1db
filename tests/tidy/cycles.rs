//! Checks that no two files of a crate import each other, directly or through other files. Only a parent and
//! its children may. Reads `use` and paths as text, and does not depend on the crates.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{code, is_word};
use crate::tree::{self, File, hold};

#[test]
fn files_do_not_import_each_other() {
    hold(
        "These files import each other. Move the code that both need to a file of its own, or pass it in as an argument:",
        &cycles(&tree::sources()),
    );
}

#[test]
fn a_cycle_is_noticed() {
    let files = [
        File::new("p/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;"),
        File::new(
            "p/src/a.rs",
            "use crate::b::{self, B};\n#[cfg(test)]\nmod tests {\n    use crate::c::C;\n}",
        ),
        File::new("p/src/b/mod.rs", "mod deep;\npub use deep::B;\nuse crate::c::C;"),
        File::new("p/src/b/deep.rs", "use super::Other;\nfn f(x: crate::A) {}"),
        File::new("p/src/c.rs", "//! crate::a\nuse super::b::Other;"),
        File::new("p/src/tests/t.rs", "use crate::a::A;"),
    ];
    assert_eq!(
        cycles(&files),
        ["p/src: a -> b/deep; b/deep -> a", "p/src: b -> c; c -> b"],
        "parents and children, tests and comments do not count"
    );
}

type Module = Vec<String>;
type Path = Vec<String>;

/// The files of one crate, by the path of their module.
struct Crate {
    code: BTreeMap<Module, String>,
    /// The re-exports of each module: names, and the paths that they stand for.
    exports: BTreeMap<Module, BTreeMap<String, Path>>,
}

fn cycles(files: &[File]) -> Vec<String> {
    let mut crates = BTreeMap::<String, Crate>::new();
    for file in files {
        let Some((root, module)) = module_of(&file.path) else { continue };
        let entry =
            crates.entry(root).or_insert_with(|| Crate { code: BTreeMap::new(), exports: BTreeMap::new() });
        entry.code.insert(module, without_tests(&code(&file.text)));
    }
    let mut complaints = Vec::new();
    for (root, mut known) in crates {
        known.exports = known.code.iter().map(|(module, code)| (module.clone(), exports_of(code))).collect();
        let edges = known.edges();
        for part in components(&edges) {
            let shown = part.iter().map(|module| {
                let to = edges[module].iter().filter(|to| part.contains(*to));
                format!(
                    "{} -> {}",
                    module.join("/"),
                    to.map(|to| to.join("/")).collect::<Vec<_>>().join(", ")
                )
            });
            complaints.push(format!("{root}: {}", shown.collect::<Vec<_>>().join("; ")));
        }
    }
    complaints
}

/// Returns the source folder of a file's crate, and the path of the file's module. Returns `None` for tests,
/// and for files that do not belong to a crate.
fn module_of(path: &str) -> Option<(String, Module)> {
    let file = path.strip_suffix(".rs")?;
    let (root, module) = match file.split_once("/src/") {
        Some((room, module)) => (format!("{room}/src"), module),
        None => ("src".to_owned(), file.strip_prefix("src/")?),
    };
    let mut module: Module = module.split('/').map(str::to_owned).collect();
    if module.iter().any(|name| name == "tests" || name == "bin") {
        return None;
    }
    if module.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        module.pop();
    }
    Some((root, module))
}

/// Removes the test module at the end of a file.
fn without_tests(code: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = code.lines().peekable();
    while let Some(line) = lines.next() {
        let inline = |next: &&str| next.trim_start().contains("mod ") && next.trim_end().ends_with('{');
        if line.trim() == "#[cfg(test)]" && lines.peek().is_some_and(inline) {
            break;
        }
        kept.push(line);
    }
    kept.join("\n")
}

/// Returns every `use` in code as a pair: whether it is public, and its text without `use` and `;`.
fn uses(code: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end_matches(' ');
        if code[..at].ends_with(is_word) {
            continue;
        }
        let line = before.rsplit('\n').next().unwrap_or_default().trim_start();
        let text = &code[at + 4..];
        let text = &text[..text.find(';').unwrap_or(text.len())];
        found.push((line.starts_with("pub"), text));
    }
    found
}

/// Returns all paths of a `use` tree, without names given by `as`.
fn paths_of(tree: &str) -> Vec<Path> {
    let mut paths = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    let parts = tree.char_indices().filter_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    });
    let mut ends: Vec<usize> = parts.collect();
    ends.push(tree.len());
    for end in ends {
        let part = tree[start..end].trim();
        start = (end + 1).min(tree.len());
        if part.is_empty() {
            continue;
        }
        let segments = |text: &str| {
            text.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
        };
        match part.split_once('{') {
            Some((prefix, rest)) => {
                let prefix: Path = segments(prefix);
                let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
                paths.extend(paths_of(inner).into_iter().map(|path| [prefix.clone(), path].concat()));
            }
            None => paths.push(segments(part.split(" as ").next().unwrap_or(part))),
        }
    }
    paths
}

fn exports_of(code: &str) -> BTreeMap<String, Path> {
    let public = uses(code).into_iter().filter(|(is_public, _)| *is_public);
    let paths = public.flat_map(|(_, tree)| paths_of(tree));
    paths.filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

/// Returns the paths in code, outside of `use`, that begin with `crate`, `self` or `super`.
fn inline_paths(code: &str) -> Vec<Path> {
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(|c| is_word(c) || c == ':') {
                continue;
            }
            let text = &code[at..];
            let end = text.find(|c| !is_word(c) && c != ':').unwrap_or(text.len());
            found.push(text[..end].split("::").map(str::to_owned).filter(|name| !name.is_empty()).collect());
        }
    }
    found
}

impl Crate {
    /// Returns the modules that each module imports, except its parents and children.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let related = |a: &Module, b: &Module| a.starts_with(b) || b.starts_with(a);
        let edges = self.code.iter().map(|(module, code)| {
            let private = uses(code).into_iter().filter(|(is_public, _)| !is_public);
            let mut paths: Vec<Path> = private.flat_map(|(_, tree)| paths_of(tree)).collect();
            paths.extend(inline_paths(code));
            let targets = paths.iter().filter_map(|path| self.target(&self.absolute(module, path)?, 0));
            (module.clone(), targets.filter(|target| !related(module, target)).collect())
        });
        edges.collect()
    }

    /// Converts a path to one from the crate's root; returns `None` for a path into another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module.as_slice(), rest].concat()),
            "super" => {
                let parent = module[..module.len().saturating_sub(1)].to_vec();
                match rest.first() {
                    Some(next) if next == "super" => self.absolute(&parent, rest),
                    _ => Some([parent.as_slice(), rest].concat()),
                }
            }
            _ => {
                let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                self.code.contains_key(&child).then(|| [module.as_slice(), path].concat())
            }
        }
    }

    /// Returns the module that defines the item with this path. Follows re-exports.
    fn target(&self, path: &[String], hops: usize) -> Option<Module> {
        const HOPS_MAX: usize = 8;
        let length = (0..=path.len()).rev().find(|&length| self.code.contains_key(&path[..length]))?;
        let (module, rest) = path.split_at(length);
        let module = module.to_vec();
        let export = rest.first().and_then(|name| self.exports[&module].get(name));
        if let Some(export) = export
            && hops < HOPS_MAX
            && let Some(mut next) = self.absolute(&module, export)
        {
            next.extend_from_slice(&rest[1..]);
            return self.target(&next, hops + 1);
        }
        Some(module)
    }
}

/// Returns the sets of two or more modules that can all reach each other.
fn components(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|from| (from, reach(edges, from))).collect();
    let mut found: Vec<BTreeSet<Module>> = Vec::new();
    for module in edges.keys() {
        if found.iter().any(|part| part.contains(module)) {
            continue;
        }
        let mutual =
            reached[module].iter().filter(|to| reached[**to].contains(module)).map(|to| (*to).clone());
        let mut part: BTreeSet<Module> = mutual.collect();
        part.insert(module.clone());
        if part.len() > 1 {
            found.push(part);
        }
    }
    found
}

/// Returns the modules that can be reached from a module over at least one edge.
fn reach<'a>(edges: &'a BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Module> = edges[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(edges.get(module).into_iter().flatten());
        }
    }
    reached
}
