//! Aggregates of the Kinesis Producer Library: many records in the blob of one.
//!
//! ```text
//! F3 89 9A C2 | protobuf: AggregatedRecord | MD5 of the protobuf, 16 bytes
//!
//! AggregatedRecord  1: partition_key_table      repeated string
//!                   2: explicit_hash_key_table  repeated string
//!                   3: records                  repeated Record
//! Record            1: partition_key_index      required uint64
//!                   2: explicit_hash_key_index  optional uint64
//!                   3: data                     required bytes
//!                   4: tags                     never used, passed over
//! ```
//!
//! Invariant: a blob is an aggregate as a whole, or a plain payload as a whole; nothing of it is
//! delivered in part. It is one when the sum is right *and* the message is complete: each record has
//! its data and a key that is in its table. Where the sum is right and the message is not, somebody
//! wrote it so; the blob is delivered as it came, and whoever reads it finds out, instead of records
//! that vanish or a shard that stands still.
//!
//! Keys are text: bytes that are no UTF-8 are replaced, as in every other key. An explicit hash key
//! that the service would not take is none.

use std::borrow::Cow;
use std::ops::Range;

use md5::{Digest, Md5};

use crate::hash_key;
use crate::protobuf::{Fields, Malformed, Value};

/// What the blob of an aggregate starts with.
pub const MAGIC: [u8; 4] = [0xf3, 0x89, 0x9a, 0xc2];
/// Bytes of the sum at its end.
pub const SUM_BYTES: usize = 16;

/// Field numbers of the two messages.
pub(crate) mod field {
    pub const PARTITION_KEYS: u64 = 1;
    pub const HASH_KEYS: u64 = 2;
    pub const RECORDS: u64 = 3;
    pub const PARTITION_KEY: u64 = 1;
    pub const HASH_KEY: u64 = 2;
    pub const DATA: u64 = 3;
}

/// A complete aggregate: where its parts stand in the blob.
#[derive(Debug, Default)]
pub struct Aggregate {
    partition_keys: Vec<Range<usize>>,
    hash_keys: Vec<Range<usize>>,
    records: Vec<Record>,
}

/// One record of an aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Index of its partition key, always of one that is there.
    pub partition_key: usize,
    /// The same of its explicit hash key, where it has one.
    pub hash_key: Option<usize>,
    /// Where its data stands in the blob.
    pub data: Range<usize>,
}

impl Aggregate {
    /// Its records, in order.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The table of partition keys, as text.
    pub fn partition_keys<'a>(&'a self, blob: &'a [u8]) -> impl Iterator<Item = Cow<'a, str>> {
        self.partition_keys
            .iter()
            .map(|at| String::from_utf8_lossy(&blob[at.clone()]))
    }

    /// The table of explicit hash keys; `None` for what the service would not take as one.
    pub fn hash_keys<'a>(&'a self, blob: &'a [u8]) -> impl Iterator<Item = Option<&'a str>> {
        self.hash_keys.iter().map(|at| {
            let text = std::str::from_utf8(&blob[at.clone()]).ok()?;
            hash_key::is_explicit(text).then_some(text)
        })
    }
}

/// Whether a blob starts like an aggregate. A look at four bytes is all that any other blob costs.
#[must_use]
#[inline]
pub fn is_marked(blob: &[u8]) -> bool {
    blob.starts_with(&MAGIC)
}

/// The aggregate that a blob is, if it is one.
#[must_use]
pub fn read(blob: &[u8]) -> Option<Aggregate> {
    if !is_marked(blob) {
        return None;
    }
    let end = blob.len().checked_sub(SUM_BYTES)?;
    let message = blob.get(MAGIC.len()..end)?;
    if Md5::digest(message)[..] != blob[end..] {
        return None;
    }
    parse(blob, MAGIC.len()..end).ok()
}

/// Reads the message and checks that it is complete.
fn parse(blob: &[u8], span: Range<usize>) -> Result<Aggregate, Malformed> {
    let mut out = Aggregate::default();
    let mut fields = Fields::new(blob, span)?;
    while let Some(found) = fields.field()? {
        match found {
            (field::PARTITION_KEYS, Value::Bytes(at)) => out.partition_keys.push(at),
            (field::HASH_KEYS, Value::Bytes(at)) => out.hash_keys.push(at),
            (field::RECORDS, Value::Bytes(at)) => out.records.push(parse_record(blob, at)?),
            // A field that we do not know, or one of another kind: to the format that is the same.
            _ => {}
        }
    }
    // Looked at when both tables are known: fields may come in any order.
    let complete = out.records.iter().all(|record| {
        record.partition_key < out.partition_keys.len()
            && record.hash_key.is_none_or(|at| at < out.hash_keys.len())
    });
    if complete {
        Ok(out)
    } else {
        Err(Malformed)
    }
}

