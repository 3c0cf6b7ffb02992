//! A batch of readings as Postgres takes it: an array a column.

use time::OffsetDateTime;

use super::Finished;
use garenne::handler::ReadingRow;

/// A batch's readings by column, and each one's place in the batch.
#[derive(Default)]
pub(super) struct Rows<'a> {
    pub(super) device: Vec<&'a str>,
    pub(super) metric: Vec<&'a str>,
    pub(super) time: Vec<OffsetDateTime>,
    pub(super) value: Vec<f64>,
    pub(super) unit: Vec<Option<&'a str>>,
    pub(super) raw: Vec<Option<f64>>,
    pub(super) quality: Vec<String>,
    pub(super) task_id: Vec<&'a str>,
    pub(super) worker: Vec<&'a str>,
    pub(super) place: Vec<i32>,
    pub(super) partner: Vec<Option<&'a str>>,
    pub(super) made_from: Vec<Option<f64>>,
}

impl<'a> Rows<'a> {
    pub(super) fn of(batch: &'a [Finished]) -> Self {
        let mut rows = Self::default();
        for (place, finished) in batch.iter().enumerate() {
            for ReadingRow { device, metric, time, value, unit, raw, quality, partner } in
                &finished.output.rows
            {
                rows.device.push(device);
                rows.metric.push(metric);
                rows.time.push(*time);
                rows.value.push(*value);
                rows.unit.push(*unit);
                rows.raw.push(*raw);
                rows.quality.push(quality.join(","));
                rows.task_id.push(finished.envelope.id.as_str());
                rows.worker.push(&finished.worker);
                rows.place.push(i32::try_from(place).expect("a batch is small"));
                rows.partner.push(partner.as_ref().map(|(metric, _)| &**metric));
                rows.made_from.push(partner.as_ref().map(|(_, value)| *value));
            }
        }
        rows
    }
}
