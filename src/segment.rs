//! The deliveries of one page, as the watermark sees them: which are open, which of those held.
//!
//! Apart from the watermark because it knows nothing of places or of other pages: indices run from
//! 0 within the page, and a bit is all that a delivery costs here.

use std::ops::Range;
use std::sync::Arc;

use crate::sequence_numbers::SequenceNumbers;

/// Deliveries per word of a bit set.
const WORD: usize = u64::BITS as usize;

/// Bytes of page that one open delivery may keep in memory while others of its page are in flight.
/// With numbers of 56 digits a page is given up when a sixteenth of it is left: most pages finish
/// before the watermark has copied a single number.
const IN_FLIGHT_BYTES: usize = 1_024;

/// The same when all that is left is held: it will stay for long, so it may not cost more than a
/// copy of its own number does.
const HELD_BYTES: usize = 160;

/// One page of deliveries.
#[derive(Debug)]
pub struct Segment {
    numbers: Arc<SequenceNumbers>,
    /// The last number that was delivered before this page.
    before: Option<Arc<str>>,
    open_bits: Vec<u64>,
    /// Empty until the first delivery is held: most pages never need it.
    held_bits: Vec<u64>,
    open: usize,
    held: usize,
    /// Where the search for the oldest open delivery starts. Deliveries are never opened again, so
    /// the words before it stay empty.
    first_word: usize,
}

impl Segment {
    /// A page whose deliveries are all open.
    #[must_use]
    pub fn new(numbers: Arc<SequenceNumbers>, before: Option<Arc<str>>) -> Self {
        let open = numbers.len();
        let mut open_bits = vec![u64::MAX; open.div_ceil(WORD)];
        if let (Some(last), rest @ 1..) = (open_bits.last_mut(), open % WORD) {
            *last = (1 << rest) - 1;
        }
        Self {
            numbers,
            before,
            open_bits,
            held_bits: Vec::new(),
            open,
            held: 0,
            first_word: 0,
        }
    }

    /// Number of open deliveries, held ones included.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Settles one delivery. `None` if it is not open, else whether it was held.
    pub fn settle(&mut self, index: usize) -> Option<bool> {
        let (word, bit) = (index / WORD, 1 << (index % WORD));
        let bits = self.open_bits.get_mut(word)?;
        if *bits & bit == 0 {
            return None;
        }
        *bits &= !bit;
        self.open -= 1;
        let was_held = match self.held_bits.get_mut(word) {
            Some(held) if *held & bit != 0 => {
                *held &= !bit;
                self.held -= 1;
                true
            }
            _ => false,
        };
        Some(was_held)
    }

    /// Settles the open deliveries of a run; how many there were, and how many of them were held.
    pub fn settle_range(&mut self, run: Range<usize>) -> (usize, usize) {
        let (mut closed, mut released) = (0, 0);
        let stop = run.end.min(self.numbers.len());
        let mut at = run.start;
        while at < stop {
            let word = at / WORD;
            let next = stop.min((word + 1) * WORD);
            // `next - at` is 1..=64, so neither shift reaches the width of the word.
            let mask = (u64::MAX >> (WORD - (next - at))) << (at % WORD);
            closed += (self.open_bits[word] & mask).count_ones() as usize;
            self.open_bits[word] &= !mask;
            if let Some(held) = self.held_bits.get_mut(word) {
                released += (*held & mask).count_ones() as usize;
                *held &= !mask;
            }
            at = next;
        }
        self.open -= closed;
        self.held -= released;
        (closed, released)
    }

    /// Marks an open delivery as held; whether that changed anything.
    pub fn hold(&mut self, index: usize) -> bool {
        let (word, bit) = (index / WORD, 1 << (index % WORD));
        if self.open_bits.get(word).is_none_or(|bits| bits & bit == 0) {
            return false;
        }
        if self.held_bits.is_empty() {
            self.held_bits = vec![0; self.open_bits.len()];
        }
        let news = self.held_bits[word] & bit == 0;
        self.held_bits[word] |= bit;
        self.held += usize::from(news);
        news
    }

    /// The oldest open delivery.
    pub fn oldest(&mut self) -> Option<usize> {
        let (word, bits) = self
            .open_bits
            .iter()
            .enumerate()
            .skip(self.first_word)
            .find(|(_, bits)| **bits != 0)?;
        self.first_word = word;
        Some(word * WORD + bits.trailing_zeros() as usize)
    }

    /// The last delivery that shares the sequence number of this one, if the page has this one.
    #[must_use]
    pub fn run_last(&self, index: usize) -> Option<usize> {
        (index < self.numbers.len()).then(|| self.numbers.run_last(index))
    }

    /// The first delivery that shares the sequence number of this one.
    #[must_use]
    pub fn run_start(&self, index: usize) -> usize {
        self.numbers.run_start(index)
    }

    /// The sequence number delivered before this delivery and those that share its number.
    #[must_use]
    pub fn before(&self, index: usize) -> Option<&str> {
        self.numbers.before(index).or(self.before.as_deref())
    }

    /// Whether the page's memory is out of proportion to what is still open of it.
    #[must_use]
    pub fn is_wasteful(&self) -> bool {
        let fair = if self.open == self.held {
            HELD_BYTES
        } else {
            IN_FLIGHT_BYTES
        };
        self.numbers.heap_bytes() > self.open * fair
    }

    /// The open deliveries that are left, oldest first: index, and whether it is held.
    pub fn left(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        let is_set = |bits: &[u64], index: usize| {
            bits.get(index / WORD)
                .is_some_and(|bits| bits & (1 << (index % WORD)) != 0)
        };
        (self.first_word * WORD..self.numbers.len())
            .filter(move |&index| is_set(&self.open_bits, index))
            .map(move |index| (index, is_set(&self.held_bits, index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(len: usize) -> Segment {
        let numbers = (0..len).map(|i| i.to_string()).collect();
        Segment::new(Arc::new(numbers), None)
    }

    #[test]
    fn every_length_starts_open_and_ends_settled() {
        for len in [1, 63, 64, 65, 128, 1_000] {
            let mut page = segment(len);
            assert_eq!(page.left().count(), len);
            assert_eq!(page.settle(len), None);
            assert_eq!(page.settle_range(0..usize::MAX), (len, 0));
            assert_eq!((page.open(), page.oldest()), (0, None));
        }
    }

    #[test]
    fn every_run_settles_exactly_itself() {
        for start in 0..140 {
            for stop in start..=140 {
                let mut page = segment(140);
                page.hold(100);
                let released = usize::from((start..stop).contains(&100));
                assert_eq!(page.settle_range(start..stop), (stop - start, released));
                let left: Vec<_> = page.left().map(|(index, _)| index).collect();
                let expected: Vec<_> = (0..start).chain(stop..140).collect();
                assert_eq!(left, expected);
            }
        }
    }

    #[test]
    fn the_oldest_is_found_however_it_is_settled() {
        let mut page = segment(200);
        for index in (0..200).filter(|index| index % 67 != 66) {
            page.settle(index);
        }
        assert_eq!(page.oldest(), Some(66));
        assert_eq!(page.settle(66), Some(false));
        assert_eq!(page.oldest(), Some(133));
    }
}
