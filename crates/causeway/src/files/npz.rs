//! The npz format: a zip archive of `.npy` arrays, stored or deflated.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};

use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::entry::swap_bytes;
use super::error::{FileCause, FileError};
use super::npy::{self, NpyHeader};
use crate::host_tensor::HostTensor;
use crate::spares::Spares;

/// Deflate cannot expand a byte to more than this many.
const MAX_DEFLATE_RATIO: u64 = 1032;
/// What the deflated members of any archive may expand to, whatever its size.
const EXPANSION_FLOOR: u64 = 1 << 30;
/// And how much more for each byte of the archive.
const EXPANSION_PER_BYTE: u64 = 64;

/// An archive whose members are known to be distinct, disjoint and of a reasonable size.
#[derive(Debug)]
pub(super) struct Npz<R> {
    archive: ZipArchive<R>,
    /// Index of each array, by its name without `.npy`.
    members: BTreeMap<String, usize>,
}

impl<R: Read + Seek> Npz<R> {
    /// Reads and checks the central directory.
    pub fn open(mut reader: R, file: &str) -> Result<Self, FileError> {
        let fail = |cause: FileCause| cause.in_file(file);
        let length = reader.seek(SeekFrom::End(0)).map_err(|e| fail(e.into()))?;
        let mut archive = ZipArchive::new(reader).map_err(|e| fail(e.into()))?;
        if archive.has_overlapping_entries().map_err(|e| fail(e.into()))? {
            return Err(fail(FileCause::MembersOverlap));
        }
        let mut members = BTreeMap::new();
        let mut expanded = 0u64;
        let limit = EXPANSION_FLOOR.saturating_add(length.saturating_mul(EXPANSION_PER_BYTE));
        for index in 0..archive.len() {
            let member = archive.by_index_raw(index).map_err(|e| fail(e.into()))?;
            let shown = String::from_utf8_lossy(member.name_raw()).into_owned();
            let refuse = |cause: FileCause| cause.in_tensor(file, &shown);
            let name = str::from_utf8(member.name_raw())
                .map_err(|_| refuse(FileCause::Header("the name is not UTF-8".to_string())))?;
            let name = name.strip_suffix(".npy").ok_or_else(|| refuse(FileCause::NotAnArray))?;
            let (claimed, compressed) = (member.size(), member.compressed_size());
            let member_limit = match member.compression() {
                CompressionMethod::Stored => compressed,
                _ => {
                    expanded = expanded.saturating_add(claimed);
                    compressed.saturating_mul(MAX_DEFLATE_RATIO).min(limit)
                }
            };
            if claimed > member_limit || expanded > limit {
                return Err(refuse(FileCause::Expansion { claimed, compressed, limit: member_limit }));
            }
            if members.insert(name.to_string(), index).is_some() {
                return Err(FileCause::DuplicateName.in_tensor(file, name));
            }
        }
        // The archive keeps the last of several members with one name, so they cannot be seen above.
        if archive.has_duplicate_names() {
            return Err(fail(FileCause::Archive("two members have the same name".to_string())));
        }
        Ok(Npz { archive, members })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Reads one array; `None` when there is none of that name.
    pub fn read(&mut self, name: &str) -> Option<Result<HostTensor, FileCause>> {
        let index = *self.members.get(name)?;
        Some(self.read_member(index))
    }

    fn read_member(&mut self, index: usize) -> Result<HostTensor, FileCause> {
        let mut member = self.archive.by_index(index)?;
        let size = member.size();
        let header = npy::read_header(&mut member)?;
        let needed = header.entry.byte_count();
        // The directory's size was checked against the file, so it bounds what the header may ask for.
        if header.length.checked_add(needed) != Some(size) {
            return Err(FileCause::SizeMismatch {
                dtype: header.entry.dtype,
                shape: header.entry.shape_text(),
                needed,
                found: size.saturating_sub(header.length),
            });
        }
        let tensor = read_elements(&mut member, &header)?;
        // Reading to the end makes the archive compare its checksum.
        if member.read(&mut [0])? != 0 {
            return Err(FileCause::TrailingBytes { extra: 1 });
        }
        Ok(tensor)
    }
}

fn read_elements<R: Read>(reader: &mut R, header: &NpyHeader) -> Result<HostTensor, FileCause> {
    let mut stored = header.entry.clone();
    if header.fortran_order {
        stored.shape.reverse();
    }
    let mut tensor = stored.allocate(&Spares::default())?;
    let bytes = &mut tensor.bytes_mut()[..stored.byte_count() as usize];
    reader.read_exact(bytes)?;
    swap_bytes(bytes, stored.dtype, header.big_endian != cfg!(target_endian = "big"));
    if header.fortran_order {
        let axes: Vec<usize> = (0..stored.shape.len()).rev().collect();
        tensor = tensor.permuted(&axes);
    }
    Ok(tensor)
}

/// Writes a whole archive, members stored as NumPy's `savez` does, with no time stamps.
pub(super) fn write_image<W: Write + Seek>(writer: W, tensors: &[(&str, &HostTensor)]) -> io::Result<()> {
    let mut archive = ZipWriter::new(writer);
    for (name, tensor) in tensors {
        let header = npy::write_header(tensor.dtype(), tensor.shape());
        let size = header.len() + tensor.element_count() * tensor.dtype().size();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(size).is_err());
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(&header)?;
        super::write_elements(&mut archive, tensor)?;
    }
    archive.finish()?.flush()
}

impl From<ZipError> for FileCause {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::Io(error) => error.into(),
            other => FileCause::Archive(other.to_string()),
        }
    }
}
