//! Exchanges, queues and streams: their names, what they are declared with, and whether the broker
//! has them.
//!
//! One description, [`Topology`], is what declaring, verifying and exporting all read, so they
//! cannot disagree.

mod declare;
mod delay;
mod export;
mod ladder;
mod names;
mod plan;
mod version;

pub(crate) use declare::reply_code;
pub use declare::{TopologyError, apply, ensure};
pub use delay::Delay;
pub use export::{Difference, compare, definitions};
pub use ladder::{Ladder, LadderError};
pub use names::Names;
pub use plan::{Arg, Binding, Exchange, ExchangeKind, LaneSpec, Queue, Topology};
pub use version::{BrokerVersion, VersionError};
