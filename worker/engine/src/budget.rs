//! Times that contradict each other are refused before anything starts, with the sum written out.

use std::time::Duration;

use garenne_common::{
    config::{ConfigError, Lane, Lanes},
    shutdown::Mode,
    telemetry::traces::LAST_EXPORT,
};
use garenne_protocol::task::matches_binding;
use humantime::format_duration;

use crate::settings::WorkerConfig;

/// What settling and closing may take after the last task.
pub(crate) const FLUSH: Duration = Duration::from_secs(3);

/// What is kept between a local wait's end and the broker's patience: a lane is searched once a second,
/// and what is found is still to be settled.
const MARGIN: Duration = Duration::from_secs(1).saturating_add(FLUSH);

/// The broker's own consumer timeout.
const BROKERS_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The longest a batch keeps its worker of the pool from its other work.
const PACK_TIME: Duration = Duration::from_secs(30);

/// Checks the settings against each other and against the deadlines of the kinds.
///
/// # Errors
/// [`ConfigError::Together`] with the sum that does not fit and what to change.
pub(crate) fn check<'a>(
    config: &WorkerConfig,
    kinds: impl IntoIterator<Item = (&'a str, Option<Duration>)>,
) -> Result<(), ConfigError> {
    stopping(config)?;
    let deadlines: Vec<_> =
        kinds.into_iter().filter_map(|(kind, deadline)| Some((kind, deadline?))).collect();
    holding(&config.lanes, config.hard_grace, &deadlines)
}

/// Whether a stop fits into what the orchestrator grants.
fn stopping(config: &WorkerConfig) -> Result<(), ConfigError> {
    let Some(granted) = config.termination_grace else { return Ok(()) };
    let (timeout, grace) = match config.shutdown_mode {
        Mode::Hard => (Duration::ZERO, config.hard_grace),
        Mode::SoftTimeout => (config.shutdown_timeout, config.hard_grace),
        // They wait for whatever runs; the orchestrator ends them when its patience does.
        Mode::Soft | Mode::Light => return Ok(()),
    };
    let spans = if config.common.otlp.endpoint.is_some() { LAST_EXPORT } else { Duration::ZERO };
    let sum = timeout + grace + FLUSH + spans;
    if sum <= granted {
        return Ok(());
    }
    let spans = match spans {
        Duration::ZERO => String::new(),
        spans => format!(" + {} for the last spans", format_duration(spans)),
    };
    Err(ConfigError::Together(format!(
        "shutdown_timeout {} + hard_grace {} + {} to settle{spans} = {} is over termination_grace {}: shorten the first or grant more",
        format_duration(timeout),
        format_duration(grace),
        format_duration(FLUSH),
        format_duration(sum),
        format_duration(granted),
    )))
}

/// Whether the longest task of each lane ends before the broker loses patience with its delivery.
fn holding(lanes: &Lanes, grace: Duration, deadlines: &[(&str, Duration)]) -> Result<(), ConfigError> {
    for (name, lane) in lanes.iter() {
        let Some((kind, deadline)) = longest(lane, deadlines.iter().copied()) else { continue };
        let (timeout, whose) = match lane.consumer_timeout {
            Some(timeout) => (timeout, "consumer_timeout"),
            None => (BROKERS_TIMEOUT, "the broker's consumer timeout"),
        };
        let sum = deadline + grace;
        if sum > timeout {
            return Err(ConfigError::Together(format!(
                "lane {name}: deadline {} of {kind} + hard_grace {} = {} is over {whose} {}: set lanes.{name}.consumer_timeout above it",
                format_duration(deadline),
                format_duration(grace),
                format_duration(sum),
                format_duration(timeout),
            )));
        }
    }
    Ok(())
}

/// The longest task that the lane's bindings bring, and its deadline.
fn longest<'a>(
    lane: &Lane,
    deadlines: impl IntoIterator<Item = (&'a str, Duration)>,
) -> Option<(&'a str, Duration)> {
    let taken = |kind: &str| {
        lane.default_kind.as_deref() == Some(kind)
            || lane.bindings.iter().any(|binding| matches_binding(binding, kind))
    };
    deadlines.into_iter().filter(|(kind, _)| taken(kind)).max_by_key(|(_, deadline)| *deadline)
}

/// How long a task may wait in a lane and still be started: one that waited longer could be taken
/// away by the broker in the middle of its run. At least two seconds, lest everything goes round.
pub(crate) fn max_wait<'a>(
    lane: &Lane,
    grace: Duration,
    kinds: impl IntoIterator<Item = (&'a str, Option<Duration>)>,
) -> Duration {
    let deadlines = kinds.into_iter().filter_map(|(kind, deadline)| Some((kind, deadline?)));
    let run = longest(lane, deadlines).map_or(Duration::ZERO, |(_, deadline)| deadline + grace);
    let timeout = lane.consumer_timeout.unwrap_or(BROKERS_TIMEOUT);
    timeout.saturating_sub(run + MARGIN).max(Duration::from_secs(2))
}

