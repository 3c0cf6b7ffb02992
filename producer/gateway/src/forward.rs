//! Forwarding from a site's gateway to a central one: `serve --forward` sends what the spool contains to
//! `POST /v1/tasks` of the central gateway.

mod forwarder;
mod json_task;
mod settings;

use std::collections::BTreeSet;

use garenne_protocol::{list, task::NewTask};
use serde::{Deserialize, Serialize};

use crate::{left_out::Notes, refusal::Refusal};
pub use forwarder::ForwardError;
pub(crate) use forwarder::Forwarder;
pub(crate) use json_task::JsonTask;
pub use settings::ForwardSettings;

/// The path of the central gateway.
pub(crate) const PATH: &str = "/v1/tasks";

/// More than what a forwarded task has besides its payload, in bytes of JSON: id, kind, key, group, parent and trace, each
/// of bounded length and with every byte escaped.
pub(crate) const WRAPPER: usize = 8 * 1024;

/// The answer to forwarded tasks. All that were not rejected are confirmed by the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Forwarded {
    /// How many tasks are confirmed.
    pub(crate) accepted: usize,
    /// Those that are refused for good.
    #[serde(default)]
    pub(crate) rejected: Vec<Rejected>,
}

impl Forwarded {
    /// Whether it has exactly one outcome for each of `tasks` tasks, so that none is taken for confirmed by mistake.
    fn is_of(&self, tasks: usize) -> bool {
        let rejected: BTreeSet<_> = self.rejected.iter().map(|it| it.record).collect();
        rejected.len() == self.rejected.len()
            && rejected.last().is_none_or(|last| *last < tasks)
            && self.accepted.checked_add(rejected.len()) == Some(tasks)
    }
}

/// A task that the central gateway refuses for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rejected {
    /// Its index in the request.
    pub record: usize,
    /// The code for programs, as in a problem document.
    pub code: String,
    /// The reason for people.
    pub detail: String,
}

impl Notes for Vec<Rejected> {}

impl Rejected {
    /// The refusal of the task at this index.
    fn new(record: usize, refusal: Refusal) -> Self {
        Self { record, code: refusal.code.to_owned(), detail: refusal.message }
    }
}

/// The tasks of a request that `allow` returns, and the refusals of the others.
///
/// # Errors
/// The body is not a list of tasks, or has more than `most`.
pub(crate) fn tasks(
    body: &[u8],
    most: usize,
    mut allow: impl FnMut(&JsonTask<'_>) -> Result<NewTask, Refusal>,
) -> Result<(Vec<NewTask>, Vec<Rejected>), Refusal> {
    let (mut tasks, mut rejected) = (Vec::new(), Vec::new());
    let read = list::for_each(body, most, |record, task: JsonTask<'_>| {
        match allow(&task) {
            Ok(task) => tasks.push(task),
            Err(refusal) => rejected.push(Rejected::new(record, refusal)),
        }
        Ok(())
    });
    read.map_err(|error| Refusal::bad_list(error, "tasks", most))?;
    Ok((tasks, rejected))
}
