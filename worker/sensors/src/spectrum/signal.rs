//! A signal in chunks, as the parts of an analysis compute them.

/// Samples in order of time, in chunks of one length. Only the last chunk may be shorter.
pub(super) struct Signal {
    chunks: Vec<Vec<f64>>,
}

impl From<Vec<f64>> for Signal {
    fn from(samples: Vec<f64>) -> Self {
        Self::new(vec![samples])
    }
}

impl Signal {
    pub(super) fn new(chunks: Vec<Vec<f64>>) -> Self {
        Self { chunks }
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// The first chunk, which is the whole signal if it was made of one vector.
    pub(super) fn first_chunk(&self) -> &[f64] {
        &self.chunks[0]
    }

    /// Copies the samples from `start` on.
    pub(super) fn read(&self, start: usize, mut into: &mut [f64]) {
        let length = self.chunks[0].len();
        let (first, mut offset) = (start / length, start % length);
        for chunk in &self.chunks[first..] {
            let part = &chunk[offset..chunk.len().min(offset + into.len())];
            let (filled, rest) = into.split_at_mut(part.len());
            filled.copy_from_slice(part);
            (into, offset) = (rest, 0);
            if into.is_empty() {
                return;
            }
        }
    }
}
