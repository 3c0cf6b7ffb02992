//! Alarms: rules from a TOML file that stored readings are checked against.
//!
//! ```toml
//! [[rule]]
//! name    = "too-hot"          # unique; names the alarm
//! device  = "greenhouse-*"     # a device, or a prefix and "*"; every device if absent
//! metric  = "temperature"
//! unit    = "Cel"              # readings are converted to it; compared as stored if absent
//! above   = 35.0               # raised by a higher value
//! clear   = 33.0               # cleared at this value or a lower one; `above` itself if absent
//! webhook = "ops"              # a webhook of the settings that receives the alert; `default` if absent
//!
//! # Instead of above, one of
//! # below = 2.0                         with clear, at or above which the alarm is cleared
//! # faster_than = 5.0, per = "10m"      changes by more than 5 units within 10 minutes
//! # stuck_for = "30m"                   exactly the same value for this long
//! # silent_for = "10m"                  no reading stored for this long
//! ```
//!
//! [`Rules`] parses the file, [`find_excursions`] finds the readings that violate a rule, and [`reconcile()`] derives
//! from them which alarms are raised and cleared. All of it is a function of the readings in order of their
//! times. Which worker received a reading, in which order and how often, does not matter.

mod condition;
mod excursion;
mod reconcile;
mod rules;

pub use condition::{Condition, Micros, Point, Sample};
pub use excursion::{Excursion, MAX_LOOKBACK_READINGS, find_excursions};
pub use reconcile::{Alarm, AlarmEvent, reconcile};
pub use rules::{Rule, Rules};
