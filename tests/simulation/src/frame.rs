//! What clients send, in the order of their connection.

use crate::{
    id::{ConsumerId, RequestId},
    message::Publish,
    rules::ReturnKind,
};

/// The kinds of frames, for faults that strike before or after one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// `basic.consume`.
    Consume,
    /// `basic.cancel`.
    Cancel,
    /// `basic.get`.
    Get,
    /// `queue.declare`.
    Declare,
    /// `basic.ack`, `basic.nack` or `basic.reject`.
    Settle,
    /// `basic.publish`.
    Publish,
    /// `channel.close`.
    Close,
}

/// A frame of a channel.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    Consume { queue: String, consumer: ConsumerId, options: ConsumeOptions, request: RequestId },
    Cancel { consumer: ConsumerId, request: RequestId },
    Get { queue: String, request: RequestId },
    LookUp { queue: String, request: RequestId },
    DeclareExclusive { queue: String, bindings: Vec<(String, String)>, request: RequestId },
    Settle { tag: u64, multiple: bool, how: Settle },
    Publish { publish: Box<Publish>, sequence: u64 },
    Close { request: RequestId },
}

impl Frame {
    pub(crate) fn kind(&self) -> FrameKind {
        match self {
            Self::Consume { .. } => FrameKind::Consume,
            Self::Cancel { .. } => FrameKind::Cancel,
            Self::Get { .. } => FrameKind::Get,
            Self::LookUp { .. } | Self::DeclareExclusive { .. } => FrameKind::Declare,
            Self::Settle { .. } => FrameKind::Settle,
            Self::Publish { .. } => FrameKind::Publish,
            Self::Close { .. } => FrameKind::Close,
        }
    }
}

/// How a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settle {
    Ack,
    Requeue(ReturnKind),
    /// `basic.nack` or `basic.reject` without `requeue`.
    Discard,
}

/// The options of `basic.consume`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumeOptions {
    /// Deliveries need no ack.
    pub no_ack: bool,
    /// Where a stream is read from.
    pub offset: StreamOffset,
}

/// `x-stream-offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamOffset {
    /// Records that are published from now on.
    #[default]
    Next,
    /// All records.
    First,
    /// Records from this offset.
    At(i64),
}
