//! The header envelope: how user headers travel in a record that has no place for them.
//!
//! ```text
//! "RSK1" | u32 big-endian: length of the header block | header block | payload
//! header block: for each header  name ": " value "\n"
//! ```
//!
//! The format is shared with services in other languages, so the two directions differ on purpose:
//! writing is exact or refused (what was written reads back unchanged everywhere), reading is
//! lenient (a record that is in the log must never stop its shard). It lives here, without
//! Python, because the page decoder finds envelopes while it decodes.

use std::borrow::Cow;

use crate::error::{Error, Result};

/// First bytes of a blob that may be an envelope.
pub const MAGIC: &[u8; 4] = b"RSK1";

/// Bytes before the header block: the magic and the block's length.
pub const PREFIX_BYTES: usize = 8;

const TOO_LONG: &str = "the headers are longer than an envelope can say (4 GiB)";

/// Where the payload of an enveloped blob starts; `None` for a blob that is a plain payload.
///
/// A length that reaches beyond the blob makes it a plain payload: some payload that happens to
/// start with the magic.
#[must_use]
pub fn payload_start(blob: &[u8]) -> Option<usize> {
    let (length, rest) = blob.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    let block = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    (block <= rest.len()).then(|| PREFIX_BYTES + block)
}

/// The headers of a block, in its order; where a name comes twice, the later one is to win.
pub fn headers(block: &str) -> impl Iterator<Item = (&str, &str)> {
    // Trimming also takes the CR of a writer that ends its lines with CR LF.
    block
        .split('\n')
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
}

/// The block as text, with bad UTF-8 replaced.
#[must_use]
pub fn block_text(block: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(block)
}

/// A checked envelope, ready to be written in front of its payload.
///
/// Checking and writing are apart so that the caller can make room for the exact size first and
/// the payload is copied once.
#[derive(Debug)]
pub struct Envelope<'a> {
    headers: &'a [(&'a str, &'a str)],
    block_bytes: u32,
}

impl<'a> Envelope<'a> {
    /// Checks that every header reads back as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Header`] names the first header that would not; [`Error::Envelope`] for a block
    /// beyond the 4 GiB that its length field can say.
    pub fn new(headers: &'a [(&'a str, &'a str)]) -> Result<Self> {
        let mut bytes = 0_usize;
        for (name, value) in headers {
            check(name, value)?;
            bytes += name.len() + value.len() + ": \n".len();
        }
        let block_bytes = u32::try_from(bytes).map_err(|_| Error::Envelope { detail: TOO_LONG })?;
        Ok(Self {
            headers,
            block_bytes,
        })
    }

    /// What stands before the payload.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PREFIX_BYTES + self.block_bytes as usize);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.block_bytes.to_be_bytes());
        for (name, value) in self.headers {
            push_line(&mut out, name, value);
        }
        out
    }
}

/// A received block with some headers set or taken out, everything else as it came.
///
/// Lines that are not ours are carried over byte for byte, odd ones included: whoever reads the copy
/// sees what we saw. A header that is set replaces every line of its name, so that a record copied
/// again and again does not grow.
///
/// # Errors
///
/// [`Error::Header`] for a header that would not read back; [`Error::Envelope`] for a block beyond
/// 4 GiB.
pub fn rewritten(block: &[u8], changes: &[(&str, Option<&str>)]) -> Result<Vec<u8>> {
    let set: Vec<(&str, &str)> = changes
        .iter()
        .filter_map(|(name, value)| Some((*name, (*value)?)))
        .collect();
    for (name, value) in &set {
        check(name, value)?;
    }
    let mut kept = Vec::with_capacity(block.len());
    for line in block.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        let ours = text
            .split_once(':')
            .is_some_and(|(name, _)| changes.iter().any(|(own, _)| *own == name.trim()));
        if !ours {
            kept.extend_from_slice(line);
        }
    }
    if !set.is_empty() && kept.last().is_some_and(|byte| *byte != b'\n') {
        // The last line of the received block had no end; ours must start on a line of its own.
        kept.push(b'\n');
    }
    for (name, value) in &set {
        push_line(&mut kept, name, value);
    }
    let length = u32::try_from(kept.len()).map_err(|_| Error::Envelope { detail: TOO_LONG })?;
    let mut out = Vec::with_capacity(PREFIX_BYTES + kept.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&length.to_be_bytes());
    out.append(&mut kept);
    Ok(out)
}

fn push_line(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.push(b'\n');
}

