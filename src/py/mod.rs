//! The binding layer: argument extraction, result construction, error mapping, and nothing else.
//!
//! Classes are frozen and lock inside, so they are safe from any thread with or without a GIL. No
//! Python code runs while a lock is held: values are built before it is taken or after it is
//! released.

mod aggregate;
mod batch;
mod envelope;
mod http;
mod intake;
mod limits;
mod maker;
mod page;
mod pending;
mod requests;
mod signing;
mod watermark;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyValueError};
use pyo3::prelude::*;

use crate::error::Error;

mod exceptions {
    //! The classes of `ruststream_kinesis.errors`, imported when the first one is raised.
    pyo3::import_exception!(ruststream_kinesis.errors, EnvelopeError);
    pyo3::import_exception!(ruststream_kinesis.errors, PageError);
}

/// The one place where an error of the core gets its Python class.
impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Page { .. } | Error::Record { .. } => exceptions::PageError::new_err(message),
            Error::Header { .. } | Error::Envelope { .. } => {
                exceptions::EnvelopeError::new_err(message)
            }
            Error::Index { .. } => PyIndexError::new_err(message),
            Error::Answer { .. } | Error::Argument { .. } | Error::Http { .. } => {
                PyValueError::new_err(message)
            }
        }
    }
}

/// Adds everything to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<page::Page>()?;
    module.add_class::<watermark::Watermark>()?;
    module.add_class::<batch::Batcher>()?;
    module.add_class::<signing::Signer>()?;
    module.add_class::<http::Chunks>()?;
    module.add_class::<pending::Pending>()?;
    module.add_class::<intake::Intake>()?;
    module.add_class::<intake::Way>()?;
    module.add_class::<maker::Maker>()?;
    module.add_class::<maker::SpreadKeys>()?;
    module.add("MAX_PARTITION_KEY_LENGTH", limits::MAX_PARTITION_KEY_LENGTH)?;
    module.add_function(wrap_pyfunction!(limits::check_partition_key, module)?)?;
    module.add_function(wrap_pyfunction!(intake::entries_of, module)?)?;
    module.add_function(wrap_pyfunction!(intake::settle, module)?)?;
    module.add_function(wrap_pyfunction!(http::parse_head, module)?)?;
    module.add_function(wrap_pyfunction!(requests::encode_get_records, module)?)?;
    module.add_function(wrap_pyfunction!(requests::encode_put_record, module)?)?;
    module.add_function(wrap_pyfunction!(requests::encode_put_records, module)?)?;
    module.add_function(wrap_pyfunction!(requests::decode_put_records, module)?)?;
    module.add_class::<aggregate::Aggregator>()?;
    module.add_class::<aggregate::HashRanges>()?;
    module.add_function(wrap_pyfunction!(aggregate::aggregate_fitting, module)?)?;
    module.add_function(wrap_pyfunction!(aggregate::decode_aggregate, module)?)?;
    module.add_function(wrap_pyfunction!(aggregate::encode_aggregate, module)?)?;
    module.add_function(wrap_pyfunction!(aggregate::hash_key, module)?)?;
    module.add_function(wrap_pyfunction!(envelope::encode_envelope, module)?)?;
    module.add_function(wrap_pyfunction!(envelope::rewrite_envelope, module)?)?;
    module.add_function(wrap_pyfunction!(envelope::decode_envelope, module)?)
}

/// Takes a lock. Nothing in the core panics halfway through a change, so a poisoned lock still
/// guards a whole value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An `int` of Python, which may lie outside what the core counts with. Such a number is no error
/// of its own: it names a record or a place that does not exist.
#[derive(Clone, Copy)]
enum Int {
    Below,
    At(u64),
    Above,
}

impl Int {
    /// The place it names; one that is never given where there is none.
    fn place(self) -> u64 {
        match self {
            Self::At(place) => place,
            Self::Below | Self::Above => u64::MAX,
        }
    }

    /// The end of a run of places: below all of them, or above.
    fn bound(self) -> u64 {
        match self {
            Self::Below => 0,
            Self::At(place) => place,
            Self::Above => u64::MAX,
        }
    }

    /// The index it names; one beyond every page where there is none.
    fn index(self) -> usize {
        usize::try_from(self.place()).unwrap_or(usize::MAX)
    }

    /// A number of things, `None` for a negative one.
    fn count(self) -> Option<usize> {
        match self {
            Self::Below => None,
            Self::At(_) | Self::Above => Some(self.index()),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Int {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract() {
            Ok(value) => Ok(Self::At(value)),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Ok(if object.lt(0)? {
                    Self::Below
                } else {
                    Self::Above
                })
            }
            Err(error) => Err(error),
        }
    }
}
