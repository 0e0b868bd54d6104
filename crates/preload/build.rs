//! The library is linked alone. No start files, no libraries, and no symbol left open, so that
//! it loads beside any C library, or none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        // The start files of the compiler refer to libc.
        "-nostartfiles",
        // A symbol of another library is an error here, not in a program.
        "-Wl,-z,defs",
        // The library calls its own functions, whatever the program defines under their names.
        "-Wl,-Bsymbolic",
        // Hooks stay in use until the process ends.
        "-Wl,-z,nodelete",
        // Functions that every program runs, with sockets or without (`.text.startup`), lie
        // together: the kernel maps the file in blocks of 64 KB, and the others stay out of memory.
        "-Wl,-z,keep-text-section-prefix",
        // For linkers that know only one of the two.
        "-Wl,--hash-style=both",
        // Where it is entered by who has mapped it into a program without a dynamic linker.
        "-Wl,-e,toehold_enter",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
