//! Real servers for scenarios: in containers if a Docker engine answers, else as processes.
//!
//! Everything that the harness starts ends with the test process, even if that is killed: see `cleanup` and
//! `garenne_drill::die_with_parent`.

pub mod authority;
pub mod broker;
pub mod browser;
pub mod celery;
pub mod client;
pub mod cluster;
pub mod collector;
pub mod dashboard;
pub mod engine;
pub mod fault_proxy;
pub mod frame_proxy;
pub mod gateway;
pub mod handler;
pub mod management;
pub mod mqtt;
pub mod postgres;
pub mod process;
pub mod raw_amqp;
pub mod sensor;
pub mod spool;
pub mod stack;
pub mod suite;
pub mod test_env;
pub mod tools;
pub mod users;
pub mod vhost;
pub mod wait;
pub mod webhook;
pub mod worker;

mod cleanup;
mod in_flight;
mod node;
pub mod port;
mod readiness;
mod runtime;
