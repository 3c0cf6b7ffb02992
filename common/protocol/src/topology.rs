//! The broker topology as data: names and declarations of exchanges, queues, streams and bindings.
//!
//! Declaring, verifying and exporting all use the same [`Topology`], so they cannot disagree.

mod celery;
mod export;
mod ladder;
mod lane;
mod names;
mod parts;
mod plan;
mod route;
mod steps;
mod version;

pub use export::{Difference, compare, definitions};
pub use ladder::{Delay, Ladder, LadderError};
pub use lane::{LaneExchange, LaneQueues, LaneSpec, MOST_SHARDS};
pub use names::Names;
pub use parts::{Arg, Exchange, ExchangeKind, Queue};
pub use plan::{DIRECTIVES_KEPT, LIFECYCLE_KEPT, Leftover, Topology};
pub use route::{Binding, Destination, Route};
pub use steps::Step;
pub use version::{BrokerVersion, VersionError};
