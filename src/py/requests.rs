//! Request bodies for Python, and the results of a batch.

use std::cell::RefCell;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::requests::{self, Entry, Stream};

type Results = Vec<(
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
)>;

/// What a thread keeps of its buffer: a request of 500 usual records, not one of 10 MiB.
const KEPT_BYTES: usize = 2 * 1024 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Data, partition key and explicit hash key of a record, kept alive.
pub(super) type Owned<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyString>,
    Option<Bound<'py, PyString>>,
);

/// Records as Python has them, held so that their bytes stay where they are.
pub(super) fn owned<'py>(entries: &Bound<'py, PyAny>) -> PyResult<Vec<Owned<'py>>> {
    entries
        .try_iter()?
        .map(|entry| {
            let entry = entry?.cast_into::<PyTuple>()?;
            if entry.len() != 3 {
                return Err(PyValueError::new_err("an entry has three parts"));
            }
            let explicit = entry.get_item(2)?;
            Ok((
                entry.get_item(0)?.cast_into::<PyBytes>()?,
                entry.get_item(1)?.cast_into::<PyString>()?,
                if explicit.is_none() {
                    None
                } else {
                    Some(explicit.cast_into::<PyString>()?)
                },
            ))
        })
        .collect()
}

/// The same without Python.
pub(super) fn borrowed<'a>(owned: &'a [Owned<'_>]) -> PyResult<Vec<Entry<'a>>> {
    owned
        .iter()
        .map(|(data, partition_key, explicit_hash_key)| {
            Ok(Entry {
                data: data.as_bytes(),
                partition_key: partition_key.to_str()?,
                explicit_hash_key: explicit_hash_key
                    .as_ref()
                    .map(|key| key.to_str())
                    .transpose()?,
            })
        })
        .collect()
}

#[pyfunction]
#[pyo3(signature = (iterator, limit, arn=None))]
pub fn encode_get_records<'py>(
    iterator: &str,
    limit: u64,
    arn: Option<&str>,
    py: Python<'py>,
) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &requests::get_records(iterator, limit, arn))
}

#[pyfunction]
#[pyo3(signature = (stream, arn, data, partition_key, explicit_hash_key=None))]
pub fn encode_put_record<'py>(
    stream: &str,
    arn: Option<&str>,
    data: &[u8],
    partition_key: &str,
    explicit_hash_key: Option<&str>,
    py: Python<'py>,
) -> Bound<'py, PyBytes> {
    let entry = Entry {
        data,
        partition_key,
        explicit_hash_key,
    };
    PyBytes::new(py, &requests::put_record(named(stream, arn), entry))
}

#[pyfunction]
pub fn encode_put_records<'py>(
    stream: &str,
    arn: Option<&str>,
    entries: &Bound<'py, PyAny>,
    py: Python<'py>,
) -> PyResult<Bound<'py, PyBytes>> {
    // Held while the bytes are written, so that they stay where they are without the GIL.
    let owned = owned(entries)?;
    let entries = borrowed(&owned)?;
    let stream = named(stream, arn);
    BUFFER.with_borrow_mut(|body| {
        body.clear();
        py.detach(|| requests::put_records_into(body, stream, &entries));
        let bytes = PyBytes::new(py, body);
        if body.capacity() > KEPT_BYTES {
            *body = Vec::new();
        }
        Ok(bytes)
    })
}

#[pyfunction]
pub fn decode_put_records(body: &[u8]) -> PyResult<Results> {
    Ok(requests::put_results(body)?
        .into_iter()
        .map(|put| {
            (
                put.shard_id,
                put.sequence_number,
                put.error_code,
                put.error_message,
            )
        })
        .collect())
}

fn named<'a>(stream: &'a str, arn: Option<&'a str>) -> Stream<'a> {
    arn.map_or(Stream::Name(stream), Stream::Arn)
}
