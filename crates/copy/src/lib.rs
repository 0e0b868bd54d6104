//! The copy engine: moves payload in and out of memory that others may be writing.

mod shared;

pub use shared::{from_shared, to_shared};
