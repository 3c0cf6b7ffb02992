//! The queues whose messages wait for an operator.

use garenne_amqp::take_unreadable;
use garenne_protocol::topology::Names;
use lapin::message::Delivery;

use super::dead_letter::DeadLetter;

/// A queue whose messages wait for an operator: they are listed, replayed or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldQueue {
    /// Dead letters.
    Dead,
    /// Messages of the tasks exchange that no lane's bindings matched.
    Unroutable,
}

impl HeldQueue {
    /// Its name on the broker.
    pub fn name(self, names: &Names) -> String {
        match self {
            Self::Dead => names.dead(),
            Self::Unroutable => names.unroutable(),
        }
    }

    /// The name of its messages, in the plural.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Dead => "dead letters",
            Self::Unroutable => "unroutable messages",
        }
    }

    /// Reads a message. Missing and malformed fields are left out, because any message can be in the queue.
    pub fn read(self, delivery: &Delivery) -> DeadLetter {
        let mut properties = delivery.properties.clone();
        let unreadable = take_unreadable(&mut properties);
        let (key, bytes) = (delivery.routing_key.as_str(), delivery.data.len());
        let letter = match self {
            Self::Dead => DeadLetter::of(key, &properties, bytes),
            Self::Unroutable => DeadLetter::unroutable(key, &properties, bytes),
        };
        let problem = unreadable.map(|problem| format!("the message cannot be read: {problem}"));
        DeadLetter { error: letter.error.or(problem), ..letter }
    }
}
