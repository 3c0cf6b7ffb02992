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
//! for     = "5m"               # only if readings in a row have been above for this long; at once if absent
//! severity     = "critical"    # info, warning or critical; `warning` if absent
//! remind_every = "4h"          # the alert is repeated while the alarm is open; not if absent
//! webhook = "ops"              # a webhook of the settings that receives the alert; `default` if absent
//!
//! # Instead of above, one of
//! # below = 2.0                         with clear, at or above which the alarm is cleared, and for
//! # faster_than = 5.0, per = "10m"      changes by more than 5 units within 10 minutes
//! # more_than = 5.0, in = "1h"           a counter consumes more than 5 units within an hour
//! # stuck_for = "30m"                   exactly the same value for this long
//! # silent_for = "10m"                  no reading stored for this long; with expected = ["greenhouse-1", …],
//! #                                     devices of which one must be stored at all
//! ```
//!
//! [`Rules`] parses the file. [`find_excursions`] finds the readings that violate a rule, in order of their times.
//! [`SeriesJudge`] keeps the alarms equal to that while readings arrive in any order, late, and replaced: it judges only
//! what the changed readings concern. Which worker received a reading, in which order and how often, does not matter.

mod change;
mod condition;
mod excursion;
mod history;
mod judge;
mod pending;
mod reconciler;
mod restore;
mod rules;
mod series_judge;

pub use change::{Alarm, AlarmChange, AlarmEvent};
pub use condition::{Condition, Hold, Micros, Point, Sample};
pub use excursion::Excursion;
pub use history::Span;
pub use judge::find_excursions;
pub use pending::{Pending, PendingRun};
pub use rules::{Rule, Rules, Severity};
pub use series_judge::{AlarmSpan, ChangedReading, PageSizes, SeriesJudge};
