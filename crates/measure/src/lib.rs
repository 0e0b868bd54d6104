//! The measuring core: shared by `toehold compare`, the lab and the benchmarks of `xtask`.
//!
//! - [`process`] starts programs and ends them with their descendants; [`procfs`] reports the
//!   resources that they and the host's cores used; [`syscalls`] counts their system calls;
//!   [`ready`] tells when a server can be measured; [`shell`] splits commands into words.
//! - [`metric`] has the types of a round's results; [`parse`] reads them from the output of load
//!   generators.
//! - [`schedule`] decides the order of the arms; [`cpus`] decides the cores; [`rng`] is the seeded
//!   generator for both.
//! - [`stats`] computes the statistics, in one place only; [`verdict`] judges them; [`environment`]
//!   describes the host and the time.
//! - [`output`] prints, [`text`] writes numbers and changes in words, [`plot`] draws, and [`page`]
//!   makes all HTML.

pub mod cpus;
pub mod environment;
pub mod metric;
pub mod output;
pub mod page;
pub mod parse;
pub mod plot;
pub mod process;
pub mod procfs;
pub mod ready;
pub mod rng;
pub mod schedule;
pub mod shell;
pub mod stats;
pub mod syscalls;
pub mod text;
pub mod verdict;
