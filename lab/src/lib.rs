//! The lab: experiments, their runner, and the published numbers beside them.
