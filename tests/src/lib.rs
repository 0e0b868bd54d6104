//! End-to-end tests: ordinary programs, run twice, the kernel as the oracle.
