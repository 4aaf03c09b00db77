//! Planners of the causal conv1d kernels.
//!
//! Each is a pure function of the operation, its sizes and the device: it chooses one of the kernels in `kernels/`,
//! the template arguments, the grid, and writes the argument block. `Ok(None)` means that there is nothing to launch
//! because the outputs are empty.
//!
//! Choices that were measured are rows of a table; see docs/kernels/.

pub mod backward;
pub mod forward;
pub mod update;
pub mod varlen_states;

use super::choice::{Constants, KernelFunction, LaunchBounds};
use super::device_struct::{OfTensor, device_struct};
use super::launch::{Entry, PACKET, SECTOR, Traffic, has_programmatic_launch, most_blocks, power_of_two_in};
use super::plan::{DeviceFacts, Vendor};
use crate::causal_conv1d::{Activation, HeadNorm, Sizes};
use crate::checks;
use crate::error::{Error, Result};
use crate::operation::View;
use crate::tensor::{DType, TensorRef};

/// The widest convolution that the unrolled kernels serve.
const WIDEST: i64 = 8;

/// Longest state that vector kernels keep in registers.
const LONGEST_STATE: i64 = 9;

/// The kernel of a name, in the file and with the function that are called like it.
macro_rules! kernel {
    ($static:ident, $header:literal, $name:literal, $argument:ident) => {
        static $static: $crate::backend::gpu::choice::KernelFunction =
            $crate::backend::gpu::choice::KernelFunction {
                header: concat!("causal_conv1d_", $header, ".cuh"),
                entry: concat!("causal_conv1d_", $name),
                argument: $crate::backend::gpu::choice::ArgumentType::Struct(&$argument::DEVICE),
                function: concat!("causal_conv1d::", $name, "<Problem, Tile>"),
            };
    };
}
use kernel;

device_struct! {
    /// Distances along (batch or sequence, dim, seqlen or position), in elements.
    struct Strides3 in "causal_conv1d" {
        batch: i64,
        dim: i64,
        seqlen: i64,
    }
}

device_struct! {
    /// Distances along two axes, in elements.
    struct Strides2 in "causal_conv1d" {
        first: i64,
        second: i64,
    }
}

device_struct! {
    /// The norm of heads.
    struct NormArguments in "causal_conv1d" {
        head_dim: i64,
        /// bits of f32 numbers
        eps: u32,
        scale: u32,
    }
}

impl NormArguments {
    fn new(norm: Option<&HeadNorm>) -> Self {
        let bits = |number: f64| (number as f32).to_bits();
        norm.map_or_else(NormArguments::default, |norm| NormArguments {
            head_dim: norm.head_dim,
            eps: bits(norm.eps),
            scale: bits(norm.scale),
        })
    }
}

/// Bytes of a packet so wide that `lanes` threads hold a head.
fn head_packet(norm: &HeadNorm, element: u32, lanes: u32) -> u32 {
    let head = (norm.head_dim.max(1) as u64).saturating_mul(u64::from(element));
    let bytes = head.div_ceil(u64::from(lanes)).checked_next_power_of_two();
    bytes.map_or(PACKET, |bytes| bytes.min(u64::from(PACKET)) as u32)
}

/// Threads that share a head: neighbours in a block; 1 without a norm. None unless the head is a power of two of packets of `channels`, on
/// at most `most` threads.
fn head_lanes(norm: Option<&HeadNorm>, channels: u32, most: u32) -> Option<u32> {
    let Some(norm) = norm else { return Some(1) };
    let (of_head, rest) = (norm.head_dim / i64::from(channels), norm.head_dim % i64::from(channels));
    let fits = rest == 0 && (1..=i64::from(most)).contains(&of_head) && (of_head as u64).is_power_of_two();
    fits.then_some(of_head as u32)
}

device_struct! {
    /// Divides by a number that is known before the launch: `quotient` in causal_conv1d.cuh.
    struct Divisor in "causal_conv1d" {
        value: u32,
        multiplier: u32,
        shift: u32,
    }
}

device_struct! {
    /// The indices of a halo: the last width-1 positions of the slice before.
    struct HaloIndices in "causal_conv1d" {
        indices: u64 as "const i32*",
        strides: Strides2,
    }
}

impl HaloIndices {
    /// Of a tensor (batch, width-1).
    fn new(indices: &TensorRef<'_>, sizes: &Sizes) -> Result<Self> {
        const NAME: &str = "halo_seq_idx";
        checks::dtype(NAME, indices.meta(), &[DType::I32], "indices are of this dtype")?;
        let shape = &indices.meta().shape;
        checks::size(NAME, "rank", shape.len() as i64, 2, "it is (batch, width-1)")?;
        checks::size(NAME, "batch", shape[0], sizes.batch, "x has as many rows")?;
        checks::size(NAME, "width-1", shape[1], sizes.width - 1, "the halo has as many positions")?;
        let view = View::of(indices);
        Ok(HaloIndices { indices: view.address, strides: Strides2::of(view) })
    }
}

