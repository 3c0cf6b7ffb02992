//! The filter behind `AsyncRead`.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures_io::AsyncRead;
use tokio::io::{self as tokio_io, ReadBuf};

use super::{super::stream::FrameStream, *};

/// Yields at most `most` bytes per read.
struct Source {
    bytes: Vec<u8>,
    at: usize,
    most: usize,
}

impl tokio_io::AsyncRead for Source {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let count = into.remaining().min(this.most).min(this.bytes.len() - this.at);
        into.put_slice(&this.bytes[this.at..this.at + count]);
        this.at += count;
        Poll::Ready(Ok(()))
    }
}

fn read_all(bytes: &[u8], most: usize, room: usize) -> Vec<u8> {
    let source = Source { bytes: bytes.to_vec(), at: 0, most };
    let mut stream = FrameStream::new(source, filter());
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let (mut out, mut into) = (Vec::new(), vec![0; room]);
    loop {
        match Pin::new(&mut stream).poll_read(&mut cx, &mut into) {
            Poll::Ready(Ok(0)) => return out,
            Poll::Ready(Ok(count)) => out.extend_from_slice(&into[..count]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn large_bodies_and_bad_headers_pass_buffers_of_any_size() {
    let body = vec![7; 200_000];
    let (good, bad) = (good_header(BasicProperties::default(), 200_000), headers(b"\x01\xffV"));
    let message = |header: &[u8]| {
        [&deliver(b"x", b"k")[..], header, &raw(3, 1, &body[..131_064]), &raw(3, 1, &body[131_064..])]
            .concat()
    };
    let stream = [&message(&good)[..], &message(&bad), &message(&good)].concat();
    for (most, room) in [(usize::MAX, 4 << 20), (1500, 100_000), (70_000, 4096), (65_536, 1), (1, 10_000)] {
        let out = read_all(&stream, most, room);
        let first = message(&good);
        assert!(out.starts_with(&first) && out.ends_with(&first), "{most} {room}");
        let frames = parsed(&out);
        assert_eq!(frames.len(), 12);
        assert!(frames.chunks(4).all(|it| it[2] == AMQPFrame::Body(1, body[..131_064].to_vec())));
    }
}

#[test]
fn the_stream_may_end_within_a_frame() {
    let frame = headers(b"\x01\xffV");
    assert_eq!(read_all(&frame[..frame.len() - 1], usize::MAX, 100), b"");
    let body = raw(3, 1, b"half a body");
    assert_eq!(read_all(&body[..9], usize::MAX, 100), &body[..9]);
}
