//! Adds the handlers of the settings to a worker.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures_util::future::{BoxFuture, FutureExt, join_all};
use garenne::{RetryPolicy, TaskOptions, WorkerBuilder, WorkerConfig, layer::Layer};
use garenne_common::config::{Invalid, Lane};
use tokio_util::sync::CancellationToken;

use crate::{
    exec::Exec,
    handler::{Handler, TasksOf},
    http::Http,
    memory::warn_of_excess,
    metrics::{self, Counters},
    settings::{HandlerSettings, Transport},
    stdio::Stdio,
};

/// The table `handlers` of the settings: handlers by name.
pub type Handlers = BTreeMap<String, HandlerSettings>;

/// Validates all handlers.
pub fn validate(handlers: &Handlers) -> Result<(), Invalid> {
    handlers.iter().try_for_each(|(name, handler)| handler.validate(name))
}

/// Fits the lanes of a worker to its handlers: a lane that leaves `concurrency` or `prefetch` at its default runs as many tasks at once
/// as its handlers have processes, and holds twice as many. It runs no fewer than by default if it also receives `other_kinds`, which are
/// patterns, or has a handler that does not say how many processes it has.
pub fn fit_lanes(config: &mut WorkerConfig, handlers: &Handlers, other_kinds: &[&str]) {
    let default = Lane::default();
    let bound_to_others = other_kinds.iter().flat_map(|kind| config.lanes.receiving(kind));
    let others: BTreeSet<String> = bound_to_others.map(|(lane, _)| lane.to_owned()).collect();
    // The processes of each lane's handlers, and whether they are all that it needs.
    let mut wanted: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    for (name, handler) in handlers {
        let kinds = handler.kinds(name);
        let lanes = kinds.iter().flat_map(|kind| config.lanes.giving(kind));
        for lane in lanes.map(|(lane, _)| lane.to_owned()).collect::<BTreeSet<_>>() {
            let is_all = handler.processes.is_some() && !others.contains(&lane);
            let (processes, are_all) = wanted.entry(lane).or_insert((0, true));
            *processes += usize::from(handler.processes.unwrap_or_default());
            *are_all &= is_all;
        }
    }
    for (name, (processes, are_all)) in wanted {
        config.lanes.change(&name, |lane| {
            if lane.concurrency == default.concurrency {
                lane.concurrency.max = if are_all { processes } else { processes.max(lane.concurrency.max) };
            }
            if lane.prefetch == default.prefetch {
                let prefetch = u16::try_from(2 * lane.concurrency.max).unwrap_or(u16::MAX);
                lane.prefetch = prefetch.max(lane.shards);
            }
        });
    }
}

