//! Two small kernels with their plans, and what the tests on a GPU, real or not, share.

use causeway::backend::gpu::DeviceBuffer;
use causeway::backend::gpu::plan::Plan;

/// `out[i] = in[i] * factor`.
const SCALE: &str = r#"
struct Arguments { const float* in; float* out; float factor; unsigned count; };
extern "C" __global__ void scale(Arguments a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.out[i] = a.in[i] * a.factor;
}
"#;

/// The sum of all elements: each block adds its share up, and the last block to arrive adds the shares. Spends
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
        header: "",
        instantiation: SCALE.to_string(),
        entry: "scale",
        grid: [count.div_ceil(256), 1, 1],
        block: [256, 1, 1],
        cluster: 1,
        shared_bytes: 0,
        workspace_bytes: 0,
        counters: 0,
        arguments,
        workspace_at: None,
        counters_at: None,
        tensor_maps: Vec::new(),
        begins_early: false,
        read_bytes: input.len(),
        written_bytes: output.len(),
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
        header: "",
        instantiation: TOTAL.to_string(),
        entry: "total",
        grid: [TOTAL_BLOCKS, 1, 1],
        block: [128, 1, 1],
        cluster: 1,
        shared_bytes: 0,
        workspace_bytes: u64::from(TOTAL_BLOCKS) * 4,
        counters: 1,
        arguments,
        workspace_at: Some(16),
        counters_at: Some(24),
        tensor_maps: Vec::new(),
        begins_early: false,
        read_bytes: input.len(),
        written_bytes: 4,
    }
}

/// Bytes of a slice of plain numbers.
pub fn bytes<T: causeway::Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}
