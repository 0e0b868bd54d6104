//! The lab: experiments, their runner, and the published numbers beside them.
//!
//! A [`Plan`] describes cases and how to take one sample of each. The [`runner`] takes the samples
//! in interleaved rounds, so that other activity of the machine affects all cases equally. It makes
//! a [`Report`]: rows of samples with median and spread, the environment, and published results of
//! the experiment. Published and measured numbers are shown side by side and never mixed.
//!
//! [`generator`] makes the load of most plans, and can be used alone.
//!
//! A report prints as tables, as JSON, and as one HTML file with its plots in it.
//!
//! - `plan`, `plans`: the interface of an experiment, and the experiments; [`runs`]: plans on
//!   sockets, from files; [`files`]: the files that their servers serve.
//! - [`runner`]: takes the samples; `report`: our results; `published`: results of others.
//! - `table`, `html`: a report as text, and as one file.
//! - `command`, `error`: the lab's subcommands, and their failures.

#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod command;
mod error;
pub mod files;
pub mod generator;
mod html;
mod plan;
mod plans;
mod published;
mod report;
mod runner;
pub mod runs;
mod table;

pub use command::{Entry, Listed, RunRequest, bytes, catalogue, list, run_plan};
pub use error::LabError;
pub use plan::{Case, Figure, Plan, Reading};
pub use published::{Experiment, Published, elsewhere, experiments, published_of};
pub use report::{Claim, ClaimStatus, Report, Row};
pub use runner::Options;
