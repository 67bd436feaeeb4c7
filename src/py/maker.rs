//! A record from a value: codec, envelope, key ladder, limits; all but its size, which is the stream's.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use super::envelope::encode_envelope;
use super::limits::partition_key_text;
use crate::envelope::MAGIC;

/// One run of partition keys, each unlike the last.
#[pyclass(frozen, module = "ruststream_kinesis._core")]
pub struct SpreadKeys {
    nonce: String,
    number: AtomicU64,
}

impl SpreadKeys {
    fn text(&self) -> String {
        let number = self.number.fetch_add(1, Ordering::Relaxed).to_string();
        let mut text = String::with_capacity(self.nonce.len() + 1 + number.len());
        text.push_str(&self.nonce);
        text.push('-');
        text.push_str(&number);
        text
    }
}

#[pymethods]
impl SpreadKeys {
    #[new]
    fn new(nonce: String) -> Self {
        Self {
            nonce,
            number: AtomicU64::new(0),
        }
    }

    fn take(&self) -> String {
        self.text()
    }
}

#[pyclass(frozen, module = "ruststream_kinesis._core")]
pub struct Maker {
    policy_key: Option<Py<PyAny>>,
    policy_key_is_function: bool,
    encode: Py<PyAny>,
    /// Whether exactly `bytes` travels as it is, and the codec is not even asked.
    plain: bool,
    spread: Py<SpreadKeys>,
    /// From the name or ARN of a stream to its reference; remembered.
    parse: Py<PyAny>,
    streams: Py<PyDict>,
    /// Headers that travel, and the partition key among the others.
    split: Py<PyAny>,
    /// Refuses an explicit hash key.
    check_hash_key: Py<PyAny>,
}

/// A record that was made.
pub struct Made<'py> {
    pub stream: Bound<'py, PyAny>,
    pub data: Bound<'py, PyBytes>,
    pub key: Bound<'py, PyString>,
    pub hash_key: Option<Bound<'py, PyAny>>,
    /// Bytes of data and partition key.
    pub size: usize,
    /// No other record has its partition key.
    pub spread: bool,
}

impl<'py> Made<'py> {
    /// As it stands in a request.
    pub fn entry(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (&self.data, &self.key, &self.hash_key).into_pyobject(py)
    }

    /// As Python has it.
    pub fn parts(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let key = (!self.spread).then_some(&self.key);
        (&self.stream, self.entry(py)?, self.size, key).into_pyobject(py)
    }
}

impl Maker {
    pub fn make<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        to: &Bound<'py, PyAny>,
        partition_key: Option<Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        hash_key: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Made<'py>> {
        let py = value.py();
        let streams = self.streams.bind(py);
        let stream = if let Some(known) = streams.get_item(to)? {
            known
        } else {
            let stream = self.parse.bind(py).call1((to,))?;
            streams.set_item(to, &stream)?;
            stream
        };
        let mut partition_key = partition_key;
        let mut own = None;
        if let Some(headers) = headers {
            if headers.is_truthy()? {
                let (travels, key) = self
                    .split
                    .bind(py)
                    .call1((headers,))?
                    .extract::<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)>()?;
                own = Some(travels);
                partition_key = partition_key.or(key);
            }
        }
        if let Some(hash_key) = &hash_key {
            let name = stream.getattr(intern!(py, "name"))?;
            self.check_hash_key.bind(py).call1((hash_key, name))?;
        }
        if partition_key.is_none() {
            partition_key = match &self.policy_key {
                Some(key) if self.policy_key_is_function => {
                    Some(key.bind(py).call1((value,))?).filter(|key| !key.is_none())
                }
                Some(key) => Some(key.bind(py).clone()),
                None => None,
            };
        }
        let data = match value.cast_exact::<PyBytes>() {
            Ok(bytes) if self.plain => bytes.clone().into_any(),
            _ => self.encode.bind(py).call1((value,))?,
        };
        let data = match data.cast_into_exact::<PyBytes>() {
            Ok(bytes) if own.is_none() && !bytes.as_bytes().starts_with(MAGIC) => bytes,
            Ok(bytes) => encode_envelope(py, own.as_ref(), bytes.as_any())?,
            Err(other) => encode_envelope(py, own.as_ref(), &other.into_inner())?,
        };
        let spread = partition_key.is_none();
        let (key, key_bytes) = match partition_key {
            None => {
                let text = self.spread.get().text();
                (PyString::new(py, &text), text.len())
            }
            Some(key) => {
                let key = partition_key_text(key, || stream.getattr(intern!(py, "name")))?;
                let bytes = key.to_str()?.len();
                (key, bytes)
            }
        };
        Ok(Made {
            size: data.as_bytes().len() + key_bytes,
            stream,
            data,
            key,
            hash_key,
            spread,
        })
    }
}

#[pymethods]
impl Maker {
    #[new]
    #[pyo3(signature = (policy_key, encode, *, plain, spread, parse, split, check_hash_key))]
    #[allow(
        clippy::too_many_arguments,
        reason = "each is a rule of its own, named by its caller"
    )]
    fn new(
        policy_key: Option<Bound<'_, PyAny>>,
        encode: Py<PyAny>,
        plain: bool,
        spread: Py<SpreadKeys>,
        parse: Py<PyAny>,
        split: Py<PyAny>,
        check_hash_key: Py<PyAny>,
        py: Python<'_>,
    ) -> Self {
        Self {
            policy_key_is_function: policy_key.as_ref().is_some_and(Bound::is_callable),
            policy_key: policy_key.map(Bound::unbind),
            encode,
            plain,
            spread,
            parse,
            streams: PyDict::new(py).unbind(),
            split,
            check_hash_key,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.policy_key)?;
        visit.call(&self.encode)?;
        visit.call(&self.streams)
    }

    fn parts<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        to: &Bound<'py, PyAny>,
        partition_key: Option<Bound<'py, PyAny>>,
        headers: Option<&Bound<'py, PyAny>>,
        explicit_hash_key: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        self.make(value, to, partition_key, headers, explicit_hash_key)?
            .parts(value.py())
    }
}
