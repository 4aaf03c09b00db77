//! The elements of a strided tensor, a piece of its row-major order at a time.

use std::ops::Range;

use half::{bf16, f16};

use crate::tensor::{DType, Element, Location, MAX_RANK, TensorRef};

/// Rows that are read side by side where they lie so: as many as have an f32 each in one cache line.
const ROWS_TOGETHER: usize = 16;

/// A shape and its strides, axes that continue each other joined into one: a dense tensor is a single row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    /// Sizes and strides of all axes but the last, outermost first.
    outer: [(usize, i64); MAX_RANK],
    outer_count: usize,
    /// Elements of a row along the last axis.
    length: usize,
    stride: i64,
}

/// Elements `[row][i]` at `offset + row · row_stride + i · stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    offset: i64,
    rows: usize,
    row_stride: i64,
    length: usize,
    stride: i64,
}

impl Runs {
    pub fn new(shape: &[i64], strides: &[i64]) -> Self {
        let mut axes = [(1usize, 1i64); MAX_RANK];
        let mut count = 0;
        for (&size, &stride) in shape.iter().zip(strides).filter(|(size, _)| **size != 1) {
            match axes[..count].last_mut() {
                Some(last) if last.1 == stride.wrapping_mul(size) => *last = (last.0 * size as usize, stride),
                _ => {
                    axes[count] = (size as usize, stride);
                    count += 1;
                }
            }
        }
        // A tensor of one element is a row of one.
        let outer_count = count.max(1) - 1;
        let (length, stride) = axes[outer_count];
        Runs { outer: axes, outer_count, length, stride }
    }

    /// True if there is one row, and its elements are neighbours.
    pub fn is_dense(&self) -> bool {
        self.outer_count == 0 && self.stride == 1
    }

    /// Calls `visit` for these elements of the row-major order, in that order: whole rows in groups of up to
    /// [`ROWS_TOGETHER`] where neighbouring rows lie closer together than the elements of each, else a part of a row.
    #[inline(always)]
    pub fn for_each(&self, elements: Range<usize>, mut visit: impl FnMut(Block)) {
        let (length, stride) = (self.length, self.stride);
        let (inner_size, row_stride) = match self.outer_count {
            0 => (1, 0),
            count => self.outer[count - 1],
        };
        let interleaved = row_stride.unsigned_abs() < stride.unsigned_abs();
        let mut at = elements.start;
        while at < elements.end {
            let (row, column) = (at / length, at % length);
            let left = elements.end - at;
            let (rows, length) = if interleaved && column == 0 && left >= length {
                ((left / length).min(ROWS_TOGETHER).min(inner_size - row % inner_size), length)
            } else {
                (1, left.min(length - column))
            };
            let offset = self.row_offset(row) + column as i64 * stride;
            visit(Block { offset, rows, row_stride, length, stride });
            at += rows * length;
        }
    }

    fn row_offset(&self, mut row: usize) -> i64 {
        let mut offset = 0;
        for &(size, stride) in self.outer[..self.outer_count].iter().rev() {
            offset += (row % size) as i64 * stride;
            row /= size;
        }
        offset
    }
}

impl Block {
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.rows * self.length
    }

    /// True if the elements are neighbours in memory.
    pub fn is_dense(&self) -> bool {
        self.rows == 1 && self.stride == 1
    }

    /// Of the first element.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Calls `visit(i, offset)` for every element, `i` counting in row-major order: in an order that is kind to
    /// caches.
    #[inline(always)]
    pub fn for_each(&self, mut visit: impl FnMut(usize, i64)) {
        for i in 0..self.length {
            for row in 0..self.rows {
                let offset = self.offset + row as i64 * self.row_stride + i as i64 * self.stride;
                visit(row * self.length + i, offset);
            }
        }
    }
}

