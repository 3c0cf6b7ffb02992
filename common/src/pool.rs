//! The local bounded pool.
