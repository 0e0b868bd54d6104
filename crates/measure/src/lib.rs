//! The measuring core: what `toehold compare`, the lab and the benchmarks of `xtask` share.
//!
//! - [`process`] starts programs and ends them with their families; [`procfs`] says what they and
//!   the host's cores used; [`syscalls`] counts their system calls; [`ready`] tells when a server
//!   can be measured; [`shell`] splits commands into words.
//! - [`metric`] is what a round is measured in; [`parse`] reads it from the output of load
//!   generators.
//! - [`schedule`] decides which arm runs when; [`cpus`] decides where; [`rng`] is the seeded
//!   generator behind both.
//! - [`stats`] says what the samples say: the only estimator there is; [`verdict`] judges;
//!   [`environment`] says where and when they were taken.
//! - [`output`] prints, and [`text`] writes numbers and changes in words, [`plot`] draws, [`page`]
//!   is the only HTML there is.

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
