//! Forwarding from a site's gateway to a central one: `serve --forward` sends what the spool contains to
//! `POST /v1/tasks` of the central gateway.

mod forwarder;
mod json_task;
mod settings;

use std::collections::BTreeSet;

use garenne_protocol::list;
use serde::{Deserialize, Serialize};

use crate::{
    ingest::{Format, Ingest, Parsed, now},
    left_out::Notes,
    payload::RecordCount,
    record_tasks::RequestProperties,
    refusal::Refusal,
};
pub(crate) use forwarder::Forwarder;
pub(crate) use json_task::JsonTask;
pub use settings::ForwardSettings;

/// The path of the central gateway.
pub(crate) const PATH: &str = "/v1/tasks";

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
    /// The index of the task in the request.
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

/// Tasks of another gateway, which are stored under the ids that they have. Each is checked by itself, so that one that is
/// refused for good does not stop the others.
pub(crate) struct ForwardedTasks;

impl Format for ForwardedTasks {
    type Notes = Vec<Rejected>;

    fn count(&self, _: &RequestProperties) -> RecordCount {
        RecordCount::Objects
    }

    fn needs_confirm(&self) -> bool {
        true
    }

    fn parse(
        self,
        body: Vec<u8>,
        request: &RequestProperties,
        ingest: &Ingest,
    ) -> Result<Parsed<Vec<Rejected>>, Refusal> {
        let (mut tasks, mut rejected, mut records) = (Vec::new(), Vec::new(), 0);
        let most = ingest.limits.max_records;
        let read = list::for_each(&body, most, |record, json: JsonTask<'_>| {
            let allowed = json.task(&ingest.routes).and_then(|mut task| {
                records += ingest.allow_task(&task, &task.body, &request.caller)?;
                if !json.has_version() {
                    task.version = ingest.used_keys.first_version(&task, now());
                }
                Ok(task)
            });
            match allowed {
                Ok(task) => tasks.push(task),
                Err(refusal) => rejected.push(Rejected::new(record, refusal)),
            }
            Ok(())
        });
        read.map_err(|error| Refusal::bad_list(error, "tasks", most))?;
        Ok(Parsed::tasks(tasks, records, rejected))
    }
}
