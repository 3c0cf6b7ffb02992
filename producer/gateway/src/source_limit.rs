//! Limits the connections of one source address.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use scopeguard::guard;

/// Counts connections by source: an IPv4 address, or the /64 network of an IPv6 address, the size that one subscriber
/// usually gets.
#[derive(Clone, Debug)]
pub(super) struct SourceLimit {
    /// 0 for no limit.
    limit: usize,
    connections: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Counts one connection until it is dropped. Boxed to keep `Connection` small, which is moved by value.
pub(super) type SourcePermit = Box<dyn Send + Sync>;

impl SourceLimit {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, connections: Arc::default() }
    }

    /// Counts a connection of this address; `None` if its source has `limit` already.
    pub(super) fn admit(&self, address: IpAddr) -> Option<SourcePermit> {
        if self.limit == 0 {
            return Some(Self::uncounted());
        }
        let source = source(address);
        let mut connections = self.connections();
        let count = connections.entry(source).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(Box::new(guard(self.clone(), move |limit| limit.release(source))))
    }

    /// Of a connection that is not counted.
    pub(super) fn uncounted() -> SourcePermit {
        Box::new(())
    }

    fn release(&self, source: IpAddr) {
        if let Entry::Occupied(mut count) = self.connections().entry(source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
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
        let _mapped = admit("::ffff:10.0.0.1").unwrap();
        assert!(admit("10.0.0.1").is_none());
        let _other = admit("10.0.0.2").unwrap();
        let _network = [admit("2001:db8::1").unwrap(), admit("2001:db8:0:0:ffff::2").unwrap()];
        assert!(admit("2001:db8::3").is_none());
        assert!(admit("2001:db8:0:1::1").is_some());
        drop(first);
        assert!(admit("10.0.0.1").is_some());
        let counted: usize = limits.connections().values().sum();
        assert_eq!(counted, 4, "closed connections are not counted");
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let limits = SourceLimit::new(0);
        let permits: Vec<_> = (0..100).filter_map(|_| limits.admit(IpAddr::from([10, 0, 0, 1]))).collect();
        assert_eq!((permits.len(), limits.connections().len()), (100, 0));
    }
}
