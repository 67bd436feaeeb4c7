//! Responses of HTTP for Python.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::lock;
use crate::http_chunks;
use crate::http_head::{self, Body};

/// In place of a body's length.
const CHUNKED: i64 = -1;
const UNTIL_CLOSE: i64 = -2;

type Head<'py> = (usize, u16, i64, bool, Bound<'py, PyDict>);

#[pyfunction]
pub fn parse_head<'py>(data: &[u8], py: Python<'py>) -> PyResult<Option<Head<'py>>> {
    let Some(head) = http_head::parse(data)? else {
        return Ok(None);
    };
    let headers = PyDict::new(py);
    for (name, value) in head.headers {
        match headers.get_item(&name)? {
            Some(before) => headers.set_item(name, format!("{}, {value}", before.str()?))?,
            None => headers.set_item(name, value)?,
        }
    }
    let length = match head.body {
        // More than anybody takes, in any case.
        Body::Length(length) => i64::try_from(length).unwrap_or(i64::MAX),
        Body::Chunked => CHUNKED,
        Body::UntilClose => UNTIL_CLOSE,
    };
    Ok(Some((
        head.len,
        head.status,
        length,
        head.reusable,
        headers,
    )))
}

#[pyclass(frozen, module = "ruststream_kinesis._core")]
pub struct Chunks(Mutex<http_chunks::Chunks>);

#[pymethods]
impl Chunks {
    #[new]
    fn new(limit: usize) -> Self {
        Self(Mutex::new(http_chunks::Chunks::new(limit)))
    }

    fn feed(&self, data: &[u8]) -> PyResult<usize> {
        Ok(lock(&self.0).feed(data)?)
    }

    #[getter]
    fn done(&self) -> bool {
        lock(&self.0).is_done()
    }

    fn take<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = lock(&self.0).take();
        PyBytes::new(py, &body)
    }
}
