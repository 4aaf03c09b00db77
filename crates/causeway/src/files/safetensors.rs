//! The safetensors format: `u64` header length, a JSON header, then the elements.
//!
//! The header is parsed here, not by the `safetensors` crate, for three reasons: tensors are read one by one
//! straight into their aligned homes (that crate wants the whole file mapped, and a mapped file that another
//! process cuts short kills this one); every error names its tensor; and a name that occurs twice is refused.
//! The tests hold both implementations to the same files.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::Metadata;
use super::entry::{Entry, HOST_IS_BIG_ENDIAN, swap_bytes};
use super::error::{FileCause, FileError};
use crate::host_tensor::HostTensor;
use crate::quoted;
use crate::spares::Spares;
use crate::tensor::DType;

/// The limit of the reference implementation.
const MAX_HEADER: u64 = 100_000_000;
const METADATA_KEY: &str = "__metadata__";

/// Where a tensor's bytes begin in the file, and what they are.
#[derive(Debug)]
pub(super) struct Located {
    pub entry: Entry,
    pub begin: u64,
}

/// Reads and checks the header of an image of `length` bytes; every range it returns lies inside the image. The
/// elements follow: those of the tensor with the smallest `begin` are next in the reader.
pub(super) fn read_header<R: Read>(
    reader: &mut R,
    length: u64,
    file: &str,
) -> Result<(BTreeMap<String, Located>, Metadata), FileError> {
    let fail = |cause: FileCause| cause.in_file(file);
    if length < 8 {
        return Err(fail(FileCause::Truncated { what: "the header length", needed: 8, found: length }));
    }
    let mut prefix = [0; 8];
    reader.read_exact(&mut prefix).map_err(|e| fail(e.into()))?;
    let announced = u64::from_le_bytes(prefix);
    if announced > MAX_HEADER {
        return Err(fail(FileCause::HeaderTooLarge { announced, limit: MAX_HEADER }));
    }
    if announced > length - 8 {
        let what = "the header";
        return Err(fail(FileCause::Truncated { what, needed: announced, found: length - 8 }));
    }
    // No larger than the file, by the check above.
    let mut text = vec![0; announced as usize];
    reader.read_exact(&mut text).map_err(|e| fail(e.into()))?;
    let header: Header = serde_json::from_slice(&text).map_err(|e| fail(FileCause::Header(e.to_string())))?;
    let data_start = 8 + announced;
    let located = locate(header.tensors, data_start, length - data_start, file)?;
    Ok((located, header.metadata))
}

/// Checks every range against its shape, the data section and its neighbours.
fn locate(
    tensors: Vec<(String, Info)>,
    data_start: u64,
    available: u64,
    file: &str,
) -> Result<BTreeMap<String, Located>, FileError> {
    let mut located = BTreeMap::new();
    let mut ranges = Vec::with_capacity(tensors.len());
    for (name, info) in tensors {
        let (begin, end) = info.data_offsets;
        let checked = parse_dtype(&info.dtype).and_then(|dtype| Entry::checked(dtype, &info.shape));
        let entry = checked.map_err(|cause| cause.in_tensor(file, &name))?;
        if begin > end || end > available {
            return Err(FileCause::OffsetsOutOfRange { begin, end, available }.in_tensor(file, &name));
        }
        let needed = entry.byte_count();
        if needed != end - begin {
            let (dtype, shape) = (entry.dtype, entry.shape_text());
            let cause = FileCause::SizeMismatch { dtype, shape, needed, found: end - begin };
            return Err(cause.in_tensor(file, &name));
        }
        ranges.push((begin, end, name.clone()));
        if located.insert(name.clone(), Located { entry, begin: data_start + begin }).is_some() {
            return Err(FileCause::DuplicateName.in_tensor(file, &name));
        }
    }
    ranges.sort_unstable();
    let mut expected = 0;
    for (begin, end, name) in &ranges {
        if *begin != expected {
            let cause = FileCause::OffsetsNotContiguous { begin: *begin, expected };
            return Err(cause.in_tensor(file, name));
        }
        expected = *end;
    }
    if expected != available {
        return Err(FileCause::TrailingBytes { extra: available - expected }.in_file(file));
    }
    Ok(located)
}

