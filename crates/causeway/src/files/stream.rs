//! Safetensors images that arrive or leave in one go, through a pipe or a socket.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use super::entry::HOST_IS_BIG_ENDIAN;
use super::safetensors::{self, Image, Located};
use super::{FileError, Metadata, write_elements};
use crate::host_tensor::HostTensor;
use crate::spares::Spares;

/// An image of a known length whose header has been read and checked; its elements are next in the reader.
#[derive(Debug)]
pub struct TensorStream<R> {
    reader: R,
    name: String,
    tensors: BTreeMap<String, Located>,
    metadata: Metadata,
}

impl<R: Read> TensorStream<R> {
    /// Reads the header of an image of `length` bytes; `name` is what errors call it.
    ///
    /// # Errors
    /// If the header is not sound, or the reader ends early.
    pub fn open(mut reader: R, length: u64, name: &str) -> Result<Self, FileError> {
        let (tensors, metadata) = safetensors::read_header(&mut reader, length, name)?;
        Ok(TensorStream { reader, name: name.to_string(), tensors, metadata })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tensors.keys().map(String::as_str)
    }

    /// Text that came with the tensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Reads every tensor, each straight into memory of its own.
    ///
    /// # Errors
    /// If the elements cannot be read, or there is no memory for them.
    pub fn read_all(self) -> Result<BTreeMap<String, HostTensor>, FileError> {
        self.read_all_again(&Spares::default())
    }

    /// The same, into memory of tensors that nobody needs any longer, where it is large enough.
    ///
    /// # Errors
    /// As for [`TensorStream::read_all`].
    pub fn read_all_again(mut self, spares: &Spares) -> Result<BTreeMap<String, HostTensor>, FileError> {
        let mut in_order: Vec<_> = self.tensors.iter().collect();
        // The header's check left no gaps and no overlaps; an empty tensor shares its place with the next one.
        in_order.sort_by_key(|(_, located)| located.begin);
        let mut read = BTreeMap::new();
        for (name, located) in in_order {
            let tensor = safetensors::read_tensor(&mut self.reader, located, spares);
            read.insert(name.clone(), tensor.map_err(|cause| cause.in_tensor(&self.name, name))?);
        }
        Ok(read)
    }
}

/// A safetensors image about to be written. The elements stay where they are until then.
pub struct TensorImage<'a>(Image<'a>);

impl<'a> TensorImage<'a> {
    /// An image of these tensors, elements in row-major order of the logical shape.
    pub fn new(tensors: &[(&str, &'a HostTensor)], metadata: &Metadata) -> Self {
        TensorImage(Image::new(tensors, metadata))
    }

    /// Bytes of the whole image.
    pub fn length(&self) -> u64 {
        self.0.length()
    }

    /// Writes the image.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write<W: Write>(&self, writer: &mut W) -> io::Result<()> {
        self.0.write_by(writer, write_elements)
    }

    /// Writes the image; `lend` has a writer that takes memory instead of copies write the bytes of a tensor, where they
    /// lie in memory as they do in the image.
    ///
    /// # Errors
    /// Those of the writer and of `lend`.
    pub fn write_lending<W: Write>(
        &self,
        writer: &mut W,
        lend: impl Fn(&mut W, &HostTensor, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.0.write_by(writer, |writer, tensor| match tensor.is_contiguous() && !HOST_IS_BIG_ENDIAN {
            true => lend(writer, tensor, super::element_bytes(tensor)),
            false => write_elements(writer, tensor),
        })
    }
}

impl std::fmt::Debug for TensorImage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TensorImage({} bytes)", self.length())
    }
}