/// The error for a call that the indexed-halo kernels do not support.
fn unsupported_halo(facts: &DeviceFacts) -> Error {
    Error::Unsupported {
        what: "a halo with indices in such a call".to_string(),
        device: facts.architecture.clone(),
        instead: "give initial_states, seq_idx, a width of 8 at most and 2 (width-1) positions at least, and no cu_seqlens, gates or norm",
    }
}

impl OfTensor for Strides3 {
    #[inline]
    fn of(view: View<'_>) -> Self {
        Strides3 { batch: view.stride(0), dim: view.stride(1), seqlen: view.stride(2) }
    }
}

impl OfTensor for Strides2 {
    #[inline]
    fn of(view: View<'_>) -> Self {
        Strides2 { first: view.stride(0), second: view.stride(1) }
    }
}

impl Divisor {
    /// With s = ⌈log2 value⌉ and m = ⌈2^(31+s) / value⌉, m < 2^32 and ⌊n·m / 2^(31+s)⌋ = ⌊n / value⌋ for n < 2^31.
    fn new(value: u32) -> Self {
        let value = value.max(1);
        let shift = 31 + value.next_power_of_two().trailing_zeros();
        let multiplier = (1u64 << shift).div_ceil(u64::from(value)) as u32;
        Divisor { value, multiplier, shift }
    }
}

/// What planners need to know of a view.
impl View<'_> {
    fn size(&self, axis: usize) -> i64 {
        self.meta.shape[axis]
    }

    /// Whether neighbours along axis `one` are nearer in memory than those along `other`. Without neighbours there is nothing to be near.
    fn is_nearer(&self, one: usize, other: usize) -> bool {
        let steps = self.stride(one).unsigned_abs() < self.stride(other).unsigned_abs();
        self.size(one) > 1 && (self.size(other) <= 1 || steps)
    }

    /// True if neighbours along the axis are neighbours in memory (or there is only one).
    fn is_dense(&self, axis: usize) -> bool {
        self.size(axis) <= 1 || self.stride(axis) == 1
    }

    /// Bytes between neighbours along an axis; 0 where there is only one.
    fn step_bytes(&self, axis: usize) -> i64 {
        self.stride(axis).saturating_mul(self.meta.dtype.size() as i64)
    }

    /// The lowest address of the view, and the one after its highest element. Meaningless for an empty view.
    fn span(&self) -> (u64, u64) {
        let mut begin = self.address;
        let mut end = self.address.wrapping_add(self.meta.dtype.size() as u64);
        for axis in 0..self.meta.shape.len() {
            let reach = self.step_bytes(axis).wrapping_mul(self.size(axis).max(1) - 1);
            if reach < 0 {
                begin = begin.wrapping_add(reach as u64);
            } else {
                end = end.wrapping_add(reach as u64);
            }
        }
        (begin, end)
    }

    /// Packets that a run along `axis` needs, and touches wherever one begins if they may begin inside of a packet.
    fn packets_of_row(&self, axis: usize, anywhere: bool) -> u64 {
        let slack = if anywhere { PACKET - self.access(axis) } else { 0 };
        let bytes = self.size(axis) as u64 * self.meta.dtype.size() as u64;
        (bytes + u64::from(slack)).div_ceil(u64::from(PACKET))
    }

    /// The widest access that is legal at the first element of every run along `axis`: a power of two, at most
    /// [`PACKET`].
    fn access(&self, axis: usize) -> u32 {
        let others = (0..self.meta.shape.len()).filter(|other| *other != axis);
        let bits = others.fold(self.address, |bits, other| bits | self.step_bytes(other) as u64);
        power_of_two_in(bits)
    }
}

/// The widest packet, of 16 bytes at most, for which the rows of all views along `axis` have the same residue: after moving their starts
/// back by that residue, all accesses are legal.
fn common_residue<'a>(axis: usize, mut views: impl Iterator<Item = View<'a>>) -> u32 {
    let Some(first) = views.next() else { return PACKET };
    let others = (0..first.meta.shape.len()).filter(|other| *other != axis);
    power_of_two_in(views.fold(0, |bits, view| {
        let address = bits | first.address.wrapping_sub(view.address);
        let step = |other| first.step_bytes(other).wrapping_sub(view.step_bytes(other)) as u64;
        others.clone().fold(address, |bits, other| bits | step(other))
    }))
}

/// The access for a run of `channels · width` weights, or 0 if they do not lie side by side. Runs begin at multiples of `first` channels.
fn weight_access(weight: &TensorRef<'_>, channels: u32, first: u32) -> u32 {
    let view = View::of(weight);
    let width = view.size(1);
    let side_by_side = view.is_dense(1) && (channels == 1 || view.size(0) <= 1 || view.stride(0) == width);
    if !side_by_side {
        return 0;
    }
    let run = i64::from(channels) * width * weight.dtype().size() as i64;
    power_of_two_in(view.address | (view.step_bytes(0).wrapping_mul(i64::from(first)) | run) as u64)
}

