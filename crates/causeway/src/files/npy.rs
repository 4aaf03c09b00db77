//! The header of a `.npy` array: magic, version, and a Python dict with dtype, order and shape.
//!
//! Only the dict that NumPy writes is understood, without recursion, so that no text can overflow the stack
//! or ask for more memory than the header's own length.

use std::io::Read;

use super::entry::Entry;
use super::error::FileCause;
use crate::quoted;
use crate::tensor::DType;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// A real header has about a hundred bytes.
const MAX_HEADER: u64 = 65_536;
/// NumPy pads the header so that the elements are aligned to this.
const ALIGNMENT: usize = 64;

/// What the header of an array says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NpyHeader {
    pub entry: Entry,
    /// Elements lie in column-major order.
    pub fortran_order: bool,
    /// Elements are big-endian.
    pub big_endian: bool,
    /// Bytes of magic, version, length and dict.
    pub length: u64,
}

/// Reads up to the first element.
pub(super) fn read_header<R: Read>(reader: &mut R) -> Result<NpyHeader, FileCause> {
    let mut prefix = [0; 8];
    reader.read_exact(&mut prefix)?;
    if &prefix[..6] != MAGIC {
        return Err(FileCause::Header("the .npy magic bytes are missing".to_string()));
    }
    let (announced, before) = match prefix[6] {
        1 => {
            let mut length = [0; 2];
            reader.read_exact(&mut length)?;
            (u64::from(u16::from_le_bytes(length)), 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            reader.read_exact(&mut length)?;
            (u64::from(u32::from_le_bytes(length)), 12)
        }
        other => return Err(FileCause::Header(format!(".npy version {other} is not known"))),
    };
    if announced > MAX_HEADER {
        return Err(FileCause::HeaderTooLarge { announced, limit: MAX_HEADER });
    }
    let mut text = vec![0; announced as usize];
    reader.read_exact(&mut text)?;
    let text = str::from_utf8(&text).map_err(|e| FileCause::Header(e.to_string()))?;
    let (descr, fortran_order, sizes) = parse_dict(text)?;
    let (dtype, big_endian) = parse_descr(&descr)?;
    Ok(NpyHeader {
        entry: Entry::checked(dtype, &sizes)?,
        fortran_order,
        big_endian,
        length: before + announced,
    })
}

/// The header, version 1.0, of a dense little-endian array in row-major order.
pub(super) fn write_header(dtype: DType, shape: &[i64]) -> Vec<u8> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::F64 => "<f8",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        // What NumPy writes for ml_dtypes.bfloat16; without that package it loads as 2-byte voids.
        DType::BF16 => "<V2",
    };
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let sizes = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let padding = ALIGNMENT - 1 - (10 + text.len()) % ALIGNMENT;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}

