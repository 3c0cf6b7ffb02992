//! A RabbitMQ broker as a state machine, for simulating histories of the engine.
//!
//! [`SimBroker`] has the semantics that the engine depends on: quorum queues with their delivery limits as 3.10, 4.0 and
//! 4.3 count them, delay queues, dead-lettering, streams, exclusive queues, exchanges with bindings, delivery tags, the
//! channel's stash of settlements, confirms, returns, alarms, and every way in which a channel or a connection ends. It
//! performs no I/O and has no clock: the caller passes the time, and equal seeds and operations give equal histories.
//!
//! A ledger inside follows every message and reports a [`Violation`] with the message's whole history as soon as a client
//! acks too early, copies twice, or loses something.
//!
//! What is simulated are decisions. What only a real broker can show (processes, signals, TLS, its own behaviour) is
//! tested by scenarios.

mod broker;
mod channel;
mod client;
mod closing;
mod connection;
mod consuming;
mod dead_lettering;
mod event;
mod exchange;
mod faults;
mod frame;
mod history;
mod id;
mod inspect;
mod known;
mod ledger;
mod message;
mod mishap;
mod net;
mod plan;
mod publishing;
mod queue;
mod random;
mod rules;
mod run;
mod schedule;
mod settling;
mod stream;
mod trace;
mod watch;
mod work;

#[cfg(test)]
mod tests;

pub use self::{
    broker::{SimBroker, Timings},
    connection::{ArmedFault, ConnectError, Counts, Fate, Moment, Role, Target},
    event::{Answer, CloseReason, Event},
    frame::{ConsumeOptions, FrameKind, StreamOffset},
    history::{Action, History, Scale, Step, StopMode, shrink},
    id::{ChannelId, ConnectionId, ConsumerId, OwnerId, QueueId, RequestId, Serial},
    inspect::Violation,
    ledger::{Fork, Rule},
    message::{Delivery, Message, Publish},
    mishap::Mishap,
    random::Random,
    rules::ReturnKind,
    run::{Prepared, Report, run},
};
