//! When a batch closes: at its size, or a window after its first delivery.
//!
//! Deliveries arrive as runs (a slice of a page), so a batch is a list of slices and the work is
//! done per run and batch, never per delivery. The clock is the caller's, which makes every
//! decision here testable without waiting.

use crate::error::{Error, Result};

/// Part of a run: its deliveries from `start` up to, not including, `stop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice<R> {
    /// The run, as the caller gave it.
    pub run: R,
    /// First delivery, from 0.
    pub start: usize,
    /// One past the last delivery.
    pub stop: usize,
}

/// A closed batch, in arrival order.
pub type Batch<R> = Vec<Slice<R>>;

/// Forms batches out of runs.
#[derive(Debug)]
pub struct Batcher<R> {
    size: usize,
    window: f64,
    forming: Batch<R>,
    pending: usize,
    deadline: f64,
}

impl<R: Clone> Batcher<R> {
    /// Batches of `size` deliveries, or what came within `window` seconds.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a size of 0 or a window that is negative or no number.
    pub fn new(size: usize, window: f64) -> Result<Self> {
        if size == 0 {
            return Err(Error::Argument {
                detail: "a batch holds at least 1 delivery",
            });
        }
        if window.is_nan() || window < 0.0 {
            return Err(Error::Argument {
                detail: "a batch window is 0 seconds or more",
            });
        }
        Ok(Self {
            size,
            window,
            forming: Vec::new(),
            pending: 0,
            deadline: f64::INFINITY,
        })
    }

    /// Adds `count` deliveries of a run; the batches that this fills, oldest first.
    pub fn push(&mut self, run: &R, count: usize, now: f64) -> Vec<Batch<R>> {
        let mut closed = Vec::new();
        let mut start = 0;
        while start < count {
            if self.forming.is_empty() {
                self.deadline = now + self.window;
            }
            let stop = count.min(start + (self.size - self.pending));
            self.forming.push(Slice {
                run: run.clone(),
                start,
                stop,
            });
            self.pending += stop - start;
            start = stop;
            if self.pending == self.size {
                closed.push(self.flush());
            }
        }
        closed
    }

    /// When the forming batch must close; `None` while there is none.
    #[must_use]
    pub fn deadline(&self) -> Option<f64> {
        (!self.forming.is_empty()).then_some(self.deadline)
    }

    /// Deliveries in the forming batch.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// The slices of the forming batch.
    #[must_use]
    pub fn forming(&self) -> &[Slice<R>] {
        &self.forming
    }

    /// Closes the forming batch, whatever it holds.
    pub fn flush(&mut self) -> Batch<R> {
        self.pending = 0;
        std::mem::take(&mut self.forming)
    }

    /// Closes the forming batch if its window is over.
    pub fn due(&mut self, now: f64) -> Option<Batch<R>> {
        (self.deadline()? <= now).then(|| self.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slice(run: char, start: usize, stop: usize) -> Slice<char> {
        Slice { run, start, stop }
    }

    #[test]
    fn a_batch_closes_at_its_size_and_the_rest_waits() {
        let mut batcher = Batcher::new(4, 0.05).unwrap();
        assert!(batcher.push(&'a', 3, 0.0).is_empty());
        let closed = batcher.push(&'b', 6, 1.0);
        let first = vec![slice('a', 0, 3), slice('b', 0, 1)];
        assert_eq!(closed, [first, vec![slice('b', 1, 5)]]);
        assert_eq!((batcher.pending(), batcher.deadline()), (1, Some(1.05)));
        assert_eq!(batcher.flush(), [slice('b', 5, 6)]);
        assert_eq!(batcher.deadline(), None);
    }

    #[test]
    fn the_window_runs_from_the_first_delivery() {
        let mut batcher = Batcher::new(10, 2.0).unwrap();
        batcher.push(&'a', 0, 0.0);
        assert_eq!(batcher.due(100.0), None);
        batcher.push(&'a', 1, 1.0);
        batcher.push(&'b', 1, 2.5);
        assert_eq!(batcher.due(2.9), None);
        assert_eq!(batcher.due(3.0).map(|batch| batch.len()), Some(2));
        assert_eq!(batcher.due(3.0), None);
    }

    #[test]
    fn a_batch_without_a_size_or_with_an_impossible_window_is_refused() {
        assert!(Batcher::<()>::new(0, 1.0).is_err());
        assert!(Batcher::<()>::new(1, -0.1).is_err());
        assert!(Batcher::<()>::new(1, f64::NAN).is_err());
        assert!(Batcher::<()>::new(1, f64::INFINITY).is_ok());
    }

    proptest! {
        #[test]
        fn every_delivery_is_in_one_batch_in_order(
            size in 1_usize..9,
            counts in prop::collection::vec(0_usize..20, 0..12),
        ) {
            let mut batcher = Batcher::new(size, 0.0).unwrap();
            let mut seen = Vec::new();
            let mut take = |batch: Batch<usize>| {
                for part in batch {
                    seen.extend((part.start..part.stop).map(|index| (part.run, index)));
                }
            };
            for (run, &count) in counts.iter().enumerate() {
                for batch in batcher.push(&run, count, 0.0) {
                    prop_assert_eq!(batch.iter().map(|s| s.stop - s.start).sum::<usize>(), size);
                    take(batch);
                }
            }
            prop_assert!(batcher.pending() < size);
            take(batcher.flush());
            let sent: Vec<_> = counts
                .iter()
                .enumerate()
                .flat_map(|(run, &count)| (0..count).map(move |index| (run, index)))
                .collect();
            prop_assert_eq!(seen, sent);
        }
    }
}
