//! What a machine has to have, so that tests which need it fail where they would be skipped.

/// Whether `CAUSEWAY_TEST_REQUIRE` names it.
pub fn is_required(name: &str) -> bool {
    names(&std::env::var("CAUSEWAY_TEST_REQUIRE").unwrap_or_default(), name)
}

/// Whether a list of requirements names it.
///
/// # Panics
/// If the list has one that no test knows: the tests that were meant would be skipped.
pub fn names(list: &str, name: &str) -> bool {
    const KNOWN: [&str; 5] = ["clang", "nvrtc", "hiprtc", "cuda", "hip"];
    let mut required = list.split(',').filter(|part| !part.is_empty());
    if let Some(unknown) = required.clone().find(|part| !KNOWN.contains(part)) {
        panic!("CAUSEWAY_TEST_REQUIRE has {unknown:?}: expected some of {}, with commas", KNOWN.join(", "));
    }
    required.any(|part| part == name)
}
