//! Writing an aggregate: records are added one by one, and its size is known at any time.
//!
//! The format, and reading it, are in `kpl`. A record is written when it is added, so that the size
//! after the next one is a sum of a few numbers, and finishing copies each byte once.

use std::collections::HashMap;

use md5::{Digest, Md5};

use crate::kpl::{field, MAGIC, SUM_BYTES};
use crate::protobuf::{bytes_len, number_len, push_length, push_number};

/// Collects records for one aggregate.
#[derive(Debug, Default)]
pub struct Aggregator {
    partition_keys: Table,
    hash_keys: Table,
    /// The records as they will stand in the message.
    records: Vec<u8>,
    len: usize,
    /// The partition key of the first record: the whole goes by it, and is charged for it.
    first_key: String,
}

/// Keys, each of them once.
#[derive(Debug, Default)]
struct Table {
    indices: HashMap<Box<str>, u64>,
    /// The keys as they will stand in the message.
    bytes: Vec<u8>,
}

impl Table {
    /// The index that a key has or would get, and the bytes that this would add to the message.
    fn look_up(&self, field: u64, key: &str) -> (u64, usize) {
        match self.indices.get(key) {
            Some(index) => (*index, 0),
            None => (self.indices.len() as u64, bytes_len(field, key.len())),
        }
    }

    fn put(&mut self, field: u64, key: &str, (index, added): (u64, usize)) {
        if added > 0 {
            push_length(&mut self.bytes, field, key.len());
            self.bytes.extend_from_slice(key.as_bytes());
            self.indices.insert(key.into(), index);
        }
    }
}

impl Aggregator {
    /// Nothing collected yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no record yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The partition key of the first record, for the aggregate as a whole.
    #[must_use]
    pub fn partition_key(&self) -> Option<&str> {
        (self.len > 0).then_some(&*self.first_key)
    }

    /// Bytes that the service counts of the aggregate: its blob and its partition key.
    #[must_use]
    pub fn size(&self) -> usize {
        self.blob_bytes() + self.first_key.len()
    }

    /// The same with one record more, of `data_bytes`.
    #[must_use]
    pub fn size_with(&self, key: &str, hash_key: Option<&str>, data_bytes: usize) -> usize {
        let (key_at, key_bytes) = self.partition_keys.look_up(field::PARTITION_KEYS, key);
        let (hash_at, hash_bytes) = self.look_up_hash_key(hash_key);
        let record = record_len(key_at, hash_at, data_bytes);
        let first = if self.is_empty() { key.len() } else { 0 };
        self.size() + key_bytes + hash_bytes + bytes_len(field::RECORDS, record) + first
    }

    /// Adds a record.
    pub fn add(&mut self, key: &str, hash_key: Option<&str>, data: &[u8]) {
        let key_at = self.partition_keys.look_up(field::PARTITION_KEYS, key);
        self.partition_keys.put(field::PARTITION_KEYS, key, key_at);
        let (hash_at, hash_bytes) = self.look_up_hash_key(hash_key);
        if let (Some(hash_key), Some(at)) = (hash_key, hash_at) {
            self.hash_keys
                .put(field::HASH_KEYS, hash_key, (at, hash_bytes));
        }
        if self.is_empty() {
            key.clone_into(&mut self.first_key);
        }
        push_record(&mut self.records, key_at.0, hash_at, data);
        self.len += 1;
    }

    /// The blob of everything collected; the next aggregate starts with nothing.
    pub fn take(&mut self) -> Vec<u8> {
        let whole = std::mem::take(self);
        let mut out = Vec::with_capacity(whole.blob_bytes());
        out.extend_from_slice(&MAGIC);
        for part in [
            &whole.partition_keys.bytes,
            &whole.hash_keys.bytes,
            &whole.records,
        ] {
            out.extend_from_slice(part);
        }
        push_sum(&mut out);
        out
    }

    fn blob_bytes(&self) -> usize {
        let tables = self.partition_keys.bytes.len() + self.hash_keys.bytes.len();
        MAGIC.len() + tables + self.records.len() + SUM_BYTES
    }

