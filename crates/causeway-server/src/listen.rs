//! A server on a Unix socket, for several clients of one user.

use std::fs::DirEntry;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway::files::{directory_of, remove_stale};

use super::frame::Interrupted;
use super::service::Service;

/// Clients that are served at a time. One more is told so, and its connection ends.
pub const MAX_CLIENTS: usize = 64;

/// A client that takes no bytes of its reply for so long is dropped, so that it does not hold memory for ever.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How the names of directories begin in which sockets are made, and what the socket is called there.
const PRIVATE: (&str, &str) = (".causeway-", "s");

/// A socket in the file system that only its owner can connect to. Dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    write_timeout: Duration,
}

impl Listener {
    /// Makes the socket, with mode 0600. What a killed server left behind is replaced or removed.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if a server answers there, [`ErrorKind::AlreadyExists`] if something else than a socket
    /// has the name, or what the operating system says.
    pub fn bind(path: &Path) -> io::Result<Self> {
        // The socket is made in a directory that nobody else can enter, and gets its mode and its place after that:
        // it is never open to others.
        let directory = directory_of(path);
        check_length(path, directory)?;
        remove_left_behind(path)?;
        // A directory that is not there is named by the system.
        std::fs::metadata(directory)?;
        let private = tempfile::Builder::new()
            .prefix(PRIVATE.0)
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(directory)
            // The kind alone: tempfile adds the name of its directory, and nobody has asked for it.
            .map_err(|error| io::Error::from(error.kind()))?;
        remove_abandoned(directory, private.path().metadata()?.uid());
        let made = private.path().join(PRIVATE.1);
        let socket = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&made, path)?;
        Ok(Listener { socket, path: path.to_path_buf(), write_timeout: WRITE_TIMEOUT })
    }

    /// The same, with another time than 30 seconds after which a client that takes nothing of its reply is dropped.
    #[must_use]
    pub fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Serves clients, each on a thread of its own, until the process ends. Requests are answered in the order in
    /// which they came, whoever sent them: a client with many waits behind one with few.
    ///
    /// # Errors
    /// What the operating system says about the socket.
    pub fn serve(&self, service: &Arc<Service>) -> io::Result<()> {
        let clients = Arc::new(AtomicUsize::new(0));
        for stream in self.socket.incoming() {
            let stream = match stream {
                Ok(stream) => stream,
                // About one client, or a shortage that passes: the server lives on.
                Err(error) => {
                    tracing::warn!("a client could not connect: {error}");
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
            };
            if let Err(error) = admit(&stream) {
                tracing::warn!("a client was turned away: {error}");
                continue;
            }
            let Some(slot) = Slot::take(&clients) else {
                tracing::warn!("a client was turned away: {MAX_CLIENTS} are being served");
                turn_away(service, &stream);
                continue;
            };
            let (service, timeout) = (Arc::clone(service), self.write_timeout);
            let started = std::thread::Builder::new().name("client".to_string()).spawn(move || {
                let _slot = slot;
                converse(&service, &stream, timeout);
            });
            if let Err(error) = started {
                tracing::warn!("a client was turned away: {error}");
            }
        }
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody may have removed it before.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket that nobody listens on.
fn remove_left_behind(path: &Path) -> io::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if !metadata.file_type().is_socket() {
        let message = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, message));
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            let message = format!("a server answers on {} already", path.display());
            Err(io::Error::new(ErrorKind::AddrInUse, message))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Removes the directories of servers of `user` that were killed while they made their sockets. One that holds anything else
/// than such a socket stays.
fn remove_abandoned(directory: &Path, user: u32) {
    let is_socket = |file: io::Result<DirEntry>| {
        file.is_ok_and(|file| {
            file.file_name() == PRIVATE.1 && file.file_type().is_ok_and(|kind| kind.is_socket())
        })
    };
    remove_stale(directory, |name, entry| {
        name.starts_with(PRIVATE.0)
            && entry.is_dir()
            && entry.uid() == user
            && directory.join(name).read_dir().is_ok_and(|mut files| files.all(is_socket))
    });
}

/// Lets in who runs as the same user, or as root. The socket's mode says the same; this also holds if somebody
/// changed it.
#[cfg(target_os = "linux")]
fn admit(stream: &UnixStream) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if peer.uid == rustix::process::geteuid() || peer.uid.is_root() {
        return Ok(());
    }
    let message = format!("it runs as user {}", peer.uid.as_raw());
    Err(io::Error::new(ErrorKind::PermissionDenied, message))
}

