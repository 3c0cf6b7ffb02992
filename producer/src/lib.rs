//! `garenne-producer`: the gateway as a program (`serve`), and programs that publish, replay and simulate.
//!
//! A task counts as published only after the broker has confirmed that a queue stores it.

pub mod cli;
pub mod destination;
mod progress;
pub mod publish;
pub mod replay;
mod service;
pub mod settings;
pub mod simulate;
pub mod stop;
