//! npz files that lie.

use causeway::files::Format;
use rawzip::CompressionMethod;

use crate::build::{archive, array, npy, patch, patch_all, read_all, refused};

const FORMAT: Format = Format::Npz;
const STORED: CompressionMethod = CompressionMethod::STORE;
const DEFLATED: CompressionMethod = CompressionMethod::DEFLATE;

/// An archive of one member, `x.npy`.
fn one(member: Vec<u8>) -> Vec<u8> {
    archive(&[("x.npy", member)], STORED)
}

#[test]
fn each_unusable_array_has_its_sentence() {
    let data = [0u8; 8];
    for (member, part) in [
        (Vec::new(), "cut short"),
        (b"PICKLE 1".to_vec(), "magic bytes are missing"),
        (b"\x93NUMPY\x09\x00\x02\x00{}".to_vec(), ".npy version 9"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}".to_vec(), "announces a header of 4294967295 bytes"),
        (npy(&"(".repeat(60_000), &data), "malformed header"),
        (npy("{'descr': '<f4', 'fortran_order': False, }", &data), "key \"shape\" is missing"),
        (array("<u2", "(4,)", &data), "NumPy has no bfloat16"),
        (array("|u1", "(8,)", &data), "has dtype \"|u1\""),
        (array("<c8", "(1,)", &data), "has dtype \"<c8\""),
        (array("=f4", "(2,)", &data), "has dtype \"=f4\""),
        (array("", "(2,)", &data), "has dtype \"\""),
        (array("é", "(2,)", &data), "has dtype"),
        (array("|O", "(1,)", &data), "pickled Python objects"),
        (array("O", "(1,)", &data), "pickled Python objects"),
        (
            npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", &data),
            "structured array",
        ),
        (array("<f4", "(3,)", &data), "needs 12 bytes, but the file gives it 8"),
        (array("<f4", "(1,)", &data), "needs 4 bytes, but the file gives it 8"),
        (array("<f4", "(1, 1, 1, 1, 2)", &data), "has 5 axes"),
        (array("<f4", "(4294967296, 4294967296)", &data), "does not fit the address space"),
        (array("<f4", "(1000000000000,)", &data), "needs 4000000000000 bytes"),
    ] {
        refused(&one(member), FORMAT, part);
    }
}

#[test]
fn members_that_are_no_arrays_are_refused() {
    let member = array("<f4", "(1,)", &[0; 4]);
    refused(&archive(&[("x.txt", member.clone())], STORED), FORMAT, "not a .npy member");
    let image = archive(&[("x.npy", member.clone()), ("y.npy", member.clone())], STORED);
    let renamed = patch_all(&image, b"y.npy", b"x.npy");
    refused(&renamed, FORMAT, "occurs twice");
    let not_utf8 = patch_all(&one(member), b"x.npy", b"\xff.npy");
    refused(&not_utf8, FORMAT, "not UTF-8");
    refused(b"PK", FORMAT, "not a readable npz archive");
    refused(
        b"not a zip at all, but long enough to be searched for one",
        FORMAT,
        "not a readable npz archive",
    );
}

#[test]
fn a_checksum_that_does_not_match_is_refused() {
    let image = one(array("<f4", "(2,)", &[1, 2, 3, 4, 5, 6, 7, 8]));
    refused(&patch(&image, &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2, 3, 4, 5, 6, 7, 9]), FORMAT, "is damaged");
}

/// Where the central directory's entry of the only member begins.
fn directory(image: &[u8]) -> usize {
    image.windows(4).rposition(|window| window == b"PK\x01\x02").expect("a central directory")
}

#[test]
fn sizes_that_deflate_cannot_reach_are_refused_before_they_are_allocated() {
    // 10 GB of f32 zeros, says the array; 10 GB, says the directory; a few dozen bytes, says the file.
    let claimed = 2_500_000_000u64;
    let member = array("<f4", &format!("({claimed},)"), &[0; 64]);
    let mut image = archive(&[("x.npy", member)], DEFLATED);
    let at = directory(&image);
    image[at + 24..at + 28].copy_from_slice(&4_000_000_000u32.to_le_bytes());
    refused(&image, FORMAT, "claims 4000000000 bytes");
}

#[test]
fn a_bomb_that_is_true_to_its_claims_is_refused() {
    // 2 MiB of zeros compress a thousand times; 600 such members claim more than an archive of their size may.
    let member = array("<f4", "(524288,)", &[0; 2 << 20]);
    let names: Vec<String> = (0..600).map(|i| format!("x{i}.npy")).collect();
    let members: Vec<_> = names.iter().map(|name| (name.as_str(), member.clone())).collect();
    let image = archive(&members, DEFLATED);
    assert!(image.len() < 3 << 20);
    let few = archive(&members[..2], DEFLATED);
    assert_eq!(read_all(&few, FORMAT).unwrap().len(), 2, "real arrays of zeros are no bombs");
    refused(&image, FORMAT, "at most");
}

