//! Writes the publishes of a round to the socket.
//!
//! lapin's future of one publish is larger than a kilobyte and lives until its frames are on the socket. So each
//! round reuses the boxed futures of the round before, and the state that waits for a confirm is small.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use garenne_protocol::task::encoded::header_frame_bytes;
use lapin::{BasicProperties, Channel, PublisherConfirm, options::BasicPublishOptions};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::ReusableBoxFuture;

use super::{
    address::{Address, Identity},
    error::PublishError,
    pending_publish::{Answer, PendingPublish},
};

/// Publishes that are written together.
pub(super) struct Round {
    pub(super) publishes: Vec<PendingPublish>,
    /// Receives the emptied list when every publish was written or has failed.
    pub(super) written: oneshot::Sender<Vec<PendingPublish>>,
}

/// The state kept of a publish whose frames were handed to lapin.
pub(super) struct Sent {
    pub(super) identity: Identity,
    /// Size of the body, in bytes.
    pub(super) bytes: usize,
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// A publish that was written, or failed to be.
pub(super) struct Written {
    pub(super) confirm: lapin::Result<PublisherConfirm>,
    pub(super) sent: Sent,
}

type Write = ReusableBoxFuture<'static, lapin::Result<PublisherConfirm>>;

/// The round that is being written, if any, and the storage that rounds reuse.
pub(super) struct Writing {
    channel: Arc<Channel>,
    /// Largest header frame, in bytes. lapin does not check it, and the broker closes the connection because of a
    /// larger one.
    header_limit: usize,
    writes: Vec<Write>,
    sent: Vec<Option<Sent>>,
    /// How many publishes of the round were handed to lapin.
    begun: usize,
    /// How many of them were written or failed. lapin writes frames in order.
    done: usize,
    /// Sent when the round is done.
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

    /// Starts a round. The next poll hands its frames to lapin. A publish with too large properties fails at once.
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
                Some(slot) => slot.set(write),
                None => self.writes.push(ReusableBoxFuture::new(write)),
            }
            self.sent.push(Some(sent));
        }
        if self.sent.is_empty() {
            // An empty round is not polled.
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
        let options = BasicPublishOptions { mandatory, immediate: false };
        let Address { exchange, routing_key: key } = address.clone();
        let identity = Identity::of(address, &properties);
        let sent = Sent { identity, bytes: body.len(), permit, answer };
        let channel = Arc::clone(&self.channel);
        let write = async move { channel.basic_publish(exchange, key, options, &body, properties).await };
        (sent, write)
    }

    /// The next publish that was written or has failed; `None` when the round is done.
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

/// Checks that the properties fit one header frame.
pub(super) fn fits(properties: &BasicProperties, header_limit: usize) -> Result<(), PublishError> {
    let bytes = header_frame_bytes(properties);
    if bytes <= header_limit {
        return Ok(());
    }
    Err(PublishError::TooLarge { what: "header frame", bytes, limit: header_limit })
}
