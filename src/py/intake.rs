//! How records get into a buffer, and how those of a request are decided: a call for each record on
//! its way in, and one for all of a request on their way out.

use std::sync::Mutex;
use std::thread::{self, ThreadId};

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};

use super::lock;
use super::maker::{Made, Maker};
use super::pending::{Key, Parts, Pending};
use crate::buffer::{Bounds, Buffer, Record};

/// A turn of the event loop in which a record came already.
#[derive(Clone, Copy)]
struct Turn {
    /// The one that runs the loop: while it does, the loop is the running one.
    thread: ThreadId,
    now: f64,
}

#[pyclass(frozen, subclass, weakref, module = "ruststream_kinesis._core")]
pub struct Intake {
    event_loop: Py<PyAny>,
    stream: Py<PyAny>,
    wake: Py<PyAny>,
    /// A larger record is looked at by somebody who knows the stream's limit.
    usual_bytes: usize,
    buffer: Mutex<Buffer<Py<Pending>>>,
    turn: Mutex<Option<Turn>>,
}

/// The short way of a publisher's records into a buffer.
#[pyclass(frozen, module = "ruststream_kinesis._core")]
pub struct Way {
    intake: Py<Intake>,
    maker: Py<Maker>,
    deadline: f64,
}

#[pymethods]
impl Way {
    fn publish<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        to: &Bound<'py, PyAny>,
        partition_key: Option<Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        explicit_hash_key: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let made = self
            .maker
            .get()
            .make(value, to, partition_key, headers, explicit_hash_key)?;
        let py = value.py();
        // Only now: the codec and the key's function are anybody's code.
        match self.intake.get().take_in(&made, self.deadline, py)? {
            Some(record) => Ok(record.into_any()),
            None => Ok(made.parts(py)?.into_any()),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.intake)?;
        visit.call(&self.maker)
    }
}

impl Intake {
    /// The time of the turn that it is, if this is the thread of its loop, and that runs.
    fn now(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let turn = *lock(&self.turn);
        let Some(turn) = turn.filter(|turn| turn.thread == thread::current().id()) else {
            return Ok(None);
        };
        // It may have been stopped within the turn, and be asked from outside.
        let runs = self
            .event_loop
            .bind(py)
            .call_method0(intern!(py, "is_running"))?;
        Ok(runs.is_truthy()?.then_some(turn.now))
    }

    /// Takes a record in, if nobody has to be asked about it.
    fn take_in<'py>(
        &self,
        made: &Made<'py>,
        deadline: f64,
        py: Python<'py>,
    ) -> PyResult<Option<Bound<'py, Pending>>> {
        if !made.stream.is(&self.stream) || made.size > self.usual_bytes {
            return Ok(None);
        }
        let Some(now) = self.now(py)? else {
            return Ok(None);
        };
        let key = if made.spread {
            None
        } else {
            Some(Key::of(&made.key)?)
        };
        let parts = Parts {
            entry: made.entry(py)?,
            size: made.size,
            key,
            deadline: now + deadline,
            wanted: None,
        };
        let record = Bound::new(py, Pending::of(self.event_loop.clone_ref(py), parts))?;
        let offered = lock(&self.buffer).offer(record.clone().unbind());
        match offered {
            Ok(false) => {}
            Ok(true) => {
                self.wake.bind(py).call0()?;
            }
            Err(_) => return Ok(None),
        }
        Ok(Some(record))
    }

    fn of(list: Vec<Py<Pending>>, py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
        PyList::new(py, list)
    }

    /// What leaves the buffer is let go of outside of the lock: that may run anybody's code.
    fn let_go(&self, records: &[Py<Pending>]) {
        let gone = lock(&self.buffer).leave(records.iter());
        drop(gone);
    }
}

