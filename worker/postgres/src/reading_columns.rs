//! The readings of a batch as one array per column, the parameters of `unnest`.

use time::OffsetDateTime;

use garenne::{handler::ReadingRow, sink::Finished};

/// The readings of a batch by column.
#[derive(Default)]
pub(super) struct ReadingColumns<'a> {
    pub(super) device: Vec<&'a str>,
    pub(super) metric: Vec<&'a str>,
    pub(super) time: Vec<OffsetDateTime>,
    pub(super) value: Vec<f64>,
    pub(super) unit: Vec<Option<&'a str>>,
    pub(super) raw: Vec<Option<f64>>,
    pub(super) quality: Vec<String>,
    pub(super) task_id: Vec<&'a str>,
    pub(super) worker: Vec<&'a str>,
    /// The index in the batch of the result that the reading belongs to.
    pub(super) result_index: Vec<i32>,
    /// For a value derived with a reading of another task: the metric of that reading.
    pub(super) partner: Vec<Option<&'a str>>,
    /// The value of that reading.
    pub(super) partner_value: Vec<Option<f64>>,
}

impl<'a> ReadingColumns<'a> {
    pub(super) fn from_batch(batch: &'a [Finished]) -> Self {
        let mut columns = Self::default();
        for (index, finished) in batch.iter().enumerate() {
            for ReadingRow { device, metric, time, value, unit, raw, quality, partner } in
                &finished.output.rows
            {
                columns.device.push(device);
                columns.metric.push(metric);
                columns.time.push(*time);
                columns.value.push(*value);
                columns.unit.push(*unit);
                columns.raw.push(*raw);
                columns.quality.push(quality.join(","));
                columns.task_id.push(finished.envelope.id.as_str());
                columns.worker.push(&finished.worker);
                columns.result_index.push(i32::try_from(index).expect("a batch has less than 2^31 results"));
                columns.partner.push(partner.as_ref().map(|(metric, _)| &**metric));
                columns.partner_value.push(partner.as_ref().map(|(_, value)| *value));
            }
        }
        columns
    }
}
