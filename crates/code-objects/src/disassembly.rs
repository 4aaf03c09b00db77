//! Which instructions a code object has, as its vendor's disassembler names them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What is looked for in a listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The matrix instructions.
    pub matrix: BTreeSet<String>,
    /// How many instructions reach private memory.
    pub private_accesses: u32,
    /// Hopper's matrix instructions, and how many of them are the last of a group that can be waited for.
    asynchronous: u32,
    group_ends: u32,
}

impl Listing {
    /// Disassembles a file.
    pub fn of(object: &Path, is_nvidia: bool) -> Result<Self> {
        let mut command = if is_nvidia { Command::new("nvdisasm") } else { Command::new("llvm-objdump-19") };
        command.arg(if is_nvidia { "--print-code" } else { "--disassemble" }).arg(object);
        let output = command.output().with_context(|| {
            format!("{} cannot be started: tests/setup installs it", command.get_program().display())
        })?;
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self::read(&String::from_utf8_lossy(&output.stdout), is_nvidia))
    }

    /// Each of Hopper's matrix instructions is a group of its own: the compiler could not tell that nothing touches the
    /// sums meanwhile, and makes each wait for the one before. The results are right, and the speed is two thirds.
    pub fn is_serialized(&self) -> bool {
        self.asynchronous > 1 && self.group_ends == self.asynchronous
    }

    fn read(text: &str, is_nvidia: bool) -> Self {
        let mut listing = Listing::default();
        for line in text.lines() {
            let mnemonic = if is_nvidia { of_nvidia(line) } else { line.split_whitespace().next() };
            let Some(mnemonic) = mnemonic else { continue };
            if is_matrix(mnemonic) {
                listing.matrix.insert(mnemonic.to_string());
            }
            if mnemonic.starts_with("HGMMA") {
                listing.asynchronous += 1;
                listing.group_ends += u32::from(line.contains("gsb0"));
            }
            listing.private_accesses += u32::from(reaches_private_memory(mnemonic));
        }
        listing
    }
}

/// In `/*3030*/  @P0 HMMA.16816.F32.BF16 R72, …` the mnemonic.
fn of_nvidia(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("*/")?;
    after.split_whitespace().find(|word| !word.starts_with('@'))
}

fn is_matrix(mnemonic: &str) -> bool {
    // HFMA2.MMA is no matrix instruction: what counts is the part before the first point.
    let operation = mnemonic.split('.').next().unwrap_or_default();
    let of_nvidia = operation.ends_with("MMA");
    of_nvidia
        || ["v_mfma_", "v_wmma_", "v_smfmac_", "v_swmmac_"].iter().any(|unit| mnemonic.starts_with(unit))
}

/// Kernels address global memory by `global_` and `flat_` instructions, so on AMD a `buffer_` one is private too.
fn reaches_private_memory(mnemonic: &str) -> bool {
    let operation = mnemonic.split('.').next().unwrap_or_default();
    let of_amd = ["scratch_load", "scratch_store", "buffer_load", "buffer_store"];
    matches!(operation, "LDL" | "STL") || of_amd.iter().any(|access| mnemonic.starts_with(access))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cubins_listing_is_read() {
        let text = "
        .section .text.gemm_tile
.L_x_HMMA:
        /*0040*/                   LDC R1, c[0x0][0x28] ;
        /*02c0*/                   HFMA2.MMA R4, -RZ, RZ, 0, 0 ;
        /*0d90*/               @P0 HGMMA.64x128x16.F32 R24, gdesc[UR8], R24 ;
        /*3030*/                   HMMA.16816.F32.BF16 R72, R80, R42, R72 ;
        /*3060*/                   HMMA.16816.F32.BF16 R68, R80, R92, R68 ;
        /*3070*/                   STL.64 [R1+0x8], R4 ;
        /*3080*/              @!P1 LDL R4, [R1] ;
        /*3090*/                   LDG.E R4, desc[UR4][R2.64] ;
";
        let matrix = ["HGMMA.64x128x16.F32", "HMMA.16816.F32.BF16"].map(str::to_string).into();
        let expected = Listing { matrix, private_accesses: 2, asynchronous: 1, group_ends: 0 };
        assert_eq!(Listing::read(text, true), expected);
    }

    #[test]
    fn products_that_wait_for_each_other_are_noticed() {
        let first = "/*0d90*/ HGMMA.64x128x16.F32 R24, gdesc[UR8], RZ, !UPT ;\n";
        let last = "/*0da0*/ HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0 ;\n";
        let is_serialized = |text: &str| Listing::read(text, true).is_serialized();
        assert!(!is_serialized(&[first, first, last].concat()));
        assert!(is_serialized(&last.repeat(3)));
        assert!(!is_serialized(last) && !is_serialized(""));
    }

    #[test]
    fn a_code_objects_listing_is_read() {
        let text = "
0000000000001600 <gemm_tile>:
\ts_load_b32 s8, s[0:1], 0xdc                                // 000000001604: F4000200 F80000DC
\tv_mfma_f32_32x32x8_bf16 a[0:15], v[2:3], v[6:7], a[0:15]   // 000000002A34: D3E08000 04020D02
\tv_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]
\tv_fma_mix_f32 v0, v1, v2, v3
\tbuffer_gl0_inv
\tbuffer_store_dword v4, off, s[0:3], 0 offset:4
\tscratch_load_b32 v4, off, off offset:4
\tglobal_load_b32 v4, v[0:1], off
";
        let matrix = ["v_mfma_f32_32x32x8_bf16", "v_wmma_f32_16x16x16_f16"].map(str::to_string).into();
        assert_eq!(Listing::read(text, false), Listing { matrix, private_accesses: 2, ..Listing::default() });
    }
}
