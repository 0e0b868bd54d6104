//! Links: frames in and out, with their offload metadata.
