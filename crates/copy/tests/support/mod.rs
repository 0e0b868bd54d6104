//! What several test programs share.

pub(crate) mod program;
