//! One record on its way, and the future that its publisher has.
//!
//! A future of asyncio costs more than all the rest of taking a record in. Most are awaited when they
//! are decided already, or together with hundreds of others, so this one is only what such a record
//! needs: a result, or callbacks. An error, or that it was cancelled, is kept in a future of asyncio,
//! which tells the loop where nobody asks for it.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::lock;
use crate::buffer::Record;

mod exceptions {
    pyo3::import_exception!(asyncio, InvalidStateError);
}

enum State {
    Open,
    Put(Py<PyAny>),
    /// It failed or was cancelled: a future of asyncio that says so.
    Other(Py<PyAny>),
}

struct Inner {
    state: State,
    /// With their contexts.
    callbacks: Vec<(Py<PyAny>, Py<PyAny>)>,
    attempts: u32,
    error: Option<Py<PyAny>>,
}

#[pyclass(frozen, weakref, module = "ruststream_kinesis._core")]
pub struct Pending {
    event_loop: Py<PyAny>,
    entry: Py<PyTuple>,
    size: usize,
    key: Option<Key>,
    deadline: f64,
    wanted: Option<Py<PyAny>>,
    blocking: AtomicBool,
    inner: Mutex<Inner>,
}

/// What a record is made of.
pub struct Parts<'py> {
    pub entry: Bound<'py, PyTuple>,
    pub size: usize,
    pub key: Option<Key>,
    pub deadline: f64,
    pub wanted: Option<Bound<'py, PyAny>>,
}

/// A partition key as the buffer has it: not a copy, which would have to be made and freed for each.
pub struct Key {
    hash: isize,
    text: Py<PyString>,
}

impl Key {
    pub fn of(text: &Bound<'_, PyString>) -> PyResult<Self> {
        Ok(Self {
            hash: text.hash()?,
            text: text.clone().unbind(),
        })
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let same = |py: Python<'_>| {
            let texts = (self.text.bind(py).to_str(), other.text.bind(py).to_str());
            matches!(texts, (Ok(one), Ok(other)) if one == other)
        };
        self.hash == other.hash && (self.text.is(&other.text) || Python::attach(same))
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_isize(self.hash);
    }
}

impl Record for Py<Pending> {
    type Key = Key;

    fn size(&self) -> usize {
        self.get().size
    }

    fn key(&self) -> Option<Key> {
        let key = self.get().key.as_ref()?;
        let text = Python::attach(|py| key.text.clone_ref(py));
        let hash = key.hash;
        Some(Key { hash, text })
    }

    fn done(&self) -> bool {
        self.get().done()
    }
}

impl Pending {
    pub fn of(event_loop: Py<PyAny>, parts: Parts<'_>) -> Self {
        Self {
            event_loop,
            entry: parts.entry.unbind(),
            size: parts.size,
            key: parts.key,
            deadline: parts.deadline,
            wanted: parts.wanted.map(Bound::unbind),
            blocking: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                state: State::Open,
                callbacks: Vec::new(),
                attempts: 0,
                error: None,
            }),
        }
    }

    /// Whether its publisher still wants it.
    pub fn is_wanted(&self, py: Python<'_>) -> PyResult<bool> {
        match &self.wanted {
            None => Ok(true),
            Some(wanted) => wanted.bind(py).call0()?.is_truthy(),
        }
    }

    /// The future of asyncio where it was not put; `None` where it was, or is open.
    fn other(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &lock(&self.inner).state {
            State::Other(future) => Some(future.clone_ref(py)),
            State::Open | State::Put(_) => None,
        }
    }

    /// Decides it, if nobody did.
    fn decide(slf: &Bound<'_, Self>, state: State) -> PyResult<bool> {
        let record = slf.get();
        let (refused, callbacks) = {
            let mut inner = lock(&record.inner);
            if matches!(inner.state, State::Open) {
                inner.state = state;
                (None, std::mem::take(&mut inner.callbacks))
            } else {
                (Some(state), Vec::new())
            }
        };
        for (callback, context) in callbacks {
            Self::call_soon(slf, &callback, &context)?;
        }
        Ok(refused.is_none())
    }

    /// Its result, unless it is decided already: its publisher may have cancelled it.
    pub fn decided(slf: &Bound<'_, Self>, result: Py<PyAny>) -> PyResult<()> {
        Self::decide(slf, State::Put(result)).map(|_| ())
    }

    fn call_soon(
        record: &Bound<'_, Self>,
        callback: &Py<PyAny>,
        context: &Py<PyAny>,
    ) -> PyResult<()> {
        let py = record.py();
        let named = PyDict::new(py);
        named.set_item(intern!(py, "context"), context)?;
        let event_loop = record.get().event_loop.bind(py);
        event_loop.call_method(intern!(py, "call_soon"), (callback, record), Some(&named))?;
        Ok(())
    }

    /// A future of asyncio, not decided.
    fn future<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.event_loop
            .bind(py)
            .call_method0(intern!(py, "create_future"))
    }
}

