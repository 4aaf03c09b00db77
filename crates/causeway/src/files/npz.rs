//! The npz format: a zip archive of `.npy` arrays, stored or deflated.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};

use flate2::bufread::DeflateDecoder;
use flate2::{CrcReader, CrcWriter};
use rawzip::path::{EntryPath, ZipFilePath};
use rawzip::time::UtcDateTime;
use rawzip::{
    CompressionMethod, DataDescriptorOutput, ErrorKind, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt,
    ZipArchive, ZipArchiveEntryWayfinder, ZipArchiveWriter, ZipLocator,
};

use super::entry::swap_bytes;
use super::error::{FileCause, FileError};
use super::npy::{self, NpyHeader};
use crate::host_tensor::HostTensor;
use crate::quoted;
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
    archive: ZipArchive<Seeking<R>>,
    /// Each array, by its name without `.npy`.
    members: BTreeMap<String, Member>,
}

/// A reader that seeks before each read.
#[derive(Debug)]
struct Seeking<R>(Mutex<R>);

impl<R: Read + Seek> ReaderAt for Seeking<R> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.seek(SeekFrom::Start(offset))?;
        reader.read(buffer)
    }
}

/// Where an array lies, and what the central directory says about it.
#[derive(Debug, Clone, Copy)]
struct Member {
    place: ZipArchiveEntryWayfinder,
    is_deflated: bool,
    checksum: u32,
}

