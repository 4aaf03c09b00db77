//! Plans of messages between two GPUs, through memory that both reach: see kernels/message.cuh.

use super::choice::{ArgumentType, Constants, KernelFunction};
use super::device_struct::device_struct;
use super::launch::{Traffic, plan_of_tile};
use super::plan::Plan;
use crate::tensor::{Meta, TensorMut, TensorRef};

/// Bytes of a buffer that a block has in a row.
const BLOCK: u64 = 4096;

/// Blocks at most: a buffer has a flag for each.
const MOST_BLOCKS: u64 = 64;

/// Bytes from one flag to the next.
const FLAG: u64 = 32;

/// Bytes of a buffer in front of a message's elements: its flags. All are 0 before the first message.
pub const FLAG_BYTES: u64 = MOST_BLOCKS * FLAG;

device_struct! {
    /// What a message's kernel is given. Strides are in elements.
    pub(super) struct MessageArguments in "" {
        tensor: u64 as "void*",
        room: u64 as "void*",
        /// of the tensor
        elements: u64,
        seqlen: u64,
        dim: u64,
        batch_stride: i64,
        dim_stride: i64,
        seqlen_stride: i64,
        /// of the grid
        blocks: u32,
        reserved: u32,
    }
}

static KERNEL: KernelFunction = KernelFunction {
    header: "message.cuh",
    entry: "message",
    argument: ArgumentType::Struct(&MessageArguments::DEVICE),
    function: "message<Tile>",
};

/// Waits until the message before has left a buffer, and writes a tensor of at most three axes to it. None if the tensor is empty.
///
/// The buffer, at a multiple of 16, has [`FLAG_BYTES`] and then as many bytes as the tensor's elements take, rounded up to 16.
pub fn send(tensor: &TensorRef<'_>, buffer: u64) -> Option<Plan> {
    Some(message(Message::new(tensor.meta(), tensor.pointer() as u64, buffer, true)?))
}

/// Waits until a message of a tensor of these sizes has come, and takes it out of the buffer. None if the tensor is empty.
pub fn receive(tensor: &TensorMut<'_>, buffer: u64) -> Option<Plan> {
    Some(message(Message::new(tensor.meta(), tensor.pointer() as u64, buffer, false)?))
}

/// How a message is cut into blocks.
pub(super) struct Message {
    pub arguments: MessageArguments,
    pub tile: Constants,
    pub threads: u32,
    pub bytes: u64,
}

impl Message {
    /// None if there is nothing to send.
    pub fn new(tensor: &Meta, address: u64, buffer: u64, sends: bool) -> Option<Self> {
        let elements = u64::try_from(tensor.element_count()).ok().filter(|elements| *elements > 0)?;
        // A missing axis, in front, has one entry.
        let axis = |from_the_end: usize| {
            let axis = tensor.shape.len().checked_sub(from_the_end);
            axis.map_or((1, 0), |axis| (tensor.shape[axis] as u64, tensor.strides[axis]))
        };
        let ((seqlen, seqlen_stride), (dim, dim_stride), (_, batch_stride)) = (axis(1), axis(2), axis(3));
        let element = tensor.dtype.size() as u32;
        let bytes = elements * u64::from(element);
        let blocks = bytes.div_ceil(BLOCK).min(MOST_BLOCKS) as u32;
        // Bytes that a thread moves at a time: few, so that many threads load what lies far apart.
        let together = element.max(4);
        let threads = BLOCK as u32 / together;
        let tile = Constants::new("Tile")
            .int("element_bytes", element)
            .int("bytes", together)
            .int("threads", threads)
            .int("flags", MOST_BLOCKS as u32)
            .int("flag_bytes", FLAG as u32)
            .flag("sends", sends);
        let arguments = MessageArguments {
            tensor: address,
            room: buffer,
            elements,
            seqlen,
            dim,
            batch_stride,
            dim_stride,
            seqlen_stride,
            blocks,
            reserved: 0,
        };
        Some(Message { arguments, tile, threads, bytes })
    }
}

fn message(message: Message) -> Plan {
    let Message { arguments, tile, threads, bytes } = message;
    let traffic = Traffic { read: bytes, written: bytes };
    plan_of_tile(&KERNEL, tile, [arguments.blocks, threads], &arguments, traffic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Location};

    fn sent(dtype: DType, shape: &[i64], strides: &[i64]) -> Option<Plan> {
        // SAFETY: planners never touch the memory.
        let tensor =
            unsafe { TensorRef::from_raw(64 as *const u8, dtype, shape, strides, Location::Cuda(0)) };
        send(&tensor.unwrap(), 4096)
    }

    #[test]
    fn blocks_are_as_many_as_have_packets_and_flags() {
        let blocks = |elements| sent(DType::BF16, &[elements], &[1]).unwrap().grid[0];
        assert_eq!((blocks(1), blocks(2048), blocks(2049)), (1, 1, 2));
        assert_eq!((blocks(2048 * 63), blocks(1 << 24)), (63, 64));
        assert_eq!(sent(DType::I32, &[2, 0], &[3, 1]), None);
    }
}
