//! Files that are kept from one process to the next: each with its digest beside it, and made where no one looks.

use std::path::{Path, PathBuf};

use causeway::{Error, Result};

/// What the file system says of a file or a folder that the simulator needs.
pub(crate) fn file_error(what: &str, error: &std::io::Error) -> Error {
    Error::SimulatorCompiler { message: format!("{what}: {error}") }
}

/// How the names of folders begin in which files are made.
const STAGE: &str = ".stage-";

/// How those of files begin that are written beside their place, as `causeway::files` does.
const WRITTEN: &str = ".causeway-";

/// A folder for what is being made, removed when dropped.
pub(crate) fn stage(folder: &Path) -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(STAGE).tempdir_in(folder)
}

/// Removes what killed processes left behind. Only stages are folders: any other one is somebody's own.
pub(crate) fn remove_stale(folder: &Path) {
    causeway::files::remove_stale(folder, |name, entry| {
        name.starts_with(if entry.is_dir() { STAGE } else { WRITTEN })
    });
}

/// Beside each object stands the digest that it had when it was compiled.
pub(crate) fn seal_path(object: &Path) -> PathBuf {
    object.with_extension("b3")
}

pub(crate) fn digest_of(path: &Path) -> std::io::Result<blake3::Hash> {
    Ok(blake3::hash(&std::fs::read(path)?))
}

/// The object's digest, if it is the one that it had when it was compiled.
pub(crate) fn trusted(path: &Path) -> Option<blake3::Hash> {
    let sealed = std::fs::read_to_string(seal_path(path)).ok()?;
    let found = digest_of(path).ok()?;
    (found.to_hex().as_str() == sealed.trim()).then_some(found)
}

/// Writes down the digest of an object that was just compiled.
pub(crate) fn trust(path: &Path) -> Result<blake3::Hash> {
    let failed = |error: std::io::Error| file_error(&path.display().to_string(), &error);
    let digest = digest_of(path).map_err(failed)?;
    causeway::files::write_bytes(&seal_path(path), format!("{}\n", digest.to_hex()).as_bytes())
        .map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir, write};
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn what_killed_processes_left_behind_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        // Name, whether it is a folder, hours since it was touched, and whether it stays.
        let table = [
            (".stage-killed", true, 2, false),
            (".stage-at-work", true, 0, true),
            (".causeway-killed", false, 2, false),
            (".causeway-at-work", false, 0, true),
            (".causeway-mine", true, 2, true),
            (".stage-mine", false, 2, true),
            ("0123.so", false, 2, true),
            ("mine", true, 2, true),
        ];
        for (name, is_folder, hours, _) in table {
            let path = folder.path().join(name);
            if is_folder {
                create_dir(&path).unwrap();
                write(path.join("unit.out"), "half of it").unwrap();
            } else {
                write(&path, "").unwrap();
            }
            let then = SystemTime::now() - Duration::from_secs(3600 * hours);
            File::open(&path).unwrap().set_modified(then).unwrap();
        }
        remove_stale(folder.path());
        for (name, _, _, stays) in table {
            assert_eq!(folder.path().join(name).exists(), stays, "{name}");
        }
    }
}
