//! The program that ran: on a processor, its code is what computed.

use std::fs::File;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The file that this code was loaded from: the command, or Python's extension module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The file.
    pub file: String,
    /// Its BLAKE3 digest before the first case.
    pub digest: String,
    /// Its digest after the last case, where that is another one.
    pub changed_to: Option<String>,
}

impl Program {
    /// Reads the file. None where the system does not tell which one it is.
    pub fn read() -> Option<Self> {
        let (file, digest) = (own_file()?, own_digest()?);
        Some(Program { file: file.display().to_string(), digest, changed_to: None })
    }

    /// Reads the file again.
    pub fn read_again(&mut self) {
        let now = own_digest().unwrap_or_else(|| "the file cannot be read any more".to_string());
        self.changed_to = (now != self.digest).then_some(now);
    }
}

fn own_digest() -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(own_file()?).ok()?).ok()?;
    Some(hasher.finalize().to_hex().to_string())
}

/// The mapped file that holds this function, else the process's program.
fn own_file() -> Option<PathBuf> {
    mapped_file(own_file as fn() -> Option<PathBuf> as usize as u64).or_else(|| std::env::current_exe().ok())
}

/// The file that is mapped at an address, as Linux lists it.
fn mapped_file(address: u64) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        let bound = |text| u64::from_str_radix(text, 16).ok();
        // Flags, offset, device, inode; what follows is the path.
        let path = rest.splitn(5, ' ').nth(4)?.trim_start();
        ((bound(begin)?..bound(end)?).contains(&address) && path.starts_with('/'))
            .then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_found_and_digested() {
        let mut program = Program::read().unwrap();
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(program.digest, blake3::hash(&bytes).to_hex().to_string());
        program.read_again();
        assert_eq!(program.changed_to, None);
        program.digest = "another".to_string();
        program.read_again();
        assert!(program.changed_to.is_some());
    }
}
