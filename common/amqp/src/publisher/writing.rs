//! The publishes of a round on their way to the socket.
//!
//! The client library's future of a write is more than a kilobyte, and a message has one for as long as its
//! frames wait for the socket. So the futures of a round lie in places that the next round uses again, and
//! what waits for a confirm is small.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use garenne_protocol::task::encoded::header_frame_bytes;
use lapin::{BasicProperties, Channel, PublisherConfirm, options::BasicPublishOptions, types::ShortString};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::ReusableBoxFuture;

use super::{
    address::Address,
    error::PublishError,
    pending_publish::{Answer, PendingPublish},
};

/// Publishes that are written together.
pub(super) struct Round {
    pub(super) publishes: Vec<PendingPublish>,
    /// Hears when all of them are on the socket, or never will be, and gets the list back.
    pub(super) written: oneshot::Sender<Vec<PendingPublish>>,
}

/// What is kept of a publish whose frames were handed to the client library.
pub(super) struct Sent {
    pub(super) id: Option<ShortString>,
    pub(super) address: Address,
    /// The size of the body.
    pub(super) bytes: usize,
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// A publish on the socket.
pub(super) struct Written {
    pub(super) confirm: lapin::Result<PublisherConfirm>,
    pub(super) sent: Sent,
}

type Write = ReusableBoxFuture<'static, lapin::Result<PublisherConfirm>>;

/// A round that is being written; most of the time none.
pub(super) struct Writing {
    channel: Arc<Channel>,
    /// The largest header frame of the connection. The client library does not check; the broker ends the
    /// connection over a larger one.
    header_limit: usize,
    writes: Vec<Write>,
    sent: Vec<Option<Sent>>,
    /// How many of the round were handed to the client library, and how many of them are on the socket.
    /// Its frames go out in the order they came in.
    begun: usize,
    done: usize,
    /// For when the round is done.
    written: Option<(oneshot::Sender<Vec<PendingPublish>>, Vec<PendingPublish>)>,
}

impl Writing {
    pub(super) fn new(channel: Arc<Channel>, header_limit: usize) -> Self {
        Self { channel, header_limit, writes: Vec::new(), sent: Vec::new(), begun: 0, done: 0, written: None }
    }

    /// Whether another round may begin.
    pub(super) fn is_done(&self) -> bool {
        self.done == self.sent.len()
    }

    /// Takes up a round, whose frames are handed over with the next poll. What no frame holds is answered at once.
    pub(super) fn begin(&mut self, Round { mut publishes, written }: Round) {
        debug_assert!(self.is_done(), "a round is still under way");
        self.sent.clear();
        (self.begun, self.done) = (0, 0);
        for publish in publishes.drain(..) {
            if let Err(error) = fits(&publish.properties, self.header_limit) {
                let _ = publish.answer.send(Err(error));
                continue;
            }
            let (sent, write) = self.write(publish);
            match self.writes.get_mut(self.sent.len()) {
                Some(place) => place.set(write),
                None => self.writes.push(ReusableBoxFuture::new(write)),
            }
            self.sent.push(Some(sent));
        }
        if self.sent.is_empty() {
            // Nothing of it will be polled.
            let _ = written.send(publishes);
        } else {
            self.written = Some((written, publishes));
        }
    }

    fn write(
        &self,
        publish: PendingPublish,
    ) -> (Sent, impl Future<Output = lapin::Result<PublisherConfirm>> + Send + 'static) {
        let PendingPublish { address, mandatory, properties, body, permit, answer, .. } = publish;
        let (id, bytes) = (properties.message_id().clone(), body.len());
        let options = BasicPublishOptions { mandatory, immediate: false };
        let Address { exchange, routing_key: key } = address.clone();
        let channel = Arc::clone(&self.channel);
        let write = async move { channel.basic_publish(exchange, key, options, &body, properties).await };
        (Sent { id, address, bytes, permit, answer }, write)
    }

    /// The next publish that is on the socket, or never will be, with its confirm to come; nothing when the
    /// round is done.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Written>> {
        while self.begun < self.sent.len() {
            let at = self.begun;
            self.begun += 1;
            if let Poll::Ready(confirm) = self.writes[at].poll(cx) {
                return Poll::Ready(self.sent[at].take().map(|sent| Written { confirm, sent }));
            }
        }
        while self.done < self.sent.len() {
            if self.sent[self.done].is_some() {
                let confirm = ready!(self.writes[self.done].poll(cx));
                let sent = self.sent[self.done].take();
                return Poll::Ready(sent.map(|sent| Written { confirm, sent }));
            }
            self.done += 1;
        }
        if let Some((written, publishes)) = self.written.take() {
            let _ = written.send(publishes);
        }
        Poll::Ready(None)
    }
}

/// Whether the properties fit one frame.
pub(super) fn fits(properties: &BasicProperties, header_limit: usize) -> Result<(), PublishError> {
    let bytes = header_frame_bytes(properties);
    if bytes <= header_limit {
        return Ok(());
    }
    Err(PublishError::TooLarge { what: "header frame", bytes, limit: header_limit })
}
