//! The MQTT bridge: subscribes to an MQTT broker, maps messages to readings and publishes them as tasks.
//!
//! A message passes these steps:
//!
//! ```text
//! receive → map → publish → confirm → PUBACK
//! ```
//!
//! A PUBACK is sent only after the AMQP broker has confirmed everything that the message became, or, if there is a spool,
//! its disk has it, in the order in which messages arrived. The session of the MQTT broker outlives the connection and
//! the process, so that an unacknowledged message comes again. What no map accepts becomes a dead letter.
//!
//! [`run`] is `garenne-producer mqtt`. [`MqttPublisher`] is the other side: it publishes messages as devices do.

mod bridge;
mod connection;
mod converter;
mod endpoint;
mod frames;
mod instruments;
mod letter;
mod packet;
mod publisher;
mod run;
mod settings;
mod status;
mod store;
mod version;

pub use letter::letter_of;
pub use publisher::{MqttPublishError, MqttPublisher};
pub use run::run;
pub use settings::{MqttSettings, Shared};
pub use version::Version;
