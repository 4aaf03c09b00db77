//! Outputs are replaced as a whole or not at all.

use std::fs;

use causeway::files::{self, FileCause, Metadata, TensorFile};
use causeway::{DType, HostTensor};

fn tensor(value: f64) -> HostTensor {
    HostTensor::from_fn(DType::F32, &[4], |_| value).unwrap()
}

#[test]
fn an_existing_file_is_replaced_and_nothing_is_left_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.safetensors");
    for value in [1.0, 2.0] {
        files::write(&path, &[("y", &tensor(value))], &Metadata::new()).unwrap();
        let read = TensorFile::open(&path).unwrap().read("y").unwrap().unwrap();
        assert_eq!(read.to_f64(), [value; 4]);
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_hands_its_permissions_on() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    for (name, mode) in [("private.npz", 0o600), ("shared.safetensors", 0o664), ("read.npz", 0o640)] {
        let path = directory.path().join(name);
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let link = directory.path().join(format!("link-to-{name}"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for path in [&path, &link] {
            files::write(path, &[("y", &tensor(1.0))], &Metadata::new()).unwrap();
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{name}");
        }
    }
}

#[test]
fn a_file_that_is_being_read_can_be_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("same.npz");
    files::write(&path, &[("y", &tensor(1.0))], &Metadata::new()).unwrap();
    let mut open = TensorFile::open(&path).unwrap();
    files::write(&path, &[("y", &tensor(2.0))], &Metadata::new()).unwrap();
    assert_eq!(open.read("y").unwrap().unwrap().to_f64(), [1.0; 4], "the open file is the old one");
}

#[test]
fn a_failure_leaves_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    // A directory cannot be renamed over.
    let path = directory.path().join("taken.npz");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("keep"), "me").unwrap();
    let error = files::write(&path, &[("y", &tensor(1.0))], &Metadata::new()).unwrap_err();
    assert!(matches!(error.cause, FileCause::Io(_)), "{error}");
    assert_eq!(fs::read_to_string(path.join("keep")).unwrap(), "me");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the staged file is gone");
}

#[test]
fn paths_without_a_format_or_a_place_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let error = files::write(&directory.path().join("y.bin"), &[], &Metadata::new()).unwrap_err();
    assert!(matches!(error.cause, FileCause::Extension), "{error}");
    assert!(error.help().unwrap().contains(".safetensors"));
    let nowhere = directory.path().join("no/such/place.npz");
    let error = files::write(&nowhere, &[], &Metadata::new()).unwrap_err();
    assert!(matches!(error.cause, FileCause::Io(_)), "{error}");
    assert!(!error.to_string().contains(".causeway-"), "the temporary name is not the user's: {error}");
    let error = TensorFile::open(&nowhere).unwrap_err();
    assert!(error.to_string().contains("place.npz"), "{error}");
}

#[cfg(unix)]
#[test]
fn devices_and_links_are_written_through() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let (target, link) = (directory.path().join("target.npz"), directory.path().join("link.npz"));
    files::write(&target, &[("y", &tensor(1.0))], &Metadata::new()).unwrap();
    symlink(&target, &link).unwrap();
    files::write(&link, &[("y", &tensor(2.0))], &Metadata::new()).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(TensorFile::open(&target).unwrap().read("y").unwrap().unwrap().to_f64(), [2.0; 4]);

    // Links to a file that is not there yet, one by the other, relative to where they are.
    let (first, second) = (directory.path().join("first.npz"), directory.path().join("second.npz"));
    symlink("second.npz", &first).unwrap();
    symlink("new.npz", &second).unwrap();
    files::write(&first, &[("y", &tensor(3.0))], &Metadata::new()).unwrap();
    assert!([&first, &second].into_iter().all(|link| fs::symlink_metadata(link).unwrap().is_symlink()));
    let made = directory.path().join("new.npz");
    assert_eq!(TensorFile::open(&made).unwrap().read("y").unwrap().unwrap().to_f64(), [3.0; 4]);

    let null = directory.path().join("null.npz");
    symlink("/dev/null", &null).unwrap();
    files::write(&null, &[("y", &tensor(1.0))], &Metadata::new()).unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}
