//! A fault proxy that reads the broker's AMQP frames: it drops one consumer's deliveries, pauses a connection at a
//! method, or cuts all connections at a method.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Result;
use bytes::BytesMut;
pub use garenne_amqp_kit::frame::Method;
use garenne_amqp_kit::frame::{Frame, split_short};

use super::{
    fault_proxy::{FaultProxy, FilterAction, ServerFilter},
    wait::{Seen, eventually},
};

mod dropped;

use self::dropped::DroppedContents;

/// How the frames of the broker are treated.
#[derive(Debug, Default)]
enum Rule {
    #[default]
    Forward,
    /// Deliveries to the consumer with this tag are dropped until a consumer with the tag is started again, as if the
    /// broker had forgotten it. All other frames, including heartbeats, pass.
    Forget(String),
    /// All connections are cut when this method arrives after it has arrived `before` times.
    Cut { at: Method, before: usize },
    /// This method is dropped.
    Withhold(Method),
    /// The connection on which this method comes next is paused.
    Pause { at: Method, pause: Duration },
}

#[derive(Debug, Default)]
struct State {
    rule: Rule,
    dropped: usize,
}

/// A proxy in front of one broker. It resets its connections when dropped.
#[derive(Debug)]
pub struct FrameProxy {
    proxy: FaultProxy,
    url: String,
    state: Arc<Mutex<State>>,
}

impl FrameProxy {
    /// Starts a proxy in front of the broker of a URL.
    pub async fn for_url(url: &str) -> Result<Self> {
        let state: Arc<Mutex<State>> = Arc::default();
        let filters = Arc::clone(&state);
        let new_filter = move || FrameFilter { state: Arc::clone(&filters), ..FrameFilter::default() };
        let (proxy, url) = FaultProxy::with_filter(url, new_filter).await?;
        Ok(Self { proxy, url, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The broker's URL through this proxy.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Drops the deliveries to the consumer with this tag until it is started again.
    pub fn forget(&self, consumer_tag: &str) {
        self.state().rule = Rule::Forget(consumer_tag.to_owned());
    }

    /// The number of deliveries that were dropped.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.state().dropped
    }

    /// Resets all connections instead of forwarding this method of the broker for the `nth` time (from 1), and every
    /// new one until [`heal`](Self::heal).
    pub fn cut_at(&self, method: Method, nth: usize) {
        self.state().rule = Rule::Cut { at: method, before: nth.saturating_sub(1) };
    }

    /// Drops this method of the broker until [`heal`](Self::heal).
    pub fn withhold(&self, method: Method) {
        self.state().rule = Rule::Withhold(method);
    }

    /// Resets all connections, and every new one until [`heal`](Self::heal).
    pub fn cut(&self) {
        self.proxy.cut();
    }

    /// Forwards nothing of the broker for `pause` on the connection on which this method comes next.
    pub fn pause_at(&self, method: Method, pause: Duration) {
        self.state().rule = Rule::Pause { at: method, pause };
    }

    /// The number of pauses that are over.
    #[must_use]
    pub fn pauses(&self) -> usize {
        self.proxy.pauses()
    }

    /// Waits until the connections were cut and this number of new ones refused.
    pub async fn until_refused(&self, times: usize) -> Result<()> {
        eventually(format!("{times} refused connections"), async || {
            let (cut, refused) = (self.proxy.is_cut(), self.proxy.refused());
            Ok(Seen::when(cut && refused >= times, format_args!("cut: {cut}, refused: {refused}")))
        })
        .await
    }

    /// Forwards everything again.
    pub fn heal(&self) {
        self.state().rule = Rule::Forward;
        self.proxy.heal();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frames of one connection.
#[derive(Default)]
struct FrameFilter {
    state: Arc<Mutex<State>>,
    /// Received bytes that are not a complete frame yet.
    incomplete: BytesMut,
    dropped_contents: DroppedContents,
}

impl ServerFilter for FrameFilter {
    fn filter(&mut self, received: &[u8]) -> Vec<FilterAction> {
        self.incomplete.extend_from_slice(received);
        let (mut actions, mut forward) = (Vec::new(), Vec::new());
        while let Some(frame) = Frame::take(&mut self.incomplete) {
            match verdict(&frame, &mut self.dropped_contents, &mut lock(&self.state)) {
                Verdict::Forward => forward.extend_from_slice(frame.whole()),
                Verdict::Drop => {}
                Verdict::Pause(pause) => {
                    actions.push(FilterAction::Forward(std::mem::take(&mut forward)));
                    actions.push(FilterAction::Pause(pause));
                    forward.extend_from_slice(frame.whole());
                }
                Verdict::Cut => {
                    actions.push(FilterAction::Cut);
                    return actions;
                }
            }
        }
        actions.push(FilterAction::Forward(forward));
        actions
    }
}

enum Verdict {
    Forward,
    Pause(Duration),
    Drop,
    Cut,
}

/// The consumer tag of a delivery or a started consumer.
fn consumer(frame: &Frame) -> Option<String> {
    frame.method().filter(|method| [Method::BASIC_DELIVER, Method::BASIC_CONSUME_OK].contains(method))?;
    Some(split_short(frame.arguments()).0)
}

fn verdict(frame: &Frame, dropped_contents: &mut DroppedContents, state: &mut State) -> Verdict {
    if dropped_contents.takes(frame) {
        return Verdict::Drop;
    }
    match &mut state.rule {
        Rule::Forget(tag) if consumer(frame).as_ref() == Some(tag) => {
            if frame.method() == Some(Method::BASIC_CONSUME_OK) {
                state.rule = Rule::Forward;
                return Verdict::Forward;
            }
            state.dropped += 1;
            dropped_contents.content_of(frame);
            Verdict::Drop
        }
        Rule::Cut { at, before } if frame.method() == Some(*at) => {
            if *before == 0 {
                return Verdict::Cut;
            }
            *before -= 1;
            Verdict::Forward
        }
        Rule::Withhold(method) if frame.method() == Some(*method) => Verdict::Drop,
        Rule::Pause { at, pause } if frame.method() == Some(*at) => {
            let pause = *pause;
            state.rule = Rule::Forward;
            Verdict::Pause(pause)
        }
        _ => Verdict::Forward,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_and_a_started_consumer_name_their_consumer() {
        let consumer_of = |method: Method| {
            let bytes = method.frame(3, b"\x03tag........");
            consumer(&Frame::take(&mut BytesMut::from(&bytes[..])).unwrap())
        };
        assert_eq!(consumer_of(Method::BASIC_DELIVER).as_deref(), Some("tag"));
        assert_eq!(consumer_of(Method::BASIC_CONSUME_OK).as_deref(), Some("tag"));
        assert_eq!(consumer_of(Method::BASIC_ACK), None);
    }
}
