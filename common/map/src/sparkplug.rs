//! Sparkplug B: births announce metrics and aliases, data messages use them, births and deaths are states.
//!
//! A data message may name a metric by the alias that the birth of its edge node or device announced. So the names of
//! births are kept for each edge node. A message can be mapped again with the same result: a death does not remove the
//! names, the next birth replaces them.

use std::sync::Arc;

use garenne_protocol::{
    quoted,
    sensor::{Timestamp, parse::check_name},
};

use crate::{
    document::Value,
    pattern::Captures,
    plan::{Field, Name, NoValues, ReadingPlan, UnitPlan},
    readings::{ElementProperties, Finished, Readings},
    rule::SparkplugAction,
    template::Scope,
    unmapped::Reason,
};

mod nodes;
mod payload;

use nodes::EdgeNode;
pub(crate) use nodes::EdgeNodes;
pub(crate) use payload::remainder;
use payload::{Metric, Payload};

/// The metric of births (1) and deaths (0).
const ONLINE: &str = "online";
/// Identifies the session of an edge node, in its birth and its death.
const BD_SEQ: &str = "bdSeq";
/// What a state became of, in place of the number of a metric.
const NO_METRIC: usize = usize::MAX;
/// The capture with the device.
const DEVICE: usize = 4;

#[derive(Clone, Copy, PartialEq)]
enum Message {
    Birth,
    Data,
    Death,
    /// To a node or a device, not from it.
    Command,
}

impl Message {
    /// The type, and whether it is one of devices, not of edge nodes.
    fn parse(text: &str) -> Option<(Self, bool)> {
        let message = match text.get(1..)? {
            "BIRTH" => Self::Birth,
            "DATA" => Self::Data,
            "DEATH" => Self::Death,
            "CMD" => Self::Command,
            _ => return None,
        };
        match text.as_bytes()[0] {
            b'N' => Some((message, false)),
            b'D' => Some((message, true)),
            _ => None,
        }
    }
}

impl EdgeNodes {
    /// The readings of a message. One that is not valid fails the message.
    pub(crate) fn run(
        &mut self,
        action: &SparkplugAction,
        captures: &Captures<'_>,
        payload: &[u8],
        mut readings: Readings<'_>,
    ) -> Result<Finished, Reason> {
        let [group, message, node, device] = [1, 2, 3, DEVICE].map(|number| captures.get(number));
        let malformed = |problem: String| Err(Reason::Malformed(problem));
        let Some((message, of_device)) = Message::parse(message) else {
            return malformed(format!("{} is not a Sparkplug message type", quoted(message)));
        };
        if of_device == device.is_empty() || device.contains('/') {
            return malformed("the source does not have the levels of a Sparkplug topic".to_owned());
        }
        if of_device {
            check_name("device", device).map_err(|error| Reason::Invalid(error.in_record(0)))?;
        }
        if message == Message::Command {
            return readings.finish(true);
        }
        let payload = Payload::parse(payload)?;
        let key = format!("{group}/{node}");
        if message == Message::Birth {
            self.announce(&key, device, &payload)?;
        }
        let known = self.get(&key);
        let run = Run { action, captures, node: &key, known };
        let now = (readings.now, true);
        let sent = payload.sent_at()?.map_or(now, |time| (time, false));
        match message {
            Message::Birth => run.online(device, 1.0, sent, &mut readings)?,
            Message::Death if of_device => run.online(device, 0.0, sent, &mut readings)?,
            // The broker publishes the will of a node that it lost. Its payload is from the time of the connect.
            Message::Death if known.is_some_and(|known| known.is_other_session(&payload)) => {
                readings.skip(BD_SEQ, "the death of an earlier session");
                return readings.finish(true);
            }
            Message::Death => {
                run.online("", 0.0, now, &mut readings)?;
                for device in known.iter().flat_map(|known| known.devices()) {
                    run.online(device, 0.0, now, &mut readings)?;
                }
            }
            Message::Data | Message::Command => {}
        }
        if message != Message::Death {
            for (number, metric) in payload.metrics.iter().enumerate() {
                let name = metric.given_name().unwrap_or("metric");
                let made = run.metric((number, metric), sent, &mut readings);
                made.or_else(|reason| readings.refuse(name, reason))?;
            }
        }
        readings.finish(action.common.allow_empty)
    }
}

