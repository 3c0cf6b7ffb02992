//! A minimal broker for publishers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use amq_protocol::protocol::{BasicProperties, basic::parse_properties};
use bytes::BytesMut;
use garenne_protocol::task::header;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

use crate::frame::{BODY, Frame, HEADER, Method, OVERHEAD, encode, short, split_short};

/// Long enough for each step of a test on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A listening broker.
///
/// It accepts connections, channels and messages. The test decides whether each message is confirmed, refused or returned.
/// It has no queues: looking one up fails.
#[derive(Debug)]
pub struct FakeBroker {
    port: u16,
    connections: Arc<AtomicUsize>,
    published: mpsc::UnboundedReceiver<Published>,
}

/// A published message.
#[derive(Debug)]
pub struct Published {
    /// The exchange that it was published to.
    pub exchange: String,
    /// Its routing key.
    pub key: String,
    /// Its properties and headers.
    pub properties: BasicProperties,
    /// Its body.
    pub body: Vec<u8>,
    channel: u16,
    tag: u64,
    /// The payload of its header frame.
    header: Vec<u8>,
    answers: mpsc::UnboundedSender<Answer>,
}

#[derive(Debug)]
enum Answer {
    Frame(Vec<u8>),
    /// The end of the connection.
    Cut,
}

impl FakeBroker {
    /// Starts a broker that negotiates this maximum frame size, in bytes.
    ///
    /// # Panics
    /// If no port is free. The task of a connection panics if a frame is larger.
    pub async fn start(frame_max: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
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

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// The number of connections that were opened.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The next published message.
    ///
    /// # Panics
    /// If none comes for long.
    pub async fn next(&mut self) -> Published {
        timeout(TIMEOUT, self.published.recv()).await.expect("a message").expect("the broker runs")
    }

    /// Whether a message was published that the test has not taken.
    pub fn has_more(&mut self) -> bool {
        self.published.try_recv().is_ok()
    }
}

impl Published {
    /// A header that is an integer.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        header::get(self.properties.headers(), name).and_then(header::integer)
    }

    /// A header that is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<String> {
        header::get(self.properties.headers(), name).and_then(header::text)
    }

    /// The size of its header frame, in bytes.
    #[must_use]
    pub fn header_frame(&self) -> usize {
        self.header.len() + OVERHEAD
    }

    /// Confirms the message.
    pub fn ack(&self) {
        self.answer(Method::BASIC_ACK, &[&self.tag.to_be_bytes()[..], &[0]].concat());
    }

    /// Refuses the message with a `basic.nack`.
    pub fn nack(&self) {
        self.answer(Method::BASIC_NACK, &[&self.tag.to_be_bytes()[..], &[0]].concat());
    }

    /// Returns the message as unroutable. RabbitMQ confirms it then.
    pub fn return_unroutable(&self) {
        let arguments =
            [&312_u16.to_be_bytes()[..], &short("NO_ROUTE"), &short(&self.exchange), &short(&self.key)];
        self.answer(Method::BASIC_RETURN, &arguments.concat());
        // The returned message has an empty body.
        let mut header = self.header.clone();
        header[4..12].fill(0);
        self.send(Answer::Frame(encode(HEADER, self.channel, &header)));
    }

    /// Closes the message's channel with a reply code and text.
    pub fn close_channel(&self, code: u16, text: &str) {
        let arguments = [&code.to_be_bytes()[..], &short(text), &[0, 60, 0, 40]].concat();
        self.answer(Method::CHANNEL_CLOSE, &arguments);
    }

    /// Ends the message's connection.
    pub fn cut(&self) {
        self.send(Answer::Cut);
    }

    fn answer(&self, method: Method, arguments: &[u8]) {
        self.send(Answer::Frame(method.frame(self.channel, arguments)));
    }

    fn send(&self, answer: Answer) {
        assert!(self.answers.send(answer).is_ok(), "the connection has ended");
    }
}

