//! Logs, metrics and the admin port.