struct Run<'r, 'a> {
    action: &'r SparkplugAction,
    captures: &'r Captures<'a>,
    /// Group and edge node.
    node: &'r str,
    known: Option<&'r EdgeNode>,
}

impl Run<'_, '_> {
    /// Adds the state of the node (an empty device) or of a device.
    fn online(
        &self,
        device: &str,
        state: f64,
        time: (Timestamp, bool),
        readings: &mut Readings<'_>,
    ) -> Result<(), Reason> {
        let common = &self.action.common;
        if matches!(common.fields.names.get(ONLINE), Some(Field::Ignore)) {
            readings.skip(ONLINE, "ignored");
            return Ok(());
        }
        let metric = Name::Constant(ONLINE.into());
        let none = NoValues::default();
        let plan = ReadingPlan { metric, unit: UnitPlan::None, scale: 1.0, offset: 0.0, counter: None, none };
        let captures = self.captures.with(DEVICE, device);
        self.push(&captures, ONLINE, time, &plan, state, readings)?;
        readings.take(NO_METRIC);
        Ok(())
    }

    fn metric(
        &self,
        (number, metric): (usize, &Metric),
        sent: (Timestamp, bool),
        readings: &mut Readings<'_>,
    ) -> Result<(), Reason> {
        let device = self.captures.get(DEVICE);
        let announced = metric.alias.and_then(|alias| self.known?.by_alias(device, alias));
        let name = match (metric.given_name(), announced, metric.alias) {
            (Some(name), ..) => name,
            (None, Some(announced), _) => &announced.name,
            (None, None, Some(alias)) => {
                return Err(Reason::UnknownAlias { alias, node: self.node.to_owned() });
            }
            (None, None, None) => {
                return Err(Reason::Malformed("a metric has no name and no alias".to_owned()));
            }
        };
        let common = &self.action.common;
        let field = common.fields.names.get(name);
        let plan = match field {
            Some(Field::Ignore) => {
                readings.skip(name, "ignored");
                return Ok(());
            }
            Some(Field::Plan(plan)) => plan,
            None => &self.action.plan,
        };
        let datatype = metric.datatype.or_else(|| {
            announced.map(|announced| announced.datatype).or_else(|| self.known?.datatype(device, name))
        });
        let Some(value) = metric.number(datatype) else {
            readings.skip(name, "null, not a number, or a time");
            return Ok(());
        };
        let read = match common.numbers.read(&value, field.is_some(), &plan.none) {
            Ok(Some(read)) => read,
            Ok(None) => {
                readings.skip(name, "no value");
                return Ok(());
            }
            Err(given) if field.is_some() => {
                return Err(Reason::NotANumber { metric: name.to_owned(), given });
            }
            Err(_) => {
                readings.skip(name, "a text that is not in `enum`");
                return Ok(());
            }
        };
        let time = payload::time(metric.timestamp)?.map_or(sent, |time| (time, false));
        self.push(self.captures, name, time, plan, read, readings)?;
        readings.take(number);
        Ok(())
    }

    fn push(
        &self,
        captures: &Captures<'_>,
        name: &str,
        (time, time_assumed): (Timestamp, bool),
        plan: &ReadingPlan,
        number: f64,
        readings: &mut Readings<'_>,
    ) -> Result<(), Reason> {
        if !time_assumed {
            readings.check_time(time, None)?;
        }
        let scope = Scope { captures, document: None, element: 0, key: "", name };
        let device: Arc<str> = self.action.device.text("device", &scope)?;
        let properties = ElementProperties { device, time, time_assumed, id: None };
        readings.push(&properties, plan, &self.action.common.units, &scope, number)
    }
}

impl EdgeNode {
    /// Whether the payload's session is another one than that of the last birth.
    fn is_other_session(&self, payload: &Payload) -> bool {
        matches!((self.session, payload.session()), (Some(known), Some(given)) if known != given)
    }
}

impl Payload {
    /// The number of the session, in a birth or a death of an edge node.
    fn session(&self) -> Option<u64> {
        let metric = self.metrics.iter().find(|metric| metric.given_name() == Some(BD_SEQ))?;
        match metric.number(None)? {
            Value::Integer(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
