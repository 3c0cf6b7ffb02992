//! The hand-written atomics, each small enough to be tried in every order by `tests/pool_loom.rs`,
//! which compiles these same files against loom's types.

pub(super) mod due;
pub(super) mod nudge;
pub(super) mod told;

/// Where the parts take their primitives from; loom's in that test.
mod primitives {
    pub(super) use futures_util::task::AtomicWaker;
    pub(super) use std::sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    };
}
