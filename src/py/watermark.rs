//! `Watermark` for Python.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;

use super::page::Page;
use super::{lock, Int};
use crate::sequence_numbers::SequenceNumbers;
use crate::watermark;

/// Tracks the deliveries of one shard.
#[pyclass(module = "ruststream_kinesis._core", frozen, weakref)]
pub struct Watermark(Mutex<watermark::Watermark>);

#[pymethods]
impl Watermark {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn deliver(&self, page: &Page) -> u64 {
        let numbers = Arc::clone(page.0.sequence_numbers());
        lock(&self.0).deliver(numbers)
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "PyO3 extracts a list of text into a vector of its own"
    )]
    fn deliver_numbers(&self, sequence_numbers: Vec<String>) -> u64 {
        let numbers: SequenceNumbers = sequence_numbers.iter().collect();
        lock(&self.0).deliver(Arc::new(numbers))
    }

    fn settle(&self, place: Int) -> bool {
        lock(&self.0).settle(place.place())
    }

    fn settle_range(&self, start: Int, stop: Int) -> bool {
        lock(&self.0).settle_range(start.bound()..stop.bound())
    }

    fn settle_all(&self, places: Vec<Int>) -> bool {
        let mut watermark = lock(&self.0);
        let mut moved = false;
        for place in places {
            moved |= watermark.settle(place.place());
        }
        moved
    }

    fn hold(&self, place: Int) -> bool {
        lock(&self.0).hold(place.place())
    }

    fn reset(&self) {
        lock(&self.0).reset();
    }

    #[getter]
    fn position(&self) -> Option<String> {
        // Copied so that no Python object is made under the lock.
        lock(&self.0).position().map(str::to_owned)
    }

    #[getter]
    fn open(&self) -> usize {
        lock(&self.0).open()
    }

    #[getter]
    fn held(&self) -> usize {
        lock(&self.0).held()
    }

    #[getter]
    fn next_place(&self) -> u64 {
        lock(&self.0).next_place()
    }

    fn last_of_record(&self, place: Int) -> u64 {
        lock(&self.0).last_of_record(place.place())
    }

    #[getter]
    fn oldest_open(&self) -> Option<u64> {
        lock(&self.0).oldest_open()
    }

    #[getter]
    fn drained(&self) -> bool {
        lock(&self.0).drained()
    }
}
