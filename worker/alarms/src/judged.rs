//! The result of judging changed readings.

use std::collections::HashMap;

use crate::{notice::Notice, pending_rules::SeriesPending};

/// What changed readings change.
pub struct Judged<'a> {
    /// The state of rules after the newest reading, by device and metric, of series with such rules. The table of series has it.
    pub pending: HashMap<(&'a str, &'a str), SeriesPending>,
    /// The notices of the alarms that were raised or cleared.
    pub(super) notices: Vec<Notice>,
}
