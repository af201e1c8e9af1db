//! Writes the valid inputs of all targets, or of those that the arguments name, to the folder `corpus` of
//! this package: `seeds [TARGET]...`. Scripts are searched for: one that comes furthest, for each way.

use pushpull_fuzz::numbers::Numbers;
use pushpull_fuzz::{Corpus, Form, Target};

/// The number of scripts that are drawn for a target.
const SCRIPTS: u64 = 20_000;

fn main() -> Result<(), String> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = named.iter().find(|name| Target::find(name).is_none()) {
        return Err(format!("no target is called '{unknown}'"));
    }
    for target in
        Target::ALL.iter().filter(|target| named.is_empty() || named.iter().any(|name| name == target.name))
    {
        let folder = Corpus::folder(target.name);
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let mut seeds = (target.seeds)();
        if seeds.is_empty() && target.form == Form::Script {
            seeds = scripts(target);
        }
        for (name, bytes) in seeds {
            std::fs::write(folder.join(name), bytes).map_err(failed)?;
        }
    }
    Ok(())
}

/// Returns the shortest of many scripts for each stage that they reach.
fn scripts(target: &Target) -> Vec<(String, Vec<u8>)> {
    let none = Corpus::new(target.form, target.words, target.content, []);
    let mut shortest: Vec<Option<Vec<u8>>> = vec![None; target.stages.len()];
    let mut script = Vec::new();
    for number in 0..SCRIPTS {
        (target.draw)(&none, &mut Numbers::of_input(1, number), &mut script);
        let known = &mut shortest[(target.check)(&script)];
        if known.as_ref().is_none_or(|known| script.len() < known.len()) {
            *known = Some(script.clone());
        }
    }
    let named = |(stage, script): (usize, Option<Vec<u8>>)| Some((format!("{stage}"), script?));
    shortest.into_iter().enumerate().filter_map(named).collect()
}
