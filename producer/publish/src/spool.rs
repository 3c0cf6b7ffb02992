//! The spool of a gateway or a bridge: its settings, its metrics, and what it shows of its content.

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use garenne_common::{
    config::{Invalid, Size},
    exit::{Exit, Failure},
    lock::lock,
    telemetry::Metrics,
};
use garenne_protocol::{heartbeat::SpoolBeat, task::epoch_ms};
use garenne_spool::{Spool, SpoolConfig, SpoolStatus};
use prometheus::{
    register_int_counter_vec_with_registry, register_int_counter_with_registry,
    register_int_gauge_with_registry,
};
use serde::{Deserialize, Serialize};

/// Settings of the spool.
#[serde_with::apply(Duration => #[serde(with = "humantime_serde")])]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpoolSettings {
    /// Directory of the spool. Unset, requests are refused while the broker does not confirm.
    pub spool: Option<PathBuf>,
    /// Most bytes of its segments, with those that were set aside.
    pub spool_max_bytes: Size,
    /// Greatest age of its oldest record.
    pub spool_max_age: Duration,
    /// Least free space of its file system.
    pub spool_min_free: Size,
    /// How long a request waits for the broker's confirm before it is spooled.
    pub spool_after: Duration,
    /// Most records per second that are drained; 0 for no limit.
    pub spool_drain_rate: u32,
}

impl Default for SpoolSettings {
    fn default() -> Self {
        let SpoolConfig { max_bytes, max_age, min_free, .. } = SpoolConfig::default();
        Self {
            spool: None,
            spool_max_bytes: max_bytes,
            spool_max_age: max_age,
            spool_min_free: min_free,
            spool_after: Duration::from_secs(1),
            spool_drain_rate: 20_000,
        }
    }
}

/// Smallest `spool_max_bytes`.
const MIN_BYTES: Size = Size::mib(1);
/// How long a refusal of the spool makes a service not ready.
const REFUSAL_LIFE: Duration = Duration::from_secs(10);
/// Longest `spool_after`.
const MAX_WAIT: Duration = Duration::from_secs(60);

impl SpoolSettings {
    /// Checks every setting. The error is the first invalid one.
    pub fn validate(&self) -> Result<(), Invalid> {
        let shown = |time| humantime::format_duration(time).to_string();
        Invalid::unless(
            self.spool_max_bytes >= MIN_BYTES,
            "spool_max_bytes",
            self.spool_max_bytes.to_string(),
            format!("expected at least {MIN_BYTES}"),
        )?;
        Invalid::unless(
            !self.spool_max_age.is_zero(),
            "spool_max_age",
            shown(self.spool_max_age),
            "expected more than 0s, such as 7d",
        )?;
        Invalid::unless(
            !self.spool_after.is_zero() && self.spool_after <= MAX_WAIT,
            "spool_after",
            shown(self.spool_after),
            "expected more than 0s, at most 60s",
        )
    }

    /// Opens the spool, if there is one. Fails if another process uses it.
    pub async fn open(&self) -> Result<Option<Spool>, Failure> {
        let Some(directory) = &self.spool else { return Ok(None) };
        let config = SpoolConfig {
            max_bytes: self.spool_max_bytes,
            max_age: self.spool_max_age,
            min_free: self.spool_min_free,
            ..SpoolConfig::default()
        };
        let spool =
            Spool::open(directory, config).await.map_err(|error| Failure::new(Exit::Failed, error))?;
        log_content(directory, &spool.status().borrow());
        Ok(Some(spool))
    }

    /// The rate of a drain; `None` for no limit.
    pub fn drain_rate(&self) -> Option<f64> {
        Some(self.spool_drain_rate).filter(|rate| *rate > 0).map(f64::from)
    }
}

/// The content of a spool for a heartbeat.
pub(crate) fn spool_beat(spool: &Spool) -> SpoolBeat {
    let status = spool.status();
    let status = status.borrow();
    SpoolBeat {
        records: status.records(),
        bytes: status.bytes,
        oldest_at: status.oldest.map(epoch_ms),
        set_aside: status.set_aside,
        set_aside_bytes: status.set_aside_bytes,
    }
}

