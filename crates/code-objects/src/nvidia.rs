//! Cubins: ELF files whose section `.nv.info` lists attributes of functions.

use anyhow::{Context, Result, ensure};
use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

use crate::facts::Facts;

/// The machine's number in ELF headers.
const EM_CUDA: u16 = 190;

/// Attributes of `.nv.info` that hold a number of a function, and their payload: two words, the function's symbol and
/// the number.
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const REGISTER_COUNT: u8 = 0x2f;
/// How an attribute's value is stored.
const IN_TWO_BYTES: [u8; 3] = [1, 2, 3];
const SIZED: u8 = 4;

/// What a cubin says about its kernel.
pub fn facts(image: &[u8], entry: &str, architecture: &str) -> Result<Facts> {
    let file = ElfFile64::<Endianness>::parse(image).context("not an ELF file")?;
    let header = file.elf_header();
    let (machine, flags) = (header.e_machine(file.endian()).0, header.e_flags(file.endian()).0);
    ensure!(machine == EM_CUDA, "the machine is {machine}, expected {EM_CUDA}");
    // CUDA 13 keeps the architecture's number in the second byte, earlier versions in the first.
    let digits: String = architecture.chars().filter(char::is_ascii_digit).collect();
    let number: u32 = digits.parse().with_context(|| format!("{architecture} has no number"))?;
    ensure!([flags & 0xff, flags >> 8 & 0xff].contains(&number), "not for {architecture}: flags {flags:#x}");

    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(entry));
    let symbol = symbol.with_context(|| format!("no function {entry}"))?.index().0 as u32;
    let info = file.section_by_name(".nv.info").context("no section .nv.info")?;
    let attributes = attributes(info.data()?)?;
    let of_kernel = |wanted: u8| {
        let found = attributes.iter().find(|(kind, function, _)| (*kind, *function) == (wanted, symbol));
        found.map(|(_, _, number)| *number).with_context(|| format!("{entry} has no attribute {wanted:#x}"))
    };
    // Functions that were not inlined have frames of their own, and the kernel's stack holds those that it calls.
    let frames = attributes.iter().filter(|(kind, ..)| *kind == FRAME_SIZE).map(|(.., bytes)| *bytes);
    let private = frames.max().unwrap_or(0).max(of_kernel(MIN_STACK_SIZE)?);
    let shared = file.section_by_name(&format!(".nv.shared.{entry}")).map_or(0, |section| section.size());
    Ok(Facts {
        registers: of_kernel(REGISTER_COUNT)?,
        shared: u32::try_from(shared)?,
        private,
        wave: 32,
        ..Facts::default()
    })
}

/// The attributes with a function and a number: kind, function's symbol, number.
fn attributes(mut data: &[u8]) -> Result<Vec<(u8, u32, u32)>> {
    let mut attributes = Vec::new();
    while let [format, kind, low, high, rest @ ..] = data {
        let size = usize::from(u16::from_le_bytes([*low, *high]));
        data = rest;
        if IN_TWO_BYTES.contains(format) {
            continue;
        }
        ensure!(*format == SIZED && size <= rest.len(), ".nv.info: attribute {kind:#x} of format {format}");
        let (value, after) = rest.split_at(size);
        data = after;
        if let (FRAME_SIZE | MIN_STACK_SIZE | REGISTER_COUNT, [a, b, c, d, e, f, g, h]) = (*kind, value) {
            attributes.push((
                *kind,
                u32::from_le_bytes([*a, *b, *c, *d]),
                u32::from_le_bytes([*e, *f, *g, *h]),
            ));
        }
    }
    ensure!(data.is_empty(), ".nv.info: {} bytes left", data.len());
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_past_those_of_no_interest() {
        let mut data = vec![4, REGISTER_COUNT, 8, 0, 7, 0, 0, 0, 40, 0, 0, 0];
        data.extend([3, 0x1b, 0xff, 0]);
        data.extend([4, 0x55, 4, 0, 1, 2, 3, 4]);
        data.extend([4, FRAME_SIZE, 8, 0, 7, 0, 0, 0, 24, 1, 0, 0]);
        assert_eq!(attributes(&data).unwrap(), [(REGISTER_COUNT, 7, 40), (FRAME_SIZE, 7, 280)]);
        assert!(attributes(&data[..data.len() - 1]).is_err(), "cut off");
        assert!(attributes(&[9, 1, 0, 0]).is_err(), "unknown format");
    }

    #[test]
    fn what_is_no_cubin_is_refused() {
        assert!(facts(b"text", "kernel", "sm_90a").is_err());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = facts(&own, "main", "sm_90a").unwrap_err().to_string();
        assert!(error.contains("expected 190"), "{error}");
    }
}
