//! Pipes that large frames go through with one copy instead of two.
//!
//! `write` copies a frame into the pipe's pages, and the reader copies it out of them. A pipe on Linux also takes the
//! pages of a process as they are (`vmsplice`): the reader then copies out of these. What is lent so must stay as it is
//! until it has been read. Three kinds of memory do: that of a caller who waits for the answer to it; pages that nobody
//! writes to again before they go back to the system; and those that are written to when the reader has said that it has
//! them.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};

/// Bytes that small writes and reads are gathered in.
const BUFFER: usize = 1 << 16;

/// Smaller pieces are copied: there is little to save.
#[cfg(target_os = "linux")]
const LENT_FROM: usize = 1 << 18;

/// What a pipe holds, instead of the 64 KiB of most systems, with which large frames change processes a thousand times.
/// It is the most that Linux gives to everybody unless told otherwise.
#[cfg(target_os = "linux")]
const CAPACITY: usize = 1 << 20;

/// A writer that may take memory as it is instead of copying it.
pub trait Lend: Write {
    /// Writes bytes, and says whether their memory has to stay as it is until the reader has them.
    ///
    /// # Errors
    /// As for [`Write::write_all`].
    fn lend(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.write_all(bytes).map(|()| false)
    }
}

/// Sockets and files copy.
impl<W: Write> Lend for BufWriter<W> {}

/// For tests of a service without a process.
impl Lend for Vec<u8> {}

/// The writing end of a pipe, with a buffer.
#[derive(Debug)]
pub struct PipeWriter {
    buffer: BufWriter<File>,
    lends: bool,
}

impl PipeWriter {
    /// Takes the writing end of a pipe; anything else that is written to works too, and copies.
    pub fn new(pipe: File) -> Self {
        widen(&pipe);
        PipeWriter { lends: can_be_lent_to(&pipe), buffer: BufWriter::with_capacity(BUFFER, pipe) }
    }

    /// True if nothing is left in the pipe, or nobody can tell.
    pub(super) fn is_drained(&self) -> bool {
        #[cfg(target_os = "linux")]
        if self.lends {
            return rustix::io::ioctl_fionread(self.buffer.get_ref()).is_ok_and(|left| left == 0);
        }
        true
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.buffer.flush()
    }
}

impl Lend for PipeWriter {
    #[cfg(target_os = "linux")]
    fn lend(&mut self, bytes: &[u8]) -> io::Result<bool> {
        use rustix::io::Errno;
        use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};

        let mut left = bytes;
        while self.lends && left.len() >= LENT_FROM {
            // What was written before comes before.
            self.buffer.flush()?;
            // SAFETY: this is a writing end, so memory is read, and by the kernel alone. What happens to that memory
            // after this borrow changes bytes in the pipe and nothing else.
            match unsafe {
                vmsplice(self.buffer.get_ref(), &[IoSliceRaw::from_slice(left)], SpliceFlags::empty())
            } {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(lent) => left = &left[lent..],
                Err(Errno::INTR) => {}
                // No pipe, or a system without the call.
                Err(Errno::BADF | Errno::INVAL | Errno::NOSYS | Errno::PERM) => self.lends = false,
                Err(error) => return Err(error.into()),
            }
        }
        self.buffer.write_all(left)?;
        Ok(left.len() < bytes.len())
    }
}

/// stdin and stdout as a server reads and writes them: without the buffers, meant for lines, that the standard library
/// puts before them.
///
/// # Errors
/// What the operating system says.
#[cfg(unix)]
pub fn standard_pipes() -> io::Result<(BufReader<File>, PipeWriter)> {
    use std::os::fd::AsFd;
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok((reader(input.into()), PipeWriter::new(output.into())))
}

/// As on Unix.
///
/// # Errors
/// What the operating system says.
#[cfg(windows)]
pub fn standard_pipes() -> io::Result<(BufReader<File>, PipeWriter)> {
    use std::os::windows::io::AsHandle;
    let input = io::stdin().as_handle().try_clone_to_owned()?;
    let output = io::stdout().as_handle().try_clone_to_owned()?;
    Ok((reader(input.into()), PipeWriter::new(output.into())))
}

/// The pipes to a child's stdin and from its stdout.
#[cfg(unix)]
pub(super) fn pipes_of(
    input: std::process::ChildStdin,
    output: std::process::ChildStdout,
) -> (PipeWriter, BufReader<File>) {
    use std::os::fd::OwnedFd;
    (PipeWriter::new(OwnedFd::from(input).into()), reader(OwnedFd::from(output).into()))
}

/// As on Unix.
#[cfg(windows)]
pub(super) fn pipes_of(
    input: std::process::ChildStdin,
    output: std::process::ChildStdout,
) -> (PipeWriter, BufReader<File>) {
    use std::os::windows::io::OwnedHandle;
    (PipeWriter::new(OwnedHandle::from(input).into()), reader(OwnedHandle::from(output).into()))
}

fn reader(pipe: File) -> BufReader<File> {
    widen(&pipe);
    BufReader::with_capacity(BUFFER, pipe)
}

/// A reading end would be written from, into memory that is borrowed to be read.
#[cfg(target_os = "linux")]
fn can_be_lent_to(pipe: &File) -> bool {
    use rustix::fs::OFlags;
    let mode = rustix::fs::fcntl_getfl(pipe).map(|flags| flags & OFlags::RWMODE);
    mode.is_ok_and(|mode| mode == OFlags::WRONLY || mode == OFlags::RDWR)
}

/// Elsewhere memory is copied.
#[cfg(not(target_os = "linux"))]
fn can_be_lent_to(_: &File) -> bool {
    false
}

/// Lets a pipe hold [`CAPACITY`].
#[cfg(target_os = "linux")]
fn widen(pipe: &File) {
    // Refused for what is not a pipe, and past the system's limit; the pipe then stays as it is.
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, CAPACITY);
}

/// Elsewhere pipes are as large as they are.
#[cfg(not(target_os = "linux"))]
fn widen(_: &File) {}
