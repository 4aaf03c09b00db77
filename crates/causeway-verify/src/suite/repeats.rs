//! Whether a call gives the same bits each time.

use causeway::backend::gpu::{DeviceBuffer, Stream, compare};
use causeway::device::Device;
use causeway::error::Result;
use causeway::placement::Output;

use super::results::Results;

/// What a call's results were before it and after its first run.
pub(super) struct Reference {
    before: Vec<Output>,
    first: Vec<Output>,
    different: Different,
}

impl Reference {
    /// Copies of results that have not been written yet.
    pub fn before<R: Results<Output>>(device: &Device, results: &mut R) -> Result<Self> {
        let before = copies(results)?;
        Ok(Reference { different: Different::none(device, before.len())?, before, first: Vec::new() })
    }

    /// Keeps the results of the first run.
    pub fn keep<R: Results<Output>>(&mut self, results: &mut R) -> Result<()> {
        self.first = copies(results)?;
        Ok(())
    }

    /// Makes the results what they were before the first run.
    pub fn reset<R: Results<Output>>(&self, results: &mut R) -> Result<()> {
        let pairs = results.tensors().into_iter().zip(&self.before);
        pairs.into_iter().try_for_each(|((_, tensor), before)| tensor.copy_from(before))
    }

    /// Compares every byte of the results, and of what lies around them, with those of the first run.
    pub fn compare<R: Results<Output>>(&mut self, results: &mut R) -> Result<()> {
        let pairs = results.tensors().into_iter().zip(&self.first);
        pairs.enumerate().try_for_each(|(i, ((_, tensor), first))| self.different.compare(i, first, tensor))
    }

    /// For each result, whether any run gave other bits than the first one.
    pub fn differed(self) -> Result<Vec<bool>> {
        self.different.fetch()
    }
}

fn copies<R: Results<Output>>(results: &mut R) -> Result<Vec<Output>> {
    results.tensors().into_iter().map(|(_, tensor)| tensor.duplicate()).collect()
}

/// A flag per result: on a GPU, in its memory, so that repeats need not wait for each other.
enum Different {
    Host(Vec<bool>),
    Gpu(Stream, DeviceBuffer),
}

impl Different {
    fn none(device: &Device, count: usize) -> Result<Self> {
        let Device::Gpu(stream) = device else { return Ok(Different::Host(vec![false; count])) };
        let mut flags = DeviceBuffer::new(stream, count as u64 * 4)?;
        flags.fill(0)?;
        Ok(Different::Gpu(stream.clone(), flags))
    }

    fn compare(&mut self, flag: usize, first: &Output, again: &Output) -> Result<()> {
        match (self, first, again) {
            (Different::Gpu(stream, flags), Output::Gpu(first), Output::Gpu(again)) => {
                let (first, again) = (first.buffer(), again.buffer());
                let flag = flags.address() + flag as u64 * 4;
                let Some(plan) = compare::plan(first.address(), again.address(), first.len(), flag) else {
                    return Ok(());
                };
                // SAFETY: both buffers have the length of the first, the flag is one of `flags`, and all of them are
                // freed after the work of this stream.
                unsafe { stream.device().launch(&plan, stream.handle(), None) }
            }
            (Different::Host(flags), Output::Host(first), Output::Host(again)) => {
                flags[flag] |= first.bytes() != again.bytes();
                Ok(())
            }
            _ => unreachable!("results of one call are in the memory of its device"),
        }
    }

    fn fetch(self) -> Result<Vec<bool>> {
        match self {
            Different::Host(flags) => Ok(flags),
            Different::Gpu(_, buffer) => {
                let mut flags = vec![0u32; buffer.len() as usize / 4];
                buffer.download(bytemuck::cast_slice_mut(&mut flags))?;
                Ok(flags.into_iter().map(|flag| flag != 0).collect())
            }
        }
    }
}
