//! Records on their way into one stream: which may share the next request, and how many there are.
//!
//! Only order and room are decided here; who sends them has what is in requests. Apart from Python,
//! because a record costs a few tens of nanoseconds here, and a microsecond there.
//!
//! * Of one partition key, at most one record is ready, in a request or waits to be sent again; the
//!   next one becomes ready when it has left. The service takes the entries of a request one by one
//!   and may refuse any of them, so that two of one key in a request, or in two requests, may change
//!   places.
//! * A record counts against the room from [`Buffer::offer`] until [`Buffer::leave`].
//! * Records outside, whose publishers wait for room, come in by the order in which they came.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Takes the hash that a key brings along: Python keeps it with the text, with a secret of the process
/// in it, and to hash it here once more would cost as much as all the rest of an offer.
#[derive(Debug, Default)]
struct Brought(u64);

impl Hasher for Brought {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_isize(&mut self, hash: isize) {
        self.0 = u64::from_ne_bytes(i64::try_from(hash).unwrap_or_default().to_ne_bytes());
    }
}

/// What the buffer has to know of a record.
pub trait Record {
    /// A partition key. Its `Hash` writes one `isize`, which is used as it is.
    type Key: Eq + Hash;
    /// Bytes of data and partition key.
    fn size(&self) -> usize;
    /// What it keeps its order by; `None` where no other record has its partition key.
    fn key(&self) -> Option<Self::Key>;
    /// Whether it is decided.
    fn done(&self) -> bool;
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Records a request.
    pub batch: usize,
    /// Bytes of data and keys a request.
    pub request_bytes: usize,
    /// Records in the buffer.
    pub records: usize,
    /// Bytes in the buffer; one record always fits.
    pub bytes: usize,
    /// Whether records of one key wait for each other.
    pub by_key: bool,
}

/// The records of one stream that are not decided yet, but for those in requests.
pub struct Buffer<R: Record> {
    bounds: Bounds,
    /// Bytes that are ready with which a request is as full as it can be.
    pub full_bytes: usize,
    ready: VecDeque<R>,
    ready_bytes: usize,
    /// Keys with a record that is ready, in a request or resting, and what waits behind it.
    keys: HashMap<R::Key, VecDeque<R>, BuildHasherDefault<Brought>>,
    outside: VecDeque<R>,
    records: usize,
    bytes: usize,
    /// Some that are ready have waited already: behind their key, or to be sent again.
    pub waited: bool,
}

