//! The tasks of lanes that do not run: in the queue of a lane, or in its retry queues.

use garenne_common::exit::{Exit, Failure};
use garenne_operator::{
    operator::Operator,
    queues::{LookLimits, QueuedTask, Snapshot},
};
use serde::{Deserialize, Serialize};

use crate::look::look_at;

/// Which tasks are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TaskState {
    /// Those in the lane's queue.
    Waiting,
    /// Those in its retry queues that have begun and failed.
    Retrying,
    /// Those in its retry queues that have not begun: scheduled and deferred ones.
    Scheduled,
    /// All of its retry queues.
    #[serde(skip)]
    Later,
}

impl TaskState {
    fn has(self, task: &QueuedTask) -> bool {
        match self {
            Self::Waiting | Self::Later => true,
            Self::Retrying => task.attempts > 0,
            Self::Scheduled => task.attempts == 0,
        }
    }
}

/// A task of a list.
#[derive(Debug, Serialize)]
pub(crate) struct WaitingTask {
    #[serde(flatten)]
    pub(crate) task: QueuedTask,
    /// The delay of its retry queue. Without a due time, the task returns to its lane when it ends.
    pub(crate) within: Option<String>,
}

/// A queue in which tasks wait.
pub(super) struct WaitingQueue {
    pub(super) name: String,
    pub(super) lane: String,
    /// As text; [`None`] for the queue of a lane.
    delay: Option<String>,
}

/// The queues of one lane, or of all, that hold tasks of a state. Retry queues come by their delay, the shortest first.
pub(super) fn queues(
    operator: &Operator,
    snapshot: &Snapshot,
    lane: Option<&str>,
    state: TaskState,
) -> Result<Vec<WaitingQueue>, Failure> {
    let (names, lanes) = (&operator.names, &operator.settings.lanes);
    let defined: Vec<_> = lanes.defined().map(|(name, _)| name.to_owned()).collect();
    if let Some(lane) = lane.filter(|lane| !defined.iter().any(|it| it == lane)) {
        let problem = format!("unknown lane {lane:?}, the lanes are {}", defined.join(", "));
        return Err(Failure::new(Exit::Usage, problem));
    }
    let wanted = |name: &&String| lane.is_none_or(|lane| *name == lane);
    let holds = |name: &String| snapshot.queues.get(name).is_some_and(|it| it.ready > 0);
    let mut found = Vec::new();
    if state == TaskState::Waiting {
        for lane in defined.iter().filter(wanted) {
            let shards = (0..lanes.shards(lane)).map(|shard| names.shard(lane, shard)).filter(holds);
            found.extend(shards.map(|name| WaitingQueue { name, lane: lane.clone(), delay: None }));
        }
        return Ok(found);
    }
    for &delay in operator.ladder.rungs() {
        for lane in defined.iter().filter(wanted) {
            let both = [names.retry(lane, delay), names.retry_shards(lane, delay)].into_iter().filter(holds);
            let queue = |name| WaitingQueue { name, lane: lane.clone(), delay: Some(delay.to_string()) };
            found.extend(both.map(queue));
        }
    }
    Ok(found)
}

/// Lists the first `most` tasks of a state, and counts all of them. Those of a lane come in the order of their queue,
/// others by their due time.
pub(crate) async fn list(
    operator: &Operator,
    lane: Option<&str>,
    state: TaskState,
    limits: LookLimits,
    most: usize,
) -> Result<(usize, Vec<WaitingTask>), Failure> {
    let snapshot = Snapshot::take(operator).await?;
    let queues = queues(operator, &snapshot, lane, state)?;
    let connection = operator.connect().await?;
    let mut found: Vec<WaitingTask> = Vec::new();
    for WaitingQueue { name, delay, .. } in queues {
        let visit = |seen: garenne_operator::queues::Seen<'_>| {
            if state.has(&seen.task) {
                found.push(WaitingTask { task: seen.task, within: delay.clone() });
            }
        };
        look_at(operator, &connection, &name, limits, visit).await?;
    }
    Operator::leave(connection).await;
    if state != TaskState::Waiting {
        // Tasks without a due time come back when their queue's delay ends; those of short delays are read first.
        found.sort_by_key(|it| it.task.due_at);
    }
    let total = found.len();
    found.truncate(most);
    Ok((total, found))
}
