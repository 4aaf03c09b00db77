//! Frames: a little-endian `u32` byte count, then that many bytes.

use std::io::{self, ErrorKind, Read, Write};

/// Why no further frame can be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// The input ended inside a byte count.
    #[error("the input ended inside a frame's byte count: {found} of 4 bytes came")]
    Count {
        /// Bytes that came.
        found: usize,
    },
    /// The input ended inside a payload.
    #[error("the input ended inside a frame: {missing} bytes are missing")]
    Payload {
        /// Bytes that did not come.
        missing: u64,
    },
    /// The input cannot be read.
    #[error("the input cannot be read: {0}")]
    Input(#[source] io::Error),
    /// The output cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The next frame's byte count; `None` at the end of the input.
pub(super) fn read_count(input: &mut impl Read) -> Result<Option<u32>, Interrupted> {
    let mut count = [0; 4];
    let mut found = 0;
    while found < count.len() {
        match input.read(&mut count[found..]) {
            Ok(0) if found == 0 => return Ok(None),
            Ok(0) => return Err(Interrupted::Count { found }),
            Ok(read) => found += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Interrupted::Input(error)),
        }
    }
    Ok(Some(u32::from_le_bytes(count)))
}

/// The payload of a frame as a reader that ends where the payload does.
pub(super) struct Payload<'a, R> {
    input: &'a mut R,
    left: u64,
    cut: bool,
}

impl<'a, R: Read> Payload<'a, R> {
    pub fn new(input: &'a mut R, count: u32) -> Self {
        Payload { input, left: count.into(), cut: false }
    }

    /// Passes over what has not been read, in constant memory.
    pub fn finish(mut self) -> Result<(), Interrupted> {
        if !self.cut {
            io::copy(&mut self, &mut io::sink()).map_err(Interrupted::Input)?;
        }
        if self.left == 0 { Ok(()) } else { Err(Interrupted::Payload { missing: self.left }) }
    }
}

impl<R: Read> Read for Payload<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            // A buffered input would wait for the next frame before it reads nothing.
            return Ok(0);
        }
        let read = self.input.read(&mut buffer[..most])?;
        self.cut |= read == 0;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Reads a whole frame; `None` at the end of the input. Memory grows with what comes, not with what the count claims.
///
/// # Errors
/// [`Interrupted`] if the input ends inside the frame or cannot be read.
pub fn read_frame(input: &mut impl Read) -> Result<Option<Vec<u8>>, Interrupted> {
    let Some(count) = read_count(input)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let mut payload = Payload::new(input, count);
    payload.read_to_end(&mut bytes).map_err(Interrupted::Input)?;
    payload.finish()?;
    Ok(Some(bytes))
}

/// Writes a frame and flushes.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a payload of 4 GiB or more, else those of the writer.
pub fn write_frame(output: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    write_count(output, payload.len() as u64)?;
    output.write_all(payload)?;
    output.flush()
}

pub(super) fn write_count(output: &mut impl Write, length: u64) -> io::Result<()> {
    let count = u32::try_from(length)
        .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "a frame holds less than 4 GiB"))?;
    output.write_all(&count.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were() {
        let mut bytes = Vec::new();
        for payload in [&b""[..], b"one", &[7; 70_000]] {
            write_frame(&mut bytes, payload).unwrap();
        }
        let mut input = &bytes[..];
        assert_eq!(read_frame(&mut input).unwrap().unwrap(), b"");
        assert_eq!(read_frame(&mut input).unwrap().unwrap(), b"one");
        assert_eq!(read_frame(&mut input).unwrap().unwrap(), [7; 70_000]);
        assert!(read_frame(&mut input).unwrap().is_none());
    }

    #[test]
    fn a_cut_frame_says_where() {
        let mut frame = Vec::new();
        write_frame(&mut frame, b"payload").unwrap();
        for cut in 1..frame.len() {
            let error = read_frame(&mut &frame[..cut]).unwrap_err();
            match cut {
                1..4 => assert!(matches!(error, Interrupted::Count { found } if found == cut), "{error}"),
                _ => {
                    let missing = (frame.len() - cut) as u64;
                    assert!(matches!(error, Interrupted::Payload { missing: m } if m == missing), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_count_that_lies_allocates_nothing_for_it() {
        let mut input = [0xff, 0xff, 0xff, 0xff, 1, 2, 3].as_slice();
        let error = read_frame(&mut input).unwrap_err();
        assert!(matches!(error, Interrupted::Payload { missing } if missing == u64::from(u32::MAX) - 3));
    }
}
