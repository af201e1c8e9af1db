//! Checks the dependencies between rooms: compares the manifests, as read by `cargo metadata`, with a table
//! of the rooms.

use std::process::Command;

use serde_json::Value;

use crate::source::{code, words};
use crate::tree::{self, File, hold};

struct Room {
    package: &'static str,
    may_import: &'static [&'static str],
    /// Crates that this room must never import. This includes all crates whose names begin with such a name
    /// and a dash.
    never: &'static [&'static str],
}

const ACTORS: &str = "actix";
const ROOMS: &[Room] = &[
    Room {
        package: "pushpull",
        may_import: &[
            "pushpull-ps",
            "pushpull-worker",
            "pushpull-session",
            "pushpull-engine",
            "pushpull-input",
            "pushpull-chief",
            "pushpull-identity",
            "pushpull-messages",
            "pushpull-storage",
            "pushpull-transport",
            "pushpull-cuda",
            "pushpull-kernels",
        ],
        never: &[],
    },
    Room { package: "pushpull-soak", may_import: &["pushpull-messages"], never: &[] },
    Room {
        package: "pushpull-sim",
        may_import: &[
            "pushpull",
            "pushpull-ps",
            "pushpull-worker",
            "pushpull-chief",
            "pushpull-messages",
            "pushpull-kernels",
            "pushpull-storage",
            "pushpull-transport",
        ],
        never: &[],
    },
    Room {
        package: "pushpull-ps",
        may_import: &[
            "pushpull-messages",
            "pushpull-storage",
            "pushpull-transport",
            "pushpull-cuda",
            "pushpull-kernels",
        ],
        never: &[],
    },
    Room {
        package: "pushpull-worker",
        may_import: &[
            "pushpull-engine",
            "pushpull-input",
            "pushpull-messages",
            "pushpull-storage",
            "pushpull-transport",
            "pushpull-cuda",
            "pushpull-kernels",
        ],
        never: &["candle"],
    },
    Room {
        package: "pushpull-session",
        may_import: &["pushpull-engine", "pushpull-messages", "pushpull-transport", "pushpull-kernels"],
        never: &[ACTORS, "serde", "candle"],
    },
    Room {
        package: "pushpull-engine",
        may_import: &["pushpull-messages", "pushpull-cuda", "pushpull-kernels"],
        never: &[ACTORS, "tokio", "serde", "candle"],
    },
    Room {
        package: "pushpull-engine-oracle",
        may_import: &["pushpull-engine", "pushpull-messages", "pushpull-kernels"],
        never: &[ACTORS, "tokio"],
    },
    Room {
        package: "pushpull-input",
        may_import: &["pushpull-messages", "pushpull-storage"],
        never: &[ACTORS, "gemm", "pulp", "rayon", "cudarc", "candle"],
    },
    Room {
        package: "pushpull-chief",
        may_import: &["pushpull-messages", "pushpull-storage", "pushpull-transport"],
        never: &["gemm", "pulp", "rayon", "cudarc"],
    },
    Room {
        package: "pushpull-messages",
        may_import: &[],
        never: &[ACTORS, "tokio", "object_store", "safetensors", "gemm", "pulp", "rayon", "cudarc"],
    },
    Room {
        package: "pushpull-storage",
        may_import: &["pushpull-messages"],
        never: &[ACTORS, "gemm", "pulp", "rayon", "cudarc"],
    },
    Room {
        package: "pushpull-identity",
        may_import: &["pushpull-messages"],
        never: &[ACTORS, "object_store", "safetensors", "gemm", "pulp", "rayon", "cudarc"],
    },
    Room {
        package: "pushpull-transport",
        may_import: &["pushpull-identity", "pushpull-messages"],
        never: &[ACTORS, "object_store", "safetensors", "gemm", "pulp", "rayon", "cudarc"],
    },
    Room { package: "pushpull-cuda", may_import: &["pushpull-kernels"], never: &[ACTORS, "tokio", "serde"] },
    Room { package: "pushpull-kernels", may_import: &[], never: &[ACTORS, "tokio", "serde"] },
    Room { package: "pushpull-examples", may_import: &["pushpull"], never: &[] },
    Room {
        package: "pushpull-benches",
        may_import: &[
            "pushpull",
            "pushpull-worker",
            "pushpull-engine",
            "pushpull-input",
            "pushpull-messages",
            "pushpull-transport",
            "pushpull-cuda",
            "pushpull-kernels",
        ],
        never: &[],
    },
];

/// The crates of the rooms, with the names that they have in code.
const ROOM_CRATES: &[&str] = &[
    "pushpull_ps",
    "pushpull_worker",
    "pushpull_session",
    "pushpull_engine",
    "pushpull_input",
    "pushpull_chief",
    "pushpull_identity",
    "pushpull_messages",
    "pushpull_storage",
    "pushpull_transport",
    "pushpull_cuda",
    "pushpull_kernels",
];

#[test]
fn rooms_import_only_what_lies_below_them() {
    hold(
        "A room imports a crate that its row in tests/tidy/layers.rs does not allow. Move the code to the room to which it \
         belongs (CONTRIBUTING.md, \"Is this my room?\"), or pass it in from above; dev-dependencies count too:",
        &wrong_imports(&metadata()),
    );
}

