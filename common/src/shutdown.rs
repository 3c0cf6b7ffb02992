//! How a process stops: modes, signals, the receipt.
