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

    /// Keys of records that have not left.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const BOUNDS: Bounds = Bounds {
        batch: 3,
        request_bytes: 10,
        records: 6,
        bytes: 30,
        by_key: true,
    };

    #[derive(Clone, Debug)]
    struct Fake {
        number: usize,
        key: Option<Text>,
        size: usize,
        done: Rc<Cell<bool>>,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Text(u8);

    impl Hash for Text {
        fn hash<H: Hasher>(&self, state: &mut H) {
            // Half of them collide.
            state.write_isize(isize::from(self.0 % 2));
        }
    }

    impl Record for Fake {
        type Key = Text;

        fn size(&self) -> usize {
            self.size
        }

        fn key(&self) -> Option<Text> {
            self.key.clone()
        }

        fn done(&self) -> bool {
            self.done.get()
        }
    }

    fn fake(number: usize, key: Option<u8>, size: usize) -> Fake {
        Fake {
            number,
            key: key.map(Text),
            size,
            done: Rc::default(),
        }
    }

    fn numbers(records: &[Fake]) -> Vec<usize> {
        records.iter().map(|each| each.number).collect()
    }

    #[test]
    fn the_first_that_is_ready_and_the_one_that_fills_a_request_wake() {
        let mut buffer = Buffer::new(BOUNDS);
        let woke: Vec<_> = (0..4)
            .map(|number| buffer.offer(fake(number, None, 1)).unwrap())
            .collect();
        assert_eq!(woke, [true, false, true, false]);
        assert!(buffer.offer(fake(4, None, 6)).unwrap(), "by bytes");
    }

    #[test]
    fn a_record_that_is_larger_than_a_request_goes_alone() {
        let mut buffer = Buffer::new(BOUNDS);
        for (number, size) in [11, 1, 9, 1].into_iter().enumerate() {
            buffer.offer(fake(number, None, size)).unwrap();
        }
        let taken: Vec<_> = (0..4).map(|_| numbers(&buffer.take())).collect();
        assert_eq!(taken, [vec![0], vec![1, 2], vec![3], vec![]]);
    }

    #[test]
    fn the_next_of_a_key_is_ready_when_the_one_before_has_left() {
        let mut buffer = Buffer::new(BOUNDS);
        for number in 0..3 {
            buffer.offer(fake(number, Some(1), 1)).unwrap();
        }
        let first = buffer.take();
        assert_eq!((numbers(&first), buffer.take().len()), (vec![0], 0));
        assert!(!buffer.waited);
        buffer.leave(first.iter());
        assert!(buffer.waited);
        assert_eq!(numbers(&buffer.take()), [1]);
    }

    #[test]
    fn those_outside_come_in_by_their_order_and_nobody_passes_them() {
        let mut buffer = Buffer::new(BOUNDS);
        buffer.offer(fake(0, None, 25)).unwrap();
        let large = buffer.offer(fake(1, None, 20)).unwrap_err();
        buffer.wait_outside(large);
        assert!(
            buffer.offer(fake(2, None, 1)).is_err(),
            "there is room for it"
        );
        buffer.wait_outside(fake(2, None, 1));
        buffer.wait_outside(fake(3, None, 1));
        let gone = buffer.iter().find(|each| each.number == 2).unwrap();
        gone.done.set(true);
        let first = buffer.take();
        assert_eq!(numbers(&buffer.leave(first.iter())), [2]);
        assert_eq!((buffer.outside(), buffer.held()), (0, (2, 21)));
    }

    proptest! {
        /// Against the plainest model: whatever happens, keys keep their order, and room is exact.
        #[test]
        fn keys_keep_their_order_and_room_is_exact(
            script in prop::collection::vec((0_u8..6, 0_u8..4, 1_usize..8), 0..80)
        ) {
            let mut buffer = Buffer::new(BOUNDS);
            let mut out: Vec<Vec<Fake>> = Vec::new();
            let mut sent: Vec<Fake> = Vec::new();
            let mut inside: Vec<Fake> = Vec::new();
            for (number, (what, key, size)) in script.into_iter().enumerate() {
                match what {
                    0 | 1 => {
                        let record = fake(number, (key > 0).then_some(key), size);
                        match buffer.offer(record.clone()) {
                            Ok(_) => inside.push(record),
                            Err(_) => prop_assert!(
                                inside.len() >= BOUNDS.records
                                    || inside.iter().map(|each| each.size).sum::<usize>() + size
                                        > BOUNDS.bytes
                            ),
                        }
                    }
                    2 => out.push(buffer.take()),
                    3 => {
                        if let Some(batch) = out.pop() {
                            buffer.put_back(batch);
                        }
                    }
                    4 => {
                        if !out.is_empty() {
                            let batch = out.remove(0);
                            buffer.leave(batch.iter());
                            inside.retain(|each| !numbers(&batch).contains(&each.number));
                            sent.extend(batch);
                        }
                    }
                    _ => {
                        let waiting: Vec<_> = buffer.iter().cloned().collect();
                        if let Some(one) = waiting.get(usize::from(key)) {
                            one.done.set(true);
                            let gone = numbers(&buffer.sweep());
                            prop_assert_eq!(&gone, &[one.number]);
                            inside.retain(|each| each.number != one.number);
                        }
                    }
                }
                let total = inside.iter().map(|each| each.size).sum::<usize>();
                prop_assert_eq!(buffer.held(), (inside.len(), total));
                // Of a key, one at most is ready or out.
                let mut keys: Vec<u8> = buffer.ready.iter().chain(out.iter().flatten())
                    .filter_map(|each| each.key.as_ref().map(|key| key.0))
                    .collect();
                keys.sort_unstable();
                let all = keys.len();
                keys.dedup();
                prop_assert_eq!((keys.len(), buffer.keys()), (all, all));
            }
            for key in 1..4 {
                let order: Vec<_> = sent.iter()
                    .filter(|each| each.key == Some(Text(key)))
                    .map(|each| each.number)
                    .collect();
                prop_assert!(order.is_sorted());
            }
            let left = buffer.clear();
            prop_assert_eq!(left.len() + out.iter().map(Vec::len).sum::<usize>(), inside.len());
            prop_assert_eq!((buffer.held(), buffer.ready(), buffer.keys()), ((0, 0), (0, 0), 0));
        }
    }
}
