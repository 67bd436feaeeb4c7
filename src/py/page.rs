//! `Page` for Python.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::{envelope, Int};
use crate::envelope::{block_text, headers};
use crate::error::Error;
use crate::partition::MAX_PARTITIONS;
use crate::{get_records, page};

/// One decoded `GetRecords` response.
#[pyclass(module = "ruststream_kinesis._core", frozen, weakref)]
pub struct Page(pub page::Page);

#[pymethods]
impl Page {
    #[staticmethod]
    fn parse(py: Python<'_>, body: &Bound<'_, PyBytes>) -> PyResult<Self> {
        let body = body.as_bytes();
        Ok(Self(py.detach(|| get_records::parse(body))?))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn next_shard_iterator(&self) -> Option<&str> {
        self.0.tail().next_shard_iterator.as_deref()
    }

    #[getter]
    fn millis_behind_latest(&self) -> Option<u64> {
        self.0.tail().millis_behind_latest
    }

    #[getter]
    fn child_shards(&self) -> Vec<&str> {
        self.0
            .tail()
            .child_shards
            .iter()
            .map(String::as_str)
            .collect()
    }

    #[getter]
    fn last_sequence_number(&self) -> Option<&str> {
        self.0.sequence_numbers().last()
    }

    #[getter]
    fn empty_aggregates(&self) -> usize {
        self.0.empty_aggregates()
    }

    #[getter]
    fn data_bytes(&self) -> usize {
        self.0.data_bytes()
    }

    fn payloads<'py>(
        &self,
        py: Python<'py>,
        start: Int,
        stop: Int,
    ) -> PyResult<Bound<'py, PyList>> {
        let run = self.0.run(start.index(), stop.index())?;
        PyList::new(py, run.map(|index| PyBytes::new(py, self.0.payload(index))))
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "PyO3 extracts a list of numbers into a vector of its own"
    )]
    fn payloads_at<'py>(&self, py: Python<'py>, indices: Vec<Int>) -> PyResult<Bound<'py, PyList>> {
        let indices = indices
            .iter()
            .map(|index| self.0.index(index.index()))
            .collect::<Result<Vec<_>, _>>()?;
        PyList::new(
            py,
            indices
                .into_iter()
                .map(|index| PyBytes::new(py, self.0.payload(index))),
        )
    }

    fn payload<'py>(&self, py: Python<'py>, index: Int) -> PyResult<Bound<'py, PyBytes>> {
        let index = self.0.index(index.index())?;
        Ok(PyBytes::new(py, self.0.payload(index)))
    }

    fn data<'py>(&self, py: Python<'py>, index: Int) -> PyResult<Bound<'py, PyBytes>> {
        let index = self.0.index(index.index())?;
        Ok(PyBytes::new(py, self.0.data(index)))
    }

    fn header_block<'py>(
        &self,
        py: Python<'py>,
        index: Int,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let index = self.0.index(index.index())?;
        let block = self.0.header_block(index);
        Ok(block.map(|block| PyBytes::new(py, block)))
    }

    fn headers<'py>(&self, py: Python<'py>, index: Int) -> PyResult<Bound<'py, PyDict>> {
        let index = self.0.index(index.index())?;
        envelope::headers(py, self.0.header_block(index))
    }

    fn find_header(&self, name: &str, start: Int, stop: Int) -> PyResult<Vec<(usize, String)>> {
        let run = self.0.run(start.index(), stop.index())?;
        Ok(run
            .filter_map(|index| {
                let text = block_text(self.0.header_block(index)?);
                let (_, value) = headers(&text).filter(|(found, _)| *found == name).last()?;
                Some((index, value.to_owned()))
            })
            .collect())
    }

    fn partition_key(&self, index: Int) -> PyResult<Option<&str>> {
        Ok(self.0.partition_key(self.0.index(index.index())?))
    }

    fn explicit_hash_key(&self, index: Int) -> PyResult<Option<&str>> {
        Ok(self.0.explicit_hash_key(self.0.index(index.index())?))
    }

    fn sub_sequence_number(&self, index: Int) -> PyResult<Option<usize>> {
        Ok(self.0.sub_sequence_number(self.0.index(index.index())?))
    }

    fn sequence_number(&self, index: Int) -> PyResult<&str> {
        let index = self.0.index(index.index())?;
        Ok(self.0.sequence_numbers().get(index))
    }

    fn last_of_record(&self, index: Int) -> PyResult<usize> {
        let index = self.0.index(index.index())?;
        Ok(self.0.sequence_numbers().run_last(index))
    }

    fn arrival(&self, index: Int) -> PyResult<Option<f64>> {
        Ok(self.0.arrival(self.0.index(index.index())?))
    }

    fn partitions(&self, start: Int, stop: Int, n: Int) -> PyResult<Vec<Vec<usize>>> {
        let run = self.0.run(start.index(), stop.index())?;
        let n = n.index();
        if !(1..=MAX_PARTITIONS).contains(&n) {
            return Err(Error::Argument {
                detail: "a run is split over 1 to 65,536 partitions",
            }
            .into());
        }
        Ok(self.0.partitions(run, n))
    }
}