/// How much of a spool is set aside and how to free it, for `/readyz`; nothing if nothing is.
pub(crate) fn spool_warning(spool: &Spool) -> Option<String> {
    set_aside_warning(&spool.status().borrow())
}

/// Why the spool takes no records, for `/readyz`. A refusal counts for a while: nothing is sent to a service that is not ready,
/// so that it cannot see the end of the reason.
pub(crate) fn spool_refusal(spool: &Spool) -> Option<String> {
    let status = spool.status();
    let status = status.borrow();
    let (reason, _) = status.refusal.as_ref().filter(|(_, at)| at.elapsed() < REFUSAL_LIFE)?;
    Some(format!("the spool refuses records: {reason}"))
}

fn set_aside_warning(status: &SpoolStatus) -> Option<String> {
    let SpoolStatus { set_aside, set_aside_bytes, max_bytes, .. } = status;
    (*set_aside > 0).then(|| {
        format!(
            "the spool has {set_aside} segments set aside, {} of spool_max_bytes ({}): look with \
             `garenne-producer spool show`, and free them with `spool requeue`, or with `spool export --set-aside` and \
             removal of the files",
            Size(*set_aside_bytes),
            Size(*max_bytes)
        )
    })
}

fn log_content(directory: &Path, status: &SpoolStatus) {
    let (records, bytes, set_aside, corrupt) =
        (status.records(), status.bytes, status.set_aside, status.corrupt);
    tracing::info!(directory = %directory.display(), records, bytes, set_aside, corrupt, "spool is open");
    if let Some(warning) = set_aside_warning(status) {
        tracing::warn!(directory = %directory.display(), "{warning}");
    }
}

/// Registers the metrics of a spool.
pub fn export_metrics(metrics: &Metrics, spool: &Spool) -> prometheus::Result<()> {
    let registry = metrics.registry();
    let gauge = |name: &str, help: &str| register_int_gauge_with_registry!(name, help, registry);
    let bytes = gauge("garenne_spool_bytes", "Size of the spool's segments that wait, in bytes.")?;
    let oldest =
        gauge("garenne_spool_oldest_seconds", "Age of the oldest record in the spool; 0 if it is empty.")?;
    let limit = gauge("garenne_spool_limit_bytes", "The setting spool_max_bytes.")?;
    let set_aside = gauge("garenne_spool_set_aside_segments", "Segments of the spool that are set aside.")?;
    let help = "Size of the spool's segments that are set aside, in bytes.";
    let set_aside_bytes = gauge("garenne_spool_set_aside_bytes", help)?;
    let (name, help) =
        ("garenne_spool_corrupt_segments_total", "Segments of the spool that were found corrupt.");
    let corrupt = register_int_counter_with_registry!(name, help, registry)?;
    let help = "Records of the spool by event.";
    let records =
        register_int_counter_vec_with_registry!("garenne_spool_records_total", help, &["event"], registry)?;
    let status = spool.status();
    limit.set(i64::try_from(status.borrow().max_bytes).unwrap_or(i64::MAX));
    let counted = Mutex::new(());
    metrics.before_encode(move || {
        // Two scrapes at once must not count an event twice.
        let _counted = lock(&counted);
        let status = status.borrow();
        let age = status.age(SystemTime::now()).unwrap_or_default().as_secs();
        bytes.set(i64::try_from(status.bytes).unwrap_or(i64::MAX));
        oldest.set(i64::try_from(age).unwrap_or(i64::MAX));
        set_aside.set(i64::try_from(status.set_aside).unwrap_or(i64::MAX));
        set_aside_bytes.set(i64::try_from(status.set_aside_bytes).unwrap_or(i64::MAX));
        corrupt.inc_by(status.corrupt.saturating_sub(corrupt.get()));
        let events = [
            ("accepted", status.accepted),
            ("drained", status.drained),
            ("refused", status.refused),
            ("unreadable", status.unreadable),
            ("unpublishable", status.unpublishable),
        ];
        for (event, count) in events {
            let counter = records.with_label_values(&[event]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    });
    Ok(())
}
