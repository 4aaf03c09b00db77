//! Each check with its seeds, as they are and changed at random. It takes no fuzzer and no build of its own; tests/fuzz looks further.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// Changed inputs of a check; each run has the same.
const CHANGED: usize = 20_000;
const LONGEST: usize = 4096;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Where a piece of `bytes` begins and ends; it may be empty.
    fn piece(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.below(bytes.len() + 1);
        (start, start + self.below((bytes.len() - start).min(64) + 1))
    }

    /// One to eight changes: bits, bytes, numbers at the edges of their types, pieces that leave, are repeated, or come from another seed.
    fn change(&mut self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        const EDGES: [u64; 8] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
        for _ in 0..=self.below(8) {
            let at = self.below(bytes.len().max(1));
            match self.below(7) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
                2 => {
                    let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                    bytes
                        .iter_mut()
                        .skip(at)
                        .zip(&edge[..1 << self.below(4)])
                        .for_each(|(byte, new)| *byte = *new);
                }
                3 => {
                    let (start, end) = self.piece(bytes);
                    bytes.drain(start..end);
                }
                4 => {
                    let (start, end) = self.piece(bytes);
                    let piece = bytes[start..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                5 => {
                    let other = &seeds[self.below(seeds.len())];
                    let (start, end) = self.piece(other);
                    bytes.splice(at..at, other[start..end].iter().copied());
                }
                _ => bytes.extend((0..self.below(64)).map(|_| self.next() as u8)),
            }
        }
        bytes.truncate(LONGEST);
    }
}

fn run(name: &str, check: fn(&[u8])) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("seeds").join(name);
    let mut files: Vec<_> =
        folder.read_dir().expect("seeds").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let seeds: Vec<_> = files.iter().map(|file| std::fs::read(file).expect("a seed")).collect();
    assert!(!seeds.is_empty(), "{} is empty", folder.display());
    let mut random = Random(1);
    let changed = (0..CHANGED).map(|_| {
        let mut input = seeds[random.below(seeds.len())].clone();
        random.change(&mut input, &seeds);
        input
    });
    for input in seeds.iter().cloned().chain(changed) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
            let file = here.join("artifacts").join(name).join(blake3::hash(&input).to_hex().as_str());
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            std::fs::write(&file, &input).expect("a file");
            eprintln!("the input is {}", file.display());
            resume_unwind(panic);
        }
    }
}

macro_rules! tests {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name), causeway_fuzz::$name);
        }
    )*};
}

tests!(safetensors npz tensor_frames text_frames cache_entry suite conv1d gemm);
