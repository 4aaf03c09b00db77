//! Cases that are too large to be compared whole: inputs that are known without being stored, and a sample of channels.
//!
//! Channels do not mix, so a few of them are a convolution too, and the oracle computes that one. What is left is
//! checked for having been written.

use std::collections::BTreeSet;

use causeway::error::Result;
use causeway::tensor::{DType, TensorRef};
use causeway::{Arrangement, HostTensor};
use rayon::prelude::*;

use super::case::Conv1d;
use super::random::Random;
use super::tensors::{Tensors, channel_axis};
use crate::oracle::POISON;

/// Elements after which large inputs repeat: a prime, so that no stride of a layout falls into step with it, and an
/// offset that lost its upper bits leads to other values.
pub(super) const PERIOD: usize = 4_194_301;

/// Rows and channels beyond this number do not fit the second and third axis of a grid.
const GRID_LIMIT: i64 = 65_535;

/// The parts of a tensor that belong to some channels, side by side: a dense tensor. `axis` is that of the channels.
///
/// # Errors
/// If it does not fit into memory.
pub fn gather(tensor: &TensorRef<'_>, axis: usize, channels: &[i64]) -> Result<HostTensor> {
    let parts: Vec<Vec<f64>> =
        channels.iter().map(|&channel| tensor.narrow(axis, channel, 1).to_f64()).collect();
    let mut shape = tensor.shape().to_vec();
    shape[axis] = channels.len() as i64;
    let inner: usize = shape[axis + 1..].iter().product::<i64>() as usize;
    HostTensor::from_fn(tensor.dtype(), &shape, |i| {
        let (row, rest) = (i / (inner * channels.len()), i % (inner * channels.len()));
        parts[rest / inner][row * inner + rest % inner]
    })
}

/// An input whose storage is one pattern over and over.
pub(super) struct Tiles {
    pattern: HostTensor,
}

impl Tiles {
    /// Uniform values, always the same for the same names.
    pub fn new(dtype: DType, case: &str, name: &str, scale: f64) -> Result<Self> {
        let mut random = Random::new(case, name);
        let pattern = HostTensor::from_fn(dtype, &[PERIOD as i64], |_| random.uniform() * scale)?;
        Ok(Tiles { pattern })
    }

    /// What storage is filled with.
    pub fn bytes(&self) -> &[u8] {
        &self.pattern.bytes()[..PERIOD * self.pattern.dtype().size()]
    }

    /// The elements of some channels of a tensor `(batch, dim, seqlen)` that is filled so: a dense tensor.
    pub fn gather(&self, arrangement: &Arrangement, channels: &[i64]) -> Result<HostTensor> {
        let [batch, _, seqlen] = [arrangement.shape[0], arrangement.shape[1], arrangement.shape[2]];
        let strides = arrangement.strides;
        let values = self.pattern.to_f64();
        let count = channels.len();
        HostTensor::from_fn(arrangement.dtype, &[batch, count as i64, seqlen], |i| {
            let (row, rest) = (i / (count * seqlen as usize), i % (count * seqlen as usize));
            let (channel, position) = (channels[rest / seqlen as usize], rest % seqlen as usize);
            let place = arrangement.offset
                + row as i64 * strides[0]
                + channel * strides[1]
                + position as i64 * strides[2];
            values[place as usize % PERIOD]
        })
    }
}

/// The channels of the heads of the first channel, one in the middle, the first that a 16-bit number cannot name, and the last.
fn sample_channels(dim: i64, head_dim: i64) -> Vec<i64> {
    let picked = [0, dim / 2, GRID_LIMIT + 1, dim - 1].into_iter();
    let picked = picked.filter(|channel| (0..dim).contains(channel));
    let heads: BTreeSet<i64> = picked.map(|channel| channel / head_dim).collect();
    heads.into_iter().flat_map(|head| head * head_dim..(head + 1) * head_dim).collect()
}

impl Conv1d {
    /// The channels to look at; with a norm, all of their heads.
    pub fn sample_channels(&self) -> Vec<i64> {
        sample_channels(self.dim, self.norm.map_or(1, |norm| norm.head_dim.max(1)))
    }

    /// The convolution of some of the channels.
    pub fn of_channels(&self, channels: &[i64]) -> Conv1d {
        Conv1d { dim: channels.len() as i64, ..self.clone() }
    }
}

