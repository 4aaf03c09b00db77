//! The shapes and dtypes that the arguments of this module have: the words of its tables.

use crate::operation::{Axis, DTypes, Shape, Size};
use crate::tensor::DType;

const fn axis(name: &'static str, size: Size, because: &'static str) -> Axis {
    Axis { name, size, plus: 0, because, without: None }
}

const BATCH: Axis = axis("batch", Size::Batch, "the batch of x");
const DIM: Axis = axis("dim", Size::Dim, "the dim of x");
const SEQLEN: Axis = axis("seqlen", Size::Seqlen, "the seqlen of x");
const WIDTH: Axis = axis("width", Size::Width, "the width of weight");
const SEQUENCES: Axis = axis("sequences", Size::Sequences, "the number of sequences in cu_seqlens");
const LENGTH: Axis = Axis { plus: -1, ..axis("length", Size::Width, "the width of weight less one") };

/// x, and what has its shape.
pub(super) const ROWS: Shape = Shape { text: "(batch, dim, seqlen)", axes: &[BATCH, DIM, SEQLEN] };
/// The taps of each channel.
pub(super) const TAPS: Shape = Shape { text: "(dim, width)", axes: &[DIM, WIDTH] };
/// A number for each channel.
pub(super) const CHANNELS: Shape = Shape { text: "(dim,)", axes: &[DIM] };
/// What stands before, or after, each sequence.
pub(super) const STATES: Shape = Shape {
    text: "(batch, dim, width - 1), or one row per sequence of cu_seqlens",
    axes: &[Axis { without: Some(("cu_seqlens", &BATCH)), ..SEQUENCES }, DIM, LENGTH],
};
/// An index for each position.
pub(super) const INDICES: Shape = Shape { text: "(batch, seqlen)", axes: &[BATCH, SEQLEN] };
/// Where sequences begin, and where the last one ends.
pub(super) const BOUNDARIES: Shape = Shape {
    text: "(n + 1,)",
    axes: &[Axis { plus: 1, ..axis("n + 1", Size::Sequences, "one more than sequences") }],
};

/// New positions, and what has their shape.
pub(super) const POSITIONS: Shape = Shape { text: "(batch, dim) or (batch, dim, seqlen)", axes: &[] };
/// The rows that a decode keeps.
pub(super) const CACHE: Shape = Shape {
    text: "(batch, dim, state_len)",
    axes: &[axis("batch", Size::Free, ""), DIM, axis("state_len", Size::Free, "")],
};
/// A number for each row of the batch.
pub(super) const BATCHES: Shape = Shape { text: "(batch,)", axes: &[BATCH] };
/// All sequences, one after the other.
pub(super) const PACKED: Shape = Shape { text: "(total, dim)", axes: &[] };
/// The last positions of each sequence.
pub(super) const LAST: Shape = Shape {
    text: "(n, dim, state_len)",
    axes: &[Axis { name: "n", ..SEQUENCES }, DIM, axis("state_len", Size::Free, "")],
};

/// x has a dtype that depends on where it is, and weight one that depends on x: the checks say.
pub(super) const OWN: DTypes = DTypes::Own;
pub(super) const OF_X: DTypes = DTypes::Of("x", "the dtype of x");
pub(super) const OF_WEIGHT: DTypes = DTypes::Of("weight", "the dtype of weight");
pub(super) const OF_WEIGHT_OR_F32: DTypes =
    DTypes::OfOrF32("weight", ("the dtype of weight", "the dtype of weight, or f32"));
pub(super) const OF_DWEIGHT: DTypes = DTypes::Of("dweight", "the dtype of dweight");
pub(super) const OF_INDICES: DTypes = DTypes::Among(&[DType::I32], "the dtype of sequence indices");
pub(super) const I32: DTypes = DTypes::Among(&[DType::I32], "the dtype of indices");
pub(super) const OF_BOUNDARIES: DTypes = DTypes::Among(&[DType::I32, DType::I64], "the dtypes of boundaries");
