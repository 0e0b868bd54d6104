//! Socket semantics over a carrier with a channel beside it.
