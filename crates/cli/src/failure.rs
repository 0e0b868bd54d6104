//! The failure of a subcommand: a sentence for the user, an exit status for scripts.

use std::fmt;

/// A failed subcommand.
#[derive(Debug)]
pub(crate) struct Failure {
    sentence: String,
    /// The status to exit with.
    pub(crate) status: u8,
}

impl Failure {
    /// A failure at run time.
    pub(crate) fn new(sentence: impl Into<String>) -> Failure {
        Failure {
            sentence: sentence.into(),
            status: STATUS_FAILURE,
        }
    }

    /// An invalid command line.
    pub(crate) fn usage(sentence: impl Into<String>) -> Failure {
        Failure {
            sentence: sentence.into(),
            status: STATUS_USAGE,
        }
    }

    /// A failure with a status of its own.
    pub(crate) fn with_status(sentence: impl Into<String>, status: u8) -> Failure {
        Failure {
            sentence: sentence.into(),
            status,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.sentence)
    }
}

impl std::error::Error for Failure {}

/// Exit status of a failure at run time.
const STATUS_FAILURE: u8 = 1;

/// The command line is wrong; clap uses the same.
const STATUS_USAGE: u8 = 2;

/// The program was found but cannot be executed; as for env(1).
pub(crate) const STATUS_CANNOT_EXECUTE: u8 = 126;

/// The program was not found; as for env(1).
pub(crate) const STATUS_NOT_FOUND: u8 = 127;
