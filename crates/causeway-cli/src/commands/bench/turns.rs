//! One argument of a call as many times as it takes to outgrow the cache: calls take them in turn.

use causeway::backend::gpu::{DeviceBuffer, Stream};
use causeway::{Arrangement, Device, HostTensor, Result, TensorMut, TensorRef};

/// Copies of a tensor in the memory of a device.
pub(super) enum Turns {
    Host(Vec<HostTensor>),
    Gpu(Slab),
}

/// Copies side by side in one allocation: thousands of small ones are made as fast as a large one.
pub(super) struct Slab {
    buffer: DeviceBuffer,
    arrangement: Arrangement,
    /// Bytes from one copy to the next.
    step: u64,
    count: usize,
}

impl Turns {
    /// `count` copies of a tensor that lies as `arrangement` says.
    pub fn new(device: &Device, arrangement: Arrangement, tensor: &HostTensor, count: usize) -> Result<Self> {
        match device {
            Device::Gpu(stream) => Ok(Turns::Gpu(Slab::new(stream, arrangement, tensor, count)?)),
            _ => Ok(Turns::Host(vec![tensor.clone(); count])),
        }
    }

    /// What call number `turn` reads.
    pub fn view(&self, turn: usize) -> TensorRef<'_> {
        match self {
            Turns::Host(tensors) => tensors[turn % tensors.len()].view(),
            Turns::Gpu(slab) => slab.view(turn),
        }
    }

    /// What call number `turn` writes.
    pub fn view_mut(&mut self, turn: usize) -> TensorMut<'_> {
        match self {
            Turns::Host(tensors) => {
                let count = tensors.len();
                tensors[turn % count].view_mut()
            }
            Turns::Gpu(slab) => slab.view_mut(turn),
        }
    }

    /// The first copy.
    pub fn fetch(&self) -> Result<HostTensor> {
        match self {
            Turns::Host(tensors) => Ok(tensors[0].clone()),
            Turns::Gpu(slab) => {
                let mut tensor = slab.arrangement.zeros()?;
                slab.buffer.download_at(0, tensor.bytes_mut())?;
                Ok(tensor)
            }
        }
    }

    /// Makes the first copy what another tensor of this arrangement is.
    pub fn restore(&mut self, tensor: &HostTensor) -> Result<()> {
        match self {
            Turns::Host(tensors) => {
                tensors[0].clone_from(tensor);
                Ok(())
            }
            Turns::Gpu(slab) => slab.buffer.upload_at(0, tensor.bytes()),
        }
    }

    /// Storage of a copy on the host.
    pub fn host(&self, turn: usize) -> &[u8] {
        match self {
            Turns::Host(tensors) => tensors[turn % tensors.len()].bytes(),
            Turns::Gpu(_) => &[],
        }
    }

    /// Storage of a copy on the host.
    pub fn host_mut(&mut self, turn: usize) -> &mut [u8] {
        match self {
            Turns::Host(tensors) => {
                let count = tensors.len();
                tensors[turn % count].bytes_mut()
            }
            Turns::Gpu(_) => &mut [],
        }
    }

    /// Address of the storage of a copy on a GPU.
    pub fn address(&self, turn: usize) -> u64 {
        match self {
            Turns::Host(_) => 0,
            Turns::Gpu(slab) => slab.address(turn),
        }
    }
}

impl Slab {
    fn new(stream: &Stream, arrangement: Arrangement, tensor: &HostTensor, count: usize) -> Result<Self> {
        let step = tensor.bytes().len() as u64;
        let mut buffer = DeviceBuffer::new(stream, step * count as u64)?;
        buffer.tile(tensor.bytes())?;
        Ok(Slab { buffer, arrangement, step, count })
    }

    fn address(&self, turn: usize) -> u64 {
        self.buffer.address() + (turn % self.count) as u64 * self.step
    }

    fn first(&self, turn: usize) -> usize {
        let bytes = self.arrangement.offset * self.arrangement.dtype.size() as i64;
        self.address(turn).wrapping_add_signed(bytes) as usize
    }

    fn view(&self, turn: usize) -> TensorRef<'_> {
        let Arrangement { dtype, shape, strides, .. } = self.arrangement;
        let first = std::ptr::without_provenance(self.first(turn));
        // SAFETY: the copy lies inside the buffer as it does in the host's tensor; the buffer is freed after the work
        // of its stream, on which all calls are.
        let view =
            unsafe { TensorRef::from_raw(first, dtype, &shape, &strides, self.buffer.device().location()) };
        view.expect("the arrangement was checked when the tensor was made")
    }

    fn view_mut(&mut self, turn: usize) -> TensorMut<'_> {
        let Arrangement { dtype, shape, strides, .. } = self.arrangement;
        let first = std::ptr::without_provenance_mut(self.first(turn));
        // SAFETY: as above, and the exclusive borrow keeps other views away.
        let view =
            unsafe { TensorMut::from_raw(first, dtype, &shape, &strides, self.buffer.device().location()) };
        view.expect("the arrangement was checked when the tensor was made")
    }
}
