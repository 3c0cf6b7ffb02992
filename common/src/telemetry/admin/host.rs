//! Refuses requests that a page of another site can make a browser send.
//!
//! DNS rebinding: a page of `evil.example` changes its name's address to one of this network, and then reads what the
//! server answers to `http://evil.example:9464/`. The browser still sends the page's name as `Host`, so the server
//! answers only to names of its own. A request that another site's page sends without reading the answer has a foreign
//! `Origin`.

use std::{net::IpAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};

use super::problem::Problem;
use crate::config::{AllowedHosts, full_host_name};

/// Answers with 421 to a request whose `Host` is not an IP address, `localhost`, this host's name or one of `allowed`,
/// and with 403 to one whose `Origin` is neither its `Host` nor one of `allowed`. A request without these headers is not
/// a browser's.
pub fn own_hosts_only(router: Router, allowed: AllowedHosts) -> Router {
    let names = Arc::new(Names { own: full_host_name().to_ascii_lowercase(), allowed });
    router.layer(middleware::from_fn_with_state(names, check))
}

struct Names {
    own: String,
    allowed: AllowedHosts,
}

async fn check(State(names): State<Arc<Names>>, request: Request, next: Next) -> Response {
    match names.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl Names {
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let hosts: Vec<Option<Authority>> =
            headers.get_all(header::HOST).iter().map(|value| value.to_str().ok()?.parse().ok()).collect();
        let target = uri.authority();
        let misdirected = |host: &str| {
            let advice =
                "add the name to the setting allowed_hosts (GARENNE_ALLOWED_HOSTS) if it is this server's";
            Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                format!("this server is not {host:?} (header Host): {advice}"),
            )
        };
        for host in hosts.iter().map(Option::as_ref).chain(target.map(Some)) {
            match host {
                Some(host) if self.is_own(host.host()) => {}
                host => return Err(misdirected(host.map_or("", Authority::host))),
            }
        }
        for origin in headers.get_all(header::ORIGIN) {
            let own = hosts.first().and_then(Option::as_ref).or(target);
            if !origin.to_str().is_ok_and(|origin| self.is_own_origin(origin, own)) {
                let detail = "a page of another origin sent this request (header Origin)";
                return Err(Problem::new(StatusCode::FORBIDDEN, detail));
            }
        }
        Ok(())
    }

    fn is_own(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        bare.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || (!self.own.is_empty() && name == self.own)
            || self.allowed.has(&name)
    }

    /// Whether an origin is the host of the request, with its port, or an allowed name. Its scheme is not compared: TLS
    /// may end at a proxy.
    fn is_own_origin(&self, origin: &str, host: Option<&Authority>) -> bool {
        let Some((_, rest)) = origin.split_once("://") else { return false };
        let Ok(origin) = rest.parse::<Authority>() else { return false };
        host.is_some_and(|host| host.as_str().eq_ignore_ascii_case(origin.as_str()))
            || self.allowed.has(&origin.host().to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(headers: &[(&str, &str)]) -> u16 {
        let allowed = "garenne.example.org,*.apps.example.org".parse().unwrap();
        let names = Names { own: "console-7d9f".to_owned(), allowed };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect();
        let problem = names.check(&Uri::from_static("/metrics"), &headers);
        problem.err().map_or(200, |problem| problem.into_response().status().as_u16())
    }

    #[test]
    fn a_name_that_is_not_the_servers_is_refused() {
        for host in [
            "127.0.0.1",
            "10.1.2.3:9464",
            "[::1]:9464",
            "[fd00::7]",
            "localhost:9465",
            "LOCALHOST",
            "console-7d9f:9465",
            "garenne.example.org",
            "Garenne.Example.org:443",
            "garenne.example.org.",
            "a.apps.example.org",
        ] {
            assert_eq!(status(&[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9465",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "xgarenne.example.org",
            "apps.example.org",
            "garenne.example.org.evil.example",
            "",
            "a b",
        ] {
            assert_eq!(status(&[("host", host)]), 421, "{host:?}");
        }
        assert_eq!(status(&[("host", "127.0.0.1"), ("host", "evil.example")]), 421);
        assert_eq!(status(&[]), 200, "HTTP/1.0, which no browser speaks");
        let names = Names { own: String::new(), allowed: AllowedHosts::default() };
        assert!(names.check(&"http://evil.example/metrics".parse().unwrap(), &HeaderMap::new()).is_err());
        assert!(!names.is_own(""), "a host without a name");
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let of = |host, origin| status(&[("host", host), ("origin", origin)]);
        for (host, origin) in [
            ("127.0.0.1:9465", "http://127.0.0.1:9465"),
            ("localhost:9465", "https://localhost:9465"),
            ("10.0.0.7:9465", "https://garenne.example.org"),
        ] {
            assert_eq!(of(host, origin), 200, "{origin}");
        }
        for (host, origin) in [
            ("127.0.0.1:9465", "http://127.0.0.1:3000"),
            ("127.0.0.1:9465", "http://127.0.0.1"),
            ("127.0.0.1:9465", "http://evil.example"),
            ("127.0.0.1:9465", "null"),
            ("127.0.0.1:9465", ""),
            ("127.0.0.1:9465", "http://127.0.0.1:9465.evil.example"),
        ] {
            assert_eq!(of(host, origin), 403, "{origin}");
        }
    }
}
