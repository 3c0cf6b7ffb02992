//! A minimal AMQP broker for tests of publishing.
//!
//! It accepts connections and publishes. The test decides whether each message is confirmed, refused or returned. It
//! has no queues: looking one up fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use garenne_protocol::task::header;
use lapin::{BasicProperties, protocol::basic::parse_properties};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

/// Long enough for each step of a test on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xce;

/// A listening broker.
pub(crate) struct FakeBroker {
    port: u16,
    connections: Arc<AtomicUsize>,
    published: mpsc::UnboundedReceiver<Published>,
}

/// A published message.
pub(crate) struct Published {
    pub(crate) exchange: String,
    pub(crate) key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
    channel: u16,
    tag: u64,
    /// The payload of its header frame.
    header: Vec<u8>,
    answers: mpsc::UnboundedSender<Vec<u8>>,
}

impl FakeBroker {
    /// Starts a broker that negotiates this maximum frame size, in bytes.
    pub(crate) async fn start(frame_max: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, published) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(socket, frame_max, sender.clone()));
            }
        });
        Self { port, connections, published }
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// The number of connections that were opened.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The next published message.
    pub(crate) async fn next(&mut self) -> Published {
        timeout(TIMEOUT, self.published.recv()).await.expect("a message").expect("the broker runs")
    }

    /// Whether a message was published that the test has not taken.
    pub(crate) fn has_more(&mut self) -> bool {
        self.published.try_recv().is_ok()
    }
}

impl Published {
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        header::get(self.properties.headers(), name).and_then(header::integer)
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        header::get(self.properties.headers(), name).and_then(header::text)
    }

    /// Confirms the message.
    pub(crate) fn ack(&self) {
        self.answer((60, 80), &[&self.tag.to_be_bytes()[..], &[0]].concat());
    }

    /// Refuses the message with a `basic.nack`.
    pub(crate) fn nack(&self) {
        self.answer((60, 120), &[&self.tag.to_be_bytes()[..], &[0]].concat());
    }

    /// Returns the message as unroutable, then confirms it, as RabbitMQ does.
    pub(crate) fn send_back(&self) {
        let short = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let fields =
            [&312_u16.to_be_bytes()[..], &short("NO_ROUTE"), &short(&self.exchange), &short(&self.key)];
        self.answer((60, 50), &fields.concat());
        // The returned message has an empty body.
        let mut header = self.header.clone();
        header[4..12].fill(0);
        self.send(frame(HEADER, self.channel, &header));
        self.ack();
    }

    /// Closes the message's channel with a reply code and text.
    pub(crate) fn close_channel(&self, code: u16, text: &str) {
        let text = [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        self.answer((20, 40), &[&code.to_be_bytes()[..], &text, &[0, 60, 0, 40]].concat());
    }

    fn answer(&self, id: (u16, u16), fields: &[u8]) {
        self.send(method(self.channel, id, fields));
    }

    fn send(&self, frame: Vec<u8>) {
        assert!(self.answers.send(frame).is_ok(), "the connection has ended");
    }
}

fn method(channel: u16, (class, method): (u16, u16), fields: &[u8]) -> Vec<u8> {
    frame(METHOD, channel, &[&class.to_be_bytes()[..], &method.to_be_bytes(), fields].concat())
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[END]].concat()
}

/// The arguments of the `channel.close` after a passive declaration of a queue.
fn not_found() -> Vec<u8> {
    let text = b"NOT_FOUND";
    [&404_u16.to_be_bytes()[..], &[u8::try_from(text.len()).unwrap()], text, &[0, 50, 0, 10]].concat()
}

/// Splits a short string off the beginning.
fn short(bytes: &[u8]) -> (String, &[u8]) {
    let (text, rest) = bytes[1..].split_at(bytes[0].into());
    (String::from_utf8(text.to_vec()).unwrap(), rest)
}

async fn serve(socket: TcpStream, frame_max: u32, published: mpsc::UnboundedSender<Published>) -> Option<()> {
    let (mut from, mut to) = socket.into_split();
    let (answers, mut to_send) = mpsc::unbounded_channel();
    let reading = async {
        let send = |bytes| answers.send(bytes).ok();
        from.read_exact(&mut [0; 8]).await.ok()?;
        let start = [&[0, 9, 0, 0, 0, 0, 0, 0, 0, 5][..], b"PLAIN", &[0, 0, 0, 5], b"en_US"].concat();
        send(method(0, (10, 10), &start))?;
        let (mut tag, mut target, mut waiting_for_body) = (0, None, None);
        loop {
            let mut head = [0; 7];
            from.read_exact(&mut head).await.ok()?;
            let channel = u16::from_be_bytes([head[1], head[2]]);
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let mut payload = vec![0; size + 1];
            from.read_exact(&mut payload).await.ok()?;
            assert_eq!(payload.pop(), Some(END));
            if head[0] == HEADER {
                let (exchange, key) = target.take()?;
                // Class, weight and body size come before the properties.
                let properties = parse_properties(&payload[12..]).ok()?.1;
                let body_size = u64::from_be_bytes(payload[4..12].try_into().ok()?);
                let (body, header, answers) = (Vec::new(), payload, answers.clone());
                let message = Published { exchange, key, properties, body, channel, tag, header, answers };
                if body_size == 0 {
                    published.send(message).ok()?;
                } else {
                    waiting_for_body = Some((message, body_size));
                }
                continue;
            }
            if head[0] == BODY {
                let (mut message, body_size) = waiting_for_body.take()?;
                message.body.extend(payload);
                if message.body.len() as u64 == body_size {
                    published.send(message).ok()?;
                } else {
                    waiting_for_body = Some((message, body_size));
                }
                continue;
            }
            let [class_high, class, number_high, number, fields @ ..] = &payload[..] else { continue };
            if head[0] != METHOD {
                continue;
            }
            let id = (u16::from_be_bytes([*class_high, *class]), u16::from_be_bytes([*number_high, *number]));
            match id {
                (10, 11) => {
                    let tune = [&2047_u16.to_be_bytes()[..], &frame_max.to_be_bytes(), &[0, 0]].concat();
                    send(method(0, (10, 30), &tune))?;
                }
                (10, 40) => send(method(0, (10, 41), &[0]))?,
                (10, 50) => send(method(0, (10, 51), &[]))?,
                (20, 10) => {
                    tag = 0;
                    send(method(channel, (20, 11), &[0; 4]))?;
                }
                (20, 40) => send(method(channel, (20, 41), &[]))?,
                (60, 10) => send(method(channel, (60, 11), &[]))?,
                (50, 10) => send(method(channel, (20, 40), &not_found()))?,
                (85, 10) => send(method(channel, (85, 11), &[]))?,
                (60, 40) => {
                    let (exchange, rest) = short(&fields[2..]);
                    tag += 1;
                    target = Some((exchange, short(rest).0));
                }
                _ => {}
            }
        }
    };
    let writing = async {
        while let Some(bytes) = to_send.recv().await {
            to.write_all(&bytes).await.ok()?;
        }
        Some(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
