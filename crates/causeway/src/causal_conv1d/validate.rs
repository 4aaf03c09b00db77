//! What the table of arguments does not say: the dtypes of x and weight (`OWN` there), the sizes that x, weight and cu_seqlens give, and
//! values of indices.

use super::{MAX_WIDTH, Sizes};
use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{DType, Location, Meta, TensorRef};

/// Checks of what gives a call its sizes.
pub(super) struct Check<'a> {
    x: &'a Meta,
}

impl<'a> Check<'a> {
    /// For operations on `x (batch, dim, seqlen)`.
    pub fn new(x: &'a TensorRef<'_>) -> Result<Self> {
        if x.shape().len() != 3 {
            return Err(Error::Rank {
                argument: "x",
                expected: "(batch, dim, seqlen)",
                found: x.meta().shape,
            });
        }
        Self::of_values(x)
    }

    /// For operations whose x has another shape: checks its dtype only.
    pub fn of_values(x: &'a TensorRef<'_>) -> Result<Self> {
        let on_cpu = &[DType::F32, DType::F16, DType::BF16, DType::F64];
        let (allowed, because) = match x.location() {
            Location::Host => (&on_cpu[..], "the dtypes of a convolution on a CPU"),
            _ => (&on_cpu[..3], "the dtypes of a convolution on a GPU"),
        };
        checks::dtype("x", x.meta(), allowed, because)?;
        Ok(Check { x: x.meta() })
    }

    /// The sizes that x, weight and cu_seqlens give.
    pub fn sizes(&self, weight: &TensorRef<'_>, cu_seqlens: Option<&TensorRef<'_>>) -> Result<Sizes> {
        let (batch, dim, seqlen) = (self.x.shape[0], self.x.shape[1], self.x.shape[2]);
        let width = self.width(dim, weight)?;
        let sequences = match cu_seqlens {
            Some(boundaries) => {
                checks::size("x", "batch", batch, 1, "since cu_seqlens packs all sequences into one row")?;
                self.cu_seqlens(seqlen, boundaries)?
            }
            None => batch,
        };
        Ok(Sizes { batch, dim, seqlen, width, sequences, packed: cu_seqlens.is_some() })
    }

    /// Weight is `(dim, width)`, of a dtype that goes with that of x; returns the width.
    pub fn width(&self, dim: i64, weight: &TensorRef<'_>) -> Result<i64> {
        let &[weight_dim, width] = weight.shape() else {
            return Err(Error::Rank {
                argument: "weight",
                expected: "(dim, width)",
                found: weight.meta().shape,
            });
        };
        if weight_dim != dim {
            return Err(Error::Channels { x: self.x.shape, weight: weight.meta().shape });
        }
        if self.x.dtype == DType::F64 {
            checks::dtype("weight", weight.meta(), &[DType::F64], "since x is f64")?;
        } else {
            let allowed = [DType::F32, DType::F16, DType::BF16];
            checks::dtype("weight", weight.meta(), &allowed, "the dtypes of a weight")?;
        }
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err(Error::Width { found: width });
        }
        Ok(width)
    }

    /// `cu_seqlens (n+1,)` i32 or i64, from 0 to `total` without a decrease; returns n. The values are read
    /// on the host only.
    pub fn cu_seqlens(&self, total: i64, boundaries: &TensorRef<'_>) -> Result<i64> {
        let &[count] = boundaries.shape() else {
            return Err(Error::Rank {
                argument: "cu_seqlens",
                expected: "(n + 1,) for n sequences",
                found: boundaries.meta().shape,
            });
        };
        let allowed = [DType::I32, DType::I64];
        checks::dtype("cu_seqlens", boundaries.meta(), &allowed, "the dtypes of boundaries")?;
        checks::location("cu_seqlens", boundaries.location(), self.x.location, "where x is")?;
        if count == 0 {
            return Err(Error::CuSeqlensEmpty);
        }
        if boundaries.location() == Location::Host {
            let mut before = 0;
            for (position, value) in host_values(boundaries).enumerate() {
                if position == 0 && value != 0 {
                    return Err(Error::CuSeqlensStart { found: value });
                }
                if value < before {
                    return Err(Error::CuSeqlensDecrease { position: position as i64, value, before });
                }
                before = value;
            }
            if before != total {
                return Err(Error::CuSeqlensEnd { found: before, total });
            }
        }
        Ok(count - 1)
    }
}

/// On the host, every value lies in `minimum ..= maximum`.
pub(super) fn values_in_range(
    argument: &'static str,
    values: &TensorRef<'_>,
    minimum: i64,
    maximum: i64,
    because: &'static str,
) -> Result<()> {
    if values.location() != Location::Host {
        return Ok(());
    }
    for (position, value) in host_values(values).enumerate() {
        if value < minimum || value > maximum {
            let position = position as i64;
            return Err(Error::IndexOutOfRange { argument, position, value, minimum, maximum, because });
        }
    }
    Ok(())
}

/// On the host, every value selects a row of its own, or none by being negative.
pub(super) fn row_indices(argument: &'static str, indices: &TensorRef<'_>, rows: i64) -> Result<()> {
    if indices.location() != Location::Host {
        return Ok(());
    }
    let mut first_use = std::collections::HashMap::new();
    for (position, value) in host_values(indices).enumerate().filter(|(_, value)| *value >= 0) {
        let position = position as i64;
        if value >= rows {
            let because = "the rows of conv_state, or a negative index for padding";
            let (minimum, maximum) = (0, rows - 1);
            return Err(Error::IndexOutOfRange { argument, position, value, minimum, maximum, because });
        }
        if let Some(first) = first_use.insert(value, position) {
            return Err(Error::DuplicateIndex { argument, first, second: position, value });
        }
    }
    Ok(())
}

/// The values of a one-dimensional integer view of host memory.
fn host_values<'a>(view: &'a TensorRef<'_>) -> impl Iterator<Item = i64> + 'a {
    let (count, stride) = (view.shape()[0], view.strides()[0]);
    (0..count).map(move |i| {
        // SAFETY: the view is of host memory and `i` lies in its shape, so the address is one of its elements,
        // initialised and aligned to its dtype.
        unsafe {
            let pointer = view.pointer();
            match view.dtype() {
                DType::I64 => *pointer.cast::<i64>().offset((i * stride) as isize),
                _ => i64::from(*pointer.cast::<i32>().offset((i * stride) as isize)),
            }
        }
    })
}
