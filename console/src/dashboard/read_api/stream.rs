//! Rows as the body of an answer, as fast as the client takes them.

use std::{convert::identity, io, time::Duration};

use axum::body::{Body, Bytes};
use futures_util::{StreamExt, TryStreamExt, stream};
use garenne_common::{resilience::deadline, supervise};
use tokio::sync::mpsc;
use tokio_postgres::{Row, RowStream};

use super::format::Format;
use crate::dashboard::{
    problem::Problem,
    workers_database::{Snapshot, in_time},
};

/// Time limit of a whole answer. A client that takes no more does not keep the connection to the database.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a part, about.
const PART: usize = 32 * 1024;
/// Parts that wait for the client.
const PARTS: usize = 4;

/// The rows of a statement with a begin and an end. A statement that fails before its first row, as one that computes all
/// rows first, is a problem. An answer that cannot be completed is interrupted, so that the client does not take it for a
/// complete one.
pub(super) async fn body(
    snapshot: Snapshot,
    rows: RowStream,
    format: Format,
    begin: Vec<u8>,
    end: &'static [u8],
    write: impl Fn(&Row, Format, bool, &mut Vec<u8>) + Send + 'static,
) -> Result<Body, Problem> {
    let mut rows = Box::pin(rows);
    let first = in_time(rows.try_next()).await?;
    // A part, or `None` for the end.
    let (sender, receiver) = mpsc::channel::<Option<Bytes>>(PARTS);
    let rows = async move {
        let (mut part, mut is_first, mut next) = (begin, true, first);
        while let Some(row) = next {
            write(&row, format, is_first, &mut part);
            is_first = false;
            if part.len() >= PART {
                let full = std::mem::take(&mut part);
                sender.send(Some(full.into())).await.map_err(io::Error::other)?;
            }
            next = rows.try_next().await.map_err(io::Error::other)?;
        }
        snapshot.end().await;
        part.extend_from_slice(end);
        for last in [Some(part.into()), None] {
            sender.send(last).await.map_err(io::Error::other)?;
        }
        Ok::<_, io::Error>(())
    };
    let rows = async {
        let failed = match deadline(TIMEOUT, rows).await {
            Ok(outcome) => outcome.err().map(|error| error.to_string()),
            Err(elapsed) => Some(elapsed.to_string()),
        };
        if let Some(error) = failed {
            tracing::debug!(error, "answer with readings interrupted");
        }
    };
    let task = supervise::isolated("answer with readings", rows).spawn();
    // With the task, which ends if the client is gone.
    let parts = stream::unfold(Some((receiver, task)), |state| async {
        let (mut receiver, task) = state?;
        match receiver.recv().await {
            Some(Some(part)) => Some((Some(Ok(part)), Some((receiver, task)))),
            Some(None) => None,
            None => Some((Some(Err(io::Error::other("interrupted"))), None)),
        }
    });
    Ok(Body::from_stream(parts.filter_map(async |part| identity(part))))
}
