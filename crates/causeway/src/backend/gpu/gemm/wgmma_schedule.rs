//! How a product on Hopper's matrix units is cut: tiles, clusters of them, and what each has to do.

use crate::backend::gpu::plan::DeviceFacts;

/// Rows that a warp multiplies and stores.
pub(super) const WARP_ROWS: u32 = 16;

/// A tile and the pipeline that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub rows: u32,
    pub columns: u32,
    /// Stages of the ring.
    pub stages: u32,
    /// Buffers of 16 rows × 64 columns that a warp stores through.
    pub staging: u32,
    /// Blocks that a multiprocessor holds.
    pub resident: u32,
    /// Raw stages, and warps that align, where lines of operands begin anywhere.
    pub raw_stages: u32,
    pub aligners: u32,
    /// How the right operand has to lie, if that matters: true if its columns are side by side. They come in blocks of 64
    /// then, so a tile that is no multiple as wide takes more room and more traffic.
    pub right_row_major: Option<bool>,
}

impl Tile {
    /// Columns that a warp stores at a time.
    pub fn stored_columns(&self) -> u32 {
        [64, 48, 32, 16]
            .into_iter()
            .find(|columns| self.columns.is_multiple_of(*columns))
            .expect("a multiple of 16")
    }

    /// Lines of 64 terms that a stage has for the right operand.
    pub fn right_lines(&self, row_major: bool) -> u32 {
        if row_major { self.columns.next_multiple_of(64) } else { self.columns }
    }

    /// The sums of a block fit where its stages were, and are added 64 columns at a time.
    pub fn can_split(&self) -> bool {
        let (stages, sums) =
            (self.stages * (self.rows + self.columns) * 128, self.rows * (self.columns * 4 + 32));
        self.columns.is_multiple_of(64) && sums <= stages && self.resident == 1
    }
}

/// How an operand lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    /// A line has one term of all rows (or columns of the right operand), not all terms of one.
    pub row_major: bool,
    /// Cache lines, in eighths, that 128 bytes of a line touch on average.
    pub eighths: u32,
}

/// A product as far as schedules depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Product {
    pub rows: u64,
    pub columns: u64,
    pub terms: u64,
    pub left: Operand,
    pub right: Operand,
    /// Of the result.
    pub eighths: u32,
    /// At least one operand has lines that begin anywhere.
    pub by_lines: bool,
    /// Threads store the result.
    pub stored_by_threads: bool,
    /// Rows and columns have changed places: the elements of a column of the result lie side by side in memory, and a warp stores 16
    /// of them at a time.
    pub transposed: bool,
}

impl Product {
    /// The same sums with rows and columns swapped.
    pub fn transpose(self) -> Self {
        Product {
            rows: self.columns,
            columns: self.rows,
            left: self.right,
            right: self.left,
            transposed: !self.transposed,
            ..self
        }
    }

    /// Elements of a line that a warp stores at a time.
    pub fn stored(&self, tile: &Tile) -> u32 {
        if self.transposed { WARP_ROWS } else { tile.stored_columns() }
    }

    /// Steps of a sum.
    pub fn steps(&self) -> u64 {
        self.terms.div_ceil(64)
    }
}

/// How the blocks of a cluster work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// Each computes a tile. Those above each other share the right operand, those side by side the left one.
    Share { down: u32, across: u32 },
    /// This many blocks each sum a part of the terms of one tile.
    Split(u32),
}

impl Cluster {
    /// A block on its own.
    pub const ONE: Self = Cluster::Share { down: 1, across: 1 };

    pub const ALL: [Self; 9] = [
        Self::ONE,
        Cluster::Share { down: 1, across: 2 },
        Cluster::Share { down: 2, across: 1 },
        Cluster::Share { down: 2, across: 2 },
        Cluster::Share { down: 1, across: 4 },
        Cluster::Share { down: 4, across: 1 },
        Cluster::Split(2),
        Cluster::Split(4),
        Cluster::Split(8),
    ];

