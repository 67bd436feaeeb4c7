//! Native core of `ruststream-kinesis`: the work that is done per record.

#![forbid(unsafe_code)]

pub mod batch;
pub mod envelope;
pub mod error;
pub mod get_records;
pub mod page;
pub mod partition;
pub mod segment;
pub mod sequence_numbers;
pub mod watermark;

use pyo3::prelude::*;

/// Registers the names of `ruststream_kinesis._core`.
#[pymodule]
fn _core(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
