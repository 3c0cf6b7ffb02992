//! The registry: which handler runs which kind.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use garenne_common::telemetry::metrics::KindMetrics;
use garenne_protocol::task::{Kind, KindError};
use thiserror::Error;

use crate::handler::{ErasedHandler, TaskOptions, WhenDead};

/// The handler of a kind, and how its tasks run.
pub(crate) struct Entry {
    pub(crate) kind: &'static str,
    pub(crate) handler: Arc<ErasedHandler>,
    pub(crate) options: TaskOptions,
    pub(crate) metrics: KindMetrics,
}

/// The handlers of a worker, by kind.
#[derive(Clone, Default)]
pub(crate) struct Registry(BTreeMap<Kind, Arc<Entry>>);

/// Why a worker's handlers cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Two handlers have the same kind.
    #[error("kind {0:?} has two handlers")]
    Duplicate(String),
    /// A kind cannot be used as a routing key.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// A kind has options with which none of its tasks could succeed.
    #[error("the {option} of kind {kind:?} is 0, expected {expected}")]
    Options {
        /// The kind.
        kind: String,
        /// `deadline` or `number of attempts`.
        option: &'static str,
        /// The least value.
        expected: &'static str,
    },
    /// The worker has no handler.
    #[error("the worker has no handler")]
    Empty,
    /// The setting `sinks` names a sink that is neither built in nor added to the builder.
    #[error("setting sinks: unknown sink {name:?}, expected one of {known}")]
    Sink {
        /// The unknown name.
        name: String,
        /// The possible names, separated by commas.
        known: String,
    },
}

impl Registry {
    pub(crate) fn add(&mut self, kind: &str, entry: Entry) -> Result<(), RegistryError> {
        let TaskOptions { deadline, retry, .. } = &entry.options;
        let refuse = |option, expected| RegistryError::Options { kind: kind.to_owned(), option, expected };
        if *deadline == Some(Duration::ZERO) {
            return Err(refuse("deadline", "1ms or more"));
        }
        if retry.attempts == Some(0) {
            return Err(refuse("number of attempts", "1 or more"));
        }
        match self.0.insert(Kind::parse(kind)?, Arc::new(entry)) {
            None => Ok(()),
            Some(_) => Err(RegistryError::Duplicate(kind.to_owned())),
        }
    }

    pub(crate) fn get(&self, kind: &str) -> Option<&Arc<Entry>> {
        self.0.get(kind)
    }

    /// Each kind and its deadline. Kinds of short tasks have none.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = (&str, Option<Duration>)> {
        self.0.iter().map(|(kind, entry)| (kind.as_str(), entry.options.deadline))
    }

    /// The kinds whose dead letters are followed by a task.
    pub(crate) fn when_dead(&self) -> BTreeMap<String, WhenDead> {
        let followed =
            self.0.iter().map(|(kind, entry)| Some((kind.to_string(), entry.options.when_dead.clone()?)));
        followed.flatten().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
