//! moto's S3 server, for as long as a test runs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server; dropping it stops it.
pub(crate) struct Moto {
    pub(crate) endpoint: String,
    process: Child,
}

impl Moto {
    /// Starts the server of the virtual environment that `tests/run` makes, with one bucket.
    ///
    /// # Panics
    /// If `NEARFS_TEST_VENV` does not name an environment with moto, or it does not come up: a missing server is a
    /// failure, never a skipped test.
    pub(crate) fn start(bucket: &str) -> Self {
        let venv = std::env::var("NEARFS_TEST_VENV")
            .map_or_else(|_| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.venv")), PathBuf::from);
        let python = venv.join("bin/python");
        assert!(
            python.exists(),
            "no Python at {}: run tests/run, or set NEARFS_TEST_VENV to an environment with moto[server]",
            python.display()
        );
        // The port is free now; nobody else is handed it within the second that the server needs.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new(&python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("python starts");
        let mut moto = Moto { endpoint: format!("http://127.0.0.1:{port}"), process };
        let deadline = Instant::now() + Duration::from_secs(60);
        while moto.make_bucket(port, bucket).is_none() {
            assert!(moto.process.try_wait().unwrap().is_none(), "moto ended: is moto[server] installed?");
            assert!(Instant::now() < deadline, "moto did not answer within 60 s");
            std::thread::sleep(Duration::from_millis(100));
        }
        moto
    }

    fn make_bucket(&self, port: u16, bucket: &str) -> Option<()> {
        put(port, bucket, &[], b"")
    }

    /// Puts an object, with headers that no filesystem of ours sends.
    #[allow(dead_code, reason = "not every test that runs the server needs it")]
    pub(crate) fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let port = self.endpoint.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        put(port.expect("the address has a port"), path, headers, body).expect("moto takes the object");
    }
}

fn put(port: u16, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<()> {
    let mut to = TcpStream::connect(("127.0.0.1", port)).ok()?;
    to.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let auth =
        "AWS4-HMAC-SHA256 Credential=id/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(
        to,
        "PUT /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {auth}\r\n{headers}\
         Content-Type: binary/octet-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .ok()?;
    to.write_all(body).ok()?;
    let mut answer = String::new();
    to.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(())
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
