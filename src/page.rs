//! The records of one `GetRecords` response, decoded and immutable.
//!
//! A page is a handful of allocations however many records it holds: one arena for the blobs, one
//! for the partition keys, one for the sequence numbers, and a row of bounds per record. Nothing of
//! the response body is kept. It is apart from the JSON decoder because everything after the
//! decoder, and every test, sees only this.

use std::ops::Range;
use std::sync::Arc;

use crate::envelope;
use crate::error::{Error, Result};
use crate::partition;
use crate::sequence_numbers::SequenceNumbers;

/// What is known of one record besides its bytes.
#[derive(Debug)]
struct Row {
    data_end: usize,
    key_end: usize,
    /// Where the payload starts within the blob; 0 when there is no envelope.
    payload_start: usize,
    /// Seconds since the epoch, NaN when unknown.
    arrival: f64,
    has_key: bool,
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
    data: Vec<u8>,
    keys: String,
    numbers: Arc<SequenceNumbers>,
    rows: Vec<Row>,
    tail: Tail,
}

/// Fills a page record by record.
#[derive(Debug)]
pub struct Builder {
    data: Vec<u8>,
    keys: String,
    numbers: SequenceNumbers,
    rows: Vec<Row>,
}

impl Builder {
    /// Makes room: the sizes are known before the first blob is decoded, so no arena ever grows.
    #[must_use]
    pub fn with_capacity(records: usize, data: usize, keys: usize, numbers: usize) -> Self {
        Self {
            data: Vec::with_capacity(data),
            keys: String::with_capacity(keys),
            numbers: SequenceNumbers::with_capacity(records, numbers),
            rows: Vec::with_capacity(records),
        }
    }

    /// Appends a record whose blob `decode` appends to the arena it is given.
    ///
    /// # Errors
    ///
    /// The one of `decode`.
    pub fn push(
        &mut self,
        number: &str,
        key: Option<&str>,
        arrival: Option<f64>,
        decode: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let start = self.data.len();
        decode(&mut self.data)?;
        self.keys.push_str(key.unwrap_or_default());
        self.numbers.push(number);
        self.rows.push(Row {
            data_end: self.data.len(),
            key_end: self.keys.len(),
            payload_start: envelope::payload_start(&self.data[start..]).unwrap_or(0),
            arrival: arrival.unwrap_or(f64::NAN),
            has_key: key.is_some(),
        });
        Ok(())
    }

    /// The finished page.
    #[must_use]
    pub fn finish(self, tail: Tail) -> Page {
        Page {
            data: self.data,
            keys: self.keys,
            numbers: Arc::new(self.numbers),
            rows: self.rows,
            tail,
        }
    }
}

impl Page {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the page holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Everything that is not a record.
    #[must_use]
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// Bytes of all blobs.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.data.len()
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

    /// The blob as it stands in the log.
    #[must_use]
    pub fn data(&self, index: usize) -> &[u8] {
        let start = self.previous(index).map_or(0, |row| row.data_end);
        &self.data[start..self.rows[index].data_end]
    }

    /// What follows the envelope, or the whole blob.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        &self.data(index)[self.rows[index].payload_start..]
    }

    /// The header block of the envelope; `None` without one, empty when it is empty.
    #[must_use]
    pub fn header_block(&self, index: usize) -> Option<&[u8]> {
        let end = self.rows[index].payload_start;
        (end != 0).then(|| &self.data(index)[envelope::PREFIX_BYTES..end])
    }

    /// The partition key; `None` when the record came without one.
    #[must_use]
    pub fn partition_key(&self, index: usize) -> Option<&str> {
        let row = &self.rows[index];
        let start = self.previous(index).map_or(0, |row| row.key_end);
        row.has_key.then(|| &self.keys[start..row.key_end])
    }

    /// Seconds since the epoch, where known.
    #[must_use]
    pub fn arrival(&self, index: usize) -> Option<f64> {
        let at = self.rows[index].arrival;
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

    fn previous(&self, index: usize) -> Option<&Row> {
        index.checked_sub(1).map(|before| &self.rows[before])
    }
}