#[pymethods]
impl Pending {
    #[new]
    #[pyo3(signature = (event_loop, entry, size, key=None, deadline=f64::INFINITY, wanted=None))]
    fn new(
        event_loop: Py<PyAny>,
        entry: Bound<'_, PyTuple>,
        size: usize,
        key: Option<&Bound<'_, PyString>>,
        deadline: f64,
        wanted: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let key = key.map(Key::of).transpose()?;
        let parts = Parts {
            entry,
            size,
            key,
            deadline,
            wanted,
        };
        Ok(Self::of(event_loop, parts))
    }

    #[getter]
    pub fn entry(&self, py: Python<'_>) -> Py<PyTuple> {
        self.entry.clone_ref(py)
    }

    #[getter]
    pub fn size(&self) -> usize {
        self.size
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.key.as_ref().map(|key| key.text.clone_ref(py))
    }

    #[getter]
    fn deadline(&self) -> f64 {
        self.deadline
    }

    #[getter]
    fn wanted(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.wanted.as_ref().map(|wanted| wanted.clone_ref(py))
    }

    #[getter]
    fn attempts(&self) -> u32 {
        lock(&self.inner).attempts
    }

    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        lock(&self.inner)
            .error
            .as_ref()
            .map(|error| error.clone_ref(py))
    }

    #[pyo3(signature = (error, *, attempt=true))]
    fn failed(&self, error: Py<PyAny>, attempt: bool) {
        let before = {
            let mut inner = lock(&self.inner);
            inner.attempts = inner.attempts.saturating_add(u32::from(attempt));
            inner.error.replace(error)
        };
        drop(before);
    }

    fn done(&self) -> bool {
        !matches!(lock(&self.inner).state, State::Open)
    }

    fn cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        match self.other(py) {
            None => Ok(false),
            Some(future) => future.bind(py).call_method0("cancelled")?.extract(),
        }
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let other = match &lock(&self.inner).state {
            State::Put(result) => return Ok(result.clone_ref(py)),
            State::Open => {
                return Err(exceptions::InvalidStateError::new_err("Result is not set."))
            }
            State::Other(future) => future.clone_ref(py),
        };
        Ok(other.bind(py).call_method0("result")?.unbind())
    }

    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let other = match &lock(&self.inner).state {
            State::Put(_) => return Ok(None),
            State::Open => {
                return Err(exceptions::InvalidStateError::new_err(
                    "Exception is not set.",
                ))
            }
            State::Other(future) => future.clone_ref(py),
        };
        let error = other.bind(py).call_method0("exception")?;
        Ok((!error.is_none()).then(|| error.unbind()))
    }

    fn set_result(slf: &Bound<'_, Self>, result: Py<PyAny>) -> PyResult<()> {
        if Self::decide(slf, State::Put(result))? {
            return Ok(());
        }
        Err(exceptions::InvalidStateError::new_err("invalid state"))
    }

    fn set_exception(slf: &Bound<'_, Self>, exception: &Bound<'_, PyAny>) -> PyResult<()> {
        if !slf.get().done() {
            let future = slf.get().future(slf.py())?;
            future.call_method1("set_exception", (exception,))?;
            if Self::decide(slf, State::Other(future.unbind()))? {
                return Ok(());
            }
        }
        Err(exceptions::InvalidStateError::new_err("invalid state"))
    }

    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        if slf.get().done() {
            return Ok(false);
        }
        let future = slf.get().future(slf.py())?;
        future.call_method1("cancel", (msg,))?;
        Self::decide(slf, State::Other(future.unbind()))
    }

    #[pyo3(signature = (callback, /, *, context=None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let context = match context {
            Some(context) => context,
            None => COPY
                .import(py, "contextvars", "copy_context")?
                .call0()?
                .unbind(),
        };
        {
            let mut inner = lock(&slf.get().inner);
            if matches!(inner.state, State::Open) {
                inner.callbacks.push((callback, context));
                return Ok(());
            }
        }
        Self::call_soon(slf, &callback, &context)
    }

    fn remove_done_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = callback.py();
        let known: Vec<Py<PyAny>> = lock(&self.inner)
            .callbacks
            .iter()
            .map(|(each, _)| each.clone_ref(py))
            .collect();
        let mut same = Vec::new();
        for each in known {
            if each.bind(py).eq(callback)? {
                same.push(each);
            }
        }
        let gone: Vec<_> = {
            let mut inner = lock(&self.inner);
            let all = std::mem::take(&mut inner.callbacks);
            let (gone, left) = all
                .into_iter()
                .partition(|(each, _)| same.iter().any(|one| one.is(each)));
            inner.callbacks = left;
            gone
        };
        Ok(gone.len())
    }

    /// What `asyncio.gather` asks of a future that was cancelled, and the next one too: both are a
    /// contract between asyncio's own futures and its tasks.
    fn _make_cancelled_error(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let future = if let Some(future) = self.other(py) {
            future
        } else {
            // Nobody cancelled it: asked all the same, an error without a message.
            let future = self.future(py)?;
            future.call_method0("cancel")?;
            future.unbind()
        };
        Ok(future
            .bind(py)
            .call_method0("_make_cancelled_error")?
            .unbind())
    }

    #[getter(_cancel_message)]
    fn cancel_message(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.other(py) {
            Some(future) => Ok(future.bind(py).getattr("_cancel_message")?.unbind()),
            None => Ok(py.None()),
        }
    }

    fn get_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    #[getter(_loop)]
    fn own_loop(&self, py: Python<'_>) -> Py<PyAny> {
        self.event_loop.clone_ref(py)
    }

    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> bool {
        self.blocking.load(Ordering::Relaxed)
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, blocking: bool) {
        self.blocking.store(blocking, Ordering::Relaxed);
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // A generator hands its result over without an exception; an iterator of ours could not.
        static PUT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static OPEN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        const MODULE: &str = "ruststream_kinesis.awaiting";
        let py = slf.py();
        let put = match &lock(&slf.get().inner).state {
            State::Put(result) => Some(result.clone_ref(py)),
            State::Open | State::Other(_) => None,
        };
        match put {
            Some(result) => PUT.import(py, MODULE, "returned")?.call1((result,)),
            None => OPEN.import(py, MODULE, "awaited")?.call1((slf,)),
        }
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::__await__(slf)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = match self.other(py) {
            Some(future) => future.bind(py).repr()?.to_string(),
            None if self.done() => "put".to_owned(),
            None => "pending".to_owned(),
        };
        Ok(format!("<Pending {state}>"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.entry)?;
        visit.call(&self.wanted)?;
        // Held by a thread that waits for this very run: what is not visited is not collected.
        let Ok(inner) = self.inner.try_lock() else {
            return Ok(());
        };
        match &inner.state {
            State::Open => {}
            State::Put(one) | State::Other(one) => visit.call(one)?,
        }
        visit.call(&inner.error)?;
        for (callback, context) in &inner.callbacks {
            visit.call(callback)?;
            visit.call(context)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let gone = {
            let mut inner = lock(&self.inner);
            (
                std::mem::replace(&mut inner.state, State::Open),
                std::mem::take(&mut inner.callbacks),
                inner.error.take(),
            )
        };
        drop(gone);
    }
}
