//! Cheaper TCP for unmodified programs: run, status, compare, lab.

fn main() {}
