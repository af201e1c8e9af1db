//! Checks that the locations of stores lie below a root, so that another task cannot choose any place of this
//! host. This module reads no content of files.

use std::path::{Component, Path, PathBuf};

/// The directory, or the part of a bucket, in which all stores of a task must lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root(String);

impl Root {
    pub(crate) fn new(location: &str) -> Self {
        Self(location.to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a location is the root or lies below it. Symbolic links are followed, and the parts of
    /// a path that do not exist yet must be plain names.
    pub(crate) fn holds(&self, location: &str) -> bool {
        match (directory(&self.0), directory(location)) {
            (Some(root), Some(path)) => match (resolved(root), resolved(path)) {
                (Some(root), Some(path)) => path.starts_with(root),
                _ => false,
            },
            (None, None) => is_below(self.0.trim_end_matches('/'), location),
            _ => false,
        }
    }
}

/// Returns the path of a directory; `None` for the URL of a bucket.
fn directory(location: &str) -> Option<&Path> {
    match location.split_once("://") {
        None => Some(Path::new(location)),
        Some(("file", path)) => Some(Path::new(path)),
        Some(_) => None,
    }
}

/// Returns the absolute path without symbolic links. The last parts of the path need not exist.
fn resolved(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let exists = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok())?;
    let missing = path.strip_prefix(exists).ok()?;
    let plain = missing.components().all(|part| matches!(part, Component::Normal(_)));
    // A link to nothing exists, but cannot be resolved.
    plain.then(|| exists.canonicalize().ok().map(|exists| exists.join(missing)))?
}

/// Returns whether the URL of a bucket lies at or below another one.
fn is_below(root: &str, url: &str) -> bool {
    let plain =
        !url.contains(['%', '?', '#', '\\']) && url.split('/').all(|part| !matches!(part, "." | ".."));
    plain && url.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_lies_below_the_root_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir_all(at("top/jobs")).unwrap();
        std::fs::create_dir_all(at("top2")).unwrap();
        std::os::unix::fs::symlink(at("top2"), at("top/away")).unwrap();
        std::os::unix::fs::symlink(at("top/jobs"), at("near")).unwrap();
        std::os::unix::fs::symlink(at("nowhere"), at("top/broken")).unwrap();
        let root = Root::new(&at("top"));
        for held in [
            "top",
            "top/",
            "top/jobs",
            "top/jobs/new/er",
            "top/jobs/../jobs",
            "near",
            "near/new",
            "top/./jobs",
        ] {
            assert!(root.holds(&at(held)), "{held}");
            assert!(root.holds(&format!("file://{}", at(held))), "{held}");
        }
        let outside = [
            "",
            "top2",
            "top/..",
            "top/../top2",
            "top/away",
            "top/away/new",
            "top/new/../../top2",
            "top/broken/x",
        ];
        for outside in outside {
            assert!(!root.holds(&at(outside)), "{outside}");
        }
        for outside in ["/etc", "/", "s3://top/jobs", "relative", ""] {
            assert!(!root.holds(outside), "{outside}");
        }
    }

    #[test]
    fn a_bucket_holds_its_own_names() {
        let root = Root::new("s3://bucket/team/");
        for held in ["s3://bucket/team", "s3://bucket/team/", "s3://bucket/team/job/1"] {
            assert!(root.holds(held), "{held}");
        }
        for outside in [
            "s3://bucket/teams",
            "s3://bucket",
            "s3://bucket/team/../other",
            "s3://bucket/team/%2e%2e/other",
            "s3://bucket/team/./x",
            "gs://bucket/team/x",
            "/bucket/team/x",
        ] {
            assert!(!root.holds(outside), "{outside}");
        }
    }

    proptest! {
        #[test]
        fn a_path_with_parents_stays_inside(parts in prop::collection::vec("[a-c]|\\.\\.|\\.", 0..8)) {
            let dir = tempfile::tempdir().unwrap();
            let inside = dir.path().join("top");
            std::fs::create_dir_all(inside.join("a/b/c")).unwrap();
            let path = inside.join(parts.join("/"));
            let held = Root::new(inside.to_str().unwrap()).holds(path.to_str().unwrap());
            if let Ok(real) = path.canonicalize() {
                prop_assert_eq!(held, real.starts_with(inside.canonicalize().unwrap()));
            }
        }
    }
}
