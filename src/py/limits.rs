//! What the service accepts of a partition key, in the words of `limits.py`.
//!
//! In the core because every record is looked at; the publisher, a copy and the in-process log all
//! come here.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

mod exceptions {
    pyo3::import_exception!(ruststream_kinesis.errors, InvalidRecord);
}

/// Unicode characters, not bytes.
pub const MAX_PARTITION_KEY_LENGTH: usize = 256;

#[pyfunction]
#[pyo3(signature = (key, stream))]
pub fn check_partition_key<'py>(
    key: Bound<'py, PyAny>,
    stream: &Bound<'py, PyAny>,
) -> PyResult<usize> {
    Ok(partition_key_text(key, || Ok(stream.clone()))?
        .to_str()?
        .len())
}

/// A partition key that the service takes: text, and valid UTF-8.
///
/// `stream` is asked for the name that the error has.
pub fn partition_key_text<'py>(
    key: Bound<'py, PyAny>,
    stream: impl Fn() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyString>> {
    let key = match key.cast_into::<PyString>() {
        Ok(key) => key,
        Err(other) => {
            let shown = other.into_inner().repr()?;
            let detail = format!("partition key must be text, not {shown}");
            return Err(refused(&detail, &stream()?, None));
        }
    };
    let length = key.len()?;
    if !(1..=MAX_PARTITION_KEY_LENGTH).contains(&length) {
        let detail = format!(
            "partition key has {length} characters; the service takes 1 to \
             {MAX_PARTITION_KEY_LENGTH}"
        );
        return Err(refused(&detail, &stream()?, None));
    }
    if let Err(cause) = key.to_str() {
        let shown = key.repr()?;
        let detail =
            format!("partition key {shown} holds a lone surrogate and is not valid Unicode");
        return Err(refused(&detail, &stream()?, Some(cause)));
    }
    Ok(key)
}

#[cold]
fn refused(detail: &str, stream: &Bound<'_, PyAny>, cause: Option<PyErr>) -> PyErr {
    let py = stream.py();
    let make = || {
        let named = PyDict::new(py);
        named.set_item("stream", stream)?;
        let class = py.get_type::<exceptions::InvalidRecord>();
        class.call((detail,), Some(&named))
    };
    match make() {
        Ok(error) => {
            let error = PyErr::from_value(error);
            error.set_cause(py, cause);
            error
        }
        Err(error) => error,
    }
}
