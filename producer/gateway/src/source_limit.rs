//! The sources that connections come from: what each has open, and what memory it holds.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use garenne_common::lock::lock;

/// Counts connections by source: an IPv4 address, or the /64 network of an IPv6 address, the size that one subscriber
/// usually gets.
#[derive(Clone, Debug)]
pub(super) struct SourceLimit {
    /// 0 for no limit.
    limit: usize,
    sources: Sources,
}

type Sources = Arc<Mutex<HashMap<IpAddr, Weak<Source>>>>;

/// A source with connections or with memory that its connections have reserved.
#[derive(Debug)]
pub(super) struct Source {
    address: IpAddr,
    connections: AtomicUsize,
    /// Bytes of the memory budget that it holds.
    pub(super) reserved: AtomicUsize,
    sources: Sources,
}

/// Counts one connection until it is dropped.
#[derive(Debug)]
pub(super) struct SourcePermit(Option<Arc<Source>>);

impl SourceLimit {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, sources: Arc::default() }
    }

    /// Counts a connection of this address; `None` if its source has `limit` already.
    pub(super) fn admit(&self, address: IpAddr) -> Option<SourcePermit> {
        if self.limit == 0 {
            return Some(SourcePermit::uncounted());
        }
        let source = self.source(source(address));
        let below_limit = |count: usize| (count < self.limit).then_some(count + 1);
        source.connections.fetch_update(Ordering::AcqRel, Ordering::Relaxed, below_limit).ok()?;
        Some(SourcePermit(Some(source)))
    }

    /// The returned source is dropped after the lock, which its end needs.
    fn source(&self, address: IpAddr) -> Arc<Source> {
        let mut sources = lock(&self.sources);
        let known = sources.get(&address).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let (connections, reserved) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let new = Arc::new(Source { address, connections, reserved, sources: Arc::clone(&self.sources) });
            sources.insert(address, Arc::downgrade(&new));
            new
        })
    }
}

impl SourcePermit {
    /// Of a connection that is not counted.
    pub(super) fn uncounted() -> Self {
        Self(None)
    }

    /// The source, unless connections are not counted by source.
    pub(super) fn source(&self) -> Option<Arc<Source>> {
        self.0.clone()
    }
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        if let Some(source) = &self.0 {
            source.connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut sources = lock(&self.sources);
        // It may have come back as a new one.
        if sources.get(&self.address).is_some_and(|known| known.strong_count() == 0) {
            sources.remove(&self.address);
        }
    }
}

/// The source of an address.
pub(super) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_has_its_own_limit_and_closed_connections_are_not_counted() {
        let limits = SourceLimit::new(2);
        let admit = |address: &str| limits.admit(address.parse().unwrap());
        let first = admit("10.0.0.1").unwrap();
        let mapped = admit("::ffff:10.0.0.1").unwrap();
        assert!(admit("10.0.0.1").is_none());
        let _other = admit("10.0.0.2").unwrap();
        let _network = [admit("2001:db8::1").unwrap(), admit("2001:db8:0:0:ffff::2").unwrap()];
        assert!(admit("2001:db8::3").is_none());
        assert!(admit("2001:db8:0:1::1").is_some());
        drop(first);
        let reserving = admit("10.0.0.1").unwrap().source().unwrap();
        assert!(admit("10.0.0.1").is_some(), "memory is no connection");
        let names = || lock(&limits.sources).len();
        assert_eq!((names(), reserving.connections.load(Ordering::Relaxed)), (3, 1));
        drop(mapped);
        assert!(
            Arc::ptr_eq(&reserving, &admit("10.0.0.1").unwrap().source().unwrap()),
            "it still has memory"
        );
        drop(reserving);
        assert_eq!(names(), 2, "a source without connections and memory is forgotten");
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let limits = SourceLimit::new(0);
        let permits: Vec<_> = (0..100).filter_map(|_| limits.admit(IpAddr::from([10, 0, 0, 1]))).collect();
        assert_eq!((permits.len(), lock(&limits.sources).len()), (100, 0));
    }
}
