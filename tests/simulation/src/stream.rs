//! A stream: a log that many read, each from its own offset.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use garenne_protocol::topology::{Arg, Queue as Declared};

use crate::{
    frame::StreamOffset,
    id::{ChannelId, ConsumerId, Serial},
    message::Message,
};

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) serial: Serial,
    pub(crate) message: Arc<Message>,
    at: Duration,
}

/// A consumer of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub(crate) id: ConsumerId,
    pub(crate) channel: ChannelId,
    next: i64,
    pub(crate) credit: usize,
    pub(crate) active: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    max_age: Option<Duration>,
    records: VecDeque<Record>,
    /// The offset of the first record that is kept.
    first: i64,
    pub(crate) readers: Vec<Reader>,
}

impl Stream {
    pub(crate) fn new(declared: &Declared) -> Self {
        let max_age = match declared.arguments.get("x-max-age") {
            Some(Arg::Text(text)) => age(text),
            _ => None,
        };
        Self { max_age, records: VecDeque::new(), first: 0, readers: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Appends a record, and drops those that are too old.
    pub(crate) fn append(&mut self, serial: Serial, message: Arc<Message>, now: Duration) {
        self.records.push_back(Record { serial, message, at: now });
        self.retain(now);
    }

    fn retain(&mut self, now: Duration) {
        let Some(max_age) = self.max_age else { return };
        while self.records.front().is_some_and(|record| record.at + max_age < now) {
            self.records.pop_front();
            self.first += 1;
        }
    }

    /// Adds a reader.
    pub(crate) fn read(
        &mut self,
        id: ConsumerId,
        channel: ChannelId,
        from: StreamOffset,
        credit: usize,
        now: Duration,
    ) {
        self.retain(now);
        let next = match from {
            StreamOffset::First => self.first,
            StreamOffset::Next => self.first + self.records.len() as i64,
            StreamOffset::At(offset) => offset.max(self.first),
        };
        self.readers.push(Reader { id, channel, next, credit, active: true });
    }

    /// The next record for a reader with credit: reader, offset, record.
    pub(crate) fn next(&mut self) -> Option<(ConsumerId, ChannelId, i64, Record)> {
        let (first, end) = (self.first, self.first + self.records.len() as i64);
        let reader = self.readers.iter_mut().find(|it| it.active && it.credit > 0 && it.next < end)?;
        let offset = reader.next.max(first);
        reader.next = offset + 1;
        reader.credit -= 1;
        Some((reader.id, reader.channel, offset, self.records[(offset - first) as usize].clone()))
    }
}

/// Parses `30D`, `12h`, `5m` or `10s`.
fn age(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "D" => 86_400,
        "h" => 3_600,
        "m" => 60,
        "s" => 1,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()? * seconds))
}
