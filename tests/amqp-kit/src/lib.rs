//! AMQP 0-9-1 for tests: frames as bytes, and a broker for publishers whose answers a test decides.

mod fake_broker;
pub mod frame;

pub use fake_broker::{FakeBroker, Published};
