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
mod place;
mod plan;
mod route;
mod version;

pub(crate) use declare::reply_code;
pub use declare::{TopologyError, apply, ensure};
pub use delay::Delay;
pub use export::{Difference, compare, definitions};
pub use ladder::{Ladder, LadderError};
pub use names::Names;
pub use place::Place;
pub use plan::{
    Arg, DIRECTIVES_KEPT, Exchange, ExchangeKind, LIFECYCLE_KEPT, LaneSpec, Leftover, Queue, Topology,
};
pub use route::{Binding, Destination, Route};
pub use version::{BrokerVersion, VersionError};
