//! Writing a file as a whole or not at all.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Lets `write` fill a file beside `path`, syncs it, and renames it into place. Until the rename, whatever is
/// at `path` stays as it was; if anything fails, the new file is removed.
///
/// A file that is replaced hands its permissions on. A path that exists and is no regular file (`/dev/null`, a pipe) is
/// written through instead of replaced.
pub(super) fn replace<F>(path: &Path, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
{
    match fs::metadata(path) {
        Ok(existing) if !existing.is_file() && !existing.is_dir() => return write_through(path, write),
        _ => {}
    }
    let path = linked(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".causeway-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Less the umask, like any other new file; tempfile's own default is 0600.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let directory = directory_of(&path);
    // A directory that is not there is named by the system, not by the temporary file in it.
    fs::metadata(directory)?;
    let staged = builder.tempfile_in(directory).map_err(without_path)?;
    // Before anything is in it: what was private stays so all the time.
    if let Some(existing) = fs::metadata(&path).ok().filter(fs::Metadata::is_file) {
        staged.as_file().set_permissions(existing.permissions())?;
    }
    fill(staged.as_file(), write)?;
    staged.as_file().sync_all()?;
    staged.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// Where symbolic links lead: a link stays one, and the file that it names is replaced, or made if there is none.
fn linked(path: &Path) -> PathBuf {
    /// More than systems follow.
    const LINKS: usize = 64;
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = directory_of(&path).join(target),
            Err(_) => break,
        }
    }
    path
}

fn write_through<F>(path: &Path, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
{
    // Staged all the same: a part of a file is worse than none.
    let mut staged = tempfile::tempfile()?;
    fill(&staged, write)?;
    staged.seek(SeekFrom::Start(0))?;
    io::copy(&mut staged, &mut OpenOptions::new().write(true).open(path)?)?;
    Ok(())
}

fn fill<F>(file: &File, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
{
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    write(&mut writer)?;
    writer.flush()
}

/// The kind of an error alone: tempfile adds the name of its file, and nobody has asked for it.
fn without_path(error: io::Error) -> io::Error {
    error.kind().into()
}

/// The directory that a file of this path lies in: `.` for a name alone.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes entries of a folder that are an hour old, and so belong to a process that was killed, if `is_left` knows them as its
/// own by name and kind.
pub fn remove_stale(folder: &Path, is_left: impl Fn(&str, &Metadata) -> bool) {
    const LIFE: Duration = Duration::from_secs(3600);
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        // Of the entry itself, not of what a link names.
        let Ok(metadata) = entry.metadata() else { continue };
        let age = metadata.modified().map(|time| time.elapsed().unwrap_or_default());
        if !is_left(&entry.file_name().to_string_lossy(), &metadata) || !age.is_ok_and(|age| age > LIFE) {
            continue;
        }
        // Another process may be quicker.
        let _ = match metadata.is_dir() {
            true => fs::remove_dir_all(entry.path()),
            false => fs::remove_file(entry.path()),
        };
    }
}
