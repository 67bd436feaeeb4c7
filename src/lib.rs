//! Native core of `ruststream-kinesis`: the work that is done per record.
//!
//! A service on Kinesis spends its time on three things that Python does slowly and one at a
//! time: decoding a page, finding the headers of a record, and keeping the position up to which
//! everything is settled. They are here, each in a module without Python:
//!
//! | module | what |
//! | --- | --- |
//! | [`get_records`] | the bytes of a `GetRecords` response become a [`page::Page`] |
//! | [`builder`] | filling it, with what aggregates hold taken out |
//! | [`page`] | the records of a response, decoded, immutable |
//! | [`sequence_numbers`] | the one part of a page that outlives it |
//! | [`envelope`] | headers in front of a payload |
//! | [`kpl`], [`aggregator`] | many records in the blob of one: reading, writing |
//! | [`protobuf`] | the fields of the message that such a blob is |
//! | [`hash_key`] | which shard the service puts a key in |
//! | [`partition`] | which worker a key belongs to |
//! | [`watermark`], [`segment`] | what is settled, and the checkpoint that follows from it |
//! | [`batch`] | when a batch closes |
//! | [`buffer`] | which records of a stream share the next request, and how many there are |
//! | [`requests`], [`signing`] | the calls that are made for every page and every publish |
//! | [`http_head`], [`http_chunks`] | where the answer to such a call ends |
//! | [`error`] | the one error type |
//!
//! `py` binds them. Calls cross the boundary once per page, batch or settlement, never per
//! field. Text for Python users is in `_core.pyi`.

#![forbid(unsafe_code)]

pub mod aggregator;
pub mod batch;
pub mod buffer;
pub mod builder;
pub mod envelope;
pub mod error;
pub mod get_records;
pub mod hash_key;
pub mod http_chunks;
pub mod http_head;
pub mod kpl;
pub mod page;
pub mod partition;
pub mod protobuf;
mod py;
pub mod requests;
pub mod segment;
pub mod sequence_numbers;
pub mod signing;
pub mod watermark;

use pyo3::prelude::*;

/// Registers the names of `ruststream_kinesis._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    py::register(module)
}