/// Elsewhere the socket's mode alone keeps others out.
#[cfg(not(target_os = "linux"))]
fn admit(_: &UnixStream) -> io::Result<()> {
    Ok(())
}

/// Tells a client that there is no place for it. A new connection has room for the few bytes; nobody waits if it has not.
fn turn_away(service: &Service, stream: &UnixStream) {
    let message = format!("{MAX_CLIENTS} clients are being served, and no more at a time");
    let told = stream.set_nonblocking(true);
    // It may have gone already.
    let _ = told.and_then(|()| service.turn_away(message, &mut io::BufWriter::new(stream)));
}

fn converse(service: &Service, stream: &UnixStream, write_timeout: Duration) {
    let served = stream.set_write_timeout(Some(write_timeout)).map_err(Interrupted::from).and_then(|()| {
        let mut output = io::BufWriter::with_capacity(1 << 16, stream);
        service.serve(&mut io::BufReader::with_capacity(1 << 16, stream), &mut output)
    });
    match served {
        Ok(()) => {}
        Err(Interrupted::Io(error))
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
        {
            tracing::warn!("a client was dropped: it took nothing of its reply for {write_timeout:?}");
        }
        Err(error) => tracing::warn!("a client was dropped: {error}"),
    }
}

/// A client's connection, one of [`MAX_CLIENTS`].
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Self> {
        let taken = clients.fetch_add(1, Ordering::Relaxed);
        let slot = Slot(Arc::clone(clients));
        (taken < MAX_CLIENTS).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket's address is short, and this one has two names: its own, and the one under which it is made.
fn check_length(path: &Path, directory: &Path) -> io::Result<()> {
    /// Bytes of an address without the zero at its end.
    const LONGEST: usize = if cfg!(any(target_os = "linux", target_os = "android")) { 107 } else { 103 };
    let made = Path::new("/").join([PRIVATE.0, "xxxxxx"].concat()).join(PRIVATE.1);
    let length = |path: &Path| path.as_os_str().len();
    for (what, named, most) in
        [("name", path, LONGEST), ("directory's name", directory, LONGEST - length(&made))]
    {
        if length(named) > most {
            let bytes = length(named);
            let message = format!(
                "its {what} has {bytes} bytes, and may have {most}: choose a shorter one, as in /tmp"
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
    }
    // Whatever else an address cannot hold.
    std::os::unix::net::SocketAddr::from_pathname(path).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::thread::sleep;
    use std::time::SystemTime;

    use super::*;
    use crate::{Protocol, read_frame, write_frame};
    use causeway::device::Device;

    /// A directory as a killed server leaves it, `seconds` ago, with files in it besides a socket.
    fn left_behind(within: &Path, name: &str, seconds: u64, files: &[&str]) {
        let path = within.join(name);
        std::fs::create_dir(&path).unwrap();
        drop(UnixListener::bind(path.join("s")).unwrap());
        files.iter().for_each(|file| std::fs::write(path.join(file), "").unwrap());
        let then = SystemTime::now() - Duration::from_secs(seconds);
        File::open(&path).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn directories_of_killed_servers_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let within = directory.path();
        // Name, age, other files in it, and whether it stays.
        let table: &[(&str, u64, &[&str], bool)] = &[
            (".causeway-old", 3600, &[], false),
            (".causeway-older", 1_000_000, &[], false),
            (".causeway-at-work", 5, &[], true),
            // What killed processes leave is removed after an hour, whatever it is.
            (".causeway-half-an-hour", 1800, &[], true),
            (".causeway-with-a-file", 3600, &["kept"], true),
            ("another", 3600, &[], true),
        ];
        for (name, seconds, files, _) in table {
            left_behind(within, name, *seconds, files);
        }
        std::fs::write(within.join(".causeway-file"), "").unwrap();
        std::os::unix::fs::symlink(within.join("another"), within.join(".causeway-link")).unwrap();
        let path = within.join("server");
        let listener = Listener::bind(&path).unwrap();
        for (name, _, _, stays) in table {
            assert_eq!(within.join(name).exists(), *stays, "{name}");
        }
        assert!(within.join("another/s").exists() && within.join(".causeway-with-a-file/kept").exists());
        assert!(within.join(".causeway-file").exists() && within.join(".causeway-link").exists());
        assert!(UnixStream::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn names_that_are_too_long_for_an_address_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let most = if cfg!(target_os = "linux") { 107 } else { 103 };
        // Bytes of the directory's name and of the socket's, and whether both of its names fit.
        let made = "/.causeway-xxxxxx/s".len();
        let table = [
            (most - made, 1, true),
            (most - made + 1, 1, false),
            (60, most - 61, true),
            (60, most - 60, false),
        ];
        for (bytes, socket, fits) in table {
            let within = directory.path().join("d".repeat(bytes - directory.path().as_os_str().len() - 1));
            std::fs::create_dir_all(&within).unwrap();
            let path = within.join("s".repeat(socket));
            match Listener::bind(&path) {
                Ok(_) => assert!(fits, "{bytes} {socket}"),
                Err(error) => {
                    let message = error.to_string();
                    assert!(!fits, "{bytes} {socket}: {message}");
                    let counted = if socket == 1 { bytes } else { bytes + 1 + socket };
                    assert!(message.contains(&format!("has {counted} bytes")), "{message}");
                    assert_eq!(std::fs::read_dir(&within).unwrap().count(), 0);
                }
            }
        }
    }

    #[test]
    fn directories_of_other_users_stay() {
        let directory = tempfile::tempdir().unwrap();
        left_behind(directory.path(), ".causeway-old", 3600, &[]);
        let user = directory.path().metadata().unwrap().uid();
        remove_abandoned(directory.path(), user + 1);
        assert!(directory.path().join(".causeway-old").exists());
        remove_abandoned(directory.path(), user);
        assert!(!directory.path().join(".causeway-old").exists());
    }

    #[test]
    fn a_client_that_takes_nothing_of_its_reply_is_dropped() {
        const TIMEOUT: Duration = Duration::from_millis(500);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        let listener = Listener::bind(&path).unwrap().with_write_timeout(TIMEOUT);
        let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let service = Arc::new(Service::new(Device::cpu(), threads, Protocol::Text, 64 << 20));
        // Serves until the process of the tests ends.
        std::thread::spawn(move || listener.serve(&service));
        // One term each of 1000 x 1000 sums: a reply of 2 MB, more than a socket holds.
        let numbers = "0 ".repeat(1000);
        let request = format!("1 1000 1 1000\n{numbers}\n{numbers}\n");
        let ask = || {
            let mut stream = UnixStream::connect(&path).unwrap();
            write_frame(&mut stream, request.as_bytes()).unwrap();
            stream
        };
        let whole = read_frame(&mut ask()).unwrap().unwrap().len();
        assert!(whole > 2_000_000, "{whole}");

        // Slowly, but without a pause as long as the timeout.
        let mut slow = ask();
        let mut part = vec![0; whole / 8];
        for _ in 0..8 {
            sleep(TIMEOUT / 10);
            slow.read_exact(&mut part).unwrap();
        }

        let mut silent = ask();
        sleep(TIMEOUT * 3);
        let mut taken = Vec::new();
        silent.read_to_end(&mut taken).unwrap();
        assert!(!taken.is_empty() && taken.len() < whole, "{} of {whole} bytes", taken.len());
        // A time in the reply may have a digit more or less.
        let again = read_frame(&mut ask()).unwrap().unwrap().len();
        assert!(again.abs_diff(whole) < 8, "{again} and {whole} bytes");
    }
}