impl<R: Read + Seek> Npz<R> {
    /// Reads and checks the central directory.
    pub fn open(mut reader: R, file: &str) -> Result<Self, FileError> {
        let fail = |cause: FileCause| cause.in_file(file);
        let length = reader.seek(SeekFrom::End(0)).map_err(|e| fail(e.into()))?;
        let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let archive = ZipLocator::new().locate_in_reader(Seeking(Mutex::new(reader)), &mut buffer, length);
        let archive = archive.map_err(|(_, e)| fail(e.into()))?;
        let mut members = BTreeMap::new();
        // Where the directory lies, and local headers with their data.
        let directory = archive.directory_offset();
        let mut places = vec![(directory, length)];
        let mut expanded = 0u64;
        let limit = EXPANSION_FLOOR.saturating_add(length.saturating_mul(EXPANSION_PER_BYTE));
        let mut entries = archive.entries(&mut buffer);
        while let Some(entry) = entries.next_entry().map_err(|e| fail(e.into()))? {
            let raw_name = entry.file_path();
            let shown = String::from_utf8_lossy(raw_name.as_bytes()).into_owned();
            let refuse = |cause: FileCause| cause.in_tensor(file, &shown);
            let name = str::from_utf8(raw_name.as_bytes())
                .map_err(|_| refuse(FileCause::Header("the name is not UTF-8".to_string())))?;
            let name = name.strip_suffix(".npy").ok_or_else(|| refuse(FileCause::NotAnArray))?;
            if entry.flags().is_encrypted() {
                return Err(fail(FileCause::Archive(format!("member {} is encrypted", quoted(&shown)))));
            }
            let (claimed, compressed) = (entry.uncompressed_size_hint(), entry.compressed_size_hint());
            let member_limit = match entry.compression_method() {
                CompressionMethod::STORE => compressed,
                CompressionMethod::DEFLATE => {
                    expanded = expanded.saturating_add(claimed);
                    compressed.saturating_mul(MAX_DEFLATE_RATIO).min(limit)
                }
                _ => {
                    let cause = format!("member {} is neither stored nor deflated", quoted(&shown));
                    return Err(fail(FileCause::Archive(cause)));
                }
            };
            if claimed > member_limit || expanded > limit {
                return Err(refuse(FileCause::Expansion { claimed, compressed, limit: member_limit }));
            }
            let member = Member {
                place: entry.wayfinder(),
                is_deflated: entry.compression_method() == CompressionMethod::DEFLATE,
                checksum: entry.crc32(),
            };
            if members.insert(name.to_string(), member).is_some() {
                return Err(FileCause::DuplicateName.in_tensor(file, name));
            }
            let begin = entry.local_header_offset();
            if begin >= directory {
                return Err(fail(FileCause::MembersOverlap));
            }
            let data = archive.get_entry(entry.wayfinder()).map_err(|e| fail(e.into()))?;
            places.push((begin, data.compressed_data_range().1));
        }
        if members.len() as u64 != archive.entries_hint() {
            return Err(fail(FileCause::Archive(
                "its directory has not as many members as it says".to_string(),
            )));
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(fail(FileCause::MembersOverlap));
        }
        Ok(Npz { archive, members })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Reads one array; `None` when there is none of that name.
    pub fn read(&self, name: &str) -> Option<Result<HostTensor, FileCause>> {
        self.members.get(name).map(|member| self.read_member(member))
    }

    fn read_member(&self, member: &Member) -> Result<HostTensor, FileCause> {
        /// Bytes that are read at once where a decoder asks for a few.
        const BUFFER: usize = 1 << 16;
        let stored = BufReader::with_capacity(BUFFER, self.archive.get_entry(member.place)?.reader());
        if !member.is_deflated {
            return read_array(stored, member);
        }
        // What cannot be decoded is invalid input for the decoder.
        read_array(DeflateDecoder::new(stored), member).map_err(|cause| match cause {
            FileCause::Io(error) if error.kind() == io::ErrorKind::InvalidInput => {
                FileCause::Damaged(error.to_string())
            }
            other => other,
        })
    }
}

fn read_array(reader: impl Read, member: &Member) -> Result<HostTensor, FileCause> {
    let mut reader = CrcReader::new(reader);
    let header = npy::read_header(&mut reader)?;
    let needed = header.entry.byte_count();
    let size = member.place.uncompressed_size_hint();
    // The directory's size was checked against the file, so it bounds what the header may ask for.
    if header.length.checked_add(needed) != Some(size) {
        return Err(FileCause::SizeMismatch {
            dtype: header.entry.dtype,
            shape: header.entry.shape_text(),
            needed,
            found: size.saturating_sub(header.length),
        });
    }
    let tensor = read_elements(&mut reader, &header)?;
    if reader.read(&mut [0])? != 0 {
        return Err(FileCause::TrailingBytes { extra: 1 });
    }
    if reader.crc().sum() != member.checksum {
        return Err(FileCause::Damaged("its checksum differs from the archive's".to_string()));
    }
    Ok(tensor)
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

/// Writes a whole archive, members stored as NumPy's `savez` does and all with the same time. Their sizes stand after them and in the directory, as
/// zip writers have them that cannot seek.
pub(super) fn write_image<W: Write>(writer: W, tensors: &[(&str, &HostTensor)]) -> io::Result<()> {
    // The first time that an archive can state.
    let first = UtcDateTime::from_unix(315_532_800);
    let mut archive = ZipArchiveWriter::new(writer);
    for (name, tensor) in tensors {
        let header = npy::write_header(tensor.dtype(), tensor.shape());
        let size = header.len() + tensor.element_count() * tensor.dtype().size();
        let path = format!("{name}.npy");
        let member = archive.new_file(entry_path(&path)).unix_permissions(0o644).last_modified(first);
        let (mut member, _) = member.start().map_err(io_error)?;
        let mut checked = CrcWriter::new(&mut member);
        checked.write_all(&header)?;
        super::write_elements(&mut checked, tensor)?;
        let checksum = checked.crc().sum();
        member.finish(DataDescriptorOutput::new(checksum, size as u64)).map_err(io_error)?;
    }
    archive.finish().map_err(io_error)?.flush()
}

/// A name that is not ASCII has a flag which says that it is UTF-8, unless it looks like a path that leads elsewhere.
fn entry_path(name: &str) -> EntryPath<'_> {
    let is_kept = ZipFilePath::from_str(name).as_str() == name;
    if is_kept && !name.is_ascii() {
        EntryPath::conformant(name)
    } else {
        EntryPath::verbatim(name.as_bytes())
    }
}

fn io_error(error: rawzip::Error) -> io::Error {
    match error.into_kind() {
        ErrorKind::IO(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl From<rawzip::Error> for FileCause {
    fn from(error: rawzip::Error) -> Self {
        match error.into_kind() {
            ErrorKind::IO(error) => error.into(),
            other => FileCause::Archive(other.to_string()),
        }
    }
}
