//! The cache under damage, races, kills and directories that cannot be written.

use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use super::*;

const INGREDIENTS: &str = "entry  scale\n";
const CODE: &[u8] = b"\x7fELF and then some code, long enough to be cut in many places";

fn key(text: &str) -> CacheKey {
    CacheKey::of([text.as_bytes()])
}

fn get(cache: &Cache, key: CacheKey) -> (Vec<u8>, Origin) {
    cache.get_or_compile(key, INGREDIENTS, || Ok(CODE.to_vec())).unwrap()
}

fn quarantined(cache: &Cache) -> usize {
    cache.directory.join("quarantine").read_dir().map_or(0, Iterator::count)
}

#[test]
fn fields_of_a_key_do_not_run_together() {
    let of = |fields: &[&str]| CacheKey::of(fields.iter().map(|f| f.as_bytes()));
    assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
    assert_ne!(of(&["ab"]), of(&["ab", ""]));
    assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
}

#[test]
fn what_was_stored_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    assert_eq!(get(&cache, key("a")), (CODE.to_vec(), Origin::Compiled));
    assert_eq!(get(&Cache::at(directory.path()), key("a")), (CODE.to_vec(), Origin::Disk));
    assert_eq!(get(&cache, key("b")).1, Origin::Compiled);
    assert_eq!(cache.entries().len(), 2);
}

#[test]
fn a_failed_compilation_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    let failed = || Err(Error::UnknownDevice { found: "x".to_string() });
    assert!(cache.get_or_compile(key("a"), INGREDIENTS, failed).is_err());
    assert_eq!(get(&cache, key("a")).1, Origin::Compiled);
}

/// Puts `bytes` in the place of an entry and expects it to be set aside and built again.
fn expect_rebuilt(cache: &Cache, name: CacheKey, bytes: &[u8], what: &str) {
    let _ = fs::remove_dir_all(cache.directory.join("quarantine"));
    fs::write(cache.file(name), bytes).unwrap();
    assert_eq!(get(cache, name), (CODE.to_vec(), Origin::Compiled), "{what}");
    assert_eq!(quarantined(cache), 1, "{what}");
    assert_eq!(get(cache, name), (CODE.to_vec(), Origin::Disk), "{what}");
}

#[test]
fn an_entry_cut_anywhere_is_built_again() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    let name = key("a");
    get(&cache, name);
    let whole = fs::read(cache.file(name)).unwrap();
    for length in 0..whole.len() {
        expect_rebuilt(&cache, name, &whole[..length], &format!("cut to {length} bytes"));
    }
    expect_rebuilt(&cache, name, &[&whole[..], b"x"].concat(), "one byte more");
}

#[test]
fn any_flipped_bit_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    let name = key("a");
    get(&cache, name);
    let whole = fs::read(cache.file(name)).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(parse(&flipped, Some(name)).is_err(), "bit {bit}");
    }
    // Through the files, one of each byte.
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        expect_rebuilt(&cache, name, &flipped, &format!("byte {at}"));
    }
}

#[test]
fn an_entry_of_another_key_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    get(&cache, key("a"));
    let other = fs::read(cache.file(key("a"))).unwrap();
    fs::create_dir_all(&cache.directory).unwrap();
    expect_rebuilt(&cache, key("b"), &other, "renamed");
}

#[test]
fn quarantine_keeps_the_last_few() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    get(&cache, key("a"));
    for _ in 0..QUARANTINE_ENTRIES + 5 {
        fs::write(cache.file(key("a")), "damaged").unwrap();
        get(&cache, key("a"));
    }
    assert_eq!(quarantined(&cache), QUARANTINE_ENTRIES);
}

