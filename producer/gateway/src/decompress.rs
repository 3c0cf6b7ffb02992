//! Decompression of request bodies.

use std::{
    error::Error,
    io::{self, Cursor, Read},
};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, errors::FrameDecoderError};

use crate::{memory::Reservation, refusal::Refusal};

/// Memory of a gzip decoder: its window and tables.
const GZIP_DECODER: usize = 64 * 1024;
/// Memory of a zstd decoder besides its window: its tables and one block.
const ZSTD_DECODER: usize = 512 * 1024;
/// Smallest window of a zstd frame.
const MIN_WINDOW: u64 = 1024;
/// Largest window that RFC 9659 lets senders use.
const MAX_WINDOW: u64 = 8 << 20;

/// A supported content encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Gzip,
    Zstd,
}

impl Encoding {
    /// The encoding of a body with this `content-encoding`, or `None` if the body is plain.
    pub(super) fn parse(header: Option<&str>) -> Result<Option<Self>, Refusal> {
        let given = header.unwrap_or_default().trim();
        match given.to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Self::Gzip)),
            "zstd" => Ok(Some(Self::Zstd)),
            _ => Err(Refusal::encoding(given)),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// A decoder of the body. `memory` grows by what the decoder needs.
    pub(super) fn decoder(
        self,
        body: Vec<u8>,
        memory: &mut Reservation,
    ) -> Result<Box<dyn Read + Send>, Refusal> {
        match self {
            Self::Gzip => {
                memory.grow(GZIP_DECODER)?;
                Ok(Box::new(MultiGzDecoder::new(Cursor::new(body))))
            }
            Self::Zstd => Ok(Box::new(ZstdFrames::new(body, memory)?)),
        }
    }
}

/// The frames of a zstd body, one after the other.
struct ZstdFrames {
    body: Cursor<Vec<u8>>,
    decoder: FrameDecoder,
}

impl ZstdFrames {
    /// Reserves the memory for the window of the first frame. Later frames must not have a larger one.
    fn new(body: Vec<u8>, memory: &mut Reservation) -> Result<Self, Refusal> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MIN_WINDOW);
        let window = match decoder.init(body.as_slice()) {
            Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => requested,
            _ => MIN_WINDOW,
        };
        if window > MAX_WINDOW {
            let message = format!("not zstd for HTTP: a window of {window} bytes, the limit is {MAX_WINDOW}");
            return Err(Refusal::malformed_body(message));
        }
        // The decoder allocates powers of two.
        memory.grow(2 * usize::try_from(window).unwrap_or(usize::MAX / 2) + ZSTD_DECODER)?;
        decoder.set_max_window_size(window);
        let mut frames = Self { body: Cursor::new(body), decoder };
        frames.start_frame().map_err(|error| Refusal::malformed_body(format!("not zstd: {error}")))?;
        Ok(frames)
    }

    fn start_frame(&mut self) -> io::Result<()> {
        self.decoder.reset(&mut self.body).map_err(invalid)
    }

    /// Whether the checksum of the frame is right, if it has one.
    fn has_right_checksum(&self) -> bool {
        self.decoder
            .get_checksum_from_data()
            .is_none_or(|expected| self.decoder.get_calculated_checksum() == Some(expected))
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.body, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(invalid)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if !self.has_right_checksum() {
                return Err(invalid("the checksum is wrong"));
            }
            if self.body.position() == self.body.get_ref().len() as u64 {
                return Ok(0);
            }
            self.start_frame()?;
        }
    }
}

fn invalid(error: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use garenne_common::config::Size;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;
    use crate::{limits::Limits, memory::MemoryBudget};

    fn budget() -> MemoryBudget {
        MemoryBudget::new(&Limits { memory_budget: Size::mib(64), ..Limits::default() })
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        compress_to_vec(plain, CompressionLevel::Fastest)
    }

    /// The plain bytes of a zstd body, or the error.
    fn decoded(body: Vec<u8>) -> Result<Vec<u8>, String> {
        let mut memory = budget().empty();
        let mut decoder = Encoding::Zstd.decoder(body, &mut memory).map_err(|error| error.to_string())?;
        let mut plain = Vec::new();
        decoder.read_to_end(&mut plain).map_err(|error| error.to_string())?;
        Ok(plain)
    }

    #[test]
    fn all_frames_of_a_body_are_decoded() {
        let long: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        for plain in [b"".as_slice(), b"[]", &long] {
            assert_eq!(decoded(zstd(plain)).unwrap(), plain);
        }
        assert_eq!(decoded([zstd(b"[1,"), zstd(b"2]")].concat()).unwrap(), b"[1,2]");
    }

    #[test]
    fn a_body_that_is_torn_or_followed_by_other_bytes_is_refused() {
        let whole = zstd(b"[1,2,3]");
        for length in 0..whole.len() {
            assert!(decoded(whole[..length].to_vec()).is_err(), "the first {length} bytes");
        }
        assert!(decoded([whole.as_slice(), b"rest"].concat()).is_err());
        assert!(decoded(b"plain text".to_vec()).unwrap_err().starts_with("body: not zstd: "));
    }

    #[test]
    fn a_wrong_checksum_is_refused() {
        let mut body = zstd(b"[1,2,3]");
        assert_eq!(body[4] & 4, 4, "the frame has a checksum");
        *body.last_mut().unwrap() ^= 1;
        assert_eq!(decoded(body).unwrap_err(), "the checksum is wrong");
    }

    #[test]
    fn the_window_is_reserved_and_bounded() {
        // A frame without content: magic number, descriptor, window, and one empty last block.
        let frame = |window: u8| [&0xFD2F_B528_u32.to_le_bytes()[..], &[0, window], &[1, 0, 0]].concat();
        for (window, size) in [(0, 1 << 10), (11 << 3, 2 << 20), (13 << 3, 8 << 20)] {
            let budget = budget();
            let mut memory = budget.empty();
            Encoding::Zstd.decoder(frame(window), &mut memory).unwrap();
            assert_eq!(budget.used(), 2 * size + ZSTD_DECODER);
        }
        let budget = budget();
        let mut memory = budget.empty();
        let refused = Encoding::Zstd.decoder(frame(14 << 3), &mut memory).err().unwrap();
        assert_eq!(
            (refused.to_string().as_str(), budget.used()),
            ("body: not zstd for HTTP: a window of 16777216 bytes, the limit is 8388608", 0)
        );
    }
}
