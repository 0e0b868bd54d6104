//! Compiles the DPDK shim, and nothing at all unless the `dmadev` feature asks for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
