//! The registry: which handler runs which kind.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use garenne_common::telemetry::metrics::KindMetrics;
use garenne_protocol::task::{Kind, KindError, bindings_meet, matches_binding};
use thiserror::Error;
use tokio::sync::watch;

use crate::{
    handler::{MissingData, MostPerKey, TaskOptions, WhenDead},
    layer::ErasedHandler,
};

/// The handler of a kind, or of a pattern of kinds, and how its tasks run.
pub(crate) struct RegistryEntry {
    pub(crate) kind: &'static str,
    pub(crate) handler: Arc<dyn ErasedHandler>,
    pub(crate) options: TaskOptions,
    pub(crate) metrics: KindMetrics,
}

/// The handlers of a worker, by kind or by pattern of kinds. No two patterns match the same kind.
#[derive(Clone, Default)]
pub(crate) struct Registry(BTreeMap<String, Arc<RegistryEntry>>);

/// Why a worker's handlers cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Two handlers have the same kind.
    #[error("kind {0:?} has two handlers")]
    Duplicate(String),
    /// Two handlers have patterns that match the same kind.
    #[error("the patterns {0:?} and {1:?} have a handler each, and some kinds match both")]
    Overlap(String, String),
    /// A kind cannot be used as a routing key.
    #[error(transparent)]
    Kind(#[from] KindError),
    /// A kind has options with which none of its tasks could succeed.
    #[error("the {option} of kind {kind:?} is 0, expected {expected}")]
    Options {
        /// The kind.
        kind: String,
        /// `deadline`, `limit per key` or `number of attempts`.
        option: &'static str,
        /// The least value.
        expected: &'static str,
    },
    /// A handler needs data that the worker was not given.
    #[error("the handler of kind {kind:?}: {missing}")]
    Data {
        /// The kind.
        kind: String,
        /// The type.
        missing: MissingData,
    },
    /// Two values of one type were given as data.
    #[error("the worker was given data of type {0} twice")]
    DataTwice(&'static str),
    /// A layer was added after a handler, which it would not be around.
    #[error("a layer was added after the handler of kind {kind:?}; add layers before handlers")]
    LateLayer {
        /// The kind.
        kind: String,
    },
    /// The worker has no handler.
    #[error("the worker has no handler")]
    Empty,
    /// No lane of the settings takes any kind that the worker has a handler for, so that it would wait for ever and its tasks
    /// would be unroutable.
    #[error(
        "no lane takes a kind of this worker ({kinds}): add a lane whose bindings match one, such as {example:?}, or a \
         catch-all lane"
    )]
    NoLane {
        /// The kinds, separated by commas.
        kinds: String,
        /// A binding that matches the first.
        example: String,
    },
    /// The setting `sinks` names a sink that is neither built in nor added to the builder.
    #[error("setting sinks: unknown sink {name:?}, expected one of {known}")]
    Sink {
        /// The unknown name.
        name: String,
        /// The possible names, separated by commas.
        known: String,
    },
}

impl RegistryError {
    /// The error of a worker with handlers of these kinds.
    pub(crate) fn no_lane<'k>(kinds: impl Iterator<Item = &'k str>) -> Self {
        let kinds: Vec<_> = kinds.collect();
        let first = kinds.first().and_then(|kind| kind.split('.').next()).unwrap_or_default();
        Self::NoLane { kinds: kinds.join(", "), example: format!("{first}.#") }
    }
}

impl Registry {
    pub(crate) fn add(&mut self, kind: &str, entry: RegistryEntry) -> Result<(), RegistryError> {
        let TaskOptions { deadline, retry, .. } = &entry.options;
        let refuse = |option, expected| RegistryError::Options { kind: kind.to_owned(), option, expected };
        if *deadline == Some(Duration::ZERO) {
            return Err(refuse("deadline", "1ms or more"));
        }
        if entry.options.key.as_ref().is_some_and(|limit| limit.most == MostPerKey::Tasks(0)) {
            return Err(refuse("limit per key", "1 or more"));
        }
        if retry.attempts == Some(0) {
            return Err(refuse("number of attempts", "1 or more"));
        }
        Kind::parse_pattern(kind)?;
        let meets = |other: &&String| is_pattern(other) && *other != kind && bindings_meet(other, kind);
        if is_pattern(kind)
            && let Some(other) = self.0.keys().find(meets)
        {
            return Err(RegistryError::Overlap(other.clone(), kind.to_owned()));
        }
        match self.0.insert(kind.to_owned(), Arc::new(entry)) {
            None => Ok(()),
            Some(_) => Err(RegistryError::Duplicate(kind.to_owned())),
        }
    }

