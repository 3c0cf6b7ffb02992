//! The fault proxy in front of an echo server.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{FaultProxy, FilterAction, ServerFilter};

async fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    format!("amqp://{address}/%2f")
}

async fn echo(stream: &mut TcpStream, text: &str) -> io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Pauses at `p` and cuts at `c`.
struct LetterFilter;

impl ServerFilter for LetterFilter {
    fn filter(&mut self, received: &[u8]) -> Vec<FilterAction> {
        let mut actions = Vec::new();
        for &byte in received {
            match byte {
                b'c' => actions.push(FilterAction::Cut),
                b'p' => actions.push(FilterAction::Pause(Duration::from_millis(1))),
                _ => {}
            }
            actions.push(FilterAction::Forward(vec![byte]));
        }
        actions
    }
}

#[tokio::test]
async fn a_filter_pauses_and_cuts_connections_until_they_heal() {
    let (proxy, url) = FaultProxy::with_filter(&echo_server().await, || LetterFilter).await.unwrap();
    assert_eq!(url, format!("amqp://{}/%2f", proxy.address()));
    let [mut one, mut other] = [
        TcpStream::connect(proxy.address()).await.unwrap(),
        TcpStream::connect(proxy.address()).await.unwrap(),
    ];
    assert_eq!(echo(&mut other, "other").await.unwrap(), "other");
    assert_eq!((echo(&mut one, "oops").await.unwrap().as_str(), proxy.pauses()), ("oops", 1));
    assert!(!proxy.is_cut());
    echo(&mut one, "cut").await.unwrap_err();
    assert!(proxy.is_cut());
    echo(&mut other, "other").await.unwrap_err();
    let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.refused(), 1);
    proxy.heal();
    let mut healed = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(echo(&mut healed, "healed").await.unwrap(), "healed");
}

#[tokio::test]
async fn a_url_is_not_shown_in_an_error() {
    let error = FaultProxy::for_url("amqp://user:secret@host:port/").await.unwrap_err();
    assert!(!format!("{error:#}").contains("secret"), "{error:#}");
}
