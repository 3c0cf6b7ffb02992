//! A message that waits to be written, and the answer that its sender waits for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use lapin::BasicProperties;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{address::Address, error::PublishError};
use crate::wire::Message;

/// The broker's answer to a publish: stored by a queue, or the reason why that is not known.
pub(super) type Answer = Result<(), PublishError>;

/// A message that waits to be written.
pub(super) struct PendingPublish {
    pub(super) address: Address,
    pub(super) mandatory: bool,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
    pub(super) permit: OwnedSemaphorePermit,
    claim: Claim,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// First claim wins: a writer claims a message to write it, its sender claims it to give up waiting.
#[derive(Clone, Default)]
pub(super) struct Claim(Arc<AtomicBool>);

impl Claim {
    /// True for the first claim only.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PendingPublish {
    /// Fails with [`PublishError::TooLarge`] if the exchange or the routing key is too long.
    pub(super) fn new(
        message: Message,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Self, Claim, oneshot::Receiver<Answer>), PublishError> {
        let Message { target, properties, body } = message;
        let mandatory = target.mandatory;
        let address = Address::of(target)?;
        let (answer, answered) = oneshot::channel();
        let claim = Claim::default();
        let publish = Self { address, mandatory, properties, body, permit, claim: claim.clone(), answer };
        Ok((publish, claim, answered))
    }

    /// Claims the message for a writer; false if its sender has given up.
    pub(super) fn claim(&self) -> bool {
        !self.answer.is_closed() && self.claim.take()
    }
}
