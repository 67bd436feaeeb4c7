//! The sequence numbers of one page, in one allocation that never changes.
//!
//! They have an arena of their own because two owners share it: the page, which answers for each
//! record, and the watermark, which needs the numbers for longer than anybody needs the payloads.
//! A sequence number is opaque text; the only question ever asked about two of them is whether
//! they are the same.

/// The sequence numbers of consecutive deliveries, in arrival order.
///
/// Neighbours with the same number form a *run* and share its text: the deliveries out of one
/// aggregated record, of which the log knows only the number of the whole. A run may be empty: an
/// aggregate without records, which is settled as soon as what came before it is.
#[derive(Debug, Default)]
pub struct SequenceNumbers {
    text: String,
    /// Where the number of each run ends in `text`.
    ends: Vec<usize>,
    /// Whether not every delivery is a run of its own; the usual case is that it is.
    shared: bool,
    /// The run of each delivery, once that has to be written down.
    runs: Vec<usize>,
}

impl SequenceNumbers {
    /// Empty, with room for `records` numbers of `text_bytes` in all.
    #[must_use]
    pub fn with_capacity(records: usize, text_bytes: usize) -> Self {
        Self {
            text: String::with_capacity(text_bytes),
            ends: Vec::with_capacity(records),
            shared: false,
            runs: Vec::new(),
        }
    }

    /// Appends the number of the next delivery.
    pub fn push(&mut self, number: &str) {
        if self.last() == Some(number) {
            self.share();
        } else {
            self.push_run(number);
        }
        if self.shared {
            self.runs.push(self.ends.len() - 1);
        }
    }

    /// Appends a number without a delivery.
    pub fn push_empty(&mut self, number: &str) {
        if self.last() != Some(number) {
            self.share();
            self.push_run(number);
        }
    }

    fn push_run(&mut self, number: &str) {
        self.text.push_str(number);
        self.ends.push(self.text.len());
    }

    /// From here on, the run of each delivery is written down.
    fn share(&mut self) {
        if !self.shared {
            self.shared = true;
            self.runs.extend(0..self.ends.len());
        }
    }

    /// Number of deliveries.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.shared {
            self.runs.len()
        } else {
            self.ends.len()
        }
    }

    /// Whether there is no delivery at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of the last run, empty or not.
    #[must_use]
    pub fn last(&self) -> Option<&str> {
        Some(self.run_text(self.ends.len().checked_sub(1)?))
    }

    /// The sequence number of a delivery.
    #[must_use]
    pub fn get(&self, index: usize) -> &str {
        self.run_text(self.run(index))
    }

    /// The number before the run of a delivery; `None` when that is the first run of the page.
    #[must_use]
    pub fn before(&self, index: usize) -> Option<&str> {
        Some(self.run_text(self.run(index).checked_sub(1)?))
    }

    /// The first delivery that shares the number of this one.
    #[must_use]
    pub fn run_start(&self, index: usize) -> usize {
        if !self.shared {
            return index;
        }
        let run = self.runs[index];
        self.runs.partition_point(|&other| other < run)
    }

    /// The last delivery that shares the number of this one.
    #[must_use]
    pub fn run_last(&self, index: usize) -> usize {
        if !self.shared {
            return index;
        }
        let run = self.runs[index];
        self.runs.partition_point(|&other| other <= run) - 1
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity()
            + (self.ends.capacity() + self.runs.capacity()) * std::mem::size_of::<usize>()
    }

    fn run(&self, index: usize) -> usize {
        if self.shared {
            self.runs[index]
        } else {
            index
        }
    }

    fn run_text(&self, run: usize) -> &str {
        let start = if run == 0 { 0 } else { self.ends[run - 1] };
        &self.text[start..self.ends[run]]
    }
}

impl<S: AsRef<str>> FromIterator<S> for SequenceNumbers {
    fn from_iter<I: IntoIterator<Item = S>>(numbers: I) -> Self {
        let mut out = Self::default();
        for number in numbers {
            out.push(number.as_ref());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delivery_finds_its_number_and_the_one_before() {
        let numbers: SequenceNumbers = ["99", "100", "7"].iter().collect();
        assert_eq!(numbers.len(), 3);
        assert_eq!(numbers.get(1), "100");
        assert_eq!(numbers.before(0), None);
        assert_eq!(numbers.before(2), Some("100"));
        assert_eq!((numbers.run_start(2), numbers.run_last(2)), (2, 2));
    }

    #[test]
    fn deliveries_of_one_aggregate_share_a_run() {
        let numbers: SequenceNumbers = ["1", "2", "2", "2", "3", "2"].iter().collect();
        assert_eq!(numbers.len(), 6);
        let all: Vec<_> = (0..6).map(|i| numbers.get(i)).collect();
        assert_eq!(all, ["1", "2", "2", "2", "3", "2"]);
        let before: Vec<_> = (0..6).map(|i| numbers.before(i)).collect();
        let expected = [None, Some("1"), Some("1"), Some("1"), Some("2"), Some("3")];
        assert_eq!(before, expected);
        let starts: Vec<_> = (0..6).map(|i| numbers.run_start(i)).collect();
        assert_eq!(starts, [0, 1, 1, 1, 4, 5]);
        let lasts: Vec<_> = (0..6).map(|i| numbers.run_last(i)).collect();
        assert_eq!(lasts, [0, 3, 3, 3, 4, 5]);
    }

    #[test]
    fn a_number_without_a_delivery_comes_before_the_next_one() {
        let mut numbers = SequenceNumbers::default();
        numbers.push_empty("1");
        assert_eq!((numbers.len(), numbers.last()), (0, Some("1")));
        assert!(numbers.is_empty());
        for number in ["2", "3", "3"] {
            numbers.push(number);
        }
        numbers.push_empty("4");
        numbers.push_empty("4");
        numbers.push("5");
        assert_eq!(numbers.len(), 4);
        let all: Vec<_> = (0..4).map(|i| numbers.get(i)).collect();
        assert_eq!(all, ["2", "3", "3", "5"]);
        let before: Vec<_> = (0..4).map(|i| numbers.before(i)).collect();
        assert_eq!(before, [Some("1"), Some("2"), Some("2"), Some("4")]);
        let starts: Vec<_> = (0..4).map(|i| numbers.run_start(i)).collect();
        assert_eq!(starts, [0, 1, 1, 3]);
    }

    #[test]
    fn empty_numbers_are_numbers_too() {
        let numbers: SequenceNumbers = ["", "", "1"].iter().collect();
        assert_eq!(
            (numbers.len(), numbers.get(1), numbers.get(2)),
            (3, "", "1")
        );
    }
}
