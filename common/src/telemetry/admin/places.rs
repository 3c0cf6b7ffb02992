//! Places for requests, so that no client and no kind of client takes all of them.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{connections::network, problem::Problem};
use crate::lock::lock;

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Visitor {
    /// The client's address.
    pub address: IpAddr,
    /// Whether the client is logged in or has a token. Its places are kept from all others.
    pub known: bool,
}

/// The requests that share places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Scrapers and autoscalers, which have no login.
    Machine,
    /// Clients that are logged in.
    Known,
    Other,
}

impl Kind {
    /// Most requests at once: of all clients, and of one address.
    fn most(self) -> (usize, usize) {
        match self {
            Self::Machine => (32, 8),
            Self::Known => (64, 64),
            Self::Other => (64, 32),
        }
    }
}

/// The places of a port.
#[derive(Default)]
pub(super) struct Places(Mutex<BTreeMap<(Kind, IpAddr), usize>>);

/// The place of a request. Dropping it frees the place.
pub(super) struct Place {
    places: Arc<Places>,
    of: (Kind, IpAddr),
}

/// Whether a path is a probe: it needs no place, because its answer is a constant or a few lines, and its body is not read.
pub(super) fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

impl Places {
    /// A place for a request of this path. Refused if all places of such requests are taken, or all of this address.
    pub(super) fn take(self: &Arc<Self>, path: &str, visitor: Visitor) -> Result<Place, Refusal> {
        let kind = match path {
            "/metrics" => Kind::Machine,
            _ if path.starts_with("/scale/") => Kind::Machine,
            _ if visitor.known => Kind::Known,
            _ => Kind::Other,
        };
        let of = (kind, network(visitor.address));
        let (most, most_of_address) = kind.most();
        let mut taken = lock(&self.0);
        let own = taken.get(&of).copied().unwrap_or(0);
        if own >= most_of_address {
            let detail =
                format!("{own} requests of your address are in progress, {most_of_address} are allowed");
            return Err(Refusal(StatusCode::TOO_MANY_REQUESTS, detail));
        }
        let all: usize = taken.iter().filter(|((one, _), _)| *one == kind).map(|(_, count)| count).sum();
        if all >= most {
            let detail = format!("{all} requests are in progress, {most} are allowed");
            return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, detail));
        }
        *taken.entry(of).or_default() += 1;
        Ok(Place { places: Arc::clone(self), of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.0);
        if let Some(count) = taken.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

/// Why a request is not answered. The response closes the connection, so that a body need not be read.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, detail) = self;
        let mut response = Problem::new(status, detail).into_response();
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn visitor(n: u8, known: bool) -> Visitor {
        Visitor { address: Ipv4Addr::new(10, 0, 0, n).into(), known }
    }

    #[test]
    fn clients_without_a_login_take_no_place_of_the_others() {
        let places = Arc::new(Places::default());
        let take = |path: &str, visitor| places.take(path, visitor).map_err(|refusal| refusal.0.as_u16());
        let mut taken: Vec<_> = (0..32).map(|_| take("/api/events", visitor(1, false)).unwrap()).collect();
        assert_eq!(take("/api/now", visitor(1, false)).err(), Some(429));
        taken.extend((0..32).map(|_| take("/api/events", visitor(2, false)).unwrap()));
        assert_eq!(take("/api/now", visitor(3, false)).err(), Some(503));
        // Scrapers and people who are logged in, at the same address too.
        taken.extend((0..8).map(|_| take("/metrics", visitor(1, false)).unwrap()));
        assert_eq!(take("/scale/fast", visitor(1, false)).err(), Some(429));
        taken.extend((0..64).map(|_| take("/api/events", visitor(1, true)).unwrap()));
        assert_eq!(take("/api/now", visitor(2, true)).err(), Some(503));
        drop(taken);
        assert!(lock(&places.0).is_empty());
    }
}
