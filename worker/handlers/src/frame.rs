//! The frames between a worker and a child. `docs/reference/handlers.md` specifies them.

use std::{borrow::Cow, collections::BTreeMap, io};

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;

/// The number of the descriptor with frames from the worker.
pub const INPUT: i32 = 3;
/// The number of the descriptor for frames to the worker.
pub const OUTPUT: i32 = 4;

/// The largest head, in bytes.
pub const MAX_HEAD: usize = 64 * 1024;

/// The size of what comes before the head.
const SIZES: usize = 8;

/// The name of a run: a task and the number of the attempt.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    /// The task's id.
    pub id: String,
    /// The attempt, from 1.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub attempt: u32,
}

/// What a child says.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromChild {
    /// The program has loaded.
    Hello {
        /// The version of the protocol.
        protocol: u32,
        /// Name and version of the SDK.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sdk: Option<String>,
        /// The kinds that it has functions for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kinds: Option<Vec<String>>,
        /// The number of tasks that it runs at once.
        #[serde(default = "one")]
        #[cfg_attr(test, schemars(range(min = 1, max = 1000)))]
        concurrency: u32,
    },
    /// It can take a task.
    Next,
    /// The task succeeded.
    Done(Run),
    /// The attempt failed.
    Retry {
        /// The run.
        #[serde(flatten)]
        run: Run,
        /// Why.
        error: String,
        /// The least time until the next attempt, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_ms: Option<u64>,
    },
    /// The task failed for good.
    Reject {
        /// The run.
        #[serde(flatten)]
        run: Run,
        /// Why.
        error: String,
        /// What the dead letter says.
        #[serde(default)]
        reason: Rejection,
    },
    /// The task cannot run now.
    Snooze {
        /// The run.
        #[serde(flatten)]
        run: Run,
        /// When it can, in milliseconds from now.
        after_ms: u64,
    },
    /// A part of the work is done.
    Progress {
        /// The run.
        #[serde(flatten)]
        run: Run,
        /// How much, from 0 to 1.
        #[cfg_attr(test, schemars(range(min = 0.0, max = 1.0)))]
        done: f64,
    },
    /// A task to publish once this one succeeded.
    FollowUp {
        /// The run.
        #[serde(flatten)]
        run: Run,
        /// The task.
        #[serde(flatten)]
        task: FollowUp,
    },
    /// A line for the log.
    Log {
        /// How important it is.
        level: Level,
        /// The line.
        message: String,
        /// The task that it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// It ends after the tasks that it has.
    Bye,
}

/// A task that follows another.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowUp {
    /// The kind of the task.
    pub kind: String,
    /// Its id, if the child chose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// When it is due, in milliseconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Tasks with the same key may be limited together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its group, if not that of this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its deadline, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Headers that the application gives the task, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Value>,
}

/// The reason of a rejection.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rejection {
    /// The handler refuses the task.
    #[default]
    Rejected,
    /// The payload is not one of its kind.
    InvalidPayload,
}

/// How important a line of a log is.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something failed.
    Error,
    /// Something may fail.
    Warn,
    /// What happens.
    Info,
    /// For developers.
    Debug,
}

/// What a worker says.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToChild<'a> {
    /// A task to run.
    Task(Box<TaskHead<'a>>),
    /// The task is to stop soon.
    Cancel {
        /// The run.
        #[serde(flatten)]
        run: Run,
        /// Why.
        reason: CancelReason,
    },
    /// Finish what you have, then exit.
    Bye,
}

/// A task without its payload.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskHead<'a> {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// The kind.
    pub kind: Cow<'a, str>,
    /// The lane that it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<Cow<'a, str>>,
    /// The time left, in milliseconds, if there is a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The encoding of the payload.
    pub content_type: Cow<'a, str>,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Cow<'a, str>>,
    /// The key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Cow<'a, str>>,
    /// When it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<String>,
    /// The trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The vendor's part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// The message's own headers.
    #[serde(default)]
    pub headers: BTreeMap<Cow<'a, str>, Value>,
}

/// Why a task is to stop.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// Its time is over.
    Deadline,
    /// An operator stopped it.
    Stopped,
    /// The worker stops.
    Shutdown,
}

fn one() -> u32 {
    1
}

/// The environment variables of a child.
pub fn variables(max_body: usize) -> [(String, String); 4] {
    let values = [
        ("PROTOCOL", PROTOCOL.to_string()),
        ("IN", INPUT.to_string()),
        ("OUT", OUTPUT.to_string()),
        ("MAX_BODY", max_body.to_string()),
    ];
    values.map(|(name, value)| (format!("GARENNE_HANDLER_{name}"), value))
}

