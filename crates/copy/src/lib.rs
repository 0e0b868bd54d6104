//! The copy engine: moves payload in and out of memory that others may be writing.