#[pymethods]
impl Intake {
    #[new]
    #[pyo3(signature = (event_loop, stream, wake, *, usual_bytes, batch, request_bytes, max_records, max_bytes, by_key))]
    #[allow(
        clippy::too_many_arguments,
        reason = "all but three of them are bounds, given by name"
    )]
    fn new(
        event_loop: Py<PyAny>,
        stream: Py<PyAny>,
        wake: Py<PyAny>,
        usual_bytes: usize,
        batch: usize,
        request_bytes: usize,
        max_records: usize,
        max_bytes: usize,
        by_key: bool,
    ) -> Self {
        let bounds = Bounds {
            batch,
            request_bytes,
            records: max_records,
            bytes: max_bytes,
            by_key,
        };
        Self {
            event_loop,
            stream,
            wake,
            usual_bytes,
            buffer: Mutex::new(Buffer::new(bounds)),
            turn: Mutex::new(None),
        }
    }

    #[getter]
    fn records(&self) -> usize {
        lock(&self.buffer).held().0
    }

    #[getter]
    fn bytes(&self) -> usize {
        lock(&self.buffer).held().1
    }

    #[getter]
    fn outside(&self) -> usize {
        lock(&self.buffer).outside()
    }

    #[getter]
    fn keys(&self) -> usize {
        lock(&self.buffer).keys()
    }

    #[getter]
    fn ready_records(&self) -> usize {
        lock(&self.buffer).ready().0
    }

    #[getter]
    fn ready_bytes(&self) -> usize {
        lock(&self.buffer).ready().1
    }

    #[getter]
    fn full_bytes(&self) -> usize {
        lock(&self.buffer).full_bytes
    }

    #[setter]
    fn set_full_bytes(&self, bytes: usize) {
        lock(&self.buffer).full_bytes = bytes;
    }

    #[getter]
    fn waited(&self) -> bool {
        lock(&self.buffer).waited
    }

    #[setter]
    fn set_waited(&self, waited: bool) {
        lock(&self.buffer).waited = waited;
    }

    fn begin_turn(&self, now: f64) {
        let thread = thread::current().id();
        *lock(&self.turn) = Some(Turn { thread, now });
    }

    fn end_turn(&self) {
        *lock(&self.turn) = None;
    }

    fn turn(&self) -> Option<f64> {
        lock(&self.turn).map(|turn| turn.now)
    }

    fn way(slf: Bound<'_, Self>, maker: Py<Maker>, deadline: f64) -> Way {
        Way {
            intake: slf.unbind(),
            maker,
            deadline,
        }
    }

    fn offer(&self, record: Py<Pending>) -> Option<bool> {
        let offered = lock(&self.buffer).offer(record);
        offered.ok()
    }

    fn wait_outside(&self, record: Py<Pending>) {
        lock(&self.buffer).wait_outside(record);
    }

    fn take_wanted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = lock(&self.buffer).take();
        let mut batch = Vec::with_capacity(taken.len());
        let mut gone = Vec::new();
        let mut failed = None;
        for record in taken {
            if record.done() {
                gone.push(record);
                continue;
            }
            match record.get().is_wanted(py) {
                Ok(false) if failed.is_none() => {
                    Pending::decided(record.bind(py), py.None())?;
                    gone.push(record);
                    continue;
                }
                Err(error) => failed = failed.or(Some(error)),
                Ok(_) => {}
            }
            batch.push(record);
        }
        if !gone.is_empty() {
            self.let_go(&gone);
        }
        if let Some(error) = failed {
            // Whoever sends them ends by it, and finds them here to tell their publishers.
            lock(&self.buffer).put_back(batch);
            return Err(error);
        }
        Self::of(batch, py)
    }

    fn take_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = lock(&self.buffer).take_all();
        Self::of(taken, py)
    }

    fn give_back(&self, records: Vec<Py<Pending>>) {
        lock(&self.buffer).put_back(records);
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "a list of Python is extracted, not lent"
    )]
    fn leave(&self, records: Vec<Py<Pending>>) {
        self.let_go(&records);
    }

    fn waiting<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = {
            let buffer = lock(&self.buffer);
            buffer.iter().map(|record| record.clone_ref(py)).collect()
        };
        Self::of(all, py)
    }

    fn drop_decided(&self) {
        let gone = lock(&self.buffer).sweep();
        drop(gone);
    }

    fn forget(&self) {
        let gone = lock(&self.buffer).clear();
        drop(gone);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.stream)?;
        visit.call(&self.wake)?;
        // Held by a thread that waits for this very run: what is not visited is not collected.
        if let Ok(buffer) = self.buffer.try_lock() {
            for record in buffer.iter() {
                visit.call(record)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.forget();
    }
}

#[pyfunction]
pub fn entries_of<'py>(records: &Bound<'py, PyList>) -> PyResult<(Bound<'py, PyList>, usize)> {
    let py = records.py();
    let mut largest = 0;
    let mut entries = Vec::with_capacity(records.len());
    for record in records.iter() {
        let record = record.cast_into::<Pending>()?;
        largest = largest.max(record.get().size());
        entries.push(record.get().entry(py));
    }
    Ok((PyList::new(py, entries)?, largest))
}

#[pyfunction]
pub fn settle<'py>(
    records: &Bound<'py, PyList>,
    results: &Bound<'py, PyAny>,
    put: &Bound<'py, PyType>,
) -> PyResult<Bound<'py, PyList>> {
    let py = records.py();
    let mut left: Vec<Bound<'py, PyTuple>> = Vec::new();
    let mut results = results.try_iter()?;
    for record in records.iter() {
        let Some(result) = results.next().transpose()? else {
            return Err(PyValueError::new_err(
                "there are fewer results than records",
            ));
        };
        let record = record.cast_into::<Pending>()?;
        if result.is_instance(put)? {
            Pending::decided(&record, result.unbind())?;
        } else {
            left.push((record, result).into_pyobject(py)?);
        }
    }
    if results.next().is_some() {
        return Err(PyValueError::new_err("there are more results than records"));
    }
    PyList::new(py, left)
}
