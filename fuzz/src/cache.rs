//! Entries of the kernel cache. Inputs that begin with an odd byte get a digest that matches: only then do their other fields count.

use std::cell::OnceCell;

use causeway::Error;
use causeway::backend::gpu::cache::Cache;

/// Bytes of the header before the digest, and with it.
const DIGESTED: usize = 60;
const HEADER: usize = 92;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

pub fn check(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let mut entry = rest.to_vec();
    let whole = first % 2 == 1 && entry.len() >= HEADER;
    if whole {
        entry[..8].copy_from_slice(b"CAUSEWAY");
        entry[8..12].copy_from_slice(&1u32.to_le_bytes());
        let digest = blake3::Hasher::new().update(&entry[..DIGESTED]).update(&entry[HEADER..]).finalize();
        entry[DIGESTED..HEADER].copy_from_slice(digest.as_bytes());
    }
    FOLDER.with(|folder| {
        // In memory where that is possible: a file system would sync each replaced file.
        let folder = folder.get_or_init(|| {
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
        });
        let cache = Cache::at(folder.path());
        let directory = cache.directory().expect("it is on");
        std::fs::create_dir_all(directory).expect("a folder");
        std::fs::write(directory.join("0123.kernel"), &entry).expect("a file");
        match cache.explain("0123") {
            Ok(text) => assert!(whole && text.contains("code"), "{text}"),
            Err(Error::CacheEntry { because, .. }) => assert!(because.contains("damaged"), "{because}"),
            Err(other) => panic!("{other}"),
        }
    });
}