async fn serve(socket: TcpStream, frame_max: u32, published: mpsc::UnboundedSender<Published>) -> Option<()> {
    let (mut from, mut to) = socket.into_split();
    let (answers, mut to_send) = mpsc::unbounded_channel();
    let reading = async {
        let send = |bytes| answers.send(Answer::Frame(bytes)).ok();
        from.read_exact(&mut [0; 8]).await.ok()?;
        let start = [&[0, 9, 0, 0, 0, 0, 0, 0, 0, 5][..], b"PLAIN", &[0, 0, 0, 5], b"en_US"].concat();
        send(Method::CONNECTION_START.frame(0, &start))?;
        let mut received = BytesMut::new();
        // The last tag of each channel, the target of the message whose header comes next, and the message whose body comes
        // next with the size of the body.
        let (mut tags, mut target, mut waiting_for_body) = (BTreeMap::<u16, u64>::new(), None, None);
        loop {
            let Some(frame) = Frame::take(&mut received) else {
                match from.read_buf(&mut received).await.ok()? {
                    0 => return None,
                    _ => continue,
                }
            };
            let (channel, size) = (frame.channel(), frame.whole().len());
            assert!(size <= frame_max as usize, "a frame of {size} bytes");
            if frame.kind() == HEADER {
                let payload = frame.payload();
                let (exchange, key, tag) = target.take()?;
                // Class, weight and body size come before the properties.
                let properties = parse_properties(&payload[12..]).ok()?.1;
                let body_size = u64::from_be_bytes(payload[4..12].try_into().ok()?);
                let (body, header, answers) = (Vec::new(), payload.to_vec(), answers.clone());
                let message = Published { exchange, key, properties, body, channel, tag, header, answers };
                if body_size == 0 {
                    published.send(message).ok()?;
                } else {
                    waiting_for_body = Some((message, body_size));
                }
                continue;
            }
            if frame.kind() == BODY {
                let (mut message, body_size) = waiting_for_body.take()?;
                message.body.extend(frame.payload());
                if message.body.len() as u64 == body_size {
                    published.send(message).ok()?;
                } else {
                    waiting_for_body = Some((message, body_size));
                }
                continue;
            }
            let Some(method) = frame.method() else { continue };
            match method {
                Method::CONNECTION_START_OK => {
                    let tune = [&2047_u16.to_be_bytes()[..], &frame_max.to_be_bytes(), &[0, 0]].concat();
                    send(Method::CONNECTION_TUNE.frame(0, &tune))?;
                }
                Method::CONNECTION_OPEN => send(Method::CONNECTION_OPEN_OK.frame(0, &[0]))?,
                Method::CONNECTION_CLOSE => send(Method::CONNECTION_CLOSE_OK.frame(0, &[]))?,
                Method::CHANNEL_OPEN => {
                    tags.remove(&channel);
                    send(Method::CHANNEL_OPEN_OK.frame(channel, &[0; 4]))?;
                }
                Method::CHANNEL_CLOSE => send(Method::CHANNEL_CLOSE_OK.frame(channel, &[]))?,
                // A passive declaration of a queue.
                Method::QUEUE_DECLARE => {
                    let not_found =
                        [&404_u16.to_be_bytes()[..], &short("NOT_FOUND"), &[0, 50, 0, 10]].concat();
                    send(Method::CHANNEL_CLOSE.frame(channel, &not_found))?;
                }
                Method::BASIC_QOS => send(Method::BASIC_QOS_OK.frame(channel, &[]))?,
                Method::CONFIRM_SELECT => send(Method::CONFIRM_SELECT_OK.frame(channel, &[]))?,
                Method::BASIC_PUBLISH => {
                    let (exchange, rest) = split_short(&frame.arguments()[2..]);
                    let tag = tags.entry(channel).or_default();
                    *tag += 1;
                    target = Some((exchange, split_short(rest).0, *tag));
                }
                _ => {}
            }
        }
    };
    let writing = async {
        while let Some(Answer::Frame(bytes)) = to_send.recv().await {
            to.write_all(&bytes).await.ok()?;
        }
        Some(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