    /// Blocks.
    pub fn blocks(self) -> u32 {
        match self {
            Cluster::Share { down, across } => down * across,
            Cluster::Split(parts) => parts,
        }
    }

    /// Tiles that it computes at a time: above each other, and side by side.
    pub fn tiles(self) -> (u32, u32) {
        match self {
            Cluster::Share { down, across } => (down, across),
            Cluster::Split(_) => (1, 1),
        }
    }

    /// Whether blocks of such a cluster can compute tiles of this kind, and all have something to do.
    pub fn takes(self, tile: &Tile, product: &Product) -> bool {
        let (down, across) = match self {
            Cluster::ONE => return true,
            Cluster::Share { down, across } => (down, across),
            Cluster::Split(parts) => {
                return !product.transposed && tile.can_split() && product.steps() >= u64::from(parts);
            }
        };
        // Each loads a part of the lines, a multiple of 8 of them.
        let parts = |operand: Operand, extent: u32, blocks: u32| {
            operand.row_major || (extent / blocks).is_multiple_of(8)
        };
        let tall = down == 1 || product.rows > u64::from(tile.rows * (down / 2));
        let wide = across == 1 || product.columns > u64::from(tile.columns * (across / 2));
        let whole = parts(product.left, tile.rows, across) && parts(product.right, tile.columns, down);
        tall && wide && whole && !product.by_lines && tile.resident == 1
    }

    /// Clusters that run at a time. One lies within one of the groups that multiprocessors come in, whose sizes leave some over.
    pub fn at_a_time(self, tile: &Tile, facts: &DeviceFacts) -> u64 {
        let all = u64::from(facts.multiprocessors);
        let clusters = match self.blocks() {
            1 => all,
            2 => all / 2,
            4 => all * 10 / 11 / 4,
            blocks => all * 3 / 4 / u64::from(blocks),
        };
        (clusters * u64::from(tile.resident)).max(1)
    }
}

/// Least steps of a piece.
pub(super) const RUN: u64 = 3;

/// Of a result, in units of what a cluster computes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    pub down: u64,
    pub across: u64,
}

impl Tiles {
    pub fn new(product: &Product, tile: &Tile, cluster: Cluster) -> Self {
        let (down, across) = cluster.tiles();
        Tiles {
            down: product.rows.div_ceil(u64::from(tile.rows * down)),
            across: product.columns.div_ceil(u64::from(tile.columns * across)),
        }
    }

    pub fn count(self) -> u64 {
        self.down * self.across
    }
}

/// The last tiles, fewer than there are clusters, when several clusters sum a tile in pieces.
///
/// Clusters that share rows or columns should read the same terms at the same time. So as many clusters as there are
/// tiles take a first piece each, and the others take all other pieces in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rest {
    pub tiles: u64,
    /// Of each tile.
    pub pieces: u64,
    /// Steps of the first piece.
    pub head: u64,
    /// Steps of every other piece.
    pub part: u64,
    /// Pieces that one of the other clusters takes, at most.
    pub turns: u64,
}

impl Rest {
    /// `clusters` are more than `tiles`. None if pieces would be too short.
    pub fn new(tiles: u64, pieces: u64, steps: u64, clusters: u64) -> Option<Self> {
        let turns = ((pieces - 1) * tiles).div_ceil(clusters - tiles);
        // The first pieces are to take as long as the turns of the others.
        let part = steps / (turns + pieces - 1);
        (part >= RUN).then(|| Rest { tiles, pieces, head: steps - (pieces - 1) * part, part, turns })
    }
}

/// How tiles and terms are dealt out to clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deal {
    /// Every tile is one cluster's.
    Whole,
    /// Every tile but the last ones.
    Rest(Rest),
    /// Every tile is split over this many clusters, and what each has over its blocks.
    Parts(u64),
}

/// How a product is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Schedule {
    /// Rows and columns are swapped, and the result is stored transposed.
    pub transposed: bool,
    pub tile: Tile,
    pub cluster: Cluster,
    pub tiles: Tiles,
    /// That are launched.
    pub clusters: u64,
    pub deal: Deal,
}