impl<R: Record> Buffer<R> {
    /// An empty one.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            full_bytes: bounds.request_bytes,
            ready: VecDeque::new(),
            ready_bytes: 0,
            keys: HashMap::default(),
            outside: VecDeque::new(),
            records: 0,
            bytes: 0,
            waited: false,
        }
    }

    /// Records in it and their bytes.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.records, self.bytes)
    }

    /// Records that may be sent, and their bytes.
    #[must_use]
    pub fn ready(&self) -> (usize, usize) {
        (self.ready.len(), self.ready_bytes)
    }

    /// Records that wait for room.
    #[must_use]
    pub fn outside(&self) -> usize {
        self.outside.len()
    }

    /// All of them: first those that are ready, then those behind their keys, then those outside.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        let behind = self.keys.values().flatten();
        self.ready.iter().chain(behind).chain(&self.outside)
    }

    /// Whether there is no room for a record, or others wait for it already.
    #[must_use]
    pub fn is_full(&self, size: usize) -> bool {
        self.records >= self.bounds.records
            || (self.bytes + size > self.bounds.bytes && self.records > 0)
            || !self.outside.is_empty()
    }

    /// Takes a record in, unless it is full.
    ///
    /// Returns whether it is the first that is ready, or makes the next request as full as it can be.
    ///
    /// # Errors
    ///
    /// The record, where it was not taken.
    pub fn offer(&mut self, record: R) -> Result<bool, R> {
        if self.is_full(record.size()) {
            return Err(record);
        }
        Ok(self.admit(record))
    }

    fn admit(&mut self, record: R) -> bool {
        let size = record.size();
        self.records += 1;
        self.bytes += size;
        if self.bounds.by_key {
            if let Some(key) = record.key() {
                match self.keys.entry(key) {
                    Entry::Occupied(mut behind) => {
                        behind.get_mut().push_back(record);
                        return false;
                    }
                    Entry::Vacant(first) => {
                        first.insert(VecDeque::new());
                    }
                }
            }
        }
        self.ready.push_back(record);
        let before = self.ready_bytes;
        self.ready_bytes += size;
        let count = self.ready.len();
        let fills = before < self.full_bytes && self.full_bytes <= self.ready_bytes;
        count == 1 || count == self.bounds.batch || fills
    }

    /// Keeps a record until there is room.
    pub fn wait_outside(&mut self, record: R) {
        self.outside.push_back(record);
    }

    /// What the next request carries, in order; one at least, if anything is ready.
    pub fn take(&mut self) -> Vec<R> {
        let mut total = 0;
        let mut count = 0;
        for record in self.ready.iter().take(self.bounds.batch) {
            let with = total + record.size();
            if with > self.bounds.request_bytes && count > 0 {
                break;
            }
            total = with;
            count += 1;
        }
        self.waited = false;
        self.ready_bytes -= total;
        self.ready.drain(..count).collect()
    }

    /// All that is ready.
    pub fn take_all(&mut self) -> Vec<R> {
        self.ready_bytes = 0;
        self.ready.drain(..).collect()
    }

    /// These are ready again, in front of all others.
    pub fn put_back(&mut self, records: Vec<R>) {
        for record in records.into_iter().rev() {
            self.ready_bytes += record.size();
            self.ready.push_front(record);
        }
    }

    /// These are decided: their room is free, and what waits behind their keys is ready.
    ///
    /// Returns those outside that were decided meanwhile, for the caller to let go of.
    pub fn leave<'a>(&mut self, records: impl Iterator<Item = &'a R>) -> Vec<R>
    where
        R: 'a,
    {
        for record in records {
            self.free(record);
            if self.keys.is_empty() {
                continue;
            }
            let Some(key) = record.key() else { continue };
            let Entry::Occupied(mut behind) = self.keys.entry(key) else {
                continue;
            };
            if let Some(following) = behind.get_mut().pop_front() {
                self.ready_bytes += following.size();
                self.ready.push_back(following);
                self.waited = true;
            } else {
                behind.remove();
            }
        }
        self.let_in()
    }

    fn free(&mut self, record: &R) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(record.size());
    }

    /// As many of those outside as there is room for.
    fn let_in(&mut self) -> Vec<R> {
        let mut gone = Vec::new();
        let mut outside = std::mem::take(&mut self.outside);
        while let Some(first) = outside.pop_front() {
            if first.done() {
                gone.push(first);
            } else if self.is_full(first.size()) {
                outside.push_front(first);
                break;
            } else {
                self.admit(first);
            }
        }
        self.outside = outside;
        gone
    }

    /// Lets go of those that are decided, and returns them.
    pub fn sweep(&mut self) -> Vec<R> {
        let mut gone = Vec::new();
        for behind in self.keys.values_mut() {
            if behind.iter().any(Record::done) {
                part(behind, &mut gone);
            }
        }
        for record in &gone {
            self.free(record);
        }
        let mut late = Vec::new();
        part(&mut self.ready, &mut late);
        self.ready_bytes = self.ready.iter().map(Record::size).sum();
        part(&mut self.outside, &mut gone);
        gone.extend(self.leave(late.iter()));
        gone.extend(late);
        gone
    }

    /// Forgets everything, and returns it.
    pub fn clear(&mut self) -> Vec<R> {
        let mut gone = self.take_all();
        gone.extend(self.keys.drain().flat_map(|(_, behind)| behind));
        gone.extend(self.outside.drain(..));
        self.records = 0;
        self.bytes = 0;
        gone
    }
}

/// Moves those that are decided out of a queue.
fn part<R: Record>(queue: &mut VecDeque<R>, gone: &mut Vec<R>) {
    for record in std::mem::take(queue) {
        if record.done() {
            gone.push(record);
        } else {
            queue.push_back(record);
        }
    }
}
