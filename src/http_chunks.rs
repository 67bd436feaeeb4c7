//! The body of an HTTP/1.1 response that comes in chunks, put together as its bytes arrive.
//!
//! Strict: a line that is not exactly what the protocol says is an error, because a reader that
//! guesses where a chunk ends may take a part of one body for the head of the next answer.

use crate::error::{Error, Result};

/// Longest line of a chunk's size with its extensions, and all of the trailers together.
const MAX_LINE_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size,
    Data(usize),
    DataEnd,
    Trailers,
    Done,
}

/// A body in the making.
#[derive(Debug)]
pub struct Chunks {
    state: State,
    /// What has come of the line that is being read.
    line: Vec<u8>,
    /// Bytes of trailers so far.
    trailers: usize,
    body: Vec<u8>,
    limit: usize,
}

impl Chunks {
    /// An empty body that may grow to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            state: State::Size,
            line: Vec::new(),
            trailers: 0,
            body: Vec::new(),
            limit,
        }
    }

    /// Whether the last chunk and the trailers are there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// What was put together, once.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.body)
    }

    /// Takes what arrived; returns how much of it belongs to this body.
    ///
    /// # Errors
    ///
    /// [`Error::Http`] for anything that is no chunk, and for a body over the limit.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            if let State::Data(left) = self.state {
                let take = left.min(bytes.len() - at);
                self.body.extend_from_slice(&bytes[at..at + take]);
                at += take;
                self.state = if take == left {
                    State::DataEnd
                } else {
                    State::Data(left - take)
                };
                continue;
            }
            let byte = bytes[at];
            at += 1;
            self.line.push(byte);
            if byte == b'\n' {
                let mut line = std::mem::take(&mut self.line);
                if !line.ends_with(b"\r\n") {
                    return Err(wrong("a line of its chunks does not end as it has to"));
                }
                line.truncate(line.len() - 2);
                self.state = self.after(&line)?;
            } else if self.line.len() > MAX_LINE_BYTES {
                return Err(wrong("a line of its chunks is too long"));
            }
        }
        Ok(at)
    }

    fn after(&mut self, line: &[u8]) -> Result<State> {
        match self.state {
            State::Size => match size_of(line)? {
                0 => Ok(State::Trailers),
                size if size > self.limit - self.body.len() => Err(wrong("its body is too long")),
                size => Ok(State::Data(size)),
            },
            State::DataEnd if line.is_empty() => Ok(State::Size),
            State::DataEnd => Err(wrong("a chunk is longer than it says")),
            // Nobody asks for what stands in trailers.
            State::Trailers if line.is_empty() => Ok(State::Done),
            State::Trailers => {
                self.trailers += line.len();
                if self.trailers > MAX_LINE_BYTES || !line.contains(&b':') {
                    return Err(wrong("its trailers cannot be read"));
                }
                Ok(State::Trailers)
            }
            State::Data(_) | State::Done => Ok(self.state),
        }
    }
}

/// The size in a chunk's first line; extensions behind it mean nothing to us.
fn size_of(line: &[u8]) -> Result<usize> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = digits.trim_ascii_end();
    // Eight digits are 4 GiB, and fit everywhere.
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong("the size of a chunk is no number"));
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| usize::from_str_radix(digits, 16).ok())
        .ok_or_else(|| wrong("the size of a chunk is no number"))
}

fn wrong(detail: &'static str) -> Error {
    Error::Http { detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BODY: &[u8] = b"5;x=\"y\"\r\nhello\r\n06 \r\n world\r\n0\r\nExpires: never\r\n\r\n";

    #[test]
    fn what_follows_the_body_is_not_taken() {
        let mut chunks = Chunks::new(100);
        let all = [BODY, b"HTTP/1.1 200"].concat();
        assert_eq!(chunks.feed(&all), Ok(BODY.len()));
        assert!(chunks.is_done());
        assert_eq!(chunks.feed(b"more"), Ok(0));
        assert_eq!(chunks.take(), b"hello world");
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x5\r\n",
            " 5\r\n",
            "100000000\r\n",
            "65\r\n",
            "5\nhello",
            "5\r\nhello!\r\n",
            "0\r\nno trailer\r\n",
        ] {
            assert!(Chunks::new(100).feed(body.as_bytes()).is_err(), "{body:?}");
        }
        let long = vec![b'0'; MAX_LINE_BYTES + 2];
        assert!(Chunks::new(100).feed(&long).is_err());
        let trailers = ["0\r\n", &"a: b\r\n".repeat(MAX_LINE_BYTES)].concat();
        assert!(Chunks::new(100).feed(trailers.as_bytes()).is_err());
    }

    #[test]
    fn the_limit_counts_all_chunks_together() {
        let mut chunks = Chunks::new(8);
        assert!(chunks.feed(b"5\r\nhello\r\n3\r\nyou\r\n").is_ok());
        assert!(chunks.feed(b"1\r\n!\r\n").is_err());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_where_the_bytes_are_cut(cuts in proptest::collection::vec(0..BODY.len(), 0..6)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut chunks = Chunks::new(100);
            let mut from = 0;
            for cut in cuts.into_iter().chain([BODY.len()]) {
                prop_assert_eq!(chunks.feed(&BODY[from..cut]), Ok(cut - from));
                prop_assert_eq!(chunks.is_done(), cut == BODY.len());
                from = cut;
            }
            prop_assert_eq!(chunks.take(), b"hello world".to_vec());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut chunks = Chunks::new(64);
            let _ = chunks.feed(&bytes);
        }
    }
}
