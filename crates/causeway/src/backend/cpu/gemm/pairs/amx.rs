//! Intel AMX: one instruction multiplies a tile of 16 × 32 bf16 with one of 32 × 16 and adds the product to 16 × 16 sums
//! in f32, as much as 512 vector instructions of f32. Stable Rust has no intrinsics for it: each function is one block of assembly.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::{Adder, Block, PANEL_STEP, Sums, TILE, WORTH_A_THREAD};
use crate::backend::cpu::gemm::tiles::Cut;

/// Whether the processor has the unit for bf16, and the operating system lets this process use it.
pub fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && may_use_tiles())
}

fn has_instructions() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    // SAFETY: every x86-64 processor has the instruction. (Newer compilers know that, older ones do not.)
    #[allow(unused_unsafe)]
    let features = unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx } };
    features & AMX_BF16 != 0 && features & AMX_TILE != 0
}

/// Asks Linux for the tile registers: they are off in every process until it does, since they add 8 KiB to each
/// thread's saved state. (Documentation/arch/x86/xstate.rst)
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let status: isize;
    // SAFETY: this call changes what the process may use, and no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    status == 0
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// The operand of `ldtilecfg`: palette 1, eight registers of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes_per_row: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// This thread's tile registers, switched on until it is dropped. They hold 2 × 2 tiles of sums, and two of each operand.
pub struct Amx {
    /// The registers belong to one thread.
    thread: PhantomData<*const ()>,
}

impl Adder for Amx {
    /// A panel of the right operand then stays in the L1 cache.
    const DEPTH: usize = 512;

    /// Sums and the packed left block share a second-level cache of 2 MiB.
    const CUT: Cut = Cut { register: (TILE, TILE), largest: (512, 384), worth_a_thread: WORTH_A_THREAD };

    unsafe fn new() -> Self {
        // SAFETY: the operand is a valid configuration, and nothing else on this thread uses the registers before they are
        // released.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly, preserves_flags));
        }
        Amx { thread: PhantomData }
    }

    unsafe fn add(&self, block: &Block<'_>, sums: &mut Sums) {
        let upper = sums.as_mut_ptr();
        // SAFETY: `self` shows that the registers are configured. A panel is `steps` steps of 2 KiB; the four tiles of `sums`
        // have rows of 64 bytes, 128 bytes apart.
        unsafe {
            asm!(
                "test {first}, {first}",
                "jnz 3f",
                "tileloadd tmm0, [{upper} + {stride}]",
                "tileloadd tmm1, [{upper} + {stride} + 64]",
                "tileloadd tmm2, [{lower} + {stride}]",
                "tileloadd tmm3, [{lower} + {stride} + 64]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{left} + {line}]",
                "tileloadd tmm6, [{right} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{right} + {line} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{left} + {line} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left}, 2048",
                "add {right}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{upper} + {stride}], tmm0",
                "tilestored [{upper} + {stride} + 64], tmm1",
                "tilestored [{lower} + {stride}], tmm2",
                "tilestored [{lower} + {stride} + 64], tmm3",
                first = in(reg) usize::from(block.is_first),
                upper = in(reg) upper,
                lower = in(reg) upper.wrapping_add(TILE * TILE / 2),
                stride = in(reg) TILE * size_of::<f32>(),
                line = in(reg) 64usize,
                left = inout(reg) block.left.as_ptr() => _,
                right = inout(reg) block.right.as_ptr() => _,
                steps = inout(reg) block.left.len() / PANEL_STEP => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: back to the state in which a process starts: registers empty, nothing more to save.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
