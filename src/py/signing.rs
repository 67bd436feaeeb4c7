//! Signatures for Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{Error, Result};
use crate::signing::{Keys, Scope};

/// A larger body is hashed with the GIL released: some 100 µs.
const LARGE_BODY: usize = 128 * 1024;
/// Room for what a signature adds to a head; a session token alone may take more.
const SIGNATURE_BYTES: usize = 512;

#[pyclass(frozen, module = "ruststream_kinesis._core")]
pub struct Signer {
    scope: Scope,
    /// What every request carries beside what its signature adds, the signed ones included.
    headers: Py<PyDict>,
    /// The same as they stand in a request.
    lines: Vec<u8>,
}

#[pymethods]
impl Signer {
    #[new]
    fn new(
        url: String,
        region: String,
        service: String,
        signed: &Bound<'_, PyDict>,
        unsigned: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let headers = signed.copy()?;
        headers.update(unsigned.as_mapping())?;
        let signed = signed
            .iter()
            .map(|(name, value)| {
                let name: String = name.extract()?;
                Ok((name.to_ascii_lowercase(), value.extract()?))
            })
            .collect::<PyResult<_>>()?;
        let mut lines = Vec::new();
        for (name, value) in headers.iter() {
            write_line(&mut lines, name.extract()?, value.extract()?)?;
        }
        Ok(Self {
            lines,
            scope: Scope::new(url, region, service, signed),
            headers: headers.unbind(),
        })
    }

    fn sign<'py>(
        &self,
        body: &[u8],
        access_key: &str,
        secret_key: &str,
        token: Option<&str>,
        time: f64,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let keys = Keys {
            access: access_key,
            secret: secret_key,
            token,
        };
        let signature = self.signature(body, keys, time, py)?;
        let headers = self.headers.bind(py).copy()?;
        for (name, value) in signature {
            headers.set_item(name, value)?;
        }
        Ok(headers)
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "five of them are what a signature is made of"
    )]
    fn head<'py>(
        &self,
        start: &[u8],
        body: &[u8],
        access_key: &str,
        secret_key: &str,
        token: Option<&str>,
        time: f64,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let keys = Keys {
            access: access_key,
            secret: secret_key,
            token,
        };
        let signature = self.signature(body, keys, time, py)?;
        let mut head = Vec::with_capacity(start.len() + self.lines.len() + SIGNATURE_BYTES);
        head.extend_from_slice(start);
        head.extend_from_slice(&self.lines);
        for (name, value) in signature {
            write_line(&mut head, &name, &value)?;
        }
        write_line(&mut head, "Content-Length", &body.len().to_string())?;
        head.extend_from_slice(b"\r\n");
        Ok(PyBytes::new(py, &head))
    }
}

impl Signer {
    fn signature(
        &self,
        body: &[u8],
        keys: Keys<'_>,
        time: f64,
        py: Python<'_>,
    ) -> Result<Vec<(String, String)>> {
        if body.len() > LARGE_BODY {
            py.detach(|| self.scope.sign(body, keys, time))
        } else {
            self.scope.sign(body, keys, time)
        }
    }
}

/// One line of a request's head. A value with a line of its own in it would be another header.
fn write_line(head: &mut Vec<u8>, name: &str, value: &str) -> Result<()> {
    let clean = |text: &str| !text.contains(['\r', '\n', '\0']);
    if !clean(name) || !clean(value) {
        return Err(Error::Argument {
            detail: "a header of the request does not fit into HTTP",
        });
    }
    for part in [name, ": ", value, "\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    Ok(())
}
