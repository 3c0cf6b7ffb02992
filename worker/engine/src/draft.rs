//! A task that is not published yet, with the options of its publisher. Clients and handlers have the same ones.

use std::time::Duration;

#[cfg(feature = "client")]
use garenne_protocol::task::ContentType;
use garenne_protocol::task::{AppHeaders, Envelope, HeaderError, IdError, Kind, KindError, NewTask, TaskId};
use serde::Serialize;
use thiserror::Error;

/// Why a task cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum DraftError {
    /// The payload cannot be written as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Payload(String),
    /// The kind cannot be a routing key.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// The id is invalid.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A header is refused.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// An option is out of its bounds.
    #[error("{option} is out of range: expected {expected}")]
    OutOfRange {
        /// `delay`, `timeout`, `key` or `group`.
        option: &'static str,
        /// The bounds.
        expected: String,
    },
}

/// A task and its options. The first error stays, with the kind.
#[derive(Clone, Debug)]
pub(crate) struct Draft(Result<Content, (String, DraftError)>);

/// A task without the properties that its publisher determines.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// [`None`] for the publisher's choice.
    pub(crate) id: Option<TaskId>,
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
    group: Option<String>,
    key: Option<String>,
    delay: Option<Duration>,
    timeout: Option<Duration>,
    headers: AppHeaders,
}

impl Content {
    /// Its size in memory and on the wire, about.
    #[cfg(feature = "worker")]
    pub(crate) fn bytes(&self) -> usize {
        let texts = [&self.group, &self.key].into_iter().flatten().map(String::len);
        self.body.len() + texts.sum::<usize>() + self.headers.bytes()
    }

    /// Sets the options of the task that are given.
    pub(crate) fn apply_to(self, task: NewTask) -> NewTask {
        let Self { group, key, delay, timeout, headers, .. } = self;
        NewTask { group: group.or(task.group), key, delay, timeout, headers, ..task }
    }

    /// A task of its own, with a random id if it has none.
    #[cfg(feature = "client")]
    pub(crate) fn into_task(mut self) -> NewTask {
        let id = self.id.take().unwrap_or_else(TaskId::random);
        let body = std::mem::take(&mut self.body);
        let task = NewTask::with_id(id, self.kind.clone(), ContentType::Json, body);
        self.apply_to(task)
    }
}

impl Draft {
    pub(crate) fn new<P: Serialize + ?Sized>(kind: &str, payload: &P) -> Self {
        let content = || {
            let body = serde_json::to_vec(payload).map_err(|error| DraftError::Payload(error.to_string()))?;
            let (headers, kind) = (AppHeaders::default(), Kind::parse(kind)?);
            Ok(Content { id: None, kind, body, group: None, key: None, delay: None, timeout: None, headers })
        };
        Self(content().map_err(|error| (kind.to_owned(), error)))
    }

    /// The task, or the first error and the kind of the task.
    pub(crate) fn into_content(self) -> Result<Content, (String, DraftError)> {
        self.0
    }

    pub(crate) fn id(self, id: &str) -> Self {
        self.with(|content| {
            content.id = Some(TaskId::parse(id)?);
            Ok(())
        })
    }

    pub(crate) fn delay(self, delay: Duration) -> Self {
        self.with(|content| {
            content.delay = Some(check_span("delay", delay)?);
            Ok(())
        })
    }

    pub(crate) fn timeout(self, timeout: Duration) -> Self {
        self.with(|content| {
            content.timeout = Some(check_span("timeout", timeout)?);
            Ok(())
        })
    }

    pub(crate) fn key(self, key: String) -> Self {
        self.with(|content| {
            content.key = Some(check_text("key", key)?);
            Ok(())
        })
    }

    pub(crate) fn group(self, group: String) -> Self {
        self.with(|content| {
            content.group = Some(check_text("group", group)?);
            Ok(())
        })
    }

    pub(crate) fn header(self, name: &str, value: garenne_protocol::task::HeaderValue<'_>) -> Self {
        self.with(|content| Ok(content.headers.set(name, value)?))
    }

    fn with(mut self, set: impl FnOnce(&mut Content) -> Result<(), DraftError>) -> Self {
        if let Ok(content) = &mut self.0
            && let Err(error) = set(content)
        {
            self.0 = Err((content.kind.to_string(), error));
        }
        self
    }
}

fn check_span(option: &'static str, span: Duration) -> Result<Duration, DraftError> {
    let max = Duration::from_millis(Envelope::MAX_MS.unsigned_abs());
    let expected = || format!("at most {}", humantime::format_duration(max));
    if span <= max { Ok(span) } else { Err(DraftError::OutOfRange { option, expected: expected() }) }
}

fn check_text(option: &'static str, text: String) -> Result<String, DraftError> {
    let is_valid = (1..=Envelope::MAX_TEXT).contains(&text.len());
    let expected = || format!("1 to {} bytes", Envelope::MAX_TEXT);
    if is_valid { Ok(text) } else { Err(DraftError::OutOfRange { option, expected: expected() }) }
}

/// The methods of a builder that set the options of its field `draft`.
macro_rules! draft_options {
    () => {
        /// Starts the task after this time, at most 30 days. It passes through retry queues meanwhile, whose delays are those of
        /// the setting `retry.delays`, and through a worker after each of them, which counts it as retried. It spends no
        /// attempt.
        pub fn delay(mut self, delay: std::time::Duration) -> Self {
            self.draft = self.draft.delay(delay);
            self
        }

        /// Limits the run time of an attempt, at most 30 days. Tasks of short kinds have no timer.
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.draft = self.draft.timeout(timeout);
            self
        }

        /// Sets the key, 1 to 255 bytes. Tasks with equal keys go to the same queue of a lane with several queues.
        pub fn key(mut self, key: impl Into<String>) -> Self {
            self.draft = self.draft.key(key.into());
            self
        }

        /// Sets the group, 1 to 255 bytes. Tasks of a group are paused and stopped together.
        pub fn group(mut self, group: impl Into<String>) -> Self {
            self.draft = self.draft.group(group.into());
            self
        }

        /// Sets a header of the application, in place of an earlier one of this name: a text, integer, float or bool.
        /// Handlers read it with `TaskContext::header`, and all copies of the task keep it.
        ///
        /// The name has 1 to 128 bytes without control characters. Names that begin with `garenne-` or `x-`, and `CC`,
        /// `BCC`, `traceparent` and `tracestate`, are refused. All names and values together have at most 32 KiB.
        pub fn header<'v>(mut self, name: &str, value: impl Into<crate::task::HeaderValue<'v>>) -> Self {
            self.draft = self.draft.header(name, value.into());
            self
        }
    };
}

pub(crate) use draft_options;
