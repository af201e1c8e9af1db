//! Writes the seed corpus for fuzzing to a folder: valid graphs, as MessagePack and as JSON. Usage: `seeds
//! FOLDER`.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: seeds FOLDER"));
    std::fs::create_dir_all(&folder)?;
    for graph in pushpull_fuzz::seeds::training() {
        let packed = rmp_serde::to_vec_named(&graph).expect("plain data encodes");
        let bare = rmp_serde::to_vec(&graph).expect("plain data encodes");
        let text = serde_json::to_vec(&graph).expect("plain data encodes");
        for (how, kind, bytes) in [(2, "named", packed), (4, "bare", bare), (3, "json", text)] {
            std::fs::write(folder.join(format!("{}-{kind}", graph.name)), [&[how], &bytes[..]].concat())?;
        }
    }
    Ok(())
}
