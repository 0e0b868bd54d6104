//! The engine's tests from outside, in one program: each file is a module, so the engine is linked
//! once.

mod accurate_ecn;
mod addresses;
mod backlog;
mod batches;
mod black_holes;
mod congestion;
mod conversation;
mod corpus;
mod endings;
mod fast_open;
#[path = "../../../../fuzz/inputs.rs"]
mod inputs;
mod liveness;
mod next_hops;
mod oddities;
mod on_link;
mod prediction;
mod recovery;
mod requirements;
mod runs;
mod script;
mod segments;
mod shared;
mod support;
mod timestamps;
mod unreachable;
