//! An adapter in the foreground, for trying a library against it:
//! `cargo run --example adapter -- DIRECTORY`.

use toehold_adapter::daemon::{self, Options};
use toehold_adapter::runtime_dir;

fn main() {
    let named = std::env::args_os().nth(1).map(Into::into);
    let runtime_dir = named.unwrap_or_else(runtime_dir::default_path);
    if let Err(error) = daemon::run(Options::foreground(runtime_dir)) {
        eprintln!("toehold adapter: {error}");
        std::process::exit(1);
    }
}
