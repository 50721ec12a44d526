//! A small blocking HTTP/1.1 client on a bare socket, so that tests see exactly what the server sends.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nearfs_lab::Lab;

/// No answer may take longer than this unless a test says so.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    stream: TcpStream,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// How reading the body ended, when not well.
    pub(crate) broken: Option<io::ErrorKind>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text of every element of this name.
    pub(crate) fn all(&self, element: &str) -> Vec<String> {
        let text = self.text();
        let end = format!("</{element}>");
        text.split(&format!("<{element}>"))
            .skip(1)
            .map(|rest| rest.split(&end).next().unwrap_or("").to_owned())
            .collect()
    }

    pub(crate) fn one(&self, element: &str) -> String {
        let all = self.all(element);
        assert_eq!(all.len(), 1, "one {element} in {}", self.text());
        all[0].clone()
    }

    /// The S3 error code.
    pub(crate) fn code(&self) -> String {
        self.one("Code")
    }
}

impl Client {
    pub(crate) fn new(lab: &Lab) -> Self {
        Self::connect(lab.address())
    }

    pub(crate) fn connect(address: std::net::SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    pub(crate) fn patience(self, time: Duration) -> Self {
        self.stream.set_read_timeout(Some(time)).unwrap();
        self
    }

    pub(crate) fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: lab\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "PUT" || method == "POST" {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "\r\n";
        self.stream.write_all(head.as_bytes()).unwrap();
        self.stream.write_all(body).unwrap();
    }

    /// The head of the next answer; an error when the connection ends first.
    pub(crate) fn head(&mut self) -> io::Result<Answer> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if self.stream.read(&mut byte)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(n, v)| (n.trim().to_owned(), v.trim().to_owned()))
            .collect();
        Ok(Answer { status, headers, body: Vec::new(), broken: None })
    }

    /// The body that goes with `answer`, as far as it comes.
    pub(crate) fn body(&mut self, answer: &mut Answer) {
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.broken = self.chunked(&mut answer.body).err().map(|e| e.kind());
            return;
        }
        let mut left: usize = answer.header("content-length").map_or(0, |v| v.parse().unwrap());
        let mut buf = vec![0; 64 << 10];
        while left > 0 {
            let want = left.min(buf.len());
            match self.stream.read(&mut buf[..want]) {
                Ok(0) => answer.broken = Some(io::ErrorKind::UnexpectedEof),
                Ok(n) => {
                    answer.body.extend_from_slice(&buf[..n]);
                    left -= n;
                }
                Err(error) => answer.broken = Some(error.kind()),
            }
            if answer.broken.is_some() {
                return;
            }
        }
    }

    fn chunked(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                let mut byte = [0];
                self.stream.read_exact(&mut byte)?;
                line.push(byte[0]);
            }
            let size = usize::from_str_radix(String::from_utf8_lossy(&line).trim(), 16).unwrap();
            let from = body.len();
            body.resize(from + size, 0);
            self.stream.read_exact(&mut body[from..])?;
            let mut end = [0; 2];
            self.stream.read_exact(&mut end)?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Sends a request and reads the whole answer; an error when there is none.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        self.send(method, target, headers, body);
        let mut answer = self.head()?;
        if method != "HEAD" {
            self.body(&mut answer);
        }
        Ok(answer)
    }

    pub(crate) fn get(&mut self, target: &str) -> Answer {
        self.ask("GET", target, &[], b"").unwrap()
    }

    pub(crate) fn get_with(&mut self, target: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", target, headers, b"").unwrap()
    }

    pub(crate) fn head_of(&mut self, target: &str) -> Answer {
        self.ask("HEAD", target, &[], b"").unwrap()
    }

    pub(crate) fn put(&mut self, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.ask("PUT", target, headers, body).unwrap()
    }

    pub(crate) fn post(&mut self, target: &str, body: &[u8]) -> Answer {
        self.ask("POST", target, &[], body).unwrap()
    }

    pub(crate) fn delete(&mut self, target: &str) -> Answer {
        self.ask("DELETE", target, &[], b"").unwrap()
    }
}
