//! AMD's code objects: ELF files with a note that describes their kernels in MessagePack.

use anyhow::{Context, Result, ensure};
use object::Endianness;
use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _};
use rmpv::Value;

use crate::facts::Facts;

/// The note's owner and kind.
const OWNER: &[u8] = b"AMDGPU";
const METADATA: u32 = 32;

/// How HIPRTC wraps a code object: after this, the number of entries; for each its offset, its size, and its name with
/// the length before it.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";

/// The code object in what a compiler gave: the one for the device, if it is a bundle.
pub fn unbundled(image: &[u8]) -> Result<&[u8]> {
    let Some(mut table) = image.strip_prefix(BUNDLE) else { return Ok(image) };
    for _ in 0..number(&mut table)? {
        let (offset, size, name) = (number(&mut table)?, number(&mut table)?, number(&mut table)?);
        let (name, after) = table.split_at_checked(name).context("the bundle ends in a name")?;
        table = after;
        if !name.starts_with(b"host") {
            let end = offset.checked_add(size).context("an entry without an end")?;
            return image.get(offset..end).context("an entry past the end of the bundle");
        }
    }
    Err(anyhow::anyhow!("a bundle without code for a device"))
}

fn number(table: &mut &[u8]) -> Result<usize> {
    let (bytes, after) = table.split_first_chunk().context("the bundle ends in its table")?;
    *table = after;
    Ok(usize::try_from(u64::from_le_bytes(*bytes))?)
}

/// What a code object says about its kernel.
pub fn facts(image: &[u8], entry: &str, architecture: &str) -> Result<Facts> {
    let file = ElfFile64::<Endianness>::parse(image).context("not an ELF file")?;
    let metadata = metadata(&file)?;
    let target = field(&metadata, "amdhsa.target")?.as_str().context("amdhsa.target is no text")?;
    let found = target.rsplit("--").next().unwrap_or_default().split(':').next();
    ensure!(found == Some(architecture), "for {target}, expected {architecture}");
    let kernels = field(&metadata, "amdhsa.kernels")?.as_array().context("amdhsa.kernels is no list")?;
    let is_entry = |kernel: &&Value| field(kernel, ".name").ok().and_then(Value::as_str) == Some(entry);
    let kernel = kernels.iter().find(is_entry).with_context(|| format!("no kernel {entry}"))?;
    let optional = |key: &str| Some(field(kernel, key).ok()?.as_u64()? as u32);
    let number = |key: &str| optional(key).with_context(|| format!("{key} is not a number"));
    // Its bytes of private memory are what the compiler knows of; with such a stack there would be more.
    let dynamic = field(kernel, ".uses_dynamic_stack").is_ok_and(|value| value == &Value::Boolean(true));
    ensure!(!dynamic, "{entry} has a stack of unknown size");
    Ok(Facts {
        registers: number(".vgpr_count")?,
        scalar: Some(number(".sgpr_count")?),
        accumulation: optional(".agpr_count"),
        shared: number(".group_segment_fixed_size")?,
        private: number(".private_segment_fixed_size")?,
        vector_spills: Some(number(".vgpr_spill_count")?),
        scalar_spills: Some(number(".sgpr_spill_count")?),
        wave: number(".wavefront_size")?,
        ..Facts::default()
    })
}

fn metadata(file: &ElfFile64<'_, Endianness>) -> Result<Value> {
    let endian = file.endian();
    let data = file.data();
    for section in file.elf_header().section_headers(endian, data)? {
        let Some(mut notes) = section.notes(endian, data)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == OWNER && note.n_type(endian).0 == METADATA {
                return Ok(rmpv::decode::read_value(&mut note.desc())?);
            }
        }
    }
    Err(anyhow::anyhow!("no note with metadata"))
}

fn field<'a>(map: &'a Value, key: &str) -> Result<&'a Value> {
    let entries = map.as_map().context("the metadata is no map")?;
    let found = entries.iter().find(|(name, _)| name.as_str() == Some(key));
    found.map(|(_, value)| value).with_context(|| format!("the metadata lacks {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut head = BUNDLE.to_vec();
        let put = |number: usize| (number as u64).to_le_bytes();
        head.extend(put(entries.len()));
        let table: usize = entries.iter().map(|(name, _)| 24 + name.len()).sum();
        let mut at = head.len() + table;
        for (name, code) in entries {
            [at, code.len(), name.len()].into_iter().for_each(|number| head.extend(put(number)));
            head.extend(name.as_bytes());
            at += code.len();
        }
        head.extend(entries.iter().flat_map(|(_, code)| *code));
        head
    }

    #[test]
    fn the_devices_code_is_taken_out_of_a_bundle() {
        let whole =
            bundle(&[("host-x86_64-unknown-linux", b""), ("hipv4-amdgcn-amd-amdhsa--gfx90a", b"code")]);
        assert_eq!(unbundled(&whole).unwrap(), b"code");
        assert_eq!(unbundled(b"\x7fELF").unwrap(), b"\x7fELF");
        for end in BUNDLE.len()..whole.len() {
            assert!(unbundled(&whole[..end]).is_err(), "cut off at {end}");
        }
        assert!(unbundled(&bundle(&[("host-x86_64-unknown-linux", b"")])).is_err());
    }

    #[test]
    fn what_is_no_code_object_is_refused() {
        assert!(facts(b"text", "kernel", "gfx942").is_err());
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = facts(&own, "main", "gfx942").unwrap_err().to_string();
        assert!(error.contains("no note with metadata"), "{error}");
    }
}
