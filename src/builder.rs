//! Filling a page: blobs come in, and records, those of aggregates among them, are what is kept.
//!
//! Apart from the page because it is over when the page begins: whatever comes after the decoder
//! only reads.

use std::ops::Range;

use crate::envelope;
use crate::error::{Error, Result};
use crate::kpl;
use crate::page::{Page, Records, Row, Span, Tail};
use crate::sequence_numbers::SequenceNumbers;

/// Fills a page record by record.
#[derive(Debug)]
pub struct Builder {
    records: Records,
    numbers: SequenceNumbers,
}

impl Builder {
    /// Makes room: the sizes are known before the first blob is decoded, so no arena ever grows.
    #[must_use]
    pub fn with_capacity(records: usize, data: usize, keys: usize, numbers: usize) -> Self {
        Self {
            numbers: SequenceNumbers::with_capacity(records, numbers),
            records: Records {
                data: Vec::with_capacity(data),
                keys: String::with_capacity(keys),
                rows: Vec::with_capacity(records),
                ..Records::default()
            },
        }
    }

    /// Appends a record whose blob `decode` appends to the arena it is given: itself, or what it
    /// holds if it is an aggregate.
    ///
    /// # Errors
    ///
    /// The one of `decode`; [`Error::Page`] for a page beyond 4 GiB.
    pub fn push(
        &mut self,
        number: &str,
        key: Option<&str>,
        arrival: Option<f64>,
        decode: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let start = self.records.data.len();
        decode(&mut self.records.data)?;
        let arrival = arrival.unwrap_or(f64::NAN);
        let is_marked = kpl::is_marked(&self.records.data[start..]);
        if !is_marked || !self.push_aggregate(number, start, arrival) {
            self.numbers.push(number);
            let span = push_text(&mut self.records.keys, key.unwrap_or_default());
            self.push_row(start..self.records.data.len(), span, key.is_some(), arrival);
        }
        // What `Span` relies on.
        let largest = self.records.data.len().max(self.records.keys.len());
        if u32::try_from(largest).is_err() {
            return Err(too_large());
        }
        Ok(())
    }

    /// Appends the records of the aggregate whose blob starts at `start`; whether it is one.
    #[cold]
    fn push_aggregate(&mut self, number: &str, start: usize, arrival: f64) -> bool {
        let Some(aggregate) = kpl::read(&self.records.data[start..]) else {
            return false;
        };
        let records = aggregate.records();
        if records.is_empty() {
            self.numbers.push_empty(number);
            self.records.empty_aggregates += 1;
            return true;
        }
        let keys = aggregate
            .partition_keys(&self.records.data[start..])
            .map(|key| push_text(&mut self.records.keys, &key))
            .collect::<Vec<_>>();
        let hash_keys = aggregate
            .hash_keys(&self.records.data[start..])
            .map(|key| key.map(|key| push_text(&mut self.records.keys, key)))
            .collect::<Vec<_>>();
        let first = self.records.rows.len();
        for record in records {
            if let Some(span) = record.hash_key.and_then(|at| hash_keys[at]) {
                self.records.hash_keys.push((self.records.rows.len(), span));
            }
            self.numbers.push(number);
            let data = start + record.data.start..start + record.data.end;
            self.push_row(data, keys[record.partition_key], true, arrival);
        }
        self.records.aggregates.push(first..self.records.rows.len());
        true
    }

    fn push_row(&mut self, data: Range<usize>, key: Span, has_key: bool, arrival: f64) {
        let payload_start = envelope::payload_start(&self.records.data[data.clone()]).unwrap_or(0);
        self.records.rows.push(Row {
            data: Span::new(data.start, data.end),
            key,
            payload_start: u32::try_from(payload_start).unwrap_or(0),
            has_key,
            arrival,
        });
    }

    /// The finished page.
    #[must_use]
    pub fn finish(self, tail: Tail) -> Page {
        Page::new(self.records, self.numbers, tail)
    }
}

/// Appends a key to the arena of keys.
fn push_text(keys: &mut String, key: &str) -> Span {
    let start = keys.len();
    keys.push_str(key);
    Span::new(start, keys.len())
}