/// How long the records of a batch may run one after another; those that had no turn by then go on as
/// tasks of their own. Records are short tasks, so only a batch of slow ones ever gets there.
pub(crate) fn batch_time(lane: &Lane) -> Duration {
    let timeout = lane.consumer_timeout.unwrap_or(BROKERS_TIMEOUT);
    PACK_TIME.min(timeout / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn refused(config: &WorkerConfig, kinds: &[(&str, Option<Duration>)]) -> String {
        check(config, kinds.iter().copied()).unwrap_err().to_string()
    }

    #[test]
    fn a_stop_that_does_not_fit_is_refused_with_its_sum() {
        let config =
            WorkerConfig { termination_grace: Some(Duration::from_secs(20)), ..WorkerConfig::default() };
        assert_eq!(
            refused(&config, &[]),
            "the settings cannot be used together: shutdown_timeout 25s + hard_grace 2s + 3s to settle = 30s \
             is over termination_grace 20s: shorten the first or grant more"
        );
        let enough =
            WorkerConfig { termination_grace: Some(Duration::from_secs(30)), ..WorkerConfig::default() };
        assert!(check(&enough, []).is_ok());
        let mut traced = enough;
        traced.common.otlp.endpoint = Some("http://collector:4318".parse().unwrap());
        assert_eq!(
            refused(&traced, &[]),
            "the settings cannot be used together: shutdown_timeout 25s + hard_grace 2s + 3s to settle \
             + 2s for the last spans = 32s is over termination_grace 30s: shorten the first or grant more"
        );
        let soft = WorkerConfig { shutdown_mode: Mode::Soft, ..config };
        assert!(check(&soft, []).is_ok());
    }

    #[test]
    fn a_deadline_over_the_consumer_timeout_is_refused_with_its_sum() {
        let config = WorkerConfig::default();
        let kinds = [("spectrum.analyze", Some(30 * MINUTE)), ("reading.process", None)];
        assert_eq!(
            refused(&config, &kinds),
            "the settings cannot be used together: lane slow: deadline 30m of spectrum.analyze + hard_grace 2s \
             = 30m 2s is over the broker's consumer timeout 30m: set lanes.slow.consumer_timeout above it"
        );
        assert!(check(&config, [("spectrum.analyze", Some(29 * MINUTE))]).is_ok());
        assert!(check(&config, [("unbound.kind", Some(99 * MINUTE))]).is_ok());
    }

    #[test]
    fn a_stop_may_use_all_that_is_granted_and_no_more() {
        let granted = |mode, seconds| WorkerConfig {
            shutdown_mode: mode,
            termination_grace: Some(Duration::from_secs(seconds)),
            ..WorkerConfig::default()
        };
        assert!(
            check(&granted(Mode::SoftTimeout, 30), []).is_ok() && check(&granted(Mode::Hard, 5), []).is_ok()
        );
        assert!(check(&granted(Mode::SoftTimeout, 29), []).is_err());
        assert!(refused(&granted(Mode::Hard, 4), &[]).contains("shutdown_timeout 0s + hard_grace 2s"));
        assert!(check(&granted(Mode::Light, 1), []).is_ok(), "it waits for whatever runs");
    }

    #[test]
    fn a_lanes_own_consumer_timeout_takes_the_place_of_the_brokers() {
        let mut config = WorkerConfig::default();
        let lane = Lane { consumer_timeout: Some(10 * MINUTE), ..Lane::bound_to(["a.#"]) };
        config.lanes = [("own".to_owned(), lane)].into_iter().collect();
        let just = 10 * MINUTE - config.hard_grace;
        assert!(check(&config, [("a.b", Some(just))]).is_ok());
        let over = refused(&config, &[("a.b", Some(just + Duration::from_secs(1)))]);
        assert!(over.contains("is over consumer_timeout 10m: set lanes.own.consumer_timeout"), "{over}");
    }

    #[test]
    fn a_default_kind_is_a_lanes_as_what_it_binds_is() {
        let lane = Lane { default_kind: Some("x.y".into()), ..Lane::bound_to(["a.#"]) };
        assert_eq!(
            longest(&lane, [("x.y", MINUTE), ("a.b", 2 * MINUTE), ("z", 3 * MINUTE)]),
            Some(("a.b", 2 * MINUTE))
        );
        assert_eq!(longest(&lane, [("x.y", MINUTE), ("z", 3 * MINUTE)]), Some(("x.y", MINUTE)));
        assert_eq!(longest(&lane, [("z", MINUTE)]), None);
    }

    #[test]
    fn packs_run_for_half_a_minute_or_a_quarter_of_the_brokers_patience() {
        let of = |consumer_timeout| batch_time(&Lane { consumer_timeout, ..Lane::default() });
        assert_eq!(of(None), Duration::from_secs(30));
        assert_eq!(of(Some(2 * MINUTE)), Duration::from_secs(30));
        assert_eq!(of(Some(MINUTE)), Duration::from_secs(15));
        assert_eq!(MARGIN, Duration::from_secs(4));
    }

    #[test]
    fn what_waited_too_long_to_finish_in_time_is_known() {
        let lane = Lane { consumer_timeout: Some(10 * MINUTE), ..Lane::bound_to(["a.#"]) };
        let kinds = [("a.long", Some(4 * MINUTE)), ("b.longer", Some(9 * MINUTE)), ("a.short", None)];
        assert_eq!(max_wait(&lane, MINUTE, kinds), 5 * MINUTE - MARGIN);
        let short = [("a.short", None)];
        assert_eq!(max_wait(&lane, MINUTE, short), 10 * MINUTE - MARGIN, "before the broker's patience ends");
        assert_eq!(max_wait(&lane, MINUTE, [("a.long", Some(10 * MINUTE))]), Duration::from_secs(2));
    }
}