    /// The handler of a kind: its own, or else that of the pattern that matches it.
    pub(crate) fn get(&self, kind: &str) -> Option<&Arc<RegistryEntry>> {
        of_kind(&self.0, kind)
    }

    /// Each kind or pattern and its deadline. Kinds of short tasks have none.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = (&str, Option<Duration>)> {
        self.0.iter().map(|(kind, entry)| (kind.as_str(), entry.options.deadline))
    }

    /// Each kind or pattern and its handler.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Arc<RegistryEntry>)> {
        self.0.iter().map(|(kind, entry)| (kind.as_str(), entry))
    }

    /// What follows the dead letters of each kind or pattern.
    pub(crate) fn when_dead(&self) -> BTreeMap<String, Option<WhenDead>> {
        self.0.iter().map(|(kind, entry)| (kind.clone(), entry.options.when_dead.clone())).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Which handlers are not ready, and why. Kinds with the same problem are named together.
pub(crate) fn unready<'a>(
    handlers: impl IntoIterator<Item = (&'a str, &'a watch::Receiver<Result<(), String>>)>,
) -> Vec<String> {
    let mut problems: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (kind, ready) in handlers {
        if let Err(problem) = &*ready.borrow() {
            problems.entry(problem.clone()).or_default().push(kind);
        }
    }
    let text = |(problem, kinds): (String, Vec<&str>)| {
        let kinds = format!("no handler of {} is ready", kinds.join(", "));
        if problem.is_empty() { kinds } else { format!("{kinds}: {problem}") }
    };
    problems.into_iter().map(text).collect()
}

/// What belongs to a kind: its own value, or else that of the pattern that matches it.
pub(crate) fn of_kind<'a, T>(handled: &'a BTreeMap<String, T>, kind: &str) -> Option<&'a T> {
    let matching = || Some(handled.iter().find(|(pattern, _)| matches_binding(pattern, kind))?.1);
    handled.get(kind).or_else(matching)
}

fn is_pattern(kind: &str) -> bool {
    kind.contains(['*', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Output, TaskError, Worker, WorkerConfig,
        layer::{Next, Task},
    };

    struct Nothing;

    impl Next for Nothing {
        async fn run(&self, _: Task) -> Result<Output, TaskError> {
            Err(TaskError::retry("nothing"))
        }
    }

    fn build(kinds: &[&'static str]) -> Result<Arc<Registry>, String> {
        let builder = kinds.iter().fold(Worker::builder(WorkerConfig::default()), |builder, kind| {
            builder.handle_task(*kind, Nothing, TaskOptions::short())
        });
        builder.build().map(|worker| worker.into_parts().0).map_err(|error| error.to_string())
    }

    #[test]
    fn a_kind_of_its_own_comes_before_the_pattern_that_matches_it() {
        let registry = build(&["image.*", "image.resize", "mail.#"]).unwrap();
        let handler = |kind| registry.get(kind).map(|entry| entry.kind);
        for (kind, expected) in [
            ("image.resize", Some("image.resize")),
            ("image.crop", Some("image.*")),
            ("image.crop.all", None),
            ("mail", Some("mail.#")),
            ("mail.a.b", Some("mail.#")),
            ("other", None),
        ] {
            assert_eq!(handler(kind), expected, "{kind}");
        }
    }

    #[test]
    fn patterns_that_overlap_are_refused_with_both_names() {
        let error = build(&["image.*", "#.resize"]).err().unwrap();
        let expected =
            "the patterns \"image.*\" and \"#.resize\" have a handler each, and some kinds match both";
        assert_eq!(error, expected);
        assert_eq!(build(&["image.*", "image.*"]).err().unwrap(), "kind \"image.*\" has two handlers");
        assert!(build(&["image.*", "mail.*", "image.*.all"]).is_ok());
    }
}
