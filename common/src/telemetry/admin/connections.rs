//! The open connections of a port. A new connection always gets a place: the one that has had no request for the longest
//! time closes for it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio_util::sync::CancellationToken;

use crate::lock::lock;

/// Most open connections.
const MAX_OPEN: usize = 256;
/// Most open connections of one address, which may be a proxy's.
const MAX_OF_ADDRESS: usize = 128;

/// The open connections.
#[derive(Default)]
pub(super) struct Connections(Mutex<Table>);

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, Open>,
    /// Orders connections by when they opened or ended their last request.
    next: u64,
}

struct Open {
    address: IpAddr,
    /// Since when it has no request; [`None`] while it has one.
    idle_since: Option<u64>,
    closing: CancellationToken,
}

/// A connection's place. Dropping it frees the place.
pub(super) struct Connection {
    connections: Arc<Connections>,
    id: u64,
    /// Cancelled when another connection needs the place.
    pub(super) closing: CancellationToken,
}

/// A request on a connection, which does not close for another one while this exists.
pub(super) struct Busy(Arc<Connection>);

impl Connections {
    /// A place for a new connection; [`None`] if every other connection has a request.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Connection> {
        let address = network(address);
        let mut table = self.table();
        let of_address = table.open.values().filter(|open| open.address == address).count();
        let crowded = of_address >= MAX_OF_ADDRESS;
        if crowded || table.open.len() >= MAX_OPEN {
            let idle = table.open.iter().filter(|(_, open)| !crowded || open.address == address);
            let oldest = idle.filter_map(|(id, open)| Some((open.idle_since?, *id))).min()?.1;
            table.open.remove(&oldest)?.closing.cancel();
        }
        let (id, closing) = (table.tick(), CancellationToken::new());
        table.open.insert(id, Open { address, idle_since: Some(id), closing: closing.clone() });
        Some(Connection { connections: Arc::clone(self), id, closing })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.0)
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Connection {
    /// Begins a request.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        if let Some(open) = self.connections.table().open.get_mut(&self.id) {
            open.idle_since = None;
        }
        Busy(Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut table = self.0.connections.table();
        let now = table.tick();
        if let Some(open) = table.open.get_mut(&self.0.id) {
            open.idle_since = Some(now);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.table().open.remove(&self.id);
    }
}

/// The address, or for IPv6 the /64 that one client usually has for itself.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    #[test]
    fn the_connection_that_is_idle_for_the_longest_time_closes_for_a_new_one() {
        let connections = Arc::new(Connections::default());
        let mut open: Vec<_> =
            (0..MAX_OF_ADDRESS).map(|_| Arc::new(connections.admit(address(1)).unwrap())).collect();
        // The first one has a request, the second one had one just now.
        let busy = open[0].busy();
        drop(open[1].busy());
        open.push(Arc::new(connections.admit(address(1)).unwrap()));
        let closing = |open: &[Arc<Connection>]| -> Vec<usize> {
            (0..open.len()).filter(|n| open[*n].closing.is_cancelled()).collect()
        };
        assert_eq!(closing(&open), [2]);
        // Another address has places of its own, and closes the oldest of all only if there is none.
        let others = MAX_OPEN - MAX_OF_ADDRESS;
        open.extend((0..others).map(|_| Arc::new(connections.admit(address(2)).unwrap())));
        assert_eq!(closing(&open), [2]);
        open.push(Arc::new(connections.admit(address(3)).unwrap()));
        assert_eq!(closing(&open), [2, 3]);
        drop(busy);
        drop(open);
        assert!(connections.table().open.is_empty());
    }

    #[test]
    fn where_every_connection_has_a_request_a_new_one_is_refused() {
        let connections = Arc::new(Connections::default());
        let open: Vec<_> =
            (0..MAX_OF_ADDRESS).map(|_| Arc::new(connections.admit(address(1)).unwrap())).collect();
        let busy: Vec<_> = open.iter().map(Connection::busy).collect();
        assert!(connections.admit(address(1)).is_none());
        assert!(connections.admit(address(2)).is_some());
        drop(busy);
        assert!(connections.admit(address(1)).is_some());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(
            (of("2001:db8::1:2:3:4"), of("::ffff:10.0.0.1")),
            ("2001:db8::".into(), "10.0.0.1".into())
        );
    }
}
