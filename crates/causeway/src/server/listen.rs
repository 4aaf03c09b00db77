//! A server on a Unix socket, for several clients of one user.

use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::service::Service;

/// Clients that are served at a time. One more is told so by the end of its connection.
pub const MAX_CLIENTS: usize = 64;

/// A client that takes no bytes of its reply for so long is dropped, so that it does not hold memory for ever.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A socket in the file system that only its owner can connect to. Dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Makes the socket, with mode 0600. A socket that a killed server left behind is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if a server answers there, [`ErrorKind::AlreadyExists`] if something else than a socket
    /// has the name, or what the operating system says.
    pub fn bind(path: &Path) -> io::Result<Self> {
        remove_left_behind(path)?;
        // The socket is made in a directory that nobody else can enter, and gets its mode and its place after that:
        // it is never open to others.
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let private = tempfile::Builder::new()
            .prefix(".causeway-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(directory)?;
        let made = private.path().join("s");
        let socket = UnixListener::bind(&made)?;
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&made, path)?;
        Ok(Listener { socket, path: path.to_path_buf() })
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
            let place = Place::take(&clients);
            let Some(place) = place else {
                tracing::warn!("a client was turned away: {MAX_CLIENTS} are being served");
                continue;
            };
            let service = Arc::clone(service);
            let started = std::thread::Builder::new().name("client".to_string()).spawn(move || {
                let _place = place;
                converse(&service, &stream);
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
    if !std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()) {
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

fn converse(service: &Service, stream: &UnixStream) {
    let served =
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).map_err(super::Interrupted::from).and_then(|()| {
            let mut output = io::BufWriter::with_capacity(1 << 16, stream);
            service.serve(&mut io::BufReader::with_capacity(1 << 16, stream), &mut output)
        });
    if let Err(error) = served {
        tracing::warn!("a client was dropped: {error}");
    }
}

/// One of the places that there are for clients.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Self> {
        let taken = clients.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(clients));
        (taken < MAX_CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
