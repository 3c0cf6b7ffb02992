//! `garenne-producer`: the gateway and the MQTT bridge as programs (`serve`, `mqtt`), and programs that publish, replay, simulate and try maps.
//!
//! A task counts as published only after the broker has confirmed that a queue stores it.

mod args;
pub mod cli;
mod destination;
mod input;
mod map;
mod mqtt;
mod progress;
mod publish;
mod replay;
pub mod settings;
mod simulate;
mod spool;
