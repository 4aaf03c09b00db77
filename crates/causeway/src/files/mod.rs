//! Tensors on disk: safetensors and npz files, read into and written from [`HostTensor`]s.
//!
//! What a file claims is checked before anything is allocated for it: no header, however wrong, leads to a
//! panic, to memory of the claimed size, or to a read outside the file. Elements are read straight into
//! their aligned home, one tensor at a time and only when asked for. Outputs are written beside their
//! destination and renamed, so that a failure leaves what was there. Safetensors images also travel through pipes:
//! [`TensorStream`] and [`TensorImage`].
//!
//! npz details: both byte orders and both element orders are read; bfloat16 is what `ml_dtypes` writes
//! (`<V2`; NumPy loads it as raw bytes, and `array.view(ml_dtypes.bfloat16)` has the numbers); arrays of Python objects are
//! refused.

mod entry;
mod error;
mod npy;
mod npz;
mod replace;
mod safetensors;
mod stream;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

pub use crate::spares::Spares;
pub use error::{FileCause, FileError};
pub use replace::{directory_of, remove_stale};
pub use stream::{TensorImage, TensorStream};

use crate::host_tensor::HostTensor;
use entry::{HOST_IS_BIG_ENDIAN, swap_bytes};

/// Text that a safetensors file carries beside its tensors.
pub type Metadata = BTreeMap<String, String>;

/// A file format for named tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.safetensors`
    Safetensors,
    /// `.npz`
    Npz,
}

impl Format {
    /// The format that a path's extension names.
    ///
    /// # Errors
    /// [`FileCause::Extension`] for any other extension.
    pub fn of_path(path: &Path) -> Result<Self, FileError> {
        let extension = path.extension().unwrap_or_default();
        if extension.eq_ignore_ascii_case("safetensors") {
            Ok(Format::Safetensors)
        } else if extension.eq_ignore_ascii_case("npz") {
            Ok(Format::Npz)
        } else {
            Err(FileCause::Extension.in_file(&path.display().to_string()))
        }
    }
}

/// An open file of named tensors, its header checked, its elements not yet read.
#[derive(Debug)]
pub struct TensorFile<R = BufReader<File>> {
    file: String,
    content: Content<R>,
    metadata: Metadata,
}

#[derive(Debug)]
enum Content<R> {
    Safetensors(R, BTreeMap<String, safetensors::Located>),
    Npz(npz::Npz<R>),
}

impl TensorFile {
    /// Opens a file in the format that its extension names.
    ///
    /// # Errors
    /// If it cannot be opened, or its header is not sound.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let shown = path.display().to_string();
        let format = Format::of_path(path)?;
        let fail = |e: io::Error| FileCause::Io(e).in_file(&shown);
        let file = File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        Self::from_reader(BufReader::new(file), format, &shown)
    }
}

impl<R: Read + Seek> TensorFile<R> {
    /// Reads an image from anywhere; `name` is what errors call it.
    ///
    /// # Errors
    /// If its header is not sound.
    pub fn from_reader(mut reader: R, format: Format, name: &str) -> Result<Self, FileError> {
        let (content, metadata) = match format {
            Format::Safetensors => {
                let fail = |e: io::Error| FileCause::Io(e).in_file(name);
                let length = reader.seek(SeekFrom::End(0)).map_err(fail)?;
                reader.seek(SeekFrom::Start(0)).map_err(fail)?;
                let (tensors, metadata) = safetensors::read_header(&mut reader, length, name)?;
                (Content::Safetensors(reader, tensors), metadata)
            }
            Format::Npz => (Content::Npz(npz::Npz::open(reader, name)?), Metadata::new()),
        };
        Ok(TensorFile { file: name.to_string(), content, metadata })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> Vec<&str> {
        match &self.content {
            Content::Safetensors(_, tensors) => tensors.keys().map(String::as_str).collect(),
            Content::Npz(npz) => npz.names().collect(),
        }
    }

    /// Text that came with the tensors; empty for npz.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Reads one tensor; `None` when there is none of that name.
    ///
    /// # Errors
    /// If the elements cannot be read, or there is no memory for them.
    pub fn read(&mut self, name: &str) -> Result<Option<HostTensor>, FileError> {
        let read = match &mut self.content {
            Content::Safetensors(reader, tensors) => {
                let read = |located: &safetensors::Located| {
                    reader.seek(SeekFrom::Start(located.begin))?;
                    safetensors::read_tensor(reader, located, &Spares::default())
                };
                tensors.get(name).map(read)
            }
            Content::Npz(npz) => npz.read(name),
        };
        read.transpose().map_err(|cause| cause.in_tensor(&self.file, name))
    }
}

/// Writes tensors to `path`, in the format that its extension names, as a whole or not at all. Elements go
/// out in row-major order of the logical shape. npz files carry no metadata.
///
/// # Errors
/// If the extension names no format, or the operating system refuses.
pub fn write(path: &Path, tensors: &[(&str, &HostTensor)], metadata: &Metadata) -> Result<(), FileError> {
    let format = Format::of_path(path)?;
    let written = replace::replace(path, |writer| match format {
        Format::Safetensors => TensorImage::new(tensors, metadata).write(writer),
        Format::Npz => npz::write_image(writer, tensors),
    });
    written.map_err(|error| FileCause::Io(error).in_file(&path.display().to_string()))
}

/// Writes bytes to `path`, as a whole or not at all.
///
/// # Errors
/// If the operating system refuses.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let written = replace::replace(path, |writer| writer.write_all(bytes));
    written.map_err(|error| FileCause::Io(error).in_file(&path.display().to_string()))
}

/// A safetensors image in memory.
pub fn to_safetensors(tensors: &[(&str, &HostTensor)], metadata: &Metadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    TensorImage::new(tensors, metadata).write(&mut bytes).expect("a Vec takes every byte");
    bytes
}

/// The bytes of a contiguous tensor's elements.
fn element_bytes(tensor: &HostTensor) -> &[u8] {
    &tensor.bytes()[..tensor.element_count() * tensor.dtype().size()]
}

/// The elements in row-major order, little-endian.
fn write_elements<W: Write>(writer: &mut W, tensor: &HostTensor) -> io::Result<()> {
    let dense = if tensor.is_contiguous() {
        Cow::Borrowed(tensor)
    } else {
        Cow::Owned(tensor.to_contiguous().map_err(io::Error::other)?)
    };
    let bytes = element_bytes(&dense);
    if HOST_IS_BIG_ENDIAN {
        let mut bytes = bytes.to_vec();
        swap_bytes(&mut bytes, tensor.dtype(), true);
        return writer.write_all(&bytes);
    }
    writer.write_all(bytes)
}
