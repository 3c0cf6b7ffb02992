//! Real servers for scenarios, in containers where a Docker engine answers, else as plain processes.
//!
//! Nothing that a harness starts outlives the test process, however that ends: see `lifeline` and
//! `garenne_chaos::die_with_parent`.

pub mod authority;
pub mod broker;
pub mod browser;
pub mod client;
pub mod cluster;
pub mod collector;
pub mod dashboard;
pub mod engine;
pub mod fault_proxy;
pub mod frame_proxy;
pub mod gateway;
pub mod management;
pub mod postgres;
pub mod process;
pub mod raw_amqp;
pub mod stack;
pub mod suite;
pub mod test_env;
pub mod users;
pub mod vhost;
pub mod wait;
pub mod webhook;
pub mod worker;

mod in_flight;
mod lifeline;
mod node;
mod port;
mod runtime;
