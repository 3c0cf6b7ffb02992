//! A task on the wire.
