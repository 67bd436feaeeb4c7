//! Aggregates and hash keys for Python.

use std::sync::Mutex;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::requests::{borrowed, owned};
use super::{lock, Int};
use crate::error::Error;
use crate::{aggregator, hash_key as keys, kpl};

/// Collects the records of one aggregate.
#[pyclass(module = "ruststream_kinesis._core", frozen)]
pub struct Aggregator {
    inner: Mutex<aggregator::Aggregator>,
    limit: usize,
}

#[pymethods]
impl Aggregator {
    #[new]
    fn new(limit: Int) -> PyResult<Self> {
        let limit = limit.count().ok_or(Error::Argument {
            detail: "the limit of an aggregate is 0 bytes or more",
        })?;
        Ok(Self {
            inner: Mutex::default(),
            limit,
        })
    }

    #[pyo3(signature = (partition_key, data, explicit_hash_key=None))]
    fn add(
        &self,
        py: Python<'_>,
        partition_key: &Bound<'_, PyString>,
        data: &Bound<'_, PyAny>,
        explicit_hash_key: Option<&Bound<'_, PyString>>,
    ) -> PyResult<bool> {
        let (key, hash_key) = texts(partition_key, explicit_hash_key)?;
        with_bytes(py, data, |data| {
            let mut inner = lock(&self.inner);
            let fits = inner.size_with(key, hash_key, data.len()) <= self.limit;
            if fits {
                inner.add(key, hash_key, data);
            }
            fits
        })
    }

    #[pyo3(signature = (partition_key, data_bytes, explicit_hash_key=None))]
    fn size_with(
        &self,
        partition_key: &Bound<'_, PyString>,
        data_bytes: Int,
        explicit_hash_key: Option<&Bound<'_, PyString>>,
    ) -> PyResult<usize> {
        let (key, hash_key) = texts(partition_key, explicit_hash_key)?;
        let bytes = data_bytes.count().filter(|bytes| *bytes <= MAX_DATA_BYTES);
        let bytes = bytes.ok_or(Error::Argument {
            detail: "data has 0 to 4,294,967,295 bytes",
        })?;
        Ok(lock(&self.inner).size_with(key, hash_key, bytes))
    }

    fn __len__(&self) -> usize {
        lock(&self.inner).len()
    }

    #[getter]
    fn size(&self) -> usize {
        lock(&self.inner).size()
    }

    #[getter]
    fn limit(&self) -> usize {
        self.limit
    }

    #[getter]
    fn partition_key(&self) -> Option<String> {
        // Copied so that no Python object is made under the lock.
        lock(&self.inner).partition_key().map(str::to_owned)
    }

    fn take<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let blob = lock(&self.inner).take();
        PyBytes::new(py, &blob)
    }
}

/// Beyond every record, and far from where sizes of several would overflow.
const MAX_DATA_BYTES: usize = u32::MAX as usize;

#[pyfunction]
pub fn decode_aggregate<'py>(
    py: Python<'py>,
    blob: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    with_bytes(py, blob, |blob| {
        let Some(aggregate) = kpl::read(blob) else {
            return Ok(None);
        };
        let keys: Vec<_> = aggregate
            .partition_keys(blob)
            .map(|key| PyString::new(py, &key))
            .collect();
        let hash_keys: Vec<_> = aggregate
            .hash_keys(blob)
            .map(|key| key.map(|key| PyString::new(py, key)))
            .collect();
        let records = aggregate.records().iter().map(|record| {
            (
                keys[record.partition_key].clone(),
                record.hash_key.and_then(|at| hash_keys[at].clone()),
                PyBytes::new(py, &blob[record.data.clone()]),
            )
        });
        PyList::new(py, records).map(Some)
    })?
}

#[pyfunction]
pub fn hash_key(partition_key: &Bound<'_, PyString>) -> PyResult<u128> {
    Ok(keys::of_partition_key(text(partition_key)?))
}

#[pyfunction]
pub fn aggregate_fitting(entries: &Bound<'_, PyAny>, limit: Int) -> PyResult<usize> {
    let owned = owned(entries)?;
    let records = borrowed(&owned)?;
    let parts = records
        .iter()
        .map(|each| (each.partition_key, each.explicit_hash_key, each.data));
    Ok(aggregator::fitting(parts, limit.count().unwrap_or(0)))
}

#[pyfunction]
pub fn encode_aggregate<'py>(
    py: Python<'py>,
    entries: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let owned = owned(entries)?;
    let records = borrowed(&owned)?;
    let records: Vec<_> = records
        .iter()
        .map(|each| (each.partition_key, each.explicit_hash_key, each.data))
        .collect();
    let blob = py.detach(|| aggregator::encode(&records));
    Ok(PyBytes::new(py, &blob))
}

/// The ranges of hash keys of a stream's shards.
#[pyclass(module = "ruststream_kinesis._core", frozen)]
pub struct HashRanges {
    inner: keys::Ranges,
}

#[pymethods]
impl HashRanges {
    #[new]
    #[allow(clippy::needless_pass_by_value)] // as PyO3 extracts it
    fn new(ranges: Vec<(String, String)>) -> PyResult<Self> {
        let number = |text: &String| {
            text.parse::<u128>().map_err(|_| Error::Argument {
                detail: "a hash key is a decimal number below 2^128",
            })
        };
        let ranges = ranges
            .iter()
            .map(|(first, last)| Ok((number(first)?, number(last)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            inner: keys::Ranges::new(&ranges),
        })
    }

    fn places(&self, entries: &Bound<'_, PyAny>) -> PyResult<Vec<Option<usize>>> {
        let owned = owned(entries)?;
        let records = borrowed(&owned)?;
        let places = records.iter().map(|each| {
            let hash_key = keys::of_record(each.partition_key, each.explicit_hash_key);
            self.inner.place(hash_key)
        });
        Ok(places.collect())
    }
}

/// The keys of a record that is to be written.
fn texts<'a>(
    key: &'a Bound<'_, PyString>,
    hash_key: Option<&'a Bound<'_, PyString>>,
) -> PyResult<(&'a str, Option<&'a str>)> {
    let hash_key = hash_key.map(text).transpose()?;
    if hash_key.is_some_and(|key| !keys::is_explicit(key)) {
        return Err(Error::Argument {
            detail: "an explicit hash key is a decimal number below 2^128",
        }
        .into());
    }
    Ok((text(key)?, hash_key))
}

fn text<'a>(key: &'a Bound<'_, PyString>) -> PyResult<&'a str> {
    key.to_str().map_err(|_| {
        Error::Argument {
            detail: "a partition key may not hold a lone surrogate",
        }
        .into()
    })
}

/// What `work` makes of the bytes of an object that has some.
fn with_bytes<T>(
    py: Python<'_>,
    object: &Bound<'_, PyAny>,
    work: impl FnOnce(&[u8]) -> T,
) -> PyResult<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(work(bytes.as_bytes()));
    }
    Ok(work(&PyBuffer::<u8>::get(object)?.to_vec(py)?))
}
