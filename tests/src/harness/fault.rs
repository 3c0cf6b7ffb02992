//! Network faults: the proxy that `garenne drill --cuts` uses.

pub use garenne_chaos::FaultProxy;