/// A handler that serves until the token is cancelled.
type Serve = Box<dyn Fn(Counters, CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// Adds a handler of these kinds to a worker.
fn add<L: Layer>(
    mut builder: WorkerBuilder<L>,
    kinds: &[&'static str],
    options: TaskOptions,
    handler: impl Handler,
) -> (WorkerBuilder<L>, Serve) {
    let (options, handler) = (options.ready_when(handler.ready().subscribe()), Arc::new(handler));
    for kind in kinds {
        builder = builder.handle_task(*kind, TasksOf(Arc::clone(&handler)), options.clone());
    }
    (builder, Box::new(move |counters, stopping| Arc::clone(&handler).serve(counters, stopping).boxed()))
}

/// Adds the handlers to a worker. They are valid, and [`fit_lanes`] was called for the worker's settings.
#[must_use]
pub fn register<L: Layer>(mut builder: WorkerBuilder<L>, handlers: &Handlers) -> WorkerBuilder<L> {
    if handlers.is_empty() {
        return builder;
    }
    let mut serving: Vec<(String, Serve)> = Vec::new();
    let mut limits = 0_u64;
    for (name, settings) in handlers {
        let config = builder.config();
        let (max_body, grace) = (config.max_payload.bytes(), config.hard_grace);
        let retry = RetryPolicy::default().first(settings.backoff);
        let retry = match settings.max_attempts {
            Some(attempts) => retry.attempts(attempts),
            None => retry,
        };
        let options = TaskOptions::long().deadline(settings.deadline).retry(retry);
        // The names of kinds live as long as the process.
        let kinds = settings.kinds(name).into_iter().map(|kind| &*Box::leak(Box::<str>::from(kind)));
        let kinds: Vec<&'static str> = kinds.collect();
        let slots = kinds.iter().flat_map(|kind| config.lanes.giving(kind));
        let slots = slots.filter_map(|(_, lane)| u16::try_from(lane.concurrency.max).ok()).max().unwrap_or(1);
        let processes = match settings.transport() {
            Transport::Stdio => settings.processes.unwrap_or(slots),
            Transport::Exec => slots,
            Transport::Http => 0,
        };
        let limit = settings.memory.map_or(0, |memory| memory.0.saturating_mul(processes.into()));
        limits = limits.saturating_add(limit);
        let (added, serve) = match settings.transport() {
            Transport::Stdio => {
                add(builder, &kinds, options, Stdio::new(name, settings.clone(), processes, max_body, grace))
            }
            Transport::Exec => {
                add(builder, &kinds, options, Exec::new(name, settings.clone(), max_body, grace))
            }
            Transport::Http => add(builder, &kinds, options, Http::new(name, settings.clone(), max_body)),
        };
        builder = added;
        serving.push((name.clone(), serve));
    }
    let serving = Arc::new(serving);
    builder.companion(move |companion| {
        let serving = Arc::clone(&serving);
        async move {
            warn_of_excess(limits);
            let counters = metrics::register(&companion.registry, serving.iter().map(|it| it.0.as_str()));
            let all = serving.iter().zip(counters);
            join_all(all.map(|((_, serve), counters)| serve(counters, companion.stopping.clone()))).await;
        }
    })
}

#[cfg(test)]
mod tests {
    use garenne_common::config::Lanes;

    use super::*;

    /// The tasks that the lanes of a worker run at once and hold, with these handlers by their kinds.
    fn fitted(lanes: Lanes, handlers: &[(&str, Option<u16>)]) -> Vec<(String, usize, u16)> {
        let mut config = WorkerConfig { lanes, ..WorkerConfig::default() };
        let handler = |processes| HandlerSettings { processes, ..HandlerSettings::default() };
        let handlers = handlers.iter().map(|(kind, processes)| ((*kind).to_owned(), handler(*processes)));
        fit_lanes(&mut config, &handlers.collect(), &["reading.#"]);
        let lanes = config.lanes.iter();
        lanes.map(|(name, lane)| (name.to_owned(), lane.concurrency.max, lane.prefetch)).collect()
    }

    #[test]
    fn a_lane_at_its_defaults_runs_as_many_tasks_as_its_handlers_have_processes() {
        let fit = |lane: Lane, handlers: &[(&str, Option<u16>)]| {
            let fast = Lane::bound_to(["reading.#"]);
            let fitted = fitted(Lanes::new().lane("default", lane).lane("fast", fast), handlers);
            (fitted[0].1, fitted[0].2)
        };
        let catch_all = || Lane::default().catch_all();
        assert_eq!(fit(catch_all(), &[]), (4, 200));
        assert_eq!(fit(catch_all(), &[("a", Some(1))]), (1, 2));
        assert_eq!(fit(catch_all(), &[("a", Some(1)), ("b.#", Some(6))]), (7, 14));
        // A handler without the setting has as many processes as the lane runs tasks.
        assert_eq!(fit(catch_all(), &[("a", None)]), (4, 8));
        assert_eq!(fit(catch_all(), &[("a", None), ("b", Some(1))]), (4, 8));
        // What the user has set stays.
        assert_eq!(fit(catch_all().concurrency(1..=3), &[("a", Some(1))]), (3, 6));
        assert_eq!(fit(catch_all().prefetch(9), &[("a", Some(1))]), (1, 9));
        // Each queue of the lane holds a task.
        assert_eq!(fit(Lane { shards: 3, ..catch_all() }, &[("a", Some(1))]), (1, 3));
        // The lane has other handlers.
        assert_eq!(fit(Lane::bound_to(["#"]), &[("a", Some(1))]), (4, 8));
        assert_eq!(fit(Lane::bound_to(["#"]), &[("a", Some(5))]), (5, 10));
        assert_eq!(
            fitted(Lanes::new().lane("all", catch_all()), &[("a", Some(1))]),
            [("all".to_owned(), 4, 8)]
        );
    }
}