#[test]
fn threads_that_race_compile_once() {
    let directory = tempfile::tempdir().unwrap();
    let compiled = AtomicUsize::new(0);
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cache = Cache::at(directory.path());
                barrier.wait();
                let compile = || {
                    compiled.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(50));
                    Ok(CODE.to_vec())
                };
                assert_eq!(cache.get_or_compile(key("a"), INGREDIENTS, compile).unwrap().0, CODE);
            });
        }
    });
    assert_eq!(compiled.load(Ordering::Relaxed), 1);
    let locks = Cache::at(directory.path()).directory.join("locks");
    assert_eq!(locks.read_dir().unwrap().count(), 0, "lock files are removed");
}

#[test]
fn a_directory_without_locks_still_works() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    fs::create_dir_all(&cache.directory).unwrap();
    fs::write(cache.directory.join("locks"), "a file where the directory should be").unwrap();
    assert_eq!(get(&cache, key("a")).1, Origin::Compiled);
    assert_eq!(get(&cache, key("a")).1, Origin::Disk);
}

#[test]
fn read_only_reads_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    get(&Cache::at(directory.path()), key("a"));
    let cache = Cache::read_only(directory.path());
    assert_eq!(get(&cache, key("a")).1, Origin::Disk);
    assert_eq!(get(&cache, key("b")).1, Origin::Compiled);
    assert_eq!(get(&cache, key("b")).1, Origin::Compiled);
    fs::write(cache.file(key("a")), "damaged").unwrap();
    assert_eq!(get(&cache, key("a")), (CODE.to_vec(), Origin::Compiled));
    assert_eq!((cache.entries().len(), quarantined(&cache)), (1, 0));
    assert_eq!(fs::read(cache.file(key("a"))).unwrap(), b"damaged");
    cache.store_note("note", "text");
    assert_eq!(cache.note("note"), None);
}

#[test]
fn off_neither_reads_nor_writes() {
    let cache = Cache::off();
    assert_eq!(get(&cache, key("a")).1, Origin::Compiled);
    assert_eq!(get(&cache, key("a")).1, Origin::Compiled);
    assert_eq!(cache.directory(), None);
    assert!(cache.explain("aa").unwrap_err().to_string().contains("off"));
}

#[test]
fn a_place_that_cannot_be_written_means_compile_and_go_on() {
    let directory = tempfile::tempdir().unwrap();
    // A file where the cache should be: not even root can make a directory of it.
    let file = directory.path().join("file");
    fs::write(&file, "text").unwrap();
    let cache = Cache::at(&file);
    for _ in 0..2 {
        assert_eq!(get(&cache, key("a")), (CODE.to_vec(), Origin::Compiled));
    }
    assert!(cache.warned.load(Ordering::Relaxed));
}

#[cfg(unix)]
#[test]
fn a_directory_without_permission_means_compile_and_go_on() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    get(&cache, key("a"));
    fs::set_permissions(&cache.directory, fs::Permissions::from_mode(0o555)).unwrap();
    assert_eq!(get(&cache, key("a")).1, Origin::Disk);
    assert_eq!(get(&cache, key("b")), (CODE.to_vec(), Origin::Compiled));
    // Root may write anyway; nobody else.
    let root_wrote = cache.file(key("b")).exists();
    assert!(root_wrote || cache.warned.load(Ordering::Relaxed));
    fs::set_permissions(&cache.directory, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn explain_finds_an_entry_by_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    let name = key("a");
    get(&cache, name);
    let text = cache.explain(&name.to_string()[..8]).unwrap();
    assert!(text.starts_with(INGREDIENTS) && text.contains(&format!("{} bytes", CODE.len())), "{text}");
    assert!(cache.explain("zz").unwrap_err().to_string().contains("no entry"));
    assert!(cache.explain("").is_err());
    fs::write(cache.file(name), "damaged").unwrap();
    assert!(cache.explain(&name.to_string()).unwrap_err().to_string().contains("damaged"));
}

#[test]
fn staged_files_of_killed_processes_are_removed_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path());
    get(&cache, key("a"));
    let (old, new) = (cache.directory.join(".stage-old"), cache.directory.join(".stage-new"));
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    let long_ago = SystemTime::now() - Duration::from_secs(3660);
    File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    get(&cache, key("b"));
    assert!(!old.exists() && new.exists());
}

