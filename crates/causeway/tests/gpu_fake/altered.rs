//! Code whose file was altered after it was compiled.

use std::path::Path;

use causeway::backend::gpu::choice::Choice;
use causeway::backend::gpu::{DeviceBuffer, Stream};

use crate::control::{fake, run};
use crate::gpu::scale;
use crate::launches::open;

/// Flips a bit of the last byte of a file: of a cache entry that is code.
fn alter(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
#[ignore = "run by altered_code_does_not_run"]
fn altered_code_is_refused() {
    let device = open();
    let stream = Stream::new(device).unwrap();
    let input = DeviceBuffer::from_host(&stream, &[0; 4096]).unwrap();
    let output = DeviceBuffer::new(&stream, 4096).unwrap();
    let plan = scale(&input, &output, 2.0);
    let first = device.check(&plan).unwrap();
    if std::env::var("CAUSEWAY_CACHE").unwrap() == "readonly" {
        // The entry was altered before this process came, and stays so: the code is compiled, and in no file.
        assert!(first.compiled && first.file.is_none() && first.checks == 0, "{first:?}");
        assert_eq!(first.refused, ["its digest does not match"]);
        assert_eq!(device.check(&plan).unwrap().refused, [""; 0], "it is not compiled again and again");
        return;
    }
    assert!(first.compiled && first.checks == 1 && first.refused.is_empty(), "{first:?}");
    let file = first.file.clone().unwrap();
    assert!(file.contains(first.cache_key.as_ref().unwrap()));
    assert_eq!(device.check(&plan).unwrap(), first);

    alter(Path::new(&file));
    let mended = device.check(&plan).unwrap();
    assert_eq!(mended.refused, [format!("{file}: its digest does not match")]);
    assert_eq!(
        (mended.digest.as_str(), mended.file.as_deref()),
        (first.digest.as_str(), Some(file.as_str()))
    );
    assert_eq!(device.check(&plan).unwrap().refused, [""; 0], "the file is whole again");
    // SAFETY: the fake runs no kernels.
    unsafe { device.launch(&plan, stream.handle(), None) }.unwrap();

    // A server asks for all kernels at once.
    alter(Path::new(&file));
    let all = device.check_all().unwrap();
    let [mended] = all.0.as_slice() else { panic!("{all:?}") };
    assert_eq!((mended.refused.len(), mended.checks), (1, 1), "{mended:?}");
    let again = device.check_all().unwrap();
    assert_eq!((again.0[0].refused.len(), again.0[0].digest.as_str()), (0, first.digest.as_str()));

    // The entry of other code under the same name is whole, and not what is loaded.
    let mut other = plan.clone();
    other.choice = Choice::of_text("", plan.entry(), plan.choice.source() + "// of another name\n");
    let other = device.check(&other).unwrap();
    assert_ne!((&other.id, &other.digest), (&first.id, &first.digest));
    std::fs::remove_file(&file).unwrap();
    let gone = device.check(&plan).unwrap();
    assert!(gone.file.is_none() && gone.checks == 0 && gone.refused.is_empty(), "{gone:?}");
    std::fs::copy(other.file.unwrap(), &file).unwrap();
    let mended = device.check(&plan).unwrap();
    assert_eq!(mended.refused, [format!("{file}: it holds another key")]);
    alter(Path::new(&file));
}

#[test]
fn altered_code_does_not_run() {
    for vendor in ["cuda", "hip"] {
        let cache = tempfile::tempdir().unwrap();
        for mode in ["on", "readonly"] {
            let variables =
                [("CAUSEWAY_CACHE", mode), ("CAUSEWAY_CACHE_DIR", cache.path().to_str().unwrap())];
            run("altered::altered_code_is_refused", vendor, fake(), &variables);
        }
    }
}