/// Reads one tensor, whose bytes are next in the reader, into memory of its own.
pub(super) fn read_tensor<R: Read>(
    reader: &mut R,
    located: &Located,
    spares: &Spares,
) -> Result<HostTensor, FileCause> {
    let mut tensor = located.entry.allocate(spares)?;
    let bytes = &mut tensor.bytes_mut()[..located.entry.byte_count() as usize];
    reader.read_exact(bytes)?;
    swap_bytes(bytes, located.entry.dtype, HOST_IS_BIG_ENDIAN);
    Ok(tensor)
}

/// An image about to be written: tensors in order of falling element size, then of name, so that each is aligned.
pub(super) struct Image<'a> {
    header: Vec<u8>,
    tensors: Vec<&'a HostTensor>,
    element_bytes: u64,
}

impl<'a> Image<'a> {
    pub fn new(tensors: &[(&str, &'a HostTensor)], metadata: &Metadata) -> Self {
        let mut order: Vec<_> = tensors.iter().collect();
        order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().size()), *name));
        let mut header = serde_json::Map::new();
        if !metadata.is_empty() {
            header.insert(METADATA_KEY.to_string(), serde_json::json!(metadata));
        }
        let mut begin = 0;
        for (name, tensor) in &order {
            let end = begin + tensor.element_count() * tensor.dtype().size();
            let info = serde_json::json!({
                "dtype": dtype_name(tensor.dtype()),
                "shape": tensor.shape(),
                "data_offsets": [begin, end],
            });
            header.insert((*name).to_string(), info);
            begin = end;
        }
        let mut header = serde_json::Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let tensors = order.into_iter().map(|(_, tensor)| *tensor).collect();
        Image { header, tensors, element_bytes: begin as u64 }
    }

    /// Bytes of the whole image.
    pub fn length(&self) -> u64 {
        8 + self.header.len() as u64 + self.element_bytes
    }

    /// Writes all before the elements, then has `write` write those of each tensor.
    pub fn write_by<W: Write>(
        &self,
        writer: &mut W,
        write: impl Fn(&mut W, &HostTensor) -> io::Result<()>,
    ) -> io::Result<()> {
        writer.write_all(&(self.header.len() as u64).to_le_bytes())?;
        writer.write_all(&self.header)?;
        self.tensors.iter().try_for_each(|tensor| write(writer, tensor))
    }
}

fn parse_dtype(text: &str) -> Result<DType, FileCause> {
    let found = DType::ALL.into_iter().find(|&dtype| dtype_name(dtype) == text);
    found.ok_or_else(|| FileCause::DTypeUnsupported { found: quoted(text) })
}

fn dtype_name(dtype: DType) -> String {
    dtype.name().to_ascii_uppercase()
}

/// The JSON header, entries in file order, repeated names kept so that they can be refused.
#[derive(Default)]
struct Header {
    tensors: Vec<(String, Info)>,
    metadata: Metadata,
}

#[derive(serde::Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Metadata in which no key occurs twice: of two readers, each might take another value.
struct UniqueKeys(Metadata);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = UniqueKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<UniqueKeys, M::Error> {
                let mut metadata = Metadata::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if metadata.contains_key(&key) {
                        return Err(de::Error::custom(format_args!("metadata has {} twice", quoted(&key))));
                    }
                    metadata.insert(key, value);
                }
                Ok(UniqueKeys(metadata))
            }
        }
        deserializer.deserialize_map(KeysVisitor)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let (mut header, mut has_metadata) = (Header::default(), false);
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA_KEY {
                        if has_metadata {
                            return Err(de::Error::custom(format_args!("{name:?} occurs twice")));
                        }
                        has_metadata = true;
                        header.metadata = map.next_value::<UniqueKeys>()?.0;
                    } else {
                        let info = map
                            .next_value()
                            .map_err(|e| de::Error::custom(format_args!("tensor {}: {e}", quoted(&name))))?;
                        header.tensors.push((name, info));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
