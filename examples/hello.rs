//! Hello, distributed: connects a session to a server, and runs a constant text on it. Without a target, the
//! example starts a server of its own.
//!
//! ```sh
//! cargo run --release --bin pushpull-server &
//! cargo run --release --example hello -- pushpull://localhost:2222
//! ```

use pushpull::{GraphBuilder, Server, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut g = GraphBuilder::new("hello");
    let hello = g.text("Hello, distributed!");
    let graph = g.finish_session()?;

    let own = std::env::args().nth(1).is_none().then(Server::local).transpose()?;
    let target = std::env::args().nth(1).or_else(|| own.as_ref().map(Server::target)).unwrap_or_default();
    let session = Session::connect(&target)?;
    let fetched = session.run(&graph, &[], &[hello])?;
    println!("{} says: {}", session.task(), fetched[0].texts().expect("a text")[0]);
    Ok(())
}