/// `(dtype, big_endian)` of a type string such as `<f4`.
fn parse_descr(descr: &str) -> Result<(DType, bool), FileCause> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or(("", ""));
    let dtype = match kind {
        "f4" => DType::F32,
        "f2" => DType::F16,
        "f8" => DType::F64,
        "i4" => DType::I32,
        "i8" => DType::I64,
        // ml_dtypes.bfloat16 goes to disk as a 2-byte void; nothing else that is one could be meant.
        "V2" => DType::BF16,
        "u2" | "i2" => return Err(FileCause::DTypeUint16 { found: quoted(descr) }),
        _ if kind.starts_with('O') || descr == "O" => return Err(FileCause::PickledObjects),
        _ => return Err(FileCause::DTypeUnsupported { found: quoted(descr) }),
    };
    match order {
        "<" => Ok((dtype, false)),
        ">" => Ok((dtype, true)),
        "|" if dtype == DType::BF16 => Ok((dtype, false)),
        _ => Err(FileCause::DTypeUnsupported { found: quoted(descr) }),
    }
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }` in any order of keys.
fn parse_dict(text: &str) -> Result<(String, bool, Vec<u64>), FileCause> {
    let mut scan = Scanner { rest: text };
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    scan.expect("{")?;
    while !scan.accept("}") {
        let key = scan.quoted()?;
        scan.expect(":")?;
        let repeated = match key {
            "descr" => {
                if scan.rest.trim_start().starts_with('[') {
                    return Err(FileCause::Structured);
                }
                descr.replace(scan.quoted()?.to_string()).is_some()
            }
            "fortran_order" => fortran_order.replace(scan.boolean()?).is_some(),
            "shape" => shape.replace(scan.sizes()?).is_some(),
            other => return Err(FileCause::Header(format!("unknown key {}", quoted(other)))),
        };
        if repeated {
            return Err(FileCause::Header(format!("key {} occurs twice", quoted(key))));
        }
        if !scan.accept(",") {
            scan.expect("}")?;
            break;
        }
    }
    if !scan.rest.trim().is_empty() {
        return Err(FileCause::Header("text follows the closing brace".to_string()));
    }
    let missing = |key: &str| FileCause::Header(format!("key {key:?} is missing"));
    Ok((
        descr.ok_or_else(|| missing("descr"))?,
        fortran_order.ok_or_else(|| missing("fortran_order"))?,
        shape.ok_or_else(|| missing("shape"))?,
    ))
}

struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    fn accept(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.trim_start().strip_prefix(token) else { return false };
        self.rest = rest;
        true
    }

    fn expect(&mut self, token: &str) -> Result<(), FileCause> {
        if self.accept(token) {
            return Ok(());
        }
        let found: String = self.rest.trim_start().chars().take(12).collect();
        Err(FileCause::Header(format!("expected {token:?}, found {}", quoted(&found))))
    }

    fn quoted(&mut self) -> Result<&'a str, FileCause> {
        let quote = if self.accept("\"") { '"' } else { '\'' };
        if quote == '\'' {
            self.expect("'")?;
        }
        let (value, rest) = self
            .rest
            .split_once(quote)
            .ok_or_else(|| FileCause::Header("a quoted string does not end".to_string()))?;
        self.rest = rest;
        Ok(value)
    }

    fn boolean(&mut self) -> Result<bool, FileCause> {
        if self.accept("True") {
            return Ok(true);
        }
        self.expect("False")?;
        Ok(false)
    }

    fn sizes(&mut self) -> Result<Vec<u64>, FileCause> {
        let mut sizes = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            let text = self.rest.trim_start();
            let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let size = text[..digits]
                .parse()
                .map_err(|_| FileCause::Header("shape is not a tuple of sizes".to_string()))?;
            sizes.push(size);
            self.rest = &text[digits..];
            // Python 2 wrote long integers as `3L`.
            self.accept("L");
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_written_are_read_back() {
        for shape in [&[][..], &[5], &[0, 3], &[2, 3, 4], &[1, 2, 3, 4]] {
            for dtype in DType::ALL {
                let bytes = write_header(dtype, shape);
                assert_eq!(bytes.len() % ALIGNMENT, 0);
                let header = read_header(&mut bytes.as_slice()).unwrap();
                assert_eq!((header.entry.dtype, header.entry.shape.as_slice()), (dtype, shape));
                assert_eq!(header.length, bytes.len() as u64);
                assert!(!header.fortran_order && !header.big_endian);
            }
        }
    }

    #[test]
    fn dicts_as_numpy_of_any_age_writes_them() {
        let (descr, fortran, shape) =
            parse_dict("{\"shape\": (3L, 4L), 'descr': '>f8', 'fortran_order': True}   \n").unwrap();
        assert_eq!((descr.as_str(), fortran, shape), (">f8", true, vec![3, 4]));
        assert_eq!(
            parse_dict("{'descr':'<f4','fortran_order':False,'shape':()}").unwrap().2,
            Vec::<u64>::new()
        );
    }

    #[test]
    fn malformed_dicts_are_refused() {
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), ",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': ((1,),)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} more",
            "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)",
            "{'more': '<f4'}",
        ] {
            assert!(matches!(parse_dict(text), Err(FileCause::Header(_))), "{text}");
        }
    }

    #[test]
    fn long_text_of_a_header_is_cut() {
        let long = "x".repeat(10_000);
        let cut = format!("\"{}\"… (10000 bytes)", "x".repeat(100));
        let Err(FileCause::DTypeUnsupported { found }) = parse_descr(&long) else { panic!("no such dtype") };
        assert_eq!(found, cut);
        let Err(FileCause::Header(said)) = parse_dict(&format!("{{'{long}': 1}}")) else {
            panic!("no such key")
        };
        assert_eq!(said, format!("unknown key {cut}"));
    }
}
