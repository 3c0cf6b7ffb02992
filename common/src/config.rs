//! Settings from flags, environment, file and defaults, in this order of precedence, validated before any connection.
//!
//! A binary's settings are one serde type with a default for every field. [`load`] fills it. Its errors name the
//! setting, the value, where the value came from, and what is allowed. A name that is similar to one of the program's
//! is refused as a typo; any other unknown name is ignored with a warning, because a fleet can share one file and one
//! environment.
//!
//! ```
//! use garenne_common::config::{self, Common, Invalid, Lanes, Settings, Sources};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! #[serde(default)]
//! struct WorkerConfig {
//!     #[serde(flatten)]
//!     common: Common,
//!     lanes: Lanes,
//! }
//!
//! impl Settings for WorkerConfig {
//!     const PER_LANE: &'static [&'static str] = &["prefetch", "concurrency"];
//!
//!     fn common_mut(&mut self) -> &mut Common {
//!         &mut self.common
//!     }
//!
//!     fn validate(&self) -> Result<(), Invalid> {
//!         self.common.validate()?;
//!         self.lanes.validate(&self.common.prefix)
//!     }
//! }
//!
//! let mut sources = Sources::default();
//! sources.flags.insert("prefetch".into(), "50".into());
//! let config: WorkerConfig = config::load(sources).unwrap();
//! assert_eq!(config.lanes.get("slow").unwrap().prefetch, 50);
//! ```

mod allowed_hosts;
#[cfg(feature = "cli")]
mod args;
mod certificates;
mod common;
mod concurrency;
mod error;
mod events;
mod explain;
mod host;
mod ignored;
mod known;
pub mod lane;
mod lanes;
mod layer;
pub mod list;
mod load;
mod otlp;
mod print;
mod retry;
mod secret;
mod server_tls;
mod settings;
mod size;
mod standard;
mod text_or_number;
mod toml_text;

pub use allowed_hosts::AllowedHosts;
#[cfg(feature = "cli")]
pub use args::{CommonArgs, UrlText, flag};
pub use certificates::validate_certificates;
pub use common::{Common, DEFAULT_ADMIN, LogFormat, scheme};
pub use concurrency::Concurrency;
pub use error::{ConfigError, Invalid};
pub use events::Events;
pub use host::{full_host_name, host_name};
pub use ignored::IgnoredSettings;
#[cfg(feature = "cli")]
pub use lanes::LaneArgs;
pub use load::{Sources, load, load_with};
pub use otlp::{Otlp, OtlpProtocol, OtlpSampler};
pub use print::print_config;
pub use retry::Retry;
pub use secret::{read_secret_file, reloaded_secret};
pub use server_tls::validate_server_tls;
pub use settings::Settings;
pub use size::Size;
pub use toml::Table;
pub use toml_text::parse_toml;
pub use {
    crate::{certificates::Certificates, parse_error::ParseError, secret_url::SecretUrl},
    lane::Lane,
    lanes::Lanes,
};
