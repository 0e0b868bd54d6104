//! The error in a setting, in words.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// The error in a setting, in words.
#[derive(Debug)]
pub enum SettingsError {
    /// A value.
    Value(String),
    /// A line of a file.
    Line {
        /// The file.
        file: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// The error.
        cause: String,
    },
    /// The file could not be read.
    File(PathBuf, io::Error),
    /// Settings that do not go together, or are missing.
    Whole(&'static str),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Value(cause) => out.write_str(cause),
            SettingsError::Line { file, line, cause } => {
                write!(out, "{}, line {line}: {cause}", file.display())
            }
            SettingsError::File(file, error) => {
                write!(out, "cannot read {}: {error}", file.display())
            }
            SettingsError::Whole(cause) => out.write_str(cause),
        }
    }
}

impl std::error::Error for SettingsError {}
