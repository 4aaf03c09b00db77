//! The checks that the operations of this module share.

use super::{MAX_WIDTH, Sizes};
use crate::checks;
use crate::error::{Error, Result};
use crate::tensor::{DType, Location, Meta, TensorRef};

/// Checks other arguments against x.
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
        let host_only: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];
        let (allowed, because) = match x.location() {
            Location::Host => (host_only, "the dtypes of a convolution on a CPU"),
            _ => (&host_only[..3], "the dtypes of a convolution on a GPU"),
        };
        checks::dtype("x", x.meta(), allowed, because)?;
        Ok(Check { x: x.meta() })
    }

    /// The sizes that x, weight and cu_seqlens give.
    pub fn sizes(&self, weight: &TensorRef<'_>, cu_seqlens: Option<&TensorRef<'_>>) -> Result<Sizes> {
        let (batch, dim, seqlen) = (self.x.shape[0], self.x.shape[1], self.x.shape[2]);
        let width = self.weight_shape(dim, weight)?;
        let sequences = match cu_seqlens {
            Some(boundaries) => {
                checks::size("x", "batch", batch, 1, "since cu_seqlens packs all sequences into one row")?;
                self.cu_seqlens(seqlen, boundaries)?
            }
            None => batch,
        };
        Ok(Sizes { batch, dim, seqlen, width, sequences, packed: cu_seqlens.is_some() })
    }

    /// Weight is `(dim, width)`; returns the width.
    pub fn weight_shape(&self, dim: i64, weight: &TensorRef<'_>) -> Result<i64> {
        let &[weight_dim, width] = weight.shape() else {
            return Err(Error::Rank {
                argument: "weight",
                expected: "(dim, width)",
                found: weight.meta().shape,
            });
        };
        checks::size("weight", "dim", weight_dim, dim, "the dim of x")?;
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err(Error::Width { found: width });
        }
        Ok(width)
    }

    /// Dtype and place of weight and bias, and the shape of bias.
    pub fn parameters(
        &self,
        sizes: &Sizes,
        weight: &TensorRef<'_>,
        bias: Option<&TensorRef<'_>>,
    ) -> Result<()> {
        self.parameter_dtypes(sizes.dim, weight, bias)
    }

    /// As [`Check::parameters`], for operations without [`Sizes`].
    pub fn parameter_dtypes(
        &self,
        dim: i64,
        weight: &TensorRef<'_>,
        bias: Option<&TensorRef<'_>>,
    ) -> Result<()> {
        if self.x.dtype == DType::F64 {
            checks::dtype("weight", weight.meta(), &[DType::F64], "since x is f64")?;
        } else {
            let allowed = [DType::F32, DType::F16, DType::BF16];
            checks::dtype("weight", weight.meta(), &allowed, "the dtypes of a weight")?;
        }
        self.location("weight", weight.meta())?;
        if let Some(bias) = bias {
            let &[bias_dim] = bias.shape() else {
                return Err(Error::Rank { argument: "bias", expected: "(dim,)", found: bias.meta().shape });
            };
            checks::size("bias", "dim", bias_dim, dim, "the dim of x")?;
            checks::dtype("bias", bias.meta(), &[weight.dtype()], "the dtype of weight")?;
            self.location("bias", bias.meta())?;
        }
        Ok(())
    }

    /// `seq_idx (batch, seqlen)` i32, and the place of cu_seqlens.
    pub fn sequences(
        &self,
        sizes: &Sizes,
        seq_idx: Option<&TensorRef<'_>>,
        cu_seqlens: Option<&TensorRef<'_>>,
    ) -> Result<()> {
        if let Some(seq_idx) = seq_idx {
            let &[batch, seqlen] = seq_idx.shape() else {
                return Err(Error::Rank {
                    argument: "seq_idx",
                    expected: "(batch, seqlen)",
                    found: seq_idx.meta().shape,
                });
            };
            checks::size("seq_idx", "batch", batch, sizes.batch, "the batch of x")?;
            checks::size("seq_idx", "seqlen", seqlen, sizes.seqlen, "the seqlen of x")?;
            checks::dtype("seq_idx", seq_idx.meta(), &[DType::I32], "the dtype of sequence indices")?;
            self.location("seq_idx", seq_idx.meta())?;
        }
        if let Some(boundaries) = cu_seqlens {
            self.location("cu_seqlens", boundaries.meta())?;
        }
        Ok(())
    }

    /// `cu_seqlens (n+1,)` i32 or i64, from 0 to `total` without a decrease; returns n. The values are read
    /// on the host only.
    pub fn cu_seqlens(&self, total: i64, boundaries: &TensorRef<'_>) -> Result<i64> {
        let &[count] = boundaries.shape() else {
            return Err(Error::Rank {
                argument: "cu_seqlens",
                expected: "(n + 1,)",
                found: boundaries.meta().shape,
            });
        };
        let allowed = [DType::I32, DType::I64];
        checks::dtype("cu_seqlens", boundaries.meta(), &allowed, "the dtypes of boundaries")?;
        self.location("cu_seqlens", boundaries.meta())?;
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

    /// States are `(sequences, dim, width - 1)` of x's dtype.
    pub fn states(&self, sizes: &Sizes, argument: &'static str, states: &Meta) -> Result<()> {
        let &[sequences, dim, length] = &*states.shape else {
            return Err(Error::Rank {
                argument,
                expected: "(batch, dim, width - 1), or one row per sequence of cu_seqlens",
                found: states.shape,
            });
        };
        if sizes.packed {
            let because = "the number of sequences in cu_seqlens";
            checks::size(argument, "sequences", sequences, sizes.sequences, because)?;
        } else {
            checks::size(argument, "batch", sequences, sizes.batch, "the batch of x")?;
        }
        checks::size(argument, "dim", dim, sizes.dim, "the dim of x")?;
        checks::size(argument, "length", length, sizes.width - 1, "the width of weight less one")?;
        self.dtype_of_x(argument, states)?;
        self.location(argument, states)
    }

    /// A tensor with the shape and dtype of x.
    pub fn like_x(&self, sizes: &Sizes, argument: &'static str, other: &Meta) -> Result<()> {
        let &[batch, dim, seqlen] = &*other.shape else {
            return Err(Error::Rank { argument, expected: "(batch, dim, seqlen)", found: other.shape });
        };
        checks::size(argument, "batch", batch, sizes.batch, "the batch of x")?;
        checks::size(argument, "dim", dim, sizes.dim, "the dim of x")?;
        checks::size(argument, "seqlen", seqlen, sizes.seqlen, "the seqlen of x")?;
        self.dtype_of_x(argument, other)?;
        self.location(argument, other)
    }

    /// dweight is `(dim, width)` of weight's dtype or f32.
    pub fn dweight(&self, sizes: &Sizes, weight: &TensorRef<'_>, dweight: &Meta) -> Result<()> {
        let &[dim, width] = &*dweight.shape else {
            return Err(Error::Rank { argument: "dweight", expected: "(dim, width)", found: dweight.shape });
        };
        checks::size("dweight", "dim", dim, sizes.dim, "the dim of x")?;
        checks::size("dweight", "width", width, sizes.width, "the width of weight")?;
        match weight.dtype() {
            DType::F16 | DType::BF16 => {
                let allowed = [weight.dtype(), DType::F32];
                checks::dtype("dweight", dweight, &allowed, "the dtype of weight, or f32")?;
            }
            exact => checks::dtype("dweight", dweight, &[exact], "the dtype of weight")?,
        }
        self.location("dweight", dweight)
    }

    /// dbias is `(dim,)` of dweight's dtype.
    pub fn dbias(&self, sizes: &Sizes, dweight: &crate::TensorMut<'_>, dbias: &Meta) -> Result<()> {
        let &[dim] = &*dbias.shape else {
            return Err(Error::Rank { argument: "dbias", expected: "(dim,)", found: dbias.shape });
        };
        checks::size("dbias", "dim", dim, sizes.dim, "the dim of x")?;
        checks::dtype("dbias", dbias, &[dweight.dtype()], "the dtype of dweight")?;
        self.location("dbias", dbias)
    }

    /// `(batch,)` of an index dtype.
    pub fn index_vector(
        &self,
        argument: &'static str,
        batch: i64,
        values: &TensorRef<'_>,
        allowed: &[DType],
    ) -> Result<()> {
        let &[count] = values.shape() else {
            return Err(Error::Rank { argument, expected: "(batch,)", found: values.meta().shape });
        };
        checks::size(argument, "batch", count, batch, "the batch of x")?;
        checks::dtype(argument, values.meta(), allowed, "the dtype of indices")?;
        self.location(argument, values.meta())
    }

    /// The dtype of x.
    pub fn dtype_of_x(&self, argument: &'static str, other: &Meta) -> Result<()> {
        checks::dtype(argument, other, &[self.x.dtype], "the dtype of x")
    }

    /// The memory of x.
    pub fn location(&self, argument: &'static str, other: &Meta) -> Result<()> {
        checks::location(argument, other, self.x.location, "where x is")
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
