//! A fleet as an operator's programs reach it: its settings, connections, queues and held messages, and what these
//! programs print. `garenne` and `garenne-drill` share it.

pub mod args;
pub mod dead;
pub mod interrupt;
pub mod operator;
pub mod output;
pub mod queues;
pub mod settings;
pub mod table;
pub mod ticks;
pub mod waits;