fn parse_record(blob: &[u8], span: Range<usize>) -> Result<Record, Malformed> {
    let (mut partition_key, mut hash_key, mut data) = (None, None, None);
    let mut fields = Fields::new(blob, span)?;
    while let Some(found) = fields.field()? {
        // Of a field that comes twice the last one counts.
        match found {
            (field::PARTITION_KEY, Value::Number(at)) => partition_key = Some(index(at)?),
            (field::HASH_KEY, Value::Number(at)) => hash_key = Some(index(at)?),
            (field::DATA, Value::Bytes(at)) => data = Some(at),
            _ => {}
        }
    }
    Ok(Record {
        partition_key: partition_key.ok_or(Malformed)?,
        hash_key,
        data: data.ok_or(Malformed)?,
    })
}

fn index(at: u64) -> Result<usize, Malformed> {
    usize::try_from(at).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message;

    /// The same messages as `prost` has them; fields that must be there are checked by ourselves.
    #[derive(Clone, PartialEq, Message)]
    struct PeerAggregate {
        #[prost(bytes = "vec", repeated, tag = "1")]
        partition_key_table: Vec<Vec<u8>>,
        #[prost(bytes = "vec", repeated, tag = "2")]
        explicit_hash_key_table: Vec<Vec<u8>>,
        #[prost(message, repeated, tag = "3")]
        records: Vec<PeerRecord>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct PeerRecord {
        #[prost(uint64, optional, tag = "1")]
        partition_key_index: Option<u64>,
        #[prost(uint64, optional, tag = "2")]
        explicit_hash_key_index: Option<u64>,
        #[prost(bytes = "vec", optional, tag = "3")]
        data: Option<Vec<u8>>,
    }

    type Shown = Vec<(String, Option<String>, Vec<u8>)>;

    fn sealed(message: &[u8]) -> Vec<u8> {
        let mut blob = MAGIC.to_vec();
        blob.extend_from_slice(message);
        blob.extend_from_slice(&Md5::digest(message));
        blob
    }

    fn shown(blob: &[u8]) -> Option<Shown> {
        let read = read(blob)?;
        let keys: Vec<_> = read.partition_keys(blob).collect();
        let hashes: Vec<_> = read.hash_keys(blob).collect();
        let records = read.records().iter().map(|record| {
            (
                keys[record.partition_key].clone().into_owned(),
                record.hash_key.and_then(|at| hashes[at]).map(str::to_owned),
                blob[record.data.clone()].to_vec(),
            )
        });
        Some(records.collect())
    }

    /// Made by the Python of `aws-kinesis-agg` 1.2.3.
    const GOLDEN: &[u8] = b"\xf3\x89\x9a\xc2\n\x02k1\x12\x015\x1a\x07\x08\x00\x1a\x03abc\
        \x1a\t\x08\x00\x10\x00\x1a\x03def\"V\xd7hE\xbc\x95Ao\xe8\xc5\x12@\xe1\x14\x81";

    #[test]
    fn an_aggregate_of_another_library_is_read() {
        let expected = vec![
            ("k1".into(), None, b"abc".to_vec()),
            ("k1".into(), Some("5".into()), b"def".to_vec()),
        ];
        assert_eq!(shown(GOLDEN), Some(expected));
    }

    #[test]
    fn case_k1_what_only_starts_like_an_aggregate_is_none() {
        let mut wrong_sum = GOLDEN.to_vec();
        *wrong_sum.last_mut().unwrap() ^= 1;
        for blob in [
            &b""[..],
            &MAGIC,
            b"\xf3\x89\x9a\xc2hello",
            b"\xf3\x89\x9a\xc2...............",
            b"\xf3\x89\x9a\xc2................",
            &GOLDEN[1..],
            &GOLDEN[..GOLDEN.len() - 1],
            &wrong_sum,
        ] {
            assert!(read(blob).is_none(), "{blob:?}");
        }
    }

    #[test]
    fn an_aggregate_without_records_is_one() {
        assert_eq!(shown(&sealed(b"")), Some(vec![]));
        assert_eq!(shown(&sealed(b"\x0a\x01k")), Some(vec![]));
    }

    #[test]
    fn case_k1_a_message_that_lacks_something_is_no_aggregate_at_all() {
        let good = b"\x0a\x01k\x1a\x04\x08\x00\x1a\x00";
        assert_eq!(shown(&sealed(good)).unwrap().len(), 1);
        for (message, what) in [
            (&b"\x1a\x04\x08\x00\x1a\x00"[..], "no table"),
            (
                b"\x0a\x01k\x1a\x04\x08\x01\x1a\x00",
                "a key beyond the table",
            ),
            (
                b"\x0a\x01k\x1a\x0d\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x00",
                "a huge key",
            ),
            (
                b"\x0a\x01k\x1a\x06\x08\x00\x10\x00\x1a\x00",
                "no hash key table",
            ),
            (b"\x0a\x01k\x1a\x02\x1a\x00", "no key"),
            (b"\x0a\x01k\x1a\x02\x08\x00", "no data"),
            (
                b"\x0a\x01k\x1a\x04\x08\x00\x1a\x01",
                "data beyond its record",
            ),
            (
                b"\x0a\x01k\x1a\x05\x08\x00\x1a\x00",
                "a record beyond the message",
            ),
            (b"\x0a\x01k\x1a\x00", "an empty record"),
            (b"\x0a\x01k\x1a\x04\x0a\x00\x1a\x00", "a key that is text"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a huge length"),
        ] {
            assert!(read(&sealed(message)).is_none(), "{what}");
        }
    }

    #[test]
    fn tables_may_come_last_and_unknown_fields_are_passed_over() {
        let message = b"\x1a\x09\x22\x03tag\x08\x00\x1a\x00\x22\x00\x0a\x01k";
        assert_eq!(shown(&sealed(message)).unwrap()[0].0, "k");
    }

    #[test]
    fn odd_keys_do_not_cost_the_record() {
        let message = b"\x0a\x02\xff!\x12\x02-1\x1a\x06\x08\x00\x10\x00\x1a\x00";
        let expected = vec![("\u{fffd}!".into(), None, vec![])];
        assert_eq!(shown(&sealed(message)), Some(expected));
    }

    fn peers() -> impl Strategy<Value = PeerAggregate> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..6);
        let record = (
            prop::option::weighted(0.95, 0..4_u64),
            prop::option::of(0..3_u64),
            prop::option::weighted(0.95, bytes()),
        )
            .prop_map(|(key, hash, data)| PeerRecord {
                partition_key_index: key,
                explicit_hash_key_index: hash,
                data,
            });
        (
            prop::collection::vec(bytes(), 1..5),
            prop::collection::vec("[0-9]{1,3}".prop_map(String::into_bytes), 0..4),
            prop::collection::vec(record, 0..6),
        )
            .prop_map(|(partition_key_table, explicit_hash_key_table, records)| {
                PeerAggregate {
                    partition_key_table,
                    explicit_hash_key_table,
                    records,
                }
            })
    }

    /// What the peer's decoder makes of a message, with our rules on top.
    fn by_peer(message: &[u8]) -> Option<Shown> {
        let peer = PeerAggregate::decode(message).ok()?;
        let at = |index: u64| usize::try_from(index).ok();
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        peer.records
            .iter()
            .map(|record| {
                let key = peer
                    .partition_key_table
                    .get(at(record.partition_key_index?)?)?;
                let hash = match record.explicit_hash_key_index {
                    None => None,
                    Some(index) => {
                        let found = text(peer.explicit_hash_key_table.get(at(index)?)?);
                        hash_key::is_explicit(&found).then_some(found)
                    }
                };
                Some((text(key), hash, record.data.clone()?))
            })
            .collect()
    }

    proptest! {
        #[test]
        fn a_message_is_what_another_decoder_makes_of_it(peer in peers()) {
            let message = peer.encode_to_vec();
            prop_assert_eq!(shown(&sealed(&message)), by_peer(&message));
        }

        #[test]
        fn a_damaged_message_is_none_or_what_another_decoder_makes_of_it(
            peer in peers(),
            at: prop::sample::Index,
            byte: u8,
            cut: bool,
        ) {
            let mut message = peer.encode_to_vec();
            if !message.is_empty() {
                let at = at.index(message.len());
                message[at] = byte;
                if cut {
                    message.truncate(at);
                }
            }
            // We are the stricter one in two things: groups, and a kind that does not fit its field.
            if let Some(ours) = shown(&sealed(&message)) {
                if let Some(theirs) = by_peer(&message) {
                    prop_assert_eq!(ours, theirs);
                }
            }
        }

        #[test]
        fn no_message_panics(message in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = shown(&sealed(&message));
            let mut lucky = b"\x0a\x01k\x1a".to_vec();
            lucky.extend_from_slice(&message);
            let _ = shown(&sealed(&lucky));
        }
    }
}
