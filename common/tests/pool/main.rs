//! The pool as its users see it: what each order does, what each ending is.

mod admission;
mod bench;
mod elastic;
mod groups;
mod observed;
mod oneshot;
mod panics;
mod running;
mod shutdown;
mod stuck;
mod wide;