#[cold]
fn too_large() -> Error {
    Error::page("it is larger than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregator::Aggregator;
    use proptest::prelude::*;

    type Sub = (String, Option<u64>, Vec<u8>);

    #[derive(Debug, Clone)]
    enum Blob {
        Plain(Option<String>, Vec<u8>),
        Aggregate(Vec<Sub>),
    }

    fn push(page: &mut Builder, number: usize, key: Option<&str>, blob: &[u8]) {
        let fill = |arena: &mut Vec<u8>| {
            arena.extend_from_slice(blob);
            Ok(())
        };
        page.push(&number.to_string(), key, Some(1.5), fill)
            .unwrap();
    }

    fn sealed(records: &[Sub]) -> Vec<u8> {
        let mut all = Aggregator::new();
        for (key, hash, data) in records {
            all.add(key, hash.map(|hash| hash.to_string()).as_deref(), data);
        }
        all.take()
    }

    #[test]
    fn keys_are_kept_once_however_many_records_share_them() {
        let long = "k".repeat(100_000);
        let records: Vec<Sub> = (0..1_000).map(|_| (long.clone(), None, vec![])).collect();
        let mut page = Builder::with_capacity(1, 0, 0, 1);
        push(&mut page, 1, None, &sealed(&records));
        let page = page.finish(Tail::default());
        assert_eq!(
            (page.len(), page.partition_key(0).map_or(0, str::len)),
            (1_000, 100_000)
        );
        assert_eq!(page.partition_key(999), Some(&*long));
    }

    #[test]
    fn an_aggregate_within_an_aggregate_is_a_payload() {
        let inner = sealed(&[("k".into(), None, b"x".to_vec())]);
        let mut page = Builder::with_capacity(1, 0, 0, 1);
        push(
            &mut page,
            1,
            None,
            &sealed(&[("k".into(), None, inner.clone())]),
        );
        let page = page.finish(Tail::default());
        assert_eq!((page.len(), page.payload(0)), (1, &inner[..]));
    }

    fn blobs() -> impl Strategy<Value = Vec<Blob>> {
        let data = || {
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                Just(b"RSK1\0\0\0\x05a: b\nrest".to_vec()),
            ]
        };
        let sub = ("[a-c]{0,2}", prop::option::of(any::<u64>()), data());
        let plain = (prop::option::of("[a-c]{0,2}"), data());
        let each = prop_oneof![
            plain.prop_map(|(key, data)| Blob::Plain(key, data)),
            prop::collection::vec(sub, 0..5).prop_map(Blob::Aggregate),
        ];
        prop::collection::vec(each, 0..8)
    }

    proptest! {
        #[test]
        fn a_page_holds_what_its_blobs_hold_in_their_order(blobs in blobs()) {
            let mut page = Builder::with_capacity(blobs.len(), 0, 0, 0);
            let mut expected = Vec::new();
            for (number, blob) in blobs.iter().enumerate() {
                match blob {
                    Blob::Plain(key, data) => {
                        push(&mut page, number, key.as_deref(), data);
                        expected.push((number, key.clone(), None, None, data));
                    }
                    Blob::Aggregate(records) => {
                        push(&mut page, number, Some("whole"), &sealed(records));
                        for (at, (key, hash, data)) in records.iter().enumerate() {
                            let hash = hash.map(|hash| hash.to_string());
                            expected.push((number, Some(key.clone()), hash, Some(at), data));
                        }
                    }
                }
            }
            let page = page.finish(Tail::default());
            prop_assert_eq!(page.len(), expected.len());
            for (index, (number, key, hash, at, data)) in expected.into_iter().enumerate() {
                prop_assert_eq!(page.sequence_numbers().get(index), number.to_string());
                prop_assert_eq!(page.partition_key(index), key.as_deref());
                prop_assert_eq!(page.explicit_hash_key(index), hash.as_deref());
                prop_assert_eq!(page.sub_sequence_number(index), at);
                prop_assert_eq!(page.arrival(index), Some(1.5));
                prop_assert_eq!(page.data(index), &data[..]);
                let payload = envelope::payload_start(data).unwrap_or(0);
                prop_assert_eq!(page.payload(index), &data[payload..]);
                prop_assert_eq!(page.header_block(index).is_some(), payload > 0);
            }
            let empty = blobs.iter().filter(|blob| matches!(blob, Blob::Aggregate(all) if all.is_empty()));
            prop_assert_eq!(page.empty_aggregates(), empty.count());
            let last = blobs.len().checked_sub(1).map(|number| number.to_string());
            prop_assert_eq!(page.sequence_numbers().last(), last.as_deref());
        }
    }
}
