//! The server on a Unix socket: several clients, signals, and what stays behind.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use causeway::{DType, HostTensor};
use causeway_server::{MAX_CLIENTS, read_frame, write_frame};

use crate::process::{Server, command, forward_request, forward_result, parse, request};

/// A server on a socket in a directory of its own.
pub struct Listening {
    pub child: Child,
    pub directory: tempfile::TempDir,
}

impl Listening {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let child = spawn(&directory.path().join("server"));
        let listening = Listening { child, directory };
        drop(listening.connect());
        listening
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("server")
    }

    /// A connection, once the server is up.
    pub fn connect(&self) -> UnixStream {
        let start = Instant::now();
        loop {
            match UnixStream::connect(self.path()) {
                Ok(stream) => return stream,
                Err(error) if start.elapsed() > Duration::from_secs(20) => panic!("nobody listens: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    pub fn signal(&mut self, signal: &str) -> Option<i32> {
        signal_process(&self.child, signal);
        self.child.wait().expect("the server ends").code()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Both fail when it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn spawn(path: &Path) -> Child {
    command(&["serve", "--listen", path.to_str().expect("UTF-8")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server starts")
}

fn signal_process(child: &Child, signal: &str) {
    let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("kill starts").success());
}

fn ask(stream: &mut UnixStream, scale: f64) {
    write_frame(stream, &forward_request(scale, "")).expect("the server reads");
    let reply = read_frame(stream).expect("a whole frame").expect("a reply");
    assert_eq!(parse(&reply).0["y"].to_f64(), forward_result(scale));
}

#[test]
fn clients_are_served_beside_each_other_and_the_socket_goes_with_the_server() {
    let mut server = Listening::start();
    let mode = std::fs::metadata(server.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut clients: Vec<_> = (0..5).map(|_| server.connect()).collect();
    for round in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            ask(client, (round * 5 + number) as f64);
        }
    }
    // One that stops in the middle of a frame disturbs nobody.
    clients[0].write_all(&[200, 0, 0, 0, 1, 2, 3]).unwrap();
    ask(&mut clients[1], 1.0);
    drop(clients.remove(0));
    ask(&mut clients[0], 2.0);
    assert_eq!(server.signal("-TERM"), Some(0));
    assert_eq!(std::fs::read_dir(server.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let mut server = Listening::start();
    let mut silent = server.connect();
    silent.set_nonblocking(true).unwrap();
    let request = forward_request(1.0, "");
    let frame = [&(request.len() as u32).to_le_bytes()[..], &request].concat();
    // Until both directions are full: the server takes no more than the pipe holds.
    let mut sent = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        match silent.write(&frame[sent % frame.len()..]) {
            Ok(count) => sent += count,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(sent < 16 << 20, "{sent} bytes went into a server whose replies nobody reads");
    let mut other = server.connect();
    ask(&mut other, 3.0);
    drop(silent);
    assert_eq!(server.signal("-TERM"), Some(0));
}

#[test]
fn a_client_with_many_requests_waits_behind_one_with_few() {
    const MANY: usize = 60;
    let mut server = Listening::start();
    let square = HostTensor::from_fn(DType::F16, &[256, 256], |i| (i % 7) as f64).unwrap();
    let slow =
        request(&[("operation", "gemm-forward"), ("algorithm", "exact")], &[("A", &square), ("B", &square)]);
    let (mut greedy, mut modest) = (server.connect(), server.connect());
    let mut sender = greedy.try_clone().unwrap();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(move || (0..MANY).for_each(|_| write_frame(&mut sender, &slow).unwrap()));
        let answered = &answered;
        let mut take = move || {
            assert!(read_frame(&mut greedy).unwrap().is_some());
            answered.fetch_add(1, Ordering::Relaxed)
        };
        take();
        scope.spawn(move || (1..MANY).for_each(|_| _ = take()));
        (0..3).for_each(|_| ask(&mut modest, 1.0));
        let before = answered.load(Ordering::Relaxed);
        assert!(before < MANY / 2, "{before} of {MANY} requests of another client came first");
    });
    assert_eq!(server.signal("-TERM"), Some(0));
}

#[test]
fn only_so_many_clients_are_served_at_a_time() {
    let mut server = Listening::start();
    // A slot is free when the server has seen that its client went: that of the first connection, too.
    let served_one = || {
        let start = Instant::now();
        loop {
            let mut client = server.connect();
            let sent = write_frame(&mut client, &forward_request(1.0, ""));
            let is_result = |reply: &[u8]| parse(reply).0.contains_key("y");
            if sent.is_ok() && matches!(read_frame(&mut client), Ok(Some(reply)) if is_result(&reply)) {
                return client;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no slot becomes free");
        }
    };
    let mut served: Vec<_> = (0..MAX_CLIENTS).map(|_| served_one()).collect();
    let mut late = server.connect();
    // One too many is told so, and its connection ends.
    let told = parse(&read_frame(&mut late).unwrap().expect("an error")).1;
    assert_eq!(told["error"], "too-many-clients");
    assert_eq!(told["message"], format!("{MAX_CLIENTS} clients are being served, and no more at a time"));
    assert!(read_frame(&mut late).unwrap().is_none());
    ask(&mut served[0], 2.0);
    drop(served.pop());
    ask(&mut served_one(), 3.0);
    assert_eq!(server.signal("-TERM"), Some(0));
}

/// What a server warns of is no reason to end.
#[cfg(target_os = "linux")]
#[test]
fn a_stderr_that_takes_nothing_ends_no_server() {
    let directory = tempfile::tempdir().unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let path = directory.path().join("server");
    let child = command(&["serve", "--listen", path.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    let mut server = Listening { child, directory };
    let mut clients: Vec<_> = (0..MAX_CLIENTS + 2).map(|_| server.connect()).collect();
    ask(&mut clients[1], 2.0);
    // The last of them was turned away, with a warning.
    let mut last = clients.pop().unwrap();
    assert!(read_frame(&mut last).unwrap().is_some() && read_frame(&mut last).unwrap().is_none());
    ask(&mut clients[1], 3.0);
    assert_eq!(server.signal("-TERM"), Some(0));
}

/// The socket's mode keeps other users out; the server looks for itself in case that somebody changes it.
#[cfg(target_os = "linux")]
#[test]
fn another_user_is_turned_away_whatever_the_mode() {
    let command = |program: &str, arguments: &[&str]| {
        std::process::Command::new(program).args(arguments).output().expect("a command starts")
    };
    if command("id", &["-u"]).stdout != b"0\n" {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let mut server = Listening::start();
    for (path, mode) in [(server.directory.path(), 0o755), (&server.path(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let connect = "import os, socket, sys\nos.setuid(int(sys.argv[2]))\nserver = socket.socket(socket.AF_UNIX)\n\
                   server.connect(sys.argv[1])\nserver.settimeout(5)\n\
                   try: print('ended' if server.recv(1) == b'' else 'answered')\n\
                   except socket.timeout: print('served')\nexcept ConnectionResetError: print('ended')\n";
    let path = server.path();
    for (user, outcome) in [("65534", "ended\n"), ("0", "served\n")] {
        let output = command("python3", &["-c", connect, path.to_str().unwrap(), user]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, outcome, "user {user}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(server.signal("-TERM"), Some(0));
}

#[test]
fn a_socket_of_a_killed_server_is_replaced_and_a_live_one_is_not() {
    let mut first = Listening::start();
    let mut second = spawn(&first.path());
    assert_eq!(second.wait().unwrap().code(), Some(2));
    let mut client = first.connect();
    ask(&mut client, 1.0);
    assert_eq!(first.signal("-KILL"), None);
    assert!(first.path().exists());
    first.child = spawn(&first.path());
    let mut client = first.connect();
    ask(&mut client, 1.0);
    assert_eq!(first.signal("-INT"), Some(0));
}

#[test]
fn a_file_is_not_replaced_by_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(spawn(&path).wait().unwrap().code(), Some(2));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn names_that_no_socket_can_have_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let within = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let long = within(&"a".repeat(200));
    for (path, sentence) in [
        (&long, format!("its name has {} bytes", long.len())),
        (&within("absent/s"), "No such file".to_string()),
    ] {
        let output = spawn(Path::new(path)).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with(&format!("error: cannot listen on {path}: ")), "{said}");
        assert!(said.contains(&sentence) && !said.contains(".causeway-"), "{said}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_signal_lets_the_request_in_hand_finish() {
    let mut server = Server::start(&[]);
    for number in 0..50 {
        server.send(&forward_request(f64::from(number), &number.to_string()));
    }
    let first = parse(&server.receive());
    assert_eq!(first.0["y"].to_f64(), forward_result(0.0));
    signal_process(&server.child, "-TERM");
    // Whole replies only, then the end.
    let mut answered = 1;
    while let Some(reply) = read_frame(&mut server.output).expect("whole frames") {
        assert_eq!(parse(&reply).1["id"], answered.to_string());
        answered += 1;
    }
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