impl TensorRef<'_> {
    /// The elements in row-major order, as f64 (exact for every dtype but i64 beyond 2⁵³).
    ///
    /// # Panics
    /// If the view is not of host memory.
    pub fn to_f64(&self) -> Vec<f64> {
        let mut values = vec![0.0; self.meta().element_count() as usize];
        self.read_f64(0, &mut values);
        values
    }

    /// As [`TensorRef::to_f64`], of the elements from `first` on that `values` has room for.
    ///
    /// # Panics
    /// If the view is not of host memory or has no such elements.
    pub fn read_f64(&self, first: usize, values: &mut [f64]) {
        match self.dtype() {
            DType::F32 => self.read(first, values, |value: f32| f64::from(value)),
            DType::F16 => self.read(first, values, widened),
            DType::BF16 => {
                self.read(first, values, |value: bf16| {
                    f64::from(f32::from_bits(u32::from(value.to_bits()) << 16))
                });
            }
            DType::F64 => self.read(first, values, |value: f64| value),
            DType::I32 => self.read(first, values, |value: i32| f64::from(value)),
            DType::I64 => self.read(first, values, |value: i64| value as f64),
        }
    }

    fn read<T: Element>(&self, first: usize, mut values: &mut [f64], widen: impl Fn(T) -> f64) {
        assert_eq!(self.location(), Location::Host, "only host memory can be read");
        let end = first.saturating_add(values.len());
        let count = self.meta().element_count() as usize;
        assert!(end <= count, "elements {first} to {end} of a tensor that has {count}");
        let data = self.pointer().cast::<T>();
        Runs::new(self.shape(), self.strides()).for_each(first..end, |block| {
            let (here, rest) = std::mem::take(&mut values).split_at_mut(block.count());
            values = rest;
            if block.is_dense() {
                // SAFETY: these are elements of this host view, side by side, initialised and aligned, and nobody
                // writes them while the view is borrowed.
                let run =
                    unsafe { std::slice::from_raw_parts(data.offset(block.offset as isize), block.length) };
                for (value, &element) in here.iter_mut().zip(run) {
                    *value = widen(element);
                }
            } else {
                // SAFETY: as above, each by itself.
                block.for_each(|i, offset| here[i] = widen(unsafe { *data.offset(offset as isize) }));
            }
        });
    }
}

/// An f16 as f64, in steps that whole vectors can take: the bits of its magnitude, moved to the place that they have in
/// an f32, are those of a number 2¹¹² times too small.
fn widened(value: f16) -> f64 {
    const TWO_TO_112: f64 = f64::from_bits((1023 + 112) << 52);
    let bits = u32::from(value.to_bits());
    let moved = (bits & 0x7fff) << 13;
    let magnitude = if bits & 0x7c00 == 0x7c00 {
        f64::from(f32::from_bits(moved | 0x7f80_0000))
    } else {
        f64::from(f32::from_bits(moved)) * TWO_TO_112
    };
    f64::from_bits(magnitude.to_bits() | u64::from(bits & 0x8000) << 48)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            assert_eq!(widened(value).to_bits(), value.to_f64().to_bits(), "{bits:#06x}");
        }
    }

    #[test]
    fn any_piece_of_any_layout_is_read_in_row_major_order() {
        let number = |tensor: HostTensor| {
            let mut tensor = tensor;
            tensor.assign(|i| i as f64);
            tensor
        };
        let zeros = |shape: &[i64]| HostTensor::zeros(DType::F32, shape).unwrap();
        let backwards = zeros(&[600]).restrided(599, &[2, 37, 5], &[-300, -1, -40]).unwrap();
        for tensor in [
            zeros(&[3, 37, 5]),
            zeros(&[3, 5, 37]).permuted(&[0, 2, 1]),
            zeros(&[37, 5, 3]).permuted(&[2, 0, 1]),
            zeros(&[37, 1, 3]).permuted(&[2, 1, 0]),
            zeros(&[1200]).restrided(7, &[3, 37, 5], &[400, 6, 1]).unwrap(),
            zeros(&[3, 1, 1]),
            backwards,
        ] {
            let tensor = number(tensor);
            let count = tensor.element_count();
            assert!(tensor.to_f64().into_iter().eq((0..count).map(|i| i as f64)), "{tensor:?}");
            for (first, end) in
                [(0, 1), (1, count / 2), (count / 3, count), (count - 1, count), (count, count)]
            {
                let mut piece = vec![f64::NAN; end.max(first) - first];
                tensor.view().read_f64(first, &mut piece);
                assert!(piece.into_iter().eq((first..end).map(|i| i as f64)), "{tensor:?} {first}");
            }
        }
        assert!(zeros(&[0, 4]).to_f64().is_empty());
        assert_eq!(number(zeros(&[])).to_f64(), [0.0]);
    }

    #[test]
    #[should_panic(expected = "elements 3 to 5 of a tensor that has 4")]
    fn what_lies_behind_the_end_is_not_read() {
        HostTensor::zeros(DType::F64, &[4]).unwrap().view().read_f64(3, &mut [0.0; 2]);
    }
}
