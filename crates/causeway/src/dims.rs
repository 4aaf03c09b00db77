//! Sizes and strides, and where memory is: what views, and errors about them, are made of.

use std::fmt;

/// Most axes that a view can have.
pub const MAX_RANK: usize = 4;

/// The memory that a tensor lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// Memory of this process.
    Host,
    /// Memory of the CUDA device with this ordinal.
    Cuda(u32),
    /// Memory of the HIP device with this ordinal.
    Hip(u32),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Host => f.write_str("the host"),
            Location::Cuda(n) => write!(f, "cuda:{n}"),
            Location::Hip(n) => write!(f, "hip:{n}"),
        }
    }
}

/// Up to [`MAX_RANK`] sizes or strides, stored inline. Reads like a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dims {
    rank: u8,
    pub(crate) values: [i64; MAX_RANK],
}

/// Of so many axes, which are more than [`MAX_RANK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyAxes(pub usize);

impl Dims {
    /// # Errors
    /// [`TooManyAxes`] if there are more than [`MAX_RANK`] values.
    pub fn new(values: &[i64]) -> Result<Self, TooManyAxes> {
        let rank = values.len() as u8;
        // By length, since a loop of so few steps takes several times as long.
        let values = match *values {
            [] => [0; MAX_RANK],
            [a] => [a, 0, 0, 0],
            [a, b] => [a, b, 0, 0],
            [a, b, c] => [a, b, c, 0],
            [a, b, c, d] => [a, b, c, d],
            _ => return Err(TooManyAxes(values.len())),
        };
        Ok(Dims { rank, values })
    }

    /// Row-major strides of a dense tensor of this shape.
    pub fn contiguous_strides(&self) -> Dims {
        let mut strides = *self;
        let mut step = 1i64;
        for axis in (0..self.len()).rev() {
            strides.values[axis] = step;
            step = step.saturating_mul(self.values[axis].max(1));
        }
        strides
    }

    /// Number of elements of a tensor of this shape; `None` if it does not fit 63 bits.
    pub fn element_count(&self) -> Option<i64> {
        // A size of 0 empties the tensor however large the others are.
        let product = self.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
        product.or_else(|| self.contains(&0).then_some(0))
    }
}

impl std::ops::Deref for Dims {
    type Target = [i64];
    fn deref(&self) -> &[i64] {
        &self.values[..usize::from(self.rank)]
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<_> = self.iter().map(i64::to_string).collect();
        match values.as_slice() {
            [only] => write!(f, "({only},)"),
            all => write!(f, "({})", all.join(", ")),
        }
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
