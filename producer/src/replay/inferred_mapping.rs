//! The mapping of a detected layout.

use std::collections::BTreeMap;

use jiff::tz::Offset;

use super::{
    civil_time::{DateOrder, depends_on_order},
    layout::{Device, Layout, Metric, Notation, Shape},
    mapping::{Column, Mapping},
    number::Sign,
};

impl Layout {
    /// The layout as a mapping that gives it again.
    pub(super) fn mapping(&self) -> Mapping {
        let values = self.shape.value_columns();
        let with_sign = |sign: Sign| {
            let has_sign = |index: &usize| self.numbers[*index].sign == Some(sign);
            self.headings_of(&values.iter().copied().filter(has_sign).collect::<Vec<_>>())
        };
        let (device, device_column) = match &self.device {
            _ if !self.shape.uses_device_of_row() => (None, None),
            Device::Fixed(name) => (Some(name.to_string()), None),
            Device::Column(index) => (None, Some(self.headings[*index].clone())),
        };
        let (utc_offset, zone) = match self.zone.to_fixed_offset() {
            Ok(Offset::UTC) => (Some("Z".to_owned()), None),
            Ok(offset) => (Some(offset.to_string()), None),
            Err(_) => (None, self.zone.iana_name().map(str::to_owned)),
        };
        Mapping {
            // It is that of the recording, also of one without a layout.
            encoding: None,
            delimiter: Some(self.delimiter),
            decimal_comma: None,
            point_columns: with_sign(Sign::Point),
            comma_columns: with_sign(Sign::Comma),
            missing: Some(self.missing.shown()),
            time_format: self.format.as_ref().map(ToString::to_string),
            // The columns with the parts of a time are found by their headings.
            time: match self.time.notation {
                Notation::Parts => Vec::new(),
                Notation::Text | Notation::Epoch => self.headings_of(&self.time.indexes),
            },
            time_fraction: Some(match self.time.fraction {
                Some(fraction) => self.headings[fraction.index].clone(),
                None => "none".to_owned(),
            }),
            date_order: self.date_order(),
            utc_offset,
            zone,
            device,
            device_column,
            // The columns have their devices.
            device_separator: None,
            columns: self.columns(),
        }
    }

    /// The order of dates such as 01/02/2020, if the times have such dates.
    pub(super) fn date_order(&self) -> Option<DateOrder> {
        let mut cells = self.time.indexes.iter().filter_map(|&index| self.first_row.get(index));
        let is_text = self.time.notation == Notation::Text && self.format.is_none();
        (is_text && cells.any(|cell| depends_on_order(cell))).then_some(self.time.order)
    }

    /// The headings of these columns.
    pub(super) fn headings_of(&self, indexes: &[usize]) -> Vec<String> {
        indexes.iter().map(|&index| self.headings[index].clone()).collect()
    }

    fn columns(&self) -> BTreeMap<String, Column> {
        let Shape::Wide(metrics) = &self.shape else { return BTreeMap::new() };
        let column = |metric: &Metric| {
            let column = Column {
                device: metric.device.as_deref().map(str::to_owned),
                metric: Some(metric.name.to_string()),
                unit: metric.unit.map(|unit| unit.symbol().to_owned()),
                scale: Some(metric.scale).filter(|scale| *scale != 1.0),
                offset: Some(metric.offset).filter(|offset| *offset != 0.0),
            };
            (self.headings[metric.index].clone(), column)
        };
        metrics.iter().map(column).collect()
    }
}