/// A frame as bytes. Fails if the head is larger than [`MAX_HEAD`].
pub fn encode(head: &impl Serialize, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut frame = Vec::with_capacity(SIZES + 256 + body.len());
    frame.extend_from_slice(&[0; SIZES]);
    serde_json::to_writer(&mut frame, head)?;
    let head = frame.len() - SIZES;
    if head > MAX_HEAD {
        return Err(io::Error::other(format!(
            "the head of a frame has {head} bytes, {MAX_HEAD} are allowed"
        )));
    }
    let size = |bytes: usize| u32::try_from(bytes).map(u32::to_be_bytes).map_err(io::Error::other);
    frame[..4].copy_from_slice(&size(head)?);
    frame[4..SIZES].copy_from_slice(&size(body.len())?);
    frame.extend_from_slice(body);
    Ok(frame)
}

/// Reads a frame. Returns [`None`] at the end of the input. An input that ends within a frame is an error, whose text
/// is for people.
pub async fn read<T: DeserializeOwned>(
    input: &mut (impl AsyncRead + Unpin),
    max_body: usize,
) -> io::Result<Option<(T, Bytes)>> {
    let mut sizes = [0; SIZES];
    if input.read(&mut sizes[..1]).await? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut sizes[1..]).await?;
    let size = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize;
    let (head, body) = (size(&sizes[..4]), size(&sizes[4..]));
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    for (part, bytes, max) in [("head", head, MAX_HEAD), ("body", body, max_body)] {
        if bytes > max {
            return Err(invalid(format!("the {part} of a frame has {bytes} bytes, {max} are allowed")));
        }
    }
    let mut frame = vec![0; head + body];
    input.read_exact(&mut frame).await?;
    let frame = Bytes::from(frame);
    let parsed = serde_json::from_slice(&frame[..head]);
    let parsed = parsed.map_err(|error| invalid(format!("the head of a frame is not valid: {error}")))?;
    Ok(Some((parsed, frame.slice(head..))))
}

#[cfg(test)]
mod schemas;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn read_child(frame: &[u8]) -> io::Result<Option<(FromChild, Bytes)>> {
        read(&mut &*frame, 100).await
    }

    fn raw(head: &Value, body: &[u8]) -> Vec<u8> {
        encode(head, body).unwrap()
    }

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let done = FromChild::Done(Run { id: "ü".into(), attempt: 2 });
        let mut frames = encode(&done, b"{\"a\":1}").unwrap();
        frames.extend(encode(&FromChild::Next, b"").unwrap());
        let mut input = &*frames;
        assert_eq!(read(&mut input, 7).await.unwrap(), Some((done, Bytes::from_static(b"{\"a\":1}"))));
        assert_eq!(read(&mut input, 7).await.unwrap(), Some((FromChild::Next, Bytes::new())));
        assert_eq!(read::<FromChild>(&mut input, 7).await.unwrap(), None);
    }

    #[tokio::test]
    async fn members_that_are_missing_or_unknown_are_allowed() {
        let hello = raw(&json!({"type": "hello", "protocol": 1, "colour": "red"}), b"");
        let expected = FromChild::Hello { protocol: 1, sdk: None, kinds: None, concurrency: 1 };
        assert_eq!(read_child(&hello).await.unwrap().unwrap().0, expected);
        let reject = raw(&json!({"type": "reject", "id": "a", "attempt": 1, "error": "no"}), b"");
        let expected = FromChild::Reject {
            run: Run { id: "a".into(), attempt: 1 },
            error: "no".into(),
            reason: Rejection::Rejected,
        };
        assert_eq!(read_child(&reject).await.unwrap().unwrap().0, expected);
    }

    #[tokio::test]
    async fn frames_that_break_the_protocol_are_errors_that_say_why() {
        let error = async |frame: &[u8]| read_child(frame).await.unwrap_err().to_string();
        let large = raw(&json!({"type": "next"}), &[b'x'; 101]);
        assert_eq!(error(&large).await, "the body of a frame has 101 bytes, 100 are allowed");
        let printed = error(b"Loading model...\n").await;
        assert_eq!(printed, "the head of a frame has 1282367844 bytes, 65536 are allowed");
        let unknown = error(&raw(&json!({"type": "dance"}), b"")).await;
        assert!(
            unknown.starts_with("the head of a frame is not valid: unknown variant `dance`"),
            "{unknown}"
        );
        let cut = raw(&json!({"type": "next"}), b"");
        assert_eq!(read_child(&cut[..9]).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
