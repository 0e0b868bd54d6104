//! The lab by itself, without the `toehold` command:
//! `cargo run --release -p toehold-lab --example lab -- list`.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    std::process::exit(toehold_lab::run_from_args(&args));
}