// ---- other processes ----------------------------------------------------------------------------

/// Environment of a child: the cache's directory, and the number of entries to ask for.
const DIRECTORY: &str = "CAUSEWAY_TEST_CACHE";
const ENTRIES: usize = 40;

/// Code that only a whole entry has: its length and content follow from its number.
fn code_of(number: usize) -> Vec<u8> {
    (0..20_000 + number * 997).map(|i| (i * (number + 3) % 251) as u8).collect()
}

/// This test binary again, running only `work_of_a_child`, with a shell's preparation before it.
fn child(directory: &Path, preparation: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{preparation} exec \"$0\" --exact \"$1\" --ignored --nocapture"))
        .arg(env::current_exe().unwrap())
        .arg(concat!(module_path!(), "::work_of_a_child").split_once("::").unwrap().1)
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "run by the tests below, in processes of their own"]
fn work_of_a_child() {
    let cache = Cache::at(env::var_os(DIRECTORY).unwrap());
    let mut compiled = 0;
    for number in 0..ENTRIES {
        let name = key(&number.to_string());
        let (code, origin) = cache.get_or_compile(name, INGREDIENTS, || Ok(code_of(number))).unwrap();
        assert!(code == code_of(number), "entry {number} is not whole");
        compiled += usize::from(origin == Origin::Compiled);
    }
    println!("compiled={compiled} warned={}", cache.warned.load(Ordering::Relaxed));
}

/// What a child printed; fails with its output if it failed.
fn report(output: std::process::Output) -> (usize, bool) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let field = |name: &str| {
        let at = text.find(name).unwrap_or_else(|| panic!("no {name} in {text}")) + name.len();
        text[at..].split_whitespace().next().unwrap().to_string()
    };
    (field("compiled=").parse().unwrap(), field("warned=") == "true")
}

#[cfg(unix)]
#[test]
fn processes_that_race_compile_each_entry_once() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..6).map(|_| child(directory.path(), "").spawn().unwrap()).collect();
    let compiled: usize = children.into_iter().map(|child| report(child.wait_with_output().unwrap()).0).sum();
    assert_eq!(compiled, ENTRIES);
    assert_eq!(Cache::at(directory.path()).entries().len(), ENTRIES);
}

#[cfg(unix)]
#[test]
fn a_killed_process_leaves_a_cache_that_works() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let mut process = child(directory.path(), "").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 + round * 7));
        process.kill().unwrap();
        process.wait().unwrap();
        // Every entry that has a name is whole.
        for path in Cache::at(directory.path()).entries() {
            assert!(parse(&fs::read(&path).unwrap(), None).is_ok(), "{}", path.display());
        }
        if round % 3 == 0 {
            let _ = fs::remove_dir_all(directory.path().join(format!("v{FORMAT}")));
        }
    }
    let (_, warned) = report(child(directory.path(), "").output().unwrap());
    assert!(!warned);
    assert_eq!(report(child(directory.path(), "").output().unwrap()).0, 0, "nothing is left to compile");
}

#[cfg(unix)]
#[test]
fn a_full_disk_means_compile_and_go_on() {
    let directory = tempfile::tempdir().unwrap();
    // No file may grow past 16 KiB, and writing more is an error instead of a signal.
    let limit = "trap '' XFSZ; ulimit -f 32;";
    let (compiled, warned) = report(child(directory.path(), limit).output().unwrap());
    assert_eq!((compiled, warned), (ENTRIES, true));
    let cache = Cache::at(directory.path());
    assert_eq!(cache.entries(), Vec::<PathBuf>::new(), "no entry in part");
    let staged = cache.directory.read_dir().unwrap().flatten();
    assert_eq!(staged.filter(|e| e.file_name().to_string_lossy().starts_with(".stage-")).count(), 0);
    // With room again, everything is kept.
    assert_eq!(report(child(directory.path(), "").output().unwrap()), (ENTRIES, false));
    assert_eq!(report(child(directory.path(), "").output().unwrap()), (0, false));
}
