//! Settings, as a program builds them in code.
//!
//! Every type has a default for each of its fields. A struct literal ends with `..Default::default()`, because later versions
//! may have further fields. [`WorkerBuilder::build`](crate::WorkerBuilder::build) validates settings that are built in code like
//! those of a file.
//!
//! ```
//! use garenne::config::{Common, Lane, Lanes, WorkerConfig};
//!
//! # fn config() -> garenne::Result<WorkerConfig> {
//! let url = std::env::var("AMQP_URL").unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".into());
//! let config = WorkerConfig {
//!     common: Common { amqp_url: url.parse()?, prefix: "shop".into(), ..Common::default() },
//!     lanes: Lanes::new()
//!         .lane("mail", Lane::bound_to(["email.#"]).concurrency(1..=8).prefetch(50))
//!         .lane("default", Lane::default().catch_all()),
//!     max_attempts: 8,
//!     ..WorkerConfig::default()
//! };
//! # Ok(config)
//! # }
//! # config().unwrap();
//! ```
//!
//! [`load`] reads settings, also those of the program's own, from a file and the environment. It refuses unknown names and names
//! the setting and its source in errors, which a loader of the program's own cannot do for flattened structs.
//!
//! ```no_run
//! use garenne::config::{Common, Invalid, Settings, Sources, WorkerConfig, load};
//!
//! #[derive(Default, serde::Serialize, serde::Deserialize)]
//! #[serde(default)]
//! struct Shop {
//!     #[serde(flatten)]
//!     worker: WorkerConfig,
//!     mail_url: String,
//! }
//!
//! impl Settings for Shop {
//!     const PER_LANE: &'static [&'static str] = WorkerConfig::PER_LANE;
//!
//!     fn common_mut(&mut self) -> &mut Common {
//!         &mut self.worker.common
//!     }
//!
//!     fn validate(&self) -> Result<(), Invalid> {
//!         self.worker.validate()
//!     }
//! }
//!
//! # fn config() -> garenne::Result<()> {
//! let shop: Shop = load(Sources { file: Some("shop.toml".into()), ..Sources::default() })?;
//! # Ok(())
//! # }
//! ```

pub use crate::{
    reply_queues::ReplyQueues,
    settings::{SinkName, WorkerConfig},
};
pub use garenne_common::config::{
    AllowedHosts, Certificates, Common, Concurrency, ConfigError, Events, IgnoredSettings, Invalid, Lane,
    Lanes, LogFormat, Otlp, OtlpProtocol, OtlpSampler, ParseError, Retry, SecretUrl, Settings, Size, Sources,
    Table, load, load_with,
};
pub use garenne_protocol::task::CeleryZone;
