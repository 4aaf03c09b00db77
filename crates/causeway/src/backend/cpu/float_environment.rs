//! The processor's floating-point mode.
//!
//! Programs and libraries may switch a thread to "flush subnormal numbers to zero" or to another rounding: any shared
//! library that was linked with `-ffast-math` does, and threads inherit it from the one that starts them. Whether a task runs
//! on the caller's thread depends on the number of threads, and results must not. So every call and every task computes in
//! the mode of IEEE 754, which is also the one that Rust assumes.

use std::marker::PhantomData;

/// The mode of IEEE 754 on this thread, until it is dropped; then what was before.
#[must_use = "the mode ends where this is dropped"]
pub struct Ieee754 {
    before: Mode,
    /// The mode is one of this thread.
    stays: PhantomData<*const ()>,
}

impl Ieee754 {
    /// Switches this thread, if it is in another mode.
    pub fn enter() -> Self {
        let before = read();
        let ieee = before & !CHANGES_RESULTS;
        if ieee != before {
            write(ieee);
        }
        Ieee754 { before, stays: PhantomData }
    }
}

impl Drop for Ieee754 {
    fn drop(&mut self) {
        if self.before & CHANGES_RESULTS != 0 {
            write(self.before);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub type Mode = u32;

    /// MXCSR: flush to zero (bit 15), rounding (14 and 13), subnormal operands are zeros (6).
    pub const CHANGES_RESULTS: Mode = 1 << 15 | 0b11 << 13 | 1 << 6;

    pub fn read() -> Mode {
        let mut mode: Mode = 0;
        // SAFETY: stores 32 bits into `mode`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
        mode
    }

    pub fn write(mode: Mode) {
        // SAFETY: `mode` was read from this register, but for bits that turn towards the mode that Rust assumes, or
        // back to what the caller had.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub type Mode = u64;

    /// FPCR: alternative f16 (bit 26), flush to zero (24), rounding (23 and 22), flush f16 (19), flush inputs (0).
    pub const CHANGES_RESULTS: Mode = 1 << 26 | 1 << 24 | 0b11 << 22 | 1 << 19 | 1;

    pub fn read() -> Mode {
        let mode: Mode;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack, nomem, preserves_flags)) };
        mode
    }

    pub fn write(mode: Mode) {
        // SAFETY: `mode` was read from this register, but for bits that turn towards the mode that Rust assumes, or
        // back to what the caller had.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags)) };
    }
}

/// Other processors are taken to be in the mode that Rust assumes.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub type Mode = u32;
    pub const CHANGES_RESULTS: Mode = 0;

    pub fn read() -> Mode {
        0
    }

    pub fn write(_: Mode) {}
}

use control::{CHANGES_RESULTS, Mode, read, write};

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn subnormal_numbers_are_kept_inside_and_the_mode_comes_back() {
        let half_of_smallest_normal = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let before = read();
        write(before | CHANGES_RESULTS & !(0b11 << 22) & !(0b11 << 13));
        let flushed = half_of_smallest_normal();
        let kept = {
            let _mode = Ieee754::enter();
            half_of_smallest_normal()
        };
        let flushed_again = half_of_smallest_normal();
        write(before);
        assert_eq!((flushed, flushed_again), (0.0, 0.0));
        assert_eq!(kept.to_bits(), 1 << 22);
    }
}
