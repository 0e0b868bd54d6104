//! How the lab refuses: one sentence for the person.

/// Why the lab did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabError {
    /// One sentence.
    pub sentence: String,
    /// It asked for something that cannot be.
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
