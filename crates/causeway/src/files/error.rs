//! What can be wrong with a tensor file, one cause each.

use std::fmt;
use std::io;

use crate::quoted;
use crate::tensor::{DType, MAX_RANK};

/// A file that could not be read or written: which file, which tensor in it, and why.
#[derive(Debug)]
pub struct FileError {
    /// Path of the file, or a name for an image that is not a file.
    pub file: String,
    /// The tensor, where the cause is about one.
    pub tensor: Option<String>,
    /// Why.
    pub cause: FileCause,
}

impl FileError {
    /// What to do about it, where there is something that helps.
    pub fn help(&self) -> Option<&'static str> {
        self.cause.help()
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file)?;
        if let Some(name) = &self.tensor {
            write!(f, "tensor {} ", quoted(name))?;
        }
        write!(f, "{}", self.cause)
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            FileCause::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileCause {
    /// The path's extension names no format.
    #[error("has an extension that names no format: expected .safetensors or .npz")]
    Extension,
    /// The operating system refused.
    #[error("{0}")]
    Io(io::Error),
    /// The file, or an archive member, ends in the middle of something.
    #[error("is cut short: its bytes end before its elements do")]
    UnexpectedEnd,
    /// The file ends before what it announces.
    #[error("is cut short: {what} needs {needed} bytes, and {found} are there")]
    Truncated {
        /// Which part.
        what: &'static str,
        /// Bytes that part needs.
        needed: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// Compressed data that does not decode, or does not match its size or checksum.
    #[error("is damaged: {0}")]
    Damaged(String),
    /// A header is larger than any real one.
    #[error("announces a header of {announced} bytes: at most {limit} are read")]
    HeaderTooLarge {
        /// Its length, as the file says.
        announced: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A header that does not follow the format.
    #[error("has a malformed header: {0}")]
    Header(String),
    /// A name that occurs twice.
    #[error("occurs twice in the file: names must be unique")]
    DuplicateName,
    /// A dtype that no operation takes.
    #[error("has dtype {found}: supported are f32, f16, bf16, f64, i32 and i64")]
    DTypeUnsupported {
        /// The dtype, as the file writes it.
        found: String,
    },
    /// A 16-bit integer array, which is how bfloat16 is often smuggled through NumPy.
    #[error("has dtype {found}: NumPy has no bfloat16, and integers are not reinterpreted")]
    DTypeUint16 {
        /// The dtype, as the file writes it.
        found: String,
    },
    /// An array of Python objects.
    #[error("holds pickled Python objects: they are never loaded, since loading can run code")]
    PickledObjects,
    /// A structured array.
    #[error("is a structured array: expected one number per element")]
    Structured,
    /// More axes than a tensor can have.
    #[error("has {found} axes: at most {MAX_RANK} are supported")]
    TooManyAxes {
        /// Axes in the file.
        found: usize,
    },
    /// Sizes whose product overflows.
    #[error("has shape {shape}: it does not fit the address space")]
    SizeOverflow {
        /// The shape, as the file says.
        shape: String,
    },
    /// A shape and a byte range of different sizes.
    #[error("of dtype {dtype} and shape {shape} needs {needed} bytes, but the file gives it {found}")]
    SizeMismatch {
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: String,
        /// Bytes that dtype and shape need.
        needed: u64,
        /// Bytes that the file sets aside.
        found: u64,
    },
    /// A byte range that is backwards or leaves the file.
    #[error("lies at bytes {begin} to {end} of the data: expected a range inside its {available} bytes")]
    OffsetsOutOfRange {
        /// Start of the range.
        begin: u64,
        /// End of the range.
        end: u64,
        /// Bytes of data in the file.
        available: u64,
    },
    /// Byte ranges that overlap or leave a hole.
    #[error("starts at byte {begin} of the data: expected {expected}, without gaps or overlaps")]
    OffsetsNotContiguous {
        /// Start of the range.
        begin: u64,
        /// End of the range before it.
        expected: u64,
    },
    /// Bytes after the last tensor.
    #[error("has {extra} bytes after its last tensor")]
    TrailingBytes {
        /// How many.
        extra: u64,
    },
    /// A zip archive that cannot be read.
    #[error("is not a readable npz archive: {0}")]
    Archive(String),
    /// A member of an npz archive that is not an array.
    #[error("is not a .npy member: an npz archive holds arrays only")]
    NotAnArray,
    /// Archive members that share bytes, with each other or with the directory.
    #[error("is an archive whose members overlap, or reach into its directory")]
    MembersOverlap,
    /// Compressed data that claims, or would take, more memory than is reasonable.
    #[error("claims {claimed} bytes from {compressed} compressed ones: at most {limit} are expanded")]
    Expansion {
        /// Bytes after decompression, as the file says.
        claimed: u64,
        /// Bytes in the file.
        compressed: u64,
        /// The most that is expanded.
        limit: u64,
    },
    /// The memory is not there.
    #[error("needs {bytes} bytes of memory, which are not available")]
    OutOfMemory {
        /// How many.
        bytes: u64,
    },
}

impl From<io::Error> for FileCause {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => FileCause::UnexpectedEnd,
            io::ErrorKind::InvalidData => FileCause::Damaged(error.to_string()),
            _ => FileCause::Io(error),
        }
    }
}

impl FileCause {
    fn help(&self) -> Option<&'static str> {
        Some(match self {
            FileCause::Extension => "name the file something.safetensors or something.npz",
            FileCause::DTypeUint16 { .. } => {
                "view the array as ml_dtypes.bfloat16 before saving, or save a safetensors file"
            }
            FileCause::Expansion { .. } => "save it with numpy.savez, uncompressed, or as safetensors",
            FileCause::PickledObjects => "convert the array to a number dtype before saving",
            FileCause::DTypeUnsupported { .. } => "convert the tensor before saving",
            _ => return None,
        })
    }

    /// About the whole file.
    pub(super) fn in_file(self, file: &str) -> FileError {
        FileError { file: file.to_string(), tensor: None, cause: self }
    }

    /// About one tensor.
    pub(super) fn in_tensor(self, file: &str, tensor: &str) -> FileError {
        FileError { file: file.to_string(), tensor: Some(tensor.to_string()), cause: self }
    }
}
