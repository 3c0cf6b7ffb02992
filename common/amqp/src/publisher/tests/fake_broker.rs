//! A minimal broker for publishers. It accepts connections and channels; the test answers each message.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

use super::TIMEOUT;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const END: u8 = 0xce;

/// A listening broker.
pub(super) struct FakeBroker {
    port: u16,
    connections: Arc<AtomicUsize>,
    published: mpsc::UnboundedReceiver<Published>,
}

/// A message that was received up to its content header. Bodies are ignored.
pub(super) struct Published {
    pub(super) exchange: Vec<u8>,
    pub(super) key: Vec<u8>,
    channel: u16,
    tag: u64,
    /// Size of the whole content header frame, in bytes.
    pub(super) header_frame: usize,
    /// Payload of the content header frame.
    header: Vec<u8>,
    answers: mpsc::UnboundedSender<Answer>,
}

enum Answer {
    Frame(Vec<u8>),
    Cut,
}

impl FakeBroker {
    /// Starts a broker that offers `frame_max`, in bytes.
    pub(super) async fn start(frame_max: u32) -> Self {
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

    pub(super) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Number of connections accepted so far.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The next message.
    pub(super) async fn next(&mut self) -> Published {
        timeout(TIMEOUT, self.published.recv()).await.expect("a message").expect("the broker runs")
    }
}

impl Published {
    /// Refuses it.
    pub(super) fn nack(&self) {
        let fields = [&self.tag.to_be_bytes()[..], &[0]].concat();
        self.answer(Answer::Frame(method(self.channel, (60, 120), &fields)));
    }

    /// Confirms it.
    pub(super) fn ack(&self) {
        let fields = [&self.tag.to_be_bytes()[..], &[0]].concat();
        self.answer(Answer::Frame(method(self.channel, (60, 80), &fields)));
    }

    /// Returns it as unroutable.
    pub(super) fn return_unroutable(&self) {
        let short = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
        let fields =
            [&312_u16.to_be_bytes()[..], &short(b"NO_ROUTE"), &short(&self.exchange), &short(&self.key)];
        self.answer(Answer::Frame(method(self.channel, (60, 50), &fields.concat())));
        // With an empty body.
        let mut header = self.header.clone();
        header[4..12].fill(0);
        self.answer(Answer::Frame(frame(HEADER, self.channel, &header)));
    }

    /// Closes its channel with a code and a text.
    pub(super) fn close_channel(&self, code: u16, text: &str) {
        let text = [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let fields = [&code.to_be_bytes()[..], &text, &[0, 60, 0, 40]].concat();
        self.answer(Answer::Frame(method(self.channel, (20, 40), &fields)));
    }

    /// Ends its connection.
    pub(super) fn cut(&self) {
        self.answer(Answer::Cut);
    }

    fn answer(&self, answer: Answer) {
        assert!(self.answers.send(answer).is_ok(), "the connection has ended");
    }
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[END]].concat()
}

fn method(channel: u16, (class, method): (u16, u16), fields: &[u8]) -> Vec<u8> {
    frame(METHOD, channel, &[&class.to_be_bytes()[..], &method.to_be_bytes(), fields].concat())
}

/// The short string at the start, and the rest.
fn short(bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    let (text, rest) = bytes[1..].split_at(bytes[0].into());
    (text.to_vec(), rest)
}

async fn serve(socket: TcpStream, frame_max: u32, published: mpsc::UnboundedSender<Published>) -> Option<()> {
    let (mut from, mut to) = socket.into_split();
    let (answers, mut to_send) = mpsc::unbounded_channel();
    let reading = async {
        let send = |bytes| answers.send(Answer::Frame(bytes)).ok();
        let mut hello = [0; 8];
        from.read_exact(&mut hello).await.ok()?;
        let start = [&[0, 9, 0, 0, 0, 0, 0, 0, 0, 5][..], b"PLAIN", &[0, 0, 0, 5], b"en_US"].concat();
        send(method(0, (10, 10), &start))?;
        let (mut tag, mut target) = (0, None);
        loop {
            let mut head = [0; 7];
            from.read_exact(&mut head).await.ok()?;
            let channel = u16::from_be_bytes([head[1], head[2]]);
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            let mut payload = vec![0; size + 1];
            from.read_exact(&mut payload).await.ok()?;
            assert_eq!(payload.pop(), Some(END));
            assert!(size + 8 <= frame_max as usize, "a frame of {} bytes", size + 8);
            if head[0] == HEADER {
                let (exchange, key) = target.take()?;
                let (header_frame, header, answers) = (size + 8, payload, answers.clone());
                let message = Published { exchange, key, channel, tag, header_frame, header, answers };
                published.send(message).ok()?;
                continue;
            }
            let [class_high, class, number_high, number, fields @ ..] = &payload[..] else { continue };
            let id = (u16::from_be_bytes([*class_high, *class]), u16::from_be_bytes([*number_high, *number]));
            if head[0] != METHOD {
                continue;
            }
            match id {
                (10, 11) => {
                    let tune = [&2047_u16.to_be_bytes()[..], &frame_max.to_be_bytes(), &[0, 0]].concat();
                    send(method(0, (10, 30), &tune))?;
                }
                (10, 40) => send(method(0, (10, 41), &[0]))?,
                (10, 50) => send(method(0, (10, 51), &[]))?,
                (20, 10) => send(method(channel, (20, 11), &[0; 4]))?,
                (20, 40) => send(method(channel, (20, 41), &[]))?,
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
