//! Validates that the configured timeouts fit together, before the worker starts. Errors show the sums.

use std::time::Duration;

use garenne_common::{
    config::{ConfigError, Lane, Lanes},
    shutdown::Mode,
    telemetry::traces::LAST_EXPORT,
};
use humantime::format_duration;

use crate::settings::WorkerConfig;

/// Time for settling and closing after the last task.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Margin between the longest wait in a lane and the consumer timeout: a lane is checked once per second, and the
/// tasks that it requeues must still be settled.
const WAIT_MARGIN: Duration = Duration::from_secs(1).saturating_add(SETTLE_TIME);

/// The consumer timeout of RabbitMQ's default configuration.
const BROKER_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Longest time for which a batch occupies its worker of the pool.
const MAX_BATCH_TIME: Duration = Duration::from_secs(30);

/// Validates the timeouts against each other, and that the longest task of each lane ends before the consumer timeout
/// of its delivery. An error names the sum that is too large and the setting to change.
pub(crate) fn check<'a>(
    config: &WorkerConfig,
    kinds: impl IntoIterator<Item = (&'a str, Option<Duration>)>,
) -> Result<(), ConfigError> {
    check_termination_grace(config)?;
    let kinds: Vec<_> = kinds.into_iter().collect();
    for (name, lane) in config.lanes.iter() {
        let Some((kind, deadline)) = longest_task(&config.lanes, name, kinds.iter().copied()) else {
            continue;
        };
        let (timeout, setting) = match lane.consumer_timeout {
            Some(timeout) => (timeout, "consumer_timeout"),
            None => (BROKER_CONSUMER_TIMEOUT, "the broker's consumer timeout"),
        };
        let (grace, sum) = (config.hard_grace, deadline + config.hard_grace);
        if sum > timeout {
            let [deadline, grace, sum, timeout] = [deadline, grace, sum, timeout].map(format_duration);
            return Err(ConfigError::Together(format!(
                "lane {name}: deadline {deadline} of {kind} + hard_grace {grace} = {sum} exceeds {setting} \
                 {timeout}: set lanes.{name}.consumer_timeout above it"
            )));
        }
    }
    Ok(())
}

/// Validates that a shutdown fits into the termination grace of the orchestrator.
fn check_termination_grace(config: &WorkerConfig) -> Result<(), ConfigError> {
    let Some(termination_grace) = config.termination_grace else { return Ok(()) };
    let (timeout, grace) = match config.shutdown_mode {
        Mode::Hard => (Duration::ZERO, config.hard_grace),
        Mode::SoftTimeout => (config.shutdown_timeout, config.hard_grace),
        // These modes wait for running tasks without a timeout of their own.
        Mode::Soft | Mode::Light => return Ok(()),
    };
    let spans = if config.common.otlp.endpoint.is_some() { LAST_EXPORT } else { Duration::ZERO };
    let sum = timeout + grace + SETTLE_TIME + spans;
    if sum <= termination_grace {
        return Ok(());
    }
    let spans = match spans {
        Duration::ZERO => String::new(),
        spans => format!(" + {} for the last spans", format_duration(spans)),
    };
    let [timeout, grace, settle, sum, available] =
        [timeout, grace, SETTLE_TIME, sum, termination_grace].map(format_duration);
    Err(ConfigError::Together(format!(
        "shutdown_timeout {timeout} + hard_grace {grace} + {settle} to settle{spans} = {sum} exceeds \
         termination_grace {available}: lower shutdown_timeout or raise termination_grace"
    )))
}

/// The kind with the longest deadline among those that the lane gives its consumers.
fn longest_task<'a>(
    lanes: &Lanes,
    lane: &str,
    kinds: impl IntoIterator<Item = (&'a str, Option<Duration>)>,
) -> Option<(&'a str, Duration)> {
    let long = kinds.into_iter().filter_map(|(kind, deadline)| Some((kind, deadline?)));
    let given = long.filter(|(kind, _)| lanes.giving(kind).any(|(name, _)| name == lane));
    given.max_by_key(|(_, deadline)| *deadline)
}

