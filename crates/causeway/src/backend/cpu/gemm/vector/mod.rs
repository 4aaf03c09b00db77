//! Vectors of f32, one implementation per [`Level`](crate::backend::cpu::Level).
//!
//! Every method is one or a few instructions, inlined into a kernel that is compiled for the level. All
//! implementations agree bit for bit, NaN payloads aside.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;

use half::{bf16, f16};

/// A part of a kernel that is a function of its own; see [`Vector::apart`].
pub trait Part<V> {
    /// # Safety
    /// The processor has V's level; and what the part asks for.
    unsafe fn run(self);
}

/// Some lanes of f32 in a register.
///
/// # Safety of its methods
/// The processor has the level; pointers are good for [`Vector::LANES`] elements, at any alignment that suits
/// the element.
pub trait Vector: Copy {
    /// Lanes of a vector.
    const LANES: usize;

    /// Rows of a register tile; with [`TILE_VECTORS`] vectors each, what the registers hold.
    const TILE_ROWS: usize;

    /// Runs a part in a function of its own, which is compiled for the same instructions. Everything else is inlined into the
    /// kernel, and the time that a function takes to compile grows faster than its length.
    unsafe fn apart<P: Part<Self>>(part: P);

    /// Asks for the line of an address, which may be any; nothing where the level has no instruction for it.
    #[inline(always)]
    fn prefetch(_address: *const u8) {}

    /// The same value in every lane.
    unsafe fn splat(value: f32) -> Self;

    /// Reads every lane.
    unsafe fn load(from: *const f32) -> Self;

    /// Writes every lane.
    unsafe fn store(self, to: *mut f32);

    /// `self · factor + addend` in each lane, rounded once, to nearest, ties to even.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;

    /// Reads and widens; exact.
    unsafe fn load_f16(from: *const f16) -> Self;

    /// Reads and widens; exact.
    unsafe fn load_bf16(from: *const bf16) -> Self;

    /// Rounds to nearest, ties to even, a NaN to the canonical one, and writes.
    unsafe fn store_f16(self, to: *mut f16);

    /// Rounds to nearest, ties to even, a NaN to the canonical one, and writes.
    unsafe fn store_bf16(self, to: *mut bf16);
}

/// Vectors in a row of a register tile.
pub const TILE_VECTORS: usize = 3;
