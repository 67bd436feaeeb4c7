//! The envelope for Python: header mappings and anything with a buffer.

use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString};

use crate::envelope::{block_text, headers as block_headers, payload_start, rewritten};
use crate::envelope::{Envelope, MAGIC, PREFIX_BYTES};
use crate::error::Error;

type Header<'py> = (Bound<'py, PyString>, Bound<'py, PyString>);

#[pyfunction]
pub fn encode_envelope<'py>(
    py: Python<'py>,
    headers: Option<&Bound<'py, PyAny>>,
    payload: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let owned = match headers {
        Some(headers) => pairs(headers)?,
        None => Vec::new(),
    };
    let texts = owned
        .iter()
        .map(|(name, value)| {
            Ok((
                text(name, name, "a name may not hold a lone surrogate")?,
                text(name, value, "a value may not hold a lone surrogate")?,
            ))
        })
        .collect::<PyResult<Vec<_>>>()?;
    if texts.is_empty() {
        // Exactly `bytes` is handed back as it is: the common publish copies nothing.
        let blob = match payload.cast_exact::<PyBytes>() {
            Ok(bytes) => bytes.clone(),
            Err(_) => enveloped(py, &[], payload)?,
        };
        if !blob.as_bytes().starts_with(MAGIC) {
            return Ok(blob);
        }
        return enveloped(py, &Envelope::new(&[])?.to_bytes(), blob.as_any());
    }
    enveloped(py, &Envelope::new(&texts)?.to_bytes(), payload)
}

#[pyfunction]
pub fn decode_envelope<'py>(
    py: Python<'py>,
    blob: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyBytes>)> {
    let blob = match blob.cast_exact::<PyBytes>() {
        Ok(bytes) => bytes.clone(),
        Err(_) => enveloped(py, &[], blob)?,
    };
    let bytes = blob.as_bytes();
    Ok(match payload_start(bytes) {
        None => (PyDict::new(py), blob),
        Some(start) => (
            headers(py, Some(&bytes[PREFIX_BYTES..start]))?,
            PyBytes::new(py, &bytes[start..]),
        ),
    })
}

#[pyfunction]
pub fn rewrite_envelope<'py>(
    py: Python<'py>,
    block: Option<&[u8]>,
    changes: &Bound<'py, PyDict>,
    payload: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let owned = changes
        .iter()
        .map(|(name, value)| {
            if value.is_none() {
                Ok((pair(name.clone(), name)?.0, None))
            } else {
                let (name, value) = pair(name, value)?;
                Ok((name, Some(value)))
            }
        })
        .collect::<PyResult<Vec<_>>>()?;
    let texts = owned
        .iter()
        .map(|(name, value)| {
            let value = match value {
                Some(value) => Some(text(name, value, "a value may not hold a lone surrogate")?),
                None => None,
            };
            Ok((
                text(name, name, "a name may not hold a lone surrogate")?,
                value,
            ))
        })
        .collect::<PyResult<Vec<_>>>()?;
    let front = rewritten(block.unwrap_or_default(), &texts)?;
    enveloped(py, &front, payload)
}

/// The headers of a block as a `dict`; an empty one where there is no block.
pub fn headers<'py>(py: Python<'py>, block: Option<&[u8]>) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    if let Some(block) = block {
        for (name, value) in block_headers(&block_text(block)) {
            out.set_item(known_name(py, name), value)?;
        }
    }
    Ok(out)
}

/// Names that a service uses are few and come with every record: the same object each time saves
/// making and hashing it. Only the first so many are remembered, so that names made up by a
/// producer cannot fill the memory.
static KNOWN_NAMES: Mutex<Vec<(Box<str>, Py<PyString>)>> = Mutex::new(Vec::new());
const MAX_KNOWN_NAMES: usize = 32;
const MAX_KNOWN_NAME_BYTES: usize = 64;

/// The header name as a Python string, the same object each time for the usual ones.
fn known_name<'py>(py: Python<'py>, name: &str) -> Bound<'py, PyString> {
    // Nothing runs under the lock that could ask for it again, or panic.
    let mut known = KNOWN_NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, string)) = known.iter().find(|(known, _)| **known == *name) {
        return string.bind(py).clone();
    }
    let string = PyString::new(py, name);
    if known.len() < MAX_KNOWN_NAMES && name.len() <= MAX_KNOWN_NAME_BYTES {
        known.push((name.into(), string.clone().unbind()));
    }
    string
}

/// `front`, then the payload, in one `bytes` object.
fn enveloped<'py>(
    py: Python<'py>,
    front: &[u8],
    payload: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let start = front.len();
    if let Ok(bytes) = payload.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return PyBytes::new_with(py, start + bytes.len(), |out| {
            out[..start].copy_from_slice(front);
            out[start..].copy_from_slice(bytes);
            Ok(())
        });
    }
    let buffer = PyBuffer::<u8>::get(payload)?;
    PyBytes::new_with(py, start + buffer.item_count(), |out| {
        out[..start].copy_from_slice(front);
        buffer.copy_to_slice(py, &mut out[start..])
    })
}

/// The items of a mapping, in its order.
fn pairs<'py>(headers: &Bound<'py, PyAny>) -> PyResult<Vec<Header<'py>>> {
    if let Ok(dict) = headers.cast::<PyDict>() {
        return dict.iter().map(|(name, value)| pair(name, value)).collect();
    }
    let mapping = headers.cast::<PyMapping>().map_err(|_| Error::Envelope {
        detail: "headers are a mapping of str to str",
    })?;
    mapping
        .items()?
        .iter()
        .map(|item| {
            let (name, value) = item.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()?;
            pair(name, value)
        })
        .collect()
}

/// One header, if both of its sides are `str`.
fn pair<'py>(name: Bound<'py, PyAny>, value: Bound<'py, PyAny>) -> PyResult<Header<'py>> {
    let name = name
        .cast_into::<PyString>()
        .map_err(|error| Error::Header {
            name: shown(&error.into_inner()),
            detail: "a name must be a str",
        })?;
    let value = value.cast_into().map_err(|_| Error::Header {
        name: shown(&name),
        detail: "a value must be a str",
    })?;
    Ok((name, value))
}

/// The UTF-8 of a string that belongs to the header `name`.
fn text<'a>(
    name: &Bound<'_, PyString>,
    string: &'a Bound<'_, PyString>,
    detail: &'static str,
) -> PyResult<&'a str> {
    string.to_str().map_err(|_| {
        let name = shown(name);
        Error::Header { name, detail }.into()
    })
}

/// A name for a message, whatever it is.
fn shown(name: &Bound<'_, PyAny>) -> String {
    match name.cast::<PyString>() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => name
            .repr()
            .map_or_else(|_| "?".to_owned(), |repr| repr.to_string()),
    }
}