#[test]
fn a_wrong_import_is_noticed() {
    let package = |name: &str, dependencies: &[&str]| {
        let dependencies: Vec<_> =
            dependencies.iter().map(|name| serde_json::json!({"name": name, "kind": "dev"})).collect();
        serde_json::json!({"name": name, "dependencies": dependencies})
    };
    let bad = serde_json::json!({"packages": [
        package("pushpull", &["pushpull-ps", "actix"]),
        package("pushpull-ps", &["pushpull-messages", "pushpull-worker"]),
        package("pushpull-worker", &["pushpull"]),
        package("pushpull-chief", &["pushpull-kernels"]),
        package("pushpull-messages", &["serde", "actix-rt"]),
        package("pushpull-kernels", &["serde_json", "tokio"]),
        package("pushpull-extra", &[]),
    ]});
    assert_eq!(
        wrong_imports(&bad),
        [
            "pushpull-ps imports pushpull-worker",
            "pushpull-worker imports pushpull",
            "pushpull-chief imports pushpull-kernels",
            "pushpull-messages imports actix-rt",
            "pushpull-kernels imports serde_json",
            "pushpull-kernels imports tokio",
            "pushpull-extra has no row",
        ]
    );
}

#[test]
fn every_room_of_the_table_exists() {
    let bad = serde_json::json!({"packages": [{"name": "pushpull", "dependencies": []}]});
    assert_eq!(missing_rooms(&bad).len(), ROOMS.len() - 1);
    hold(
        "A row of tests/tidy/layers.rs names a package that does not exist; remove the row:",
        &missing_rooms(&metadata()),
    );
}

#[test]
fn examples_import_the_facade_only() {
    let bad = [File::new(
        "examples/x.rs",
        "use pushpull::nn;\nuse pushpull_messages::graph::Op;\nfn f(ps: u32) {}",
    )];
    assert_eq!(private_imports(&bad), ["examples/x.rs:2: pushpull_messages"]);
    hold(
        "An example shows the public API. Re-export the items that it needs from src/lib.rs, and import them from \
         pushpull:",
        &private_imports(&tree::sources()),
    );
}

/// Crates that only programs need, and not a library within another program.
const PROGRAMS_ONLY: &[&str] = &[
    "actix-web",
    "clap",
    "command-fds",
    "console",
    "crossterm",
    "indicatif",
    "listenfd",
    "prometheus",
    "ratatui",
    "tracing-subscriber",
    "ureq",
];

#[test]
fn the_library_alone_needs_no_program_crates() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--package=pushpull", "--no-default-features", "--edges=normal", "--prefix=none"])
        .args(["--format={p}", "--locked", "--offline"])
        .current_dir(tree::top())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are UTF-8");
    assert!(programs_in("pushpull v0.1.0\nureq v3.5.1\nureq-proto v0.7.1\n") == ["ureq"]);
    assert!(text.lines().any(|line| line.starts_with("pushpull-worker ")), "{text}");
    hold(
        "Without the feature `programs` the library still depends on a crate that only programs need; make it \
         optional in Cargo.toml, and keep its use in src/programs:",
        &programs_in(&text),
    );
}

fn programs_in(tree: &str) -> Vec<String> {
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let mut found: Vec<_> = names.filter(|name| PROGRAMS_ONLY.contains(name)).map(str::to_owned).collect();
    found.sort();
    found.dedup();
    found
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--locked", "--offline", "--format-version=1"])
        .current_dir(tree::top())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn packages(metadata: &Value) -> impl Iterator<Item = (&str, Vec<&str>)> {
    metadata["packages"].as_array().expect("packages").iter().map(|package| {
        let imports = package["dependencies"].as_array().expect("dependencies").iter();
        let imports = imports.map(|import| import["name"].as_str().expect("a name")).collect();
        (package["name"].as_str().expect("a name"), imports)
    })
}

fn wrong_imports(metadata: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    for (package, imports) in packages(metadata) {
        let Some(room) = ROOMS.iter().find(|room| room.package == package) else {
            complaints.push(format!("{package} has no row"));
            continue;
        };
        let wrong = |import: &&str| {
            let ours = *import == "pushpull" || import.starts_with("pushpull-");
            let banned = |never: &&str| {
                let rest = import.strip_prefix(never);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
            };
            (ours && !room.may_import.contains(import)) || room.never.iter().any(banned)
        };
        let imports = imports.into_iter().filter(wrong);
        complaints.extend(imports.map(|import| format!("{package} imports {import}")));
    }
    complaints
}

fn missing_rooms(metadata: &Value) -> Vec<String> {
    let there: Vec<_> = packages(metadata).map(|(name, _)| name).collect();
    let missing = ROOMS.iter().filter(|room| !there.contains(&room.package));
    missing.map(|room| room.package.to_owned()).collect()
}

fn private_imports(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree::under(files, "examples") {
        let code = code(&file.text);
        let paths =
            words(&code).filter(|(_, word, after)| ROOM_CRATES.contains(word) && after.starts_with("::"));
        complaints.extend(paths.map(|(line, word, _)| format!("{}:{line}: {word}", file.path)));
    }
    complaints
}
