//! Two small kernels with their plans, and what the tests on a GPU, real or not, share.

use causeway::backend::gpu::DeviceBuffer;
use causeway::backend::gpu::choice::Choice;
use causeway::backend::gpu::plan::Plan;

/// `out[i] = in[i] * factor`.
const SCALE: &str = r#"
struct Arguments { const float* in; float* out; float factor; unsigned count; };
extern "C" __global__ void scale(Arguments a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.out[i] = a.in[i] * a.factor;
}
"#;

/// The sum of all elements: each block adds its part up, and the last block to arrive adds the partial sums. Spends
/// some time first, so that launches overlap where nothing keeps them apart.
const TOTAL: &str = r#"
struct Arguments { const unsigned* in; unsigned* out; unsigned* partial; unsigned* arrived; unsigned count; };
extern "C" __global__ void total(Arguments a) {
    __shared__ unsigned sums[128];
    __shared__ bool last;
    unsigned sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += gridDim.x * blockDim.x) sum += a.in[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned block = 0;
        for (unsigned i = 0; i < blockDim.x; i++) block += sums[i];
        a.partial[blockIdx.x] = block;
        __threadfence();
        last = atomicAdd(a.arrived, 1u) == gridDim.x - 1;
        if (last) {
            __threadfence();
            unsigned all = 0;
            for (unsigned i = 0; i < gridDim.x; i++) all += ((volatile unsigned*)a.partial)[i];
            a.out[0] = all;
            a.arrived[0] = 0;
        }
    }
}
"#;

/// Blocks of a [`total`] launch.
pub const TOTAL_BLOCKS: u32 = 64;

/// Multiplies `count` floats.
pub fn scale(input: &DeviceBuffer, output: &DeviceBuffer, factor: f32) -> Plan {
    let count = (input.len() / 4) as u32;
    let mut arguments = Vec::new();
    arguments.extend(input.address().to_ne_bytes());
    arguments.extend(output.address().to_ne_bytes());
    arguments.extend(factor.to_ne_bytes());
    arguments.extend(count.to_ne_bytes());
    Plan {
        grid: [count.div_ceil(256), 1, 1],
        block: [256, 1, 1],
        ..Plan::new(Choice::of_text("", "scale", SCALE), &arguments, input.len(), output.len())
    }
}

/// Adds 32-bit numbers up into `output`, with a workspace and a counter.
pub fn total(input: &DeviceBuffer, output: &DeviceBuffer) -> Plan {
    let count = (input.len() / 4) as u32;
    let mut arguments = Vec::new();
    arguments.extend(input.address().to_ne_bytes());
    arguments.extend(output.address().to_ne_bytes());
    arguments.extend([0; 16]);
    arguments.extend(count.to_ne_bytes());
    arguments.extend([0; 4]);
    Plan {
        grid: [TOTAL_BLOCKS, 1, 1],
        block: [128, 1, 1],
        workspace_bytes: u64::from(TOTAL_BLOCKS) * 4,
        counters: 1,
        workspace_at: vec![16],
        counters_at: vec![24],
        ..Plan::new(Choice::of_text("", "total", TOTAL), &arguments, input.len(), 4)
    }
}

/// The program of [`total`] with something at its end: another one to the cache.
pub fn total_with(end: &str) -> Choice {
    Choice::of_text("", "total", format!("{TOTAL}{end}"))
}

/// Bytes of a slice of plain numbers.
pub fn bytes<T: causeway::Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}
