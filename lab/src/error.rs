//! The lab's refusals: one sentence for the user.

use toehold_measure::output;

/// Writes a result to standard output. A reader that has left (`| head`) is no failure.
pub(crate) fn put(text: impl AsRef<[u8]>) -> Result<(), LabError> {
    let cannot = |error| LabError::new(format!("cannot write: {error}"));
    output::print(text).map(drop).map_err(cannot)
}

/// The reason why the lab could not do the requested work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabError {
    /// One sentence.
    pub sentence: String,
    /// The user asked for something impossible.
    pub is_usage: bool,
}

impl LabError {
    pub(crate) fn new(sentence: impl Into<String>) -> LabError {
        LabError {
            sentence: sentence.into(),
            is_usage: false,
        }
    }

    pub(crate) fn usage(sentence: impl Into<String>) -> LabError {
        LabError {
            sentence: sentence.into(),
            is_usage: true,
        }
    }
}