/// Refuses what reading would change.
fn check(name: &str, value: &str) -> Result<()> {
    let refused = |detail| {
        Err(Error::Header {
            name: name.to_owned(),
            detail,
        })
    };
    if name.is_empty() {
        return refused("a name may not be empty");
    }
    if name.contains(':') {
        return refused("a name may not hold ':'");
    }
    if name.contains(['\r', '\n']) {
        return refused("a name may not hold CR or LF");
    }
    if name.trim() != name {
        return refused("a name may not start or end with white space");
    }
    if value.contains(['\r', '\n']) {
        return refused("a value may not hold CR or LF");
    }
    if value.trim() != value {
        return refused("a value may not start or end with white space");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(blob: &[u8]) -> (Vec<(String, String)>, &[u8]) {
        match payload_start(blob) {
            None => (Vec::new(), blob),
            Some(start) => {
                let text = block_text(&blob[PREFIX_BYTES..start]);
                let pairs = headers(&text).map(|(n, v)| (n.to_owned(), v.to_owned()));
                (pairs.collect(), &blob[start..])
            }
        }
    }

    #[test]
    fn the_bytes_are_the_ones_of_the_contract() {
        let headers = [("a", "1"), ("trace", "日本")];
        let mut blob = Envelope::new(&headers).unwrap().to_bytes();
        blob.extend_from_slice(b"payload");
        let block = "a: 1\ntrace: 日本\n";
        let mut expected = b"RSK1\x00\x00\x00\x13".to_vec();
        expected.extend_from_slice(block.as_bytes());
        expected.extend_from_slice(b"payload");
        assert_eq!(blob, expected);
    }

    #[test]
    fn a_length_beyond_the_blob_means_a_plain_payload() {
        for blob in [
            &b"RSK1"[..],
            b"RSK1\x00\x00",
            b"RSK1\x00\x00\x00\x01",
            b"RSK1\xff\xff\xff\xffa: b\n",
        ] {
            assert_eq!(payload_start(blob), None, "{blob:?}");
        }
        assert_eq!(payload_start(b"RSK1\x00\x00\x00\x00"), Some(8));
    }

    #[test]
    fn reading_skips_and_trims() {
        let block = "no colon\n x :  1 \r\n:nameless\nurl: http://h:1\n";
        let pairs: Vec<_> = headers(block).collect();
        assert_eq!(pairs, [("x", "1"), ("", "nameless"), ("url", "http://h:1")]);
    }

    #[test]
    fn what_reading_would_change_is_refused() {
        for (name, value) in [
            ("", "v"),
            ("a:b", "v"),
            ("a\n", "v"),
            ("a\rb", "v"),
            (" a", "v"),
            ("a\u{a0}", "v"),
            ("a", "v\n"),
            ("a", "v\rw"),
            ("a", " v"),
            ("a", "v\t"),
            ("a", " "),
        ] {
            assert!(
                Envelope::new(&[(name, value)]).is_err(),
                "{name:?} {value:?}"
            );
        }
        assert!(Envelope::new(&[("a b", ""), ("b", ":x: y")]).is_ok());
    }

    #[test]
    fn a_rewritten_block_keeps_every_line_but_ours() {
        let block = b"a: 1\r\nodd line\n own : old\nb:\xff\nown: older";
        let out = rewritten(block, &[("own", Some("new")), ("gone", None)]).unwrap();
        assert_eq!(
            &out[PREFIX_BYTES..],
            b"a: 1\r\nodd line\nb:\xff\nown: new\n"
        );
        assert_eq!(payload_start(&out), Some(out.len()));
        let again = rewritten(&out[PREFIX_BYTES..], &[("own", Some("new"))]).unwrap();
        assert_eq!(again, out);
        let bare = rewritten(b"x", &[]).unwrap();
        assert_eq!(&bare[PREFIX_BYTES..], b"x");
        assert!(rewritten(b"", &[("own", Some("a\nb"))]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            given in prop::collection::vec((".{0,8}", ".{0,8}"), 0..5),
            payload in prop::collection::vec(any::<u8>(), 0..32),
        ) {
            let pairs: Vec<(&str, &str)> =
                given.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            if let Ok(envelope) = Envelope::new(&pairs) {
                let mut blob = envelope.to_bytes();
                blob.extend_from_slice(&payload);
                let (read_pairs, read_payload) = read(&blob);
                prop_assert_eq!(read_pairs, given);
                prop_assert_eq!(read_payload, &payload[..]);
            }
        }

        #[test]
        fn no_blob_is_too_odd_to_read(mut blob in prop::collection::vec(any::<u8>(), 0..64)) {
            read(&blob);
            blob.splice(0..0, *b"RSK1\x00\x00\x00\x09");
            read(&blob);
        }
    }
}
