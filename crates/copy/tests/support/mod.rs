//! Common parts of several test programs.

pub(crate) mod program;
