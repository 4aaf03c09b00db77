//! What is done on a device whose driver fails: each operation, copies, and what benchmarks do.

use std::collections::BTreeMap;

use causeway::backend::gpu::{DeviceBuffer, Event, GpuDevice, Stream, Workspace};
use causeway::causal_conv1d::VarlenStates;
use causeway::named::{Call, CallError, Inputs, Layout, Operation};
use causeway::placement::{Input, Output};
use causeway::{DType, Device, DeviceTensor, HostTensor, Result};

use crate::gpu::{bytes, scale, total};

/// Something to do on a device, from its stream to its last result and the end of the stream.
pub struct Script {
    pub name: &'static str,
    pub run: fn(GpuDevice) -> Result<()>,
    /// Counters of recorded launches live as long as the device: each run leaves some.
    pub records: bool,
}

pub const SCRIPTS: &[Script] = &[
    Script { name: "forward", run: forward, records: false },
    Script { name: "backward", run: backward, records: false },
    Script { name: "update", run: update, records: false },
    Script { name: "varlen-states", run: varlen_states, records: false },
    Script { name: "gemm-forward", run: gemm_forward, records: false },
    Script { name: "gemm-grad-ab", run: gemm_grad_ab, records: false },
    Script { name: "copies", run: copies, records: false },
    Script { name: "benchmark", run: benchmark, records: true },
];

type Tensor = (&'static str, DType, &'static [i64]);

/// An operation on tensors of zeros, on a stream of its own: compiled by the first call, remembered by the second.
fn call(device: GpuDevice, operation: Operation, tensors: &[Tensor]) -> Result<()> {
    let zeros = |&(name, dtype, shape): &Tensor| Ok((name.to_string(), HostTensor::zeros(dtype, shape)?));
    let tensors = tensors.iter().map(zeros).collect::<Result<BTreeMap<_, _>>>()?;
    let inputs = Inputs::new(tensors, Layout::ChannelFirst);
    let device = Device::Gpu(Stream::new(device)?);
    for _ in 0..2 {
        Call::new(operation).run(&device, &inputs).map_err(|error| match error {
            CallError::Operation { error, .. } => error,
            other => panic!("{other}"),
        })?;
    }
    Ok(())
}

fn forward(device: GpuDevice) -> Result<()> {
    const X: &[i64] = &[2, 24, 40];
    let tensors = [
        ("x", DType::F32, X),
        ("weight", DType::F32, &[24, 4]),
        ("bias", DType::F32, &[24]),
        ("residual", DType::F32, X),
    ];
    call(device, Operation::Conv1dForward, &tensors)
}

/// Several blocks add to one sum: a workspace and counters.
fn backward(device: GpuDevice) -> Result<()> {
    const X: &[i64] = &[2, 24, 3000];
    let tensors = [
        ("x", DType::BF16, X),
        ("weight", DType::F32, &[24, 4]),
        ("bias", DType::F32, &[24]),
        ("dy", DType::BF16, X),
    ];
    call(device, Operation::Conv1dBackward, &tensors)
}

fn update(device: GpuDevice) -> Result<()> {
    let tensors: [Tensor; 3] = [
        ("x", DType::F16, &[3, 24]),
        ("conv_state", DType::F16, &[3, 24, 4]),
        ("weight", DType::F16, &[24, 4]),
    ];
    call(device, Operation::Conv1dUpdate, &tensors)
}

fn varlen_states(device: GpuDevice) -> Result<()> {
    let device = Device::Gpu(Stream::new(device)?);
    let (x, cu_seqlens) =
        (HostTensor::zeros(DType::F32, &[7, 5])?, HostTensor::from_slice(&[0i32, 3, 7], &[3])?);
    let (x, cu_seqlens) = (Input::place(&device, &x)?, Input::place(&device, &cu_seqlens)?);
    let mut states = Output::place(&device, HostTensor::zeros(DType::F32, &[2, 5, 3])?)?;
    VarlenStates { x: x.view(), cu_seqlens: cu_seqlens.view(), states: states.view() }.run(&device)?;
    states.fetch().map(drop)
}

/// Large enough for the matrix units of a Hopper, their TMA and all of a block's shared memory.
fn gemm_forward(device: GpuDevice) -> Result<()> {
    let tensors: [Tensor; 2] = [("A", DType::F16, &[256, 128]), ("B", DType::F16, &[128, 256])];
    call(device, Operation::GemmForward, &tensors)
}

fn gemm_grad_ab(device: GpuDevice) -> Result<()> {
    let tensors: [Tensor; 3] =
        [("grad_C", DType::BF16, &[17, 19]), ("A", DType::BF16, &[17, 23]), ("B", DType::BF16, &[23, 19])];
    call(device, Operation::GemmGradAb, &tensors)
}

fn copies(device: GpuDevice) -> Result<()> {
    let stream = Stream::new(device)?;
    let mut buffer = DeviceBuffer::new(&stream, 64)?;
    buffer.tile(&[1, 2, 3])?;
    buffer.upload_at(8, &[7; 16])?;
    let mut part = [0; 8];
    buffer.download_at(16, &mut part)?;
    assert_eq!(part, [7; 8]);
    let mut other = DeviceBuffer::new(&stream, 64)?;
    other.fill(9)?;
    buffer.copy_from(&other)?;
    let tensor = DeviceTensor::upload(&stream, &HostTensor::from_slice(&[1f32, 2.0], &[2])?)?;
    assert_eq!(tensor.duplicate()?.download()?.to_f64(), [1.0, 2.0]);
    Ok(())
}

/// Events, graphs, and launches with and without a workspace of the caller's.
fn benchmark(device: GpuDevice) -> Result<()> {
    let stream = Stream::new(device)?;
    let input = DeviceBuffer::from_host(&stream, bytes(&[1i32, 2, 3, 4]))?;
    let output = DeviceBuffer::new(&stream, input.len())?;
    let (plain, counted) = (scale(&input, &output, 2.0), total(&input, &output));
    device.prepare(&plain)?;
    let space = DeviceBuffer::new(&stream, counted.workspace_bytes)?;
    let workspace = Workspace { address: space.address(), bytes: space.len() };
    // Without pools there is nothing that a recorded launch could get its workspace from.
    let recorded = (!device.report().memory_pools).then_some(workspace);
    // SAFETY: the plans' addresses are live buffers; the fake runs no kernels.
    let graph = unsafe {
        device.launch(&plain, stream.handle(), None)?;
        device.launch(&counted, stream.handle(), None)?;
        device.launch(&counted, stream.handle(), Some(workspace))?;
        stream.record(|| device.launch(&counted, stream.handle(), recorded))?
    };
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    start.record(&stream)?;
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }?;
    end.record(&stream)?;
    stream.wait(&end)?;
    end.synchronize()?;
    end.milliseconds_since(&start)?;
    stream.is_idle()?;
    device.memory()?;
    stream.synchronize()
}