    fn look_up_hash_key(&self, hash_key: Option<&str>) -> (Option<u64>, usize) {
        match hash_key {
            None => (None, 0),
            Some(key) => {
                let (at, bytes) = self.hash_keys.look_up(field::HASH_KEYS, key);
                (Some(at), bytes)
            }
        }
    }
}

/// How many records, from the first on, one aggregate of at most `limit` bytes holds; at least one,
/// since what fits into none goes alone.
///
/// Data that begins as an aggregate does goes alone, too: within another one no reader would take
/// it apart.
#[must_use]
pub fn fitting<'a>(records: impl IntoIterator<Item = Record<'a>>, limit: usize) -> usize {
    let mut keys: HashMap<&str, u64> = HashMap::new();
    let mut hash_keys: HashMap<&str, u64> = HashMap::new();
    let mut size = MAGIC.len() + SUM_BYTES;
    let mut count = 0;
    for (key, hash_key, data) in records {
        if count == 0 {
            size += key.len();
        }
        let key_at = index(&mut keys, &mut size, field::PARTITION_KEYS, key);
        let hash_at = hash_key.map(|key| index(&mut hash_keys, &mut size, field::HASH_KEYS, key));
        size += bytes_len(field::RECORDS, record_len(key_at, hash_at, data.len()));
        if size > limit || data.starts_with(&MAGIC) {
            break;
        }
        count += 1;
    }
    count.max(1)
}

/// The index of a key in a table of which only the size is wanted.
fn index<'a>(table: &mut HashMap<&'a str, u64>, size: &mut usize, field: u64, key: &'a str) -> u64 {
    let next = table.len() as u64;
    *table.entry(key).or_insert_with(|| {
        *size += bytes_len(field, key.len());
        next
    })
}

/// A partition key, an explicit hash key, and data.
pub type Record<'a> = (&'a str, Option<&'a str>, &'a [u8]);

/// The aggregate of these records, which are known all at once: nothing of it is written twice.
#[must_use]
pub fn encode(records: &[Record<'_>]) -> Vec<u8> {
    // Tags and lengths take less than 24 bytes a record, and its keys' as much again.
    let room = records
        .iter()
        .map(|(key, hash_key, data)| key.len() + hash_key.map_or(0, str::len) + data.len() + 48);
    let mut out = Vec::with_capacity(room.sum::<usize>() + MAGIC.len() + SUM_BYTES);
    out.extend_from_slice(&MAGIC);
    let (mut keys, mut hash_keys) = (HashMap::new(), HashMap::new());
    let mut hash_bytes = Vec::new();
    let mut places = Vec::with_capacity(records.len());
    for (key, hash_key, _) in records {
        let key_at = entered(&mut keys, &mut out, field::PARTITION_KEYS, key);
        let hash_at =
            hash_key.map(|key| entered(&mut hash_keys, &mut hash_bytes, field::HASH_KEYS, key));
        places.push((key_at, hash_at));
    }
    out.extend_from_slice(&hash_bytes);
    for ((_, _, data), (key_at, hash_at)) in records.iter().zip(places) {
        push_record(&mut out, key_at, hash_at, data);
    }
    push_sum(&mut out);
    out
}

/// The index of a key, which is written when it is met first.
fn entered<'a>(
    table: &mut HashMap<&'a str, u64>,
    out: &mut Vec<u8>,
    field: u64,
    key: &'a str,
) -> u64 {
    let next = table.len() as u64;
    *table.entry(key).or_insert_with(|| {
        push_length(out, field, key.len());
        out.extend_from_slice(key.as_bytes());
        next
    })
}

fn push_record(out: &mut Vec<u8>, key_at: u64, hash_at: Option<u64>, data: &[u8]) {
    push_length(out, field::RECORDS, record_len(key_at, hash_at, data.len()));
    push_number(out, field::PARTITION_KEY, key_at);
    if let Some(at) = hash_at {
        push_number(out, field::HASH_KEY, at);
    }
    push_length(out, field::DATA, data.len());
    out.extend_from_slice(data);
}

fn push_sum(out: &mut Vec<u8>) {
    let sum = Md5::digest(&out[MAGIC.len()..]);
    out.extend_from_slice(&sum);
}