#[test]
fn a_size_smaller_than_the_data_is_refused() {
    let member = array("<f4", "(64,)", &[7; 256]);
    let mut image = archive(&[("x.npy", member)], DEFLATED);
    let at = directory(&image);
    image[at + 24..at + 28].copy_from_slice(&10u32.to_le_bytes());
    refused(&image, FORMAT, "needs 256 bytes, but the file gives it 0");
}

#[test]
fn a_member_that_cannot_be_decoded_is_refused() {
    let image = one(array("<f4", "(2,)", &[3; 8]));
    let at = directory(&image);
    let mut encrypted = image.clone();
    encrypted[at + 8] |= 1;
    refused(&encrypted, FORMAT, "is encrypted");
    let mut method = image.clone();
    method[at + 10] = 12;
    refused(&method, FORMAT, "neither stored nor deflated");
}

#[test]
fn a_directory_that_is_shorter_than_it_says_is_refused() {
    let image = one(array("<f4", "(2,)", &[3; 8]));
    let end = image.len() - 22;
    let mut image = image;
    // Members on this disk, and in all.
    image[end + 8] = 2;
    image[end + 10] = 2;
    refused(&image, FORMAT, "as many members");
}

#[test]
fn a_member_that_reaches_behind_the_members_is_refused() {
    let claimed = 3_200_000_000u32;
    let stored = one(array("<f4", &format!("({},)", (claimed - 128) / 4), &[0; 64]));
    let at = directory(&stored);
    let mut long = stored.clone();
    for place in [20, 24] {
        long[at + place..at + place + 4].copy_from_slice(&claimed.to_le_bytes());
    }
    refused(&long, FORMAT, "overlap");
    let mut deflated = archive(&[("x.npy", array("<f4", "(16,)", &[0; 64]))], DEFLATED);
    let at = directory(&deflated);
    deflated[at + 20..at + 24].copy_from_slice(&claimed.to_le_bytes());
    refused(&deflated, FORMAT, "overlap");
    // Its local header would lie in the directory.
    let mut behind = stored;
    let at = directory(&behind);
    behind[at + 42..at + 46].copy_from_slice(&u32::try_from(at).unwrap().to_le_bytes());
    refused(&behind, FORMAT, "overlap");
}

#[test]
fn a_stream_that_does_not_decode_is_damaged() {
    let mut image = archive(&[("x.npy", array("<f4", "(16,)", &[7; 64]))], DEFLATED);
    // Behind the local header and the name: a block of no type that there is.
    image[30 + 5] = 0x07;
    refused(&image, FORMAT, "is damaged");
}

#[test]
fn overlapping_members_are_refused() {
    let member = array("<f4", "(2,)", &[3; 8]);
    let image = archive(&[("x.npy", member.clone()), ("y.npy", member)], STORED);
    // The second entry of the directory points at the first member's data.
    let at = directory(&image);
    let mut overlapping = image.clone();
    overlapping[at + 42..at + 46].copy_from_slice(&0u32.to_le_bytes());
    let error = read_all(&overlapping, FORMAT).expect_err("overlapping members").to_string();
    assert!(error.contains("overlap") || error.contains("not a readable"), "{error}");
}

fn small_images() -> Vec<Vec<u8>> {
    let members = [("x.npy", array("<f4", "(2, 3)", &[1; 24])), ("n.npy", array("<i8", "(2,)", &[2; 16]))];
    vec![archive(&members, STORED), archive(&members, DEFLATED)]
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for image in small_images() {
        read_all(&image, FORMAT).unwrap();
        for length in 0..image.len() {
            let error = read_all(&image[..length], FORMAT).expect_err("a cut file").to_string();
            assert_eq!(error.lines().count(), 1, "{error:?}");
        }
    }
}

#[test]
fn a_byte_changed_anywhere_never_panics_and_never_asks_for_more_than_the_file() {
    for image in small_images() {
        for at in 0..image.len() {
            for value in [0, 1, b'\'', b'9', 0x7f, 0x80, 0xff] {
                let mut changed = image.clone();
                changed[at] = value;
                if let Ok(tensors) = read_all(&changed, FORMAT) {
                    let elements: usize = tensors.iter().map(|(_, values)| values.len()).sum();
                    assert!(elements <= image.len(), "{elements} elements from {} bytes", image.len());
                }
            }
        }
    }
}