/// GPUs compute in f32. `validate` refuses f64 where x lies in a GPU's memory; this is for tensors of the host, which simulated devices
/// and `causeway plan` have.
fn refuse_f64(x: DType, facts: &DeviceFacts) -> Result<()> {
    if x != DType::F64 {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "dtype f64".to_string(),
        device: facts.architecture.clone(),
        instead: "use f32, f16 or bf16 on a GPU, or the cpu device",
    })
}

/// cu_seqlens in GPU memory is not read. If it has a single boundary, that is 0, so any position lies in no sequence.
fn refuse_no_sequence(sizes: &Sizes) -> Result<()> {
    if sizes.packed && sizes.sequences == 0 && sizes.seqlen > 0 {
        return Err(Error::CuSeqlensEnd { found: 0, total: sizes.seqlen });
    }
    Ok(())
}

impl Constants {
    /// What the kernels of all calls are told of a convolution. `round_products`: there are products with gates, and they are rounded.
    #[inline]
    fn convolution(self, width: i64, activation: Activation, round_products: bool, norm: bool) -> Self {
        // The general kernels read other widths from their arguments: one compilation serves all of them.
        self.int("width", if width <= WIDEST { width } else { 0 })
            .flag("silu", activation == Activation::Silu)
            .flag("round_products", round_products)
            .flag("norm", norm)
    }
}

/// Tiles and their caps on registers are measured on sm_90. Code for NVIDIA's other architectures needs a few registers more
/// where the cap is tight (docs/code-objects.md).
fn takes_more_registers(facts: &DeviceFacts) -> bool {
    facts.vendor == Vendor::Nvidia && !facts.architecture.starts_with("sm_90")
}

/// Blocks of `size` that cover `count`; neither is negative.
fn blocks_of(count: i64, size: i64) -> i64 {
    (count as u64).div_ceil(size as u64) as i64
}

/// A count along the batch as the second and third axis of a grid: (per layer, layers). `None` if it does not fit.
fn layers(count: i64) -> Option<(u32, u32)> {
    const PER_LAYER: i64 = 32_768;
    const MOST_LAYERS: i64 = 65_535;
    let per_layer = count.clamp(1, PER_LAYER);
    let layers = blocks_of(count.max(1), per_layer);
    (layers <= MOST_LAYERS).then_some((per_layer as u32, layers as u32))
}

/// Blocks of a kernel that strides over its grid: enough to fill the device, no more than there is work for.
fn striding_blocks(facts: &DeviceFacts, tasks: i64, threads: u32) -> u32 {
    let filling =
        i64::from(facts.multiprocessors) * i64::from(facts.threads_per_multiprocessor / threads) * 2;
    blocks_of(tasks, i64::from(threads)).clamp(1, filling.max(1)) as u32
}

/// Tensors of a GPU for the tests of planners, which never touch their memory.
#[cfg(test)]
mod test_tensors {
    use crate::tensor::{DType, Location, TensorMut, TensorRef};

    pub(super) fn read<'a>(address: u64, dtype: DType, shape: &[i64], strides: &[i64]) -> TensorRef<'a> {
        // SAFETY: planners never touch the memory.
        unsafe { TensorRef::from_raw(address as *const u8, dtype, shape, strides, Location::Cuda(0)) }
            .unwrap()
    }

    pub(super) fn written<'a>(address: u64, dtype: DType, shape: &[i64], strides: &[i64]) -> TensorMut<'a> {
        // SAFETY: as above.
        unsafe { TensorMut::from_raw(address as *mut u8, dtype, shape, strides, Location::Cuda(0)) }.unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_divide_every_kind_of_number() {
        let values = [1u32, 2, 3, 5, 7, 8, 21, 127, 128, 641, 65_535, 65_537, 1 << 30, (1 << 31) - 1];
        let dividends = [0u32, 1, 2, 6, 7, 100, 127, 640, 65_536, 123_456_789, (1 << 31) - 2, (1 << 31) - 1];
        for value in values {
            let divisor = Divisor::new(value);
            for dividend in dividends.into_iter().chain([value, value - 1]) {
                let quotient = (u64::from(dividend) * u64::from(divisor.multiplier)) >> divisor.shift;
                assert_eq!(quotient, u64::from(dividend / value), "{dividend} / {value}");
            }
        }
    }

    #[test]
    fn layers_cover_large_batches() {
        assert_eq!(layers(1), Some((1, 1)));
        assert_eq!(layers(65_535), Some((32_768, 2)));
        assert_eq!(layers(100_000), Some((32_768, 4)));
        assert_eq!(layers(i64::from(u32::MAX)), None);
    }
}