/// Bytes of a record within the message.
fn record_len(key_at: u64, hash_at: Option<u64>, data_bytes: usize) -> usize {
    number_len(field::PARTITION_KEY, key_at)
        + hash_at.map_or(0, |at| number_len(field::HASH_KEY, at))
        + bytes_len(field::DATA, data_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kpl;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_another_library() {
        let mut all = Aggregator::new();
        all.add("k1", None, b"abc");
        all.add("k1", Some("5"), b"def");
        assert_eq!(
            all.take(),
            b"\xf3\x89\x9a\xc2\n\x02k1\x12\x015\x1a\x07\x08\x00\x1a\x03abc\
            \x1a\t\x08\x00\x10\x00\x1a\x03def\"V\xd7hE\xbc\x95Ao\xe8\xc5\x12@\xe1\x14\x81"
        );
        assert!(all.is_empty());
    }

    #[test]
    fn as_many_fit_as_the_size_says_and_one_always_does() {
        let record = ("k", None, &b"0123456789"[..]);
        let mut two = Aggregator::new();
        two.add(record.0, record.1, record.2);
        two.add(record.0, record.1, record.2);
        let size = two.size();
        assert_eq!(fitting([record; 3], size), 2);
        assert_eq!(fitting([record; 3], size - 1), 1);
        assert_eq!(fitting([record; 3], 0), 1);
        assert_eq!(fitting([record; 3], usize::MAX), 3);
    }

    #[test]
    fn what_begins_as_an_aggregate_goes_alone() {
        let plain = ("k", None, &b"x"[..]);
        let nested = ("k", None, &b"\xf3\x89\x9a\xc2..."[..]);
        assert_eq!(fitting([plain, plain, nested, plain], 1_000), 2);
        assert_eq!(fitting([nested, plain], 1_000), 1);
    }

    #[test]
    fn nothing_is_an_aggregate_too() {
        let mut none = Aggregator::new();
        assert_eq!((none.size(), none.partition_key()), (20, None));
        let blob = none.take();
        assert_eq!(blob.len(), 20);
        assert!(kpl::read(&blob).unwrap().records().is_empty());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_and_has_the_size_that_was_told(
            given in prop::collection::vec(
                (
                    "[a-c日]{0,3}",
                    prop::option::of(0..u128::MAX),
                    prop::collection::vec(any::<u8>(), 0..200),
                ),
                0..150,
            ),
        ) {
            let mut all = Aggregator::new();
            for (key, hash, data) in &given {
                let hash = hash.map(|hash| hash.to_string());
                let told = all.size_with(key, hash.as_deref(), data.len());
                all.add(key, hash.as_deref(), data);
                prop_assert_eq!(all.size(), told);
            }
            let (size, len) = (all.size(), all.len());
            let first = all.partition_key().map_or(0, str::len);
            let blob = all.take();
            prop_assert_eq!((blob.len() + first, given.len()), (size, len));

            let texts: Vec<_> = given
                .iter()
                .map(|(key, hash, data)| (key, hash.map(|hash| hash.to_string()), data))
                .collect();
            let records = || {
                texts
                    .iter()
                    .map(|(key, hash, data)| (key.as_str(), hash.as_deref(), data.as_slice()))
            };
            prop_assert_eq!(fitting(records(), size), len.max(1));
            prop_assert_eq!(&encode(&records().collect::<Vec<_>>()), &blob);
            if len > 1 {
                prop_assert_eq!(fitting(records(), size - 1), len - 1);
            }

            let read = kpl::read(&blob).unwrap();
            let keys: Vec<_> = read.partition_keys(&blob).collect();
            let hashes: Vec<_> = read.hash_keys(&blob).collect();
            let back: Vec<_> = read
                .records()
                .iter()
                .map(|record| {
                    let hash = record.hash_key.and_then(|at| hashes[at]);
                    (
                        keys[record.partition_key].clone().into_owned(),
                        hash.map(|hash| hash.parse().unwrap()),
                        blob[record.data.clone()].to_vec(),
                    )
                })
                .collect();
            prop_assert_eq!(back, given);
        }
    }
}
