//! Hand-written atomics. `tests/atomics_loom.rs` compiles these files against loom's types and checks every
//! interleaving, so they import their primitives from one place.

pub(crate) mod cancel_state;
pub(crate) mod next_deadline;
mod primitives;
pub(crate) mod wake_flag;
