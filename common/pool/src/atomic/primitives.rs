//! The primitives that the atomics are built from. The loom test replaces this module.

pub(super) use futures_util::task::AtomicWaker;
pub(super) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