/// How long a task may wait in a lane before it is requeued.
///
/// A task that waits longer could reach the consumer timeout while it runs. The minimum of two seconds keeps tasks
/// from being requeued all the time.
pub(crate) fn max_wait<'a>(
    config: &WorkerConfig,
    lane: &str,
    consumer_timeout: Option<Duration>,
    kinds: impl IntoIterator<Item = (&'a str, Option<Duration>)>,
) -> Duration {
    let longest = longest_task(&config.lanes, lane, kinds);
    let run = longest.map_or(Duration::ZERO, |(_, deadline)| deadline + config.hard_grace);
    let timeout = consumer_timeout.unwrap_or(BROKER_CONSUMER_TIMEOUT);
    timeout.saturating_sub(run + WAIT_MARGIN).max(Duration::from_secs(2))
}

/// How long the records of a batch may run one after another. Records that have not started by then become tasks of
/// their own. Records are short tasks, so only a batch of slow ones reaches this limit.
pub(crate) fn batch_time(lane: &Lane) -> Duration {
    let timeout = lane.consumer_timeout.unwrap_or(BROKER_CONSUMER_TIMEOUT);
    MAX_BATCH_TIME.min(timeout / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn error(config: &WorkerConfig, kinds: &[(&str, Option<Duration>)]) -> String {
        check(config, kinds.iter().copied()).unwrap_err().to_string()
    }

    #[test]
    fn a_shutdown_over_the_termination_grace_is_rejected() {
        let config =
            WorkerConfig { termination_grace: Some(Duration::from_secs(20)), ..WorkerConfig::default() };
        assert_eq!(
            error(&config, &[]),
            "the settings cannot be used together: shutdown_timeout 25s + hard_grace 2s + 3s to settle = 30s \
             exceeds termination_grace 20s: lower shutdown_timeout or raise termination_grace"
        );
        let enough =
            WorkerConfig { termination_grace: Some(Duration::from_secs(30)), ..WorkerConfig::default() };
        assert!(check(&enough, []).is_ok());
        let mut traced = enough;
        traced.common.otlp.endpoint = Some("http://collector:4318".parse().unwrap());
        assert_eq!(
            error(&traced, &[]),
            "the settings cannot be used together: shutdown_timeout 25s + hard_grace 2s + 3s to settle \
             + 2s for the last spans = 32s exceeds termination_grace 30s: \
             lower shutdown_timeout or raise termination_grace"
        );
        let soft = WorkerConfig { shutdown_mode: Mode::Soft, ..config };
        assert!(check(&soft, []).is_ok());
    }

    #[test]
    fn a_deadline_over_the_consumer_timeout_is_rejected() {
        let config = WorkerConfig::default();
        let kinds = [("spectrum.analyze", Some(30 * MINUTE)), ("reading.process", None)];
        assert_eq!(
            error(&config, &kinds),
            "the settings cannot be used together: lane slow: deadline 30m of spectrum.analyze + hard_grace 2s \
             = 30m 2s exceeds the broker's consumer timeout 30m: set lanes.slow.consumer_timeout above it"
        );
        assert!(check(&config, [("spectrum.analyze", Some(29 * MINUTE))]).is_ok());
        let unbound = error(&config, &[("unbound.kind", Some(99 * MINUTE))]);
        assert!(
            unbound.contains("lane default: deadline 1h 39m of unbound.kind"),
            "the catch-all lane: {unbound}"
        );
    }

    #[test]
    fn a_shutdown_may_use_the_whole_termination_grace() {
        let granted = |mode, seconds| WorkerConfig {
            shutdown_mode: mode,
            termination_grace: Some(Duration::from_secs(seconds)),
            ..WorkerConfig::default()
        };
        assert!(
            check(&granted(Mode::SoftTimeout, 30), []).is_ok() && check(&granted(Mode::Hard, 5), []).is_ok()
        );
        assert!(check(&granted(Mode::SoftTimeout, 29), []).is_err());
        assert!(error(&granted(Mode::Hard, 4), &[]).contains("shutdown_timeout 0s + hard_grace 2s"));
        assert!(check(&granted(Mode::Light, 1), []).is_ok(), "it waits for running tasks without a timeout");
    }

    #[test]
    fn a_lanes_consumer_timeout_replaces_the_default() {
        let mut config = WorkerConfig::default();
        let lane = Lane { consumer_timeout: Some(10 * MINUTE), ..Lane::bound_to(["a.#"]) };
        config.lanes = [("own".to_owned(), lane)].into_iter().collect();
        let longest = 10 * MINUTE - config.hard_grace;
        assert!(check(&config, [("a.b", Some(longest))]).is_ok());
        let over = error(&config, &[("a.b", Some(longest + Duration::from_secs(1)))]);
        assert!(over.contains("exceeds consumer_timeout 10m: set lanes.own.consumer_timeout"), "{over}");
    }

    #[test]
    fn a_lane_gives_the_kinds_of_its_bindings_or_of_a_queue_of_others() {
        let bound = Lane { default_kind: Some("x.y".into()), ..Lane::bound_to(["a.#"]) };
        let lanes = Lanes::new()
            .lane("bound", bound)
            .lane("rest", Lane::default().catch_all())
            .lane("shop", Lane { queue: Some("celery".into()), celery: true, ..Lane::default() });
        let longest = |lane: &str, kinds: &[(&'static str, Option<Duration>)]| {
            longest_task(&lanes, lane, kinds.iter().copied()).map(|(kind, _)| kind)
        };
        let kinds = [("x.y", Some(MINUTE)), ("a.b", Some(2 * MINUTE)), ("z", Some(3 * MINUTE))];
        assert_eq!(longest("bound", &kinds), Some("a.b"));
        assert_eq!(longest("bound", &[kinds[0], kinds[2]]), Some("x.y"));
        assert_eq!(longest("bound", &[kinds[2]]), None);
        assert_eq!(longest("rest", &kinds), Some("z"));
        assert_eq!(longest("rest", &[kinds[1]]), None);
        assert_eq!(longest("shop", &[kinds[1]]), Some("a.b"), "calls of any kind come through the queue");
    }

    #[test]
    fn a_batch_runs_for_at_most_30_s_or_a_quarter_of_the_consumer_timeout() {
        let of = |consumer_timeout| batch_time(&Lane { consumer_timeout, ..Lane::default() });
        assert_eq!(of(None), Duration::from_secs(30));
        assert_eq!(of(Some(2 * MINUTE)), Duration::from_secs(30));
        assert_eq!(of(Some(MINUTE)), Duration::from_secs(15));
        assert_eq!(WAIT_MARGIN, Duration::from_secs(4));
    }

    #[test]
    fn the_longest_wait_leaves_time_for_the_longest_task() {
        let lanes = Lanes::new().lane("own", Lane::bound_to(["a.#"]));
        let config = WorkerConfig { lanes, hard_grace: MINUTE, ..WorkerConfig::default() };
        let wait = |kinds: &[(&'static str, Option<Duration>)]| {
            max_wait(&config, "own", Some(10 * MINUTE), kinds.iter().copied())
        };
        let kinds = [("a.long", Some(4 * MINUTE)), ("b.longer", Some(9 * MINUTE)), ("a.short", None)];
        assert_eq!(wait(&kinds), 5 * MINUTE - WAIT_MARGIN);
        let without = "kinds without a deadline leave the whole timeout";
        assert_eq!(wait(&[("a.short", None)]), 10 * MINUTE - WAIT_MARGIN, "{without}");
        assert_eq!(wait(&[("a.long", Some(10 * MINUTE))]), Duration::from_secs(2));
    }
}
