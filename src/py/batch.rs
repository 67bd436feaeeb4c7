//! `Batcher` for Python.

use std::sync::{Arc, Mutex, TryLockError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::{lock, Int};
use crate::batch;
use crate::error::Error;

/// A run is any object. Shared, so that a slice of it is made without touching Python's counts.
type Run = Arc<Py<PyAny>>;

/// What a slice is in Python: the run, start, stop.
type Slice = (Py<PyAny>, usize, usize);

/// Forms batches.
#[pyclass(module = "ruststream_kinesis._core", frozen, generic)]
pub struct Batcher(Mutex<batch::Batcher<Run>>);

#[pymethods]
impl Batcher {
    #[new]
    fn new(size: Int, window: f64) -> PyResult<Self> {
        let size = size.count().unwrap_or(0);
        Ok(Self(Mutex::new(batch::Batcher::new(size, window)?)))
    }

    fn push(
        &self,
        py: Python<'_>,
        run: Py<PyAny>,
        count: Int,
        now: f64,
    ) -> PyResult<Vec<Vec<Slice>>> {
        let count = count.count().ok_or(Error::Argument {
            detail: "a run holds 0 deliveries or more",
        })?;
        let closed = lock(&self.0).push(&Arc::new(run), count, now);
        Ok(closed.into_iter().map(|batch| slices(py, batch)).collect())
    }

    #[getter]
    fn deadline(&self) -> Option<f64> {
        lock(&self.0).deadline()
    }

    #[getter]
    fn pending(&self) -> usize {
        lock(&self.0).pending()
    }

    fn flush(&self, py: Python<'_>) -> Vec<Slice> {
        let batch = lock(&self.0).flush();
        slices(py, batch)
    }

    fn due(&self, py: Python<'_>, now: f64) -> Option<Vec<Slice>> {
        let batch = lock(&self.0).due(now)?;
        Some(slices(py, batch))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // The collector must not wait. While another thread holds the lock the batcher is in use
        // and so no garbage; reporting nothing keeps it alive.
        let batcher = match self.0.try_lock() {
            Ok(batcher) => batcher,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let mut seen: Option<&Run> = None;
        for slice in batcher.forming() {
            // One reference is owned per run: a run pushed once is in the forming batch once.
            if !seen.is_some_and(|seen| Arc::ptr_eq(seen, &slice.run)) {
                visit.call(slice.run.as_ref())?;
            }
            seen = Some(&slice.run);
        }
        Ok(())
    }

    fn __clear__(&self) {
        let batch = lock(&self.0).flush();
        drop(batch);
    }
}

/// A batch as Python gets it.
fn slices(py: Python<'_>, batch: batch::Batch<Run>) -> Vec<Slice> {
    batch
        .into_iter()
        .map(|slice| (slice.run.clone_ref(py), slice.start, slice.stop))
        .collect()
}
