//! Senders that never read their answers.

use std::net::{IpAddr, SocketAddr};

use tokio::{io::DuplexStream, net::TcpSocket};

use super::{
    hostile::{gzip, head, until},
    *,
};
use crate::{auth::Peer, client_stream::ClientStream, http, tcp};

/// Connections of the attack.
const CONNECTIONS: usize = 100;
const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

impl Running {
    /// A connection of `source`, in the line protocol or in HTTP: the stream of its requests, and that of its answers,
    /// which has little room. Lines are read in larger pieces the longer their answers are taken.
    fn connect(&self, source: IpAddr, is_http: bool) -> [DuplexStream; 2] {
        let (requests, ours) = tokio::io::duplex(64 * 1024);
        let (unread, answers) = tokio::io::duplex(if is_http { 16 } else { 32 * 1024 });
        let ours = tokio::io::join(ours, answers);
        let (gateway, stop) = (Arc::clone(&self.context), self.stop.clone());
        let permit = gateway.network.sources.admit(source).expect("room for the connection");
        tokio::spawn(async move {
            let memory = gateway.budget.account(permit.source());
            let (peer, stream) = (Peer::new(SocketAddr::new(source, 1)), ClientStream::new(ours));
            let _ = if is_http {
                let stream = stream.with_write_timeout(gateway.limits.write_timeout);
                let router = http::router(Arc::clone(&gateway));
                http::serve(stream, router, &gateway, &peer, &memory, &stop).await
            } else {
                tcp::serve(stream, &gateway, &peer, &memory, &stop).await
            };
            drop(permit);
        });
        [requests, unread]
    }

    /// Opens connections that send `sent` without end and read nothing, until no more memory is reserved.
    async fn attack(&self, source: IpAddr, is_http: bool, sent: &[u8]) -> Vec<JoinHandle<()>> {
        let senders = (0..CONNECTIONS).map(|_| {
            let ([mut requests, unread], sent) = (self.connect(source, is_http), sent.to_vec());
            tokio::spawn(async move {
                while requests.write_all(&sent).await.is_ok() {}
                drop(unread);
            })
        });
        let senders: Vec<_> = senders.collect();
        let (mut last, mut same) = (0, 0);
        // There is no event for what does not happen any more.
        while same < 20 || last == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let reserved = self.reserved();
            same = if reserved == last { same + 1 } else { 0 };
            last = reserved;
        }
        senders
    }

    /// The status of readings that are sent from this address.
    async fn status_from(&self, source: IpAddr, readings: usize) -> String {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(source, 0)).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        let body = format!("[{}]", vec![READING; readings].join(","));
        let request =
            head("/v1/readings", &format!("connection: close\r\ncontent-length: {}\r\n", body.len()));
        stream.write_all((request + &body).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }
}

/// Attacks a gateway with this budget twice, the second time by twice as many connections.
async fn check_unread(memory_budget: Size, is_http: bool, sent: &[u8]) {
    let gateway = start(MemorySender::new(), Limits { memory_budget, ..Limits::default() }).await;
    let other: IpAddr = [127, 0, 0, 2].into();
    let mut attacks = Vec::new();
    for renewed in 0..2 {
        attacks.extend(gateway.attack(LOCAL, is_http, sent).await);
        let (reserved, half) = (gateway.reserved(), memory_budget.bytes() / 2);
        assert!((half * 3 / 4..half * 5 / 4).contains(&reserved), "attack {renewed} holds {reserved} bytes");
        assert_eq!(gateway.status_from(LOCAL, 1).await, "202", "of the same source, attack {renewed}");
        assert_eq!(gateway.status_from(other, 1).await, "202", "of another source, attack {renewed}");
        assert_eq!(gateway.status_from(other, 100).await, "202", "a batch of another source, {renewed}");
    }
    attacks.iter().for_each(JoinHandle::abort);
    until("all memory is released", || gateway.reserved() == 0).await;
}

#[tokio::test]
async fn a_hundred_connections_that_never_read_receipts_of_lines_lock_out_no_sensor() {
    check_unread(Size::mib(8), false, format!("{READING}\n").repeat(50).as_bytes()).await;
}

#[tokio::test]
async fn a_hundred_connections_that_never_read_receipts_over_http_lock_out_no_sensor() {
    // The receipts of each request are 26 KB.
    let ids = (0..200).map(|n| READING.replacen('{', &format!(r#"{{"id":"{n:0128}","#), 1));
    let body = gzip(format!("[{}]", ids.collect::<Vec<_>>().join(",")).as_bytes());
    let headers = format!("content-encoding: gzip\r\ncontent-length: {}\r\n", body.len());
    let request = [head("/v1/readings", &headers).into_bytes(), body].concat();
    check_unread(Size::mib(4), true, &request).await;
}
