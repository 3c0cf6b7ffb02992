//! Connections to the broker, and confirmed publishing.
