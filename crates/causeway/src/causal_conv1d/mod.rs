//! Causal depthwise conv1d: forward, backward, decode update, and states of a packed batch.
//!
//! Logical shapes are `x (batch, dim, seqlen)`, `weight (dim, width)`, `bias (dim,)` and states
//! `(batch, dim, width - 1)`, whatever the strides: *channel-first* memory has stride 1 along `seqlen`,
//! *channel-last* along `dim`; every other pattern is accepted too. Each operation has its formula: [`Forward`], [`Backward`],
//! [`Update`], [`VarlenStates`].
//!
//! # Where positions belong to sequences
//!
//! * `cu_seqlens (n+1,)` packs n sequences into one row: `x (1, dim, total)`. A tap never crosses a boundary;
//!   states then have n rows, one per sequence.
//! * `seq_idx (batch, seqlen)`: a tap counts only where its position carries the index of the output position.
//!   Initial states carry the index of the first position (of each sequence). A negative index is padding: the
//!   convolution gives 0 there (a residual is still added), and the position gives and takes no gradient.
//! * `final_states` are the last `width - 1` columns of `[initial_states, x]` (of each sequence), zero in front
//!   when there are fewer, whatever their `seq_idx`; columns at padded positions are zero.
//! * `cu_seqlens` and `seq_idx` may be given together; both conditions then hold.
//!
//! # Gates
//!
//! `y = C ⊙ act(conv(B ⊙ x))`: the gated short convolution. B and C have the shape of x and any strides, so that B, x and C may
//! be thirds of one projection; each may be left out. Wherever positions are stored as states, it is B ⊙ x. At padded
//! positions the gates are not read, and take no gradient.
//!
//! # Norm
//!
//! `y = scale · u / √(Σ u² + eps)` with `u = act(conv(x))`, the sum being over the channels of a head at one position: what a delta
//! net does with its queries and keys. [`HeadNorm`] says how. Everything stays in x's accumulator until y is stored. States hold x.

mod arguments;
mod backward;
mod forward;
mod norm;
mod update;
mod validate;
mod varlen_states;

pub use backward::Backward;
pub use forward::Forward;
pub use norm::HeadNorm;
pub use update::{Update, UpdateSizes};
pub use varlen_states::{VarlenStates, VarlenStatesSizes};

use crate::error::{Error, Result};

/// The gates, by the names that they have in the tables.
pub const GATES: [&str; 2] = ["B", "C"];

/// Largest convolution width.
pub const MAX_WIDTH: i64 = 256;

/// What is applied to the convolution's sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activation {
    /// The identity.
    #[default]
    None,
    /// `pre · sigmoid(pre)`, also known as swish.
    Silu,
}

impl Activation {
    /// `none` or `silu`.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::None => "none",
            Activation::Silu => "silu",
        }
    }
}

impl std::fmt::Display for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Activation {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Activation::None),
            "silu" | "swish" => Ok(Activation::Silu),
            _ => Err(Error::UnknownActivation { found: text.to_string() }),
        }
    }
}

/// The sizes that the arguments of a forward or backward call agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Rows of x; 1 when packed.
    pub batch: i64,
    /// Channels.
    pub dim: i64,
    /// Positions in a row; the total when packed.
    pub seqlen: i64,
    /// Taps per channel.
    pub width: i64,
    /// Sequences: the batch, or `n` of `cu_seqlens (n+1,)`. States have this many rows.
    pub sequences: i64,
    /// True when `cu_seqlens` splits the row.
    pub packed: bool,
}

impl Sizes {
    /// As the table of arguments refers to them.
    fn table(&self) -> crate::operation::Sizes {
        [self.batch, self.dim, self.seqlen, self.width, self.sequences, 0, 0, 0]
    }
}