impl Tensors {
    /// The inputs of some of the channels.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn of_channels(&self, channels: &[i64]) -> Result<Tensors> {
        self.try_map(|name, tensor| match channel_axis(name) {
            Some(axis) => gather(&tensor.view(), axis, channels),
            None => Ok(tensor.clone()),
        })
    }
}

/// Of a tensor whose elements fill one piece of its storage: elements that still hold what they were poisoned with, and
/// bytes around them that do not.
pub(super) fn count_poison(tensor: &HostTensor) -> (u64, u64) {
    let size = tensor.dtype().size();
    let begin = tensor.offset() as usize * size;
    let end = begin + tensor.element_count() * size;
    let (before, rest) = tensor.bytes().split_at(begin);
    let (elements, after) = rest.split_at(end - begin);
    let unwritten = |piece: &[u8]| {
        piece.chunks_exact(size).filter(|element| element.iter().all(|&byte| byte == POISON)).count() as u64
    };
    // A multiple of every element's size.
    const PIECE: usize = 1 << 20;
    let stray = count_other_than_poison(before) + count_other_than_poison(after);
    (elements.par_chunks(PIECE).map(unwritten).sum(), stray)
}

/// Bytes that are not what outputs are poisoned with.
pub(super) fn count_other_than_poison(bytes: &[u8]) -> u64 {
    // Nearly every piece is all poison, whose bits are all ones: vectors see that at once.
    let pieces = bytes.chunks(1 << 12);
    let others = pieces.filter(|piece| piece.iter().fold(POISON, |all, byte| all & byte) != POISON);
    others.map(|piece| piece.iter().filter(|&&byte| byte != POISON).count() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Layout;

    #[test]
    fn the_sample_has_both_ends_and_a_channel_past_the_grid() {
        assert_eq!(sample_channels(1, 1), [0]);
        assert_eq!(sample_channels(2, 1), [0, 1]);
        assert_eq!(sample_channels(100, 1), [0, 50, 99]);
        assert_eq!(sample_channels(70_000, 1), [0, 35_000, 65_536, 69_999]);
        assert!(sample_channels(0, 1).is_empty());
        assert_eq!(sample_channels(8, 2), [0, 1, 4, 5, 6, 7]);
    }

    #[test]
    fn what_is_gathered_is_what_the_storage_holds() {
        let tiles = Tiles::new(DType::BF16, "case", "x", 1.0).unwrap();
        for layout in [Layout::ChannelFirst, Layout::ChannelLast] {
            // More elements than the pattern.
            let arrangement = layout.arrange(DType::BF16, [3, 700, 2100]).unwrap();
            let mut tensor = arrangement.zeros().unwrap();
            let pattern = tiles.bytes();
            for piece in tensor.bytes_mut().chunks_mut(pattern.len()) {
                piece.copy_from_slice(&pattern[..piece.len()]);
            }
            let channels = [0, 350, 699];
            let gathered = tiles.gather(&arrangement, &channels).unwrap();
            let expected = gather(&tensor.view(), 1, &channels).unwrap();
            assert_eq!(gathered.to_f64(), expected.to_f64(), "{layout}");
            assert_eq!(gathered.shape(), [3, 3, 2100]);
        }
    }

    #[test]
    fn every_byte_that_is_not_poison_counts() {
        let mut bytes = vec![POISON; 10_000];
        assert_eq!(count_other_than_poison(&bytes), 0);
        for at in [0, 4095, 4096, 9_999] {
            bytes[at] = 0xfe;
        }
        assert_eq!(count_other_than_poison(&bytes), 4);
    }

    #[test]
    fn poison_is_counted_inside_and_outside() {
        let mut tensor = Layout::ChannelLast.zeros(DType::F16, [2, 3, 5]).unwrap();
        tensor.fill_bytes(POISON);
        assert_eq!(count_poison(&tensor), (30, 0));
        tensor.assign(|i| i as f64);
        assert_eq!(count_poison(&tensor), (0, 0));
        let last = tensor.bytes().len() - 1;
        tensor.bytes_mut()[last] = 0;
        tensor.bytes_mut()[0] = 1;
        assert_eq!(count_poison(&tensor), (0, 2));
    }
}
