//! Signatures for Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::signing::{Keys, Scope};

/// A larger body is hashed with the GIL released: some 100 µs.
const LARGE_BODY: usize = 128 * 1024;

#[pyclass(frozen, module = "ruststream_kinesis._core")]
pub struct Signer {
    scope: Scope,
    /// What every request carries beside what its signature adds, the signed ones included.
    headers: Py<PyDict>,
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
        Ok(Self {
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
        let signature = if body.len() > LARGE_BODY {
            py.detach(|| self.scope.sign(body, keys, time))
        } else {
            self.scope.sign(body, keys, time)
        }?;
        let headers = self.headers.bind(py).copy()?;
        for (name, value) in signature {
            headers.set_item(name, value)?;
        }
        Ok(headers)
    }
}
