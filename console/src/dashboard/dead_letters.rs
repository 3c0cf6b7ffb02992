//! The dead letters that the page shows.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use garenne_common::exit::Failure;
use garenne_protocol::task::epoch_ms;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    dead::{DeadLetter, QueueWalk},
    operator::Operator,
};

/// Limit on the letters read, oldest first. A walk holds every letter that it reads.
const MAX_READ: u64 = 1_000;
/// Limit on the letters listed, newest first. Counts by kind and reason include the others.
const MAX_LISTED: usize = 200;
/// How long a result is served again.
const MAX_AGE: Duration = Duration::from_secs(5);

/// The last result.
#[derive(Default)]
pub(super) struct DeadLetterCache {
    last: Option<(Instant, Value)>,
}

impl DeadLetterCache {
    /// The letters by kind and reason, and the newest ones without their payloads.
    pub(super) async fn get(&mut self, operator: &Operator) -> Result<Value, Failure> {
        if let Some((at, result)) = &self.last
            && at.elapsed() < MAX_AGE
        {
            return Ok(result.clone());
        }
        let result = read(operator).await?;
        self.last = Some((Instant::now(), result.clone()));
        Ok(result)
    }

    /// Drops the last result, after letters were moved.
    pub(super) fn clear(&mut self) {
        self.last = None;
    }
}

async fn read(operator: &Operator) -> Result<Value, Failure> {
    let connection = operator.connect().await?;
    let mut walk = QueueWalk::first(&connection, &operator.names.dead(), MAX_READ).await?;
    let mut groups: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut letters = Vec::new();
    while let Some(delivery) = walk.next().await? {
        let letter = DeadLetter::read(&delivery);
        *groups.entry((letter.kind.clone(), letter.reason.clone())).or_default() += 1;
        letters.push(letter);
    }
    let read = walk.read();
    walk.finish().await?;
    Operator::leave(connection).await;
    letters.sort_by_key(|letter| Reverse(letter.died_at));
    letters.truncate(MAX_LISTED);
    let letters: Vec<_> = letters
        .into_iter()
        .map(|DeadLetter { id, kind, reason, error, worker, lane, attempt, died_at, .. }| {
            json!({
                "id": id, "kind": kind, "reason": reason, "error": error,
                "worker": worker, "lane": lane, "attempt": attempt, "died_at": died_at,
            })
        })
        .collect();
    let groups: Vec<_> = groups
        .into_iter()
        .map(|((kind, reason), count)| json!({ "kind": kind, "reason": reason, "count": count }))
        .collect();
    Ok(json!({
        "at": epoch_ms(SystemTime::now()),
        "read": read,
        "more": read >= MAX_READ,
        "groups": groups,
        "letters": letters,
    }))
}
