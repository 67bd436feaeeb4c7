//! The records of one `GetRecords` response, decoded and immutable.
//!
//! A page is a handful of allocations however many records it holds: one arena for the blobs, one
//! for the keys, one for the sequence numbers, and a row of bounds per record. Nothing of the
//! response body is kept. It is apart from the JSON decoder because everything after the decoder,
//! and every test, sees only this.
//!
//! The records of an aggregate are records of the page like any other. Their data stays where it is,
//! within the blob of the whole, and each key of its tables is kept once, so that a page takes
//! memory in proportion to its bytes, whatever they say.

use std::ops::Range;
use std::sync::Arc;

use crate::envelope;
use crate::error::{Error, Result};
use crate::partition;
use crate::sequence_numbers::SequenceNumbers;

/// A piece of an arena. 32 bits, because an aggregate makes a row of six bytes: its size is what
/// memory is spent on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Of an arena that the builder keeps below 4 GiB: beyond it nothing is found, nor asked for.
    pub fn new(start: usize, end: usize) -> Self {
        let offset = |at| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            start: offset(start),
            end: offset(end),
        }
    }

    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// What is known of one record besides its bytes.
#[derive(Debug)]
pub(crate) struct Row {
    pub data: Span,
    pub key: Span,
    /// Where the payload starts within the blob; 0 when there is no envelope.
    pub payload_start: u32,
    pub has_key: bool,
    /// Seconds since the epoch, NaN when unknown.
    pub arrival: f64,
}

/// The records, but for their sequence numbers, which outlive the page.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// All blobs.
    pub data: Vec<u8>,
    /// All keys.
    pub keys: String,
    pub rows: Vec<Row>,
    /// The rows of each aggregate, in order. Empty for most pages.
    pub aggregates: Vec<Range<usize>>,
    /// The explicit hash keys, by row, of those that have one.
    pub hash_keys: Vec<(usize, Span)>,
    pub empty_aggregates: usize,
}

/// The parts of a response that are not records.
#[derive(Debug, Default)]
pub struct Tail {
    /// Where to read on; `None` at the end of a shard.
    pub next_shard_iterator: Option<String>,
    /// How far the page is behind the tip, in milliseconds.
    pub millis_behind_latest: Option<u64>,
    /// Shards that follow one that has ended.
    pub child_shards: Vec<String>,
}

/// One page of records.
#[derive(Debug)]
pub struct Page {
    records: Records,
    numbers: Arc<SequenceNumbers>,
    tail: Tail,
}

impl Page {
    pub(crate) fn new(records: Records, numbers: SequenceNumbers, tail: Tail) -> Self {
        Self {
            records,
            numbers: Arc::new(numbers),
            tail,
        }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.rows.len()
    }

    /// Whether the page holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.rows.is_empty()
    }

    /// Everything that is not a record.
    #[must_use]
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// How many records of the log were aggregates without a record, and are none of the page.
    #[must_use]
    pub fn empty_aggregates(&self) -> usize {
        self.records.empty_aggregates
    }

    /// Bytes of all blobs as they came; an aggregate counts as a whole.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.records.data.len()
    }

    /// The sequence numbers, to be shared with a watermark.
    #[must_use]
    pub fn sequence_numbers(&self) -> &Arc<SequenceNumbers> {
        &self.numbers
    }

    /// Checks a run of records.
    ///
    /// # Errors
    ///
    /// [`Error::Index`] when it reaches outside the page or ends before it starts.
    pub fn run(&self, start: usize, stop: usize) -> Result<Range<usize>> {
        if start <= stop && stop <= self.len() {
            Ok(start..stop)
        } else {
            Err(Error::Index { len: self.len() })
        }
    }

    /// Checks one index.
    ///
    /// # Errors
    ///
    /// [`Error::Index`] when the page has no such record.
    pub fn index(&self, index: usize) -> Result<usize> {
        if index < self.len() {
            Ok(index)
        } else {
            Err(Error::Index { len: self.len() })
        }
    }

    /// The blob as it stands in the log, or in its aggregate.
    #[must_use]
    pub fn data(&self, index: usize) -> &[u8] {
        &self.records.data[self.records.rows[index].data.range()]
    }

    /// What follows the envelope, or the whole blob.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        &self.data(index)[self.records.rows[index].payload_start as usize..]
    }

    /// The header block of the envelope; `None` without one, empty when it is empty.
    #[must_use]
    pub fn header_block(&self, index: usize) -> Option<&[u8]> {
        let end = self.records.rows[index].payload_start as usize;
        (end != 0).then(|| &self.data(index)[envelope::PREFIX_BYTES..end])
    }

    /// The partition key; `None` when the record came without one.
    #[must_use]
    pub fn partition_key(&self, index: usize) -> Option<&str> {
        let row = &self.records.rows[index];
        row.has_key.then(|| &self.records.keys[row.key.range()])
    }

    /// The explicit hash key, which only a record of an aggregate can tell.
    #[must_use]
    pub fn explicit_hash_key(&self, index: usize) -> Option<&str> {
        let found = self
            .records
            .hash_keys
            .binary_search_by_key(&index, |(row, _)| *row);
        let (_, span) = self.records.hash_keys[found.ok()?];
        Some(&self.records.keys[span.range()])
    }

    /// Which record of its aggregate it is, from 0; `None` when it came alone.
    #[must_use]
    pub fn sub_sequence_number(&self, index: usize) -> Option<usize> {
        let after = self
            .records
            .aggregates
            .partition_point(|rows| rows.start <= index);
        let rows = &self.records.aggregates[after.checked_sub(1)?];
        rows.contains(&index).then(|| index - rows.start)
    }

    /// Seconds since the epoch, where known.
    #[must_use]
    pub fn arrival(&self, index: usize) -> Option<f64> {
        let at = self.records.rows[index].arrival;
        (!at.is_nan()).then_some(at)
    }

    /// Splits a run over `n` worker partitions, in order within each.
    ///
    /// A key goes where [`partition::of_key`] says. Records without a key go round, from a start
    /// that the first of them decides by its sequence number: runs of a single record would all
    /// meet in partition 0 otherwise.
    #[must_use]
    pub fn partitions(&self, run: Range<usize>, n: usize) -> Vec<Vec<usize>> {
        let mut out = vec![Vec::new(); n];
        let mut next_keyless = None;
        for index in run {
            let partition = match self.partition_key(index) {
                Some(key) if !key.is_empty() => partition::of_key(key, n),
                _ => {
                    let here = next_keyless
                        .unwrap_or_else(|| partition::of_key(self.numbers.get(index), n));
                    next_keyless = Some((here + 1) % n);
                    here
                }
            };
            out[partition].push(index);
        }
        out
    }
}
