//! Connections, and the way of a request: counted, delayed, refused or answered.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::access::Access;
use crate::body::{Ending, OutBody};
use crate::call::Call;
use crate::content::BufferPool;
use crate::counters::{InFlight, LogEntry, OpenConnection, Tally};
use crate::error::S3Error;
use crate::fault::{Fault, Faults, Replacement};
use crate::model::{Model, Pacer, THAW_TICK};
use crate::op::Op;
use crate::ops::multipart::Uploads;
use crate::request::{Request, dechunk};
use crate::rng::Rng;
use crate::store::{Condition, Object, Store};

/// S3's own limit on one PUT.
const MAX_BODY: u64 = 5 << 30;

/// Everything that connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) uploads: Mutex<Uploads>,
    pub(crate) model: RwLock<Model>,
    pub(crate) access: RwLock<Access>,
    pub(crate) total: Pacer,
    pub(crate) faults: Faults,
    pub(crate) tally: Arc<Tally>,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) rng: Rng,
    pub(crate) region: String,
    pub(crate) min_part: u64,
    connections: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        model: Model,
        access: Access,
        region: String,
        min_part: u64,
        log_limit: usize,
        seed: u64,
    ) -> Self {
        Self {
            store: Store::default(),
            uploads: Mutex::default(),
            model: RwLock::new(model),
            access: RwLock::new(access),
            total: Pacer::new(),
            faults: Faults::default(),
            tally: Arc::new(Tally::new(log_limit)),
            buffers: Arc::default(),
            rng: Rng::new(seed),
            region,
            min_part,
            connections: AtomicU64::new(0),
        }
    }
}

/// One connection. It keeps a second descriptor of the socket, dropped with the connection's task.
#[derive(Debug)]
pub(crate) struct Connection {
    id: u64,
    socket: socket2::Socket,
    pub(crate) down: Pacer,
    up: Pacer,
    _open: OpenConnection,
}

impl Connection {
    /// Makes the close that follows send RST instead of FIN.
    pub(crate) fn reset_on_close(&self) {
        // A socket that is gone already needs no reset.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
    }

    /// Bytes written that the peer has not acknowledged yet; 0 when the kernel does not say.
    pub(crate) fn unsent(&self) -> i32 {
        let mut unsent = 0;
        // SAFETY: the descriptor is open as long as `self.socket`, and SIOCOUTQ (the number TIOCOUTQ) writes one
        // int to the address given, that of a live local variable.
        let done = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent) };
        if done == 0 { unsent } else { 0 }
    }
}

/// Accepts connections until `stop` changes.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return Ok(()),
        };
        match accepted {
            Ok((stream, peer)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    // A connection that ends badly concerns its client alone.
                    let _ = connection(shared, stream, peer).await;
                });
            }
            // Out of descriptors, or the peer is gone: neither is a reason to stop or to spin.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: tokio::net::TcpStream, _peer: SocketAddr) -> io::Result<()> {
    let stream = stream.into_std()?;
    let connection = Arc::new(Connection {
        id: shared.connections.fetch_add(1, Relaxed) + 1,
        socket: stream.try_clone()?.into(),
        down: Pacer::new(),
        up: Pacer::new(),
        _open: OpenConnection::new(&shared.tally),
    });
    stream.set_nodelay(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let service = service_fn(move |request| handle(shared.clone(), connection.clone(), request));
    hyper::server::conn::http1::Builder::new()
        .max_buf_size(1 << 20)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(io::Error::other)
}

/// Answers one request. An error ends the connection without an answer.
async fn handle(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    request: hyper::Request<Incoming>,
) -> io::Result<Response<OutBody>> {
    let in_flight = InFlight::new(&shared.tally);
    let (parts, body) = request.into_parts();
    let request = Request::new(parts);
    let counter = shared.tally.request(request.op, &request.bucket, request.subject());
    let seq = shared.tally.record(|seq| log_entry(&shared, &connection, &request, seq));
    let faults = shared.faults.fire(request.op, &request.bucket, request.subject());
    let mut call = Call {
        shared: shared.clone(),
        connection,
        request,
        payload: Bytes::new(),
        trailers: Vec::new(),
        in_flight: Some(in_flight),
        counter,
        faults,
        seq,
        hides_absence: false,
    };
    let received = receive(&mut call, body).await?;
    let mut wait = shared.model.read().wait(call.request.op, &shared.rng);
    wait += call
        .faults
        .iter()
        .map(|f| if let Fault::Delay { ms } = f { *ms } else { 0 })
        .map(Duration::from_millis)
        .sum();
    if !wait.is_zero() {
        tokio::time::sleep_until((Instant::now() + wait).into()).await;
    }
    while shared.model.read().frozen {
        tokio::time::sleep(THAW_TICK).await;
    }
    let reply = match received.and_then(|()| refuse(&call)) {
        Ok(()) => {
            if call.faults.contains(&Fault::Drop) {
                std::future::pending::<Infallible>().await;
            }
            if call.faults.contains(&Fault::Hangup) {
                return Err(io::Error::other("closed by a fault"));
            }
            swap(&call);
            authorise(&mut call).and_then(|()| crate::ops::answer(&mut call))
        }
        Err(error) => Err(error),
    };
    let mut response = reply.unwrap_or_else(|error| call.error(&error));
    spoil(&call, &mut response)?;
    shared.tally.answered(seq, response.status().as_u16());
    Ok(response)
}

fn log_entry(shared: &Shared, connection: &Connection, request: &Request, seq: u64) -> LogEntry {
    let header = |name| request.header(name).map(str::to_owned);
    LogEntry {
        seq,
        at: shared.tally.uptime().as_secs_f64(),
        connection: connection.id,
        method: request.method.to_string(),
        path: request.uri.path().to_owned(),
        query: request.uri.query().unwrap_or("").to_owned(),
        op: request.op,
        bucket: request.bucket.clone(),
        key: String::from_utf8_lossy(&request.key).into_owned(),
        range: header("range"),
        if_match: header("if-match"),
        user_agent: header("user-agent"),
        signed: request.is_signed(),
        status: 0,
    }
}

/// Takes in the request's body at the connection's rate. The outer error ends the connection.
async fn receive(call: &mut Call, mut body: Incoming) -> io::Result<Result<(), S3Error>> {
    let length = call.request.header("content-length").and_then(|v| v.parse().ok()).unwrap_or(0u64);
    if length > MAX_BODY {
        return Ok(Err(S3Error::new(
            400,
            "EntityTooLarge",
            "Your proposed upload exceeds the maximum allowed size",
        )));
    }
    let mut buffer = BytesMut::with_capacity(length.min(64 << 20) as usize);
    call.connection.up.restart();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        call.shared.tally.received(data.len());
        let rate = call.shared.model.read().connection_mbps;
        if rate > 0.0 {
            tokio::time::sleep_until(call.connection.up.reserve(data.len(), rate).into()).await;
        }
        if (buffer.len() + data.len()) as u64 > MAX_BODY {
            return Ok(Err(S3Error::new(
                400,
                "EntityTooLarge",
                "Your proposed upload exceeds the maximum allowed size",
            )));
        }
        buffer.extend_from_slice(&data);
    }
    call.payload = buffer.freeze();
    if call.request.is_aws_chunked() {
        match dechunk(call.payload.clone()) {
            Ok((payload, trailers)) => (call.payload, call.trailers) = (payload, trailers),
            Err(message) => return Ok(Err(S3Error::new(400, "IncompleteBody", message))),
        }
    }
    Ok(Ok(()))
}

/// Faults that answer instead of the operation.
fn refuse(call: &Call) -> Result<(), S3Error> {
    for fault in &call.faults {
        let error = match fault {
            Fault::Status { status, code, retry_after } => {
                let mut error = S3Error::of(*status);
                if !code.is_empty() {
                    error.code.clone_from(code);
                }
                match retry_after {
                    Some(seconds) => error.header("retry-after", seconds.to_string()),
                    None => error,
                }
            }
            Fault::Throttle { status, retry_after, .. } => match retry_after {
                Some(seconds) => S3Error::of(*status).header("retry-after", seconds.to_string()),
                None => S3Error::of(*status),
            },
            Fault::Region { region, redirect } if call.request.signed_region() != Some(region.as_str()) => {
                let error = if *redirect {
                    let host = call.request.header("host").unwrap_or_default();
                    S3Error::of(301).element("Endpoint", host)
                } else {
                    let signed = call.request.signed_region().unwrap_or_default();
                    let message = format!(
                        "The authorization header is malformed; the region '{signed}' is wrong; expecting '{region}'"
                    );
                    S3Error::new(400, "AuthorizationHeaderMalformed", &message).element("Region", region)
                };
                error.header("x-amz-bucket-region", region)
            }
            _ => continue,
        };
        return Err(error);
    }
    Ok(())
}

fn authorise(call: &mut Call) -> Result<(), S3Error> {
    let access = call.shared.access.read();
    let hides = access.check(&call.request, &call.payload, &call.shared.region)?;
    drop(access);
    call.hides_absence = hides;
    Ok(())
}

fn swap(call: &Call) {
    for fault in &call.faults {
        if let Fault::Swap { with } = fault {
            let (store, bucket, key) = (&call.shared.store, &call.request.bucket, &call.request.key);
            let object = match with {
                Replacement::Synthetic { size, key_id } => Object::synthetic(*key_id, *size),
                Replacement::Data(bytes) => crate::ops::put::plain(Bytes::from(bytes.clone())),
                Replacement::Delete => {
                    // A bucket that is not there has nothing to replace.
                    let _ = store.delete(bucket, key, &Condition::default());
                    continue;
                }
            };
            let _ = store.put(bucket, key, object, &Condition::default());
        }
    }
}

/// Faults of an answer that is otherwise right. An error ends the connection without an answer.
fn spoil(call: &Call, response: &mut Response<OutBody>) -> io::Result<()> {
    for fault in &call.faults {
        let bodiless = call.request.method == hyper::Method::HEAD || response.body().len() == 0;
        match fault {
            Fault::Cut { .. } if bodiless => return Err(io::Error::other("closed by a fault")),
            Fault::Reset { .. } if bodiless => {
                call.connection.reset_on_close();
                return Err(io::Error::other("reset by a fault"));
            }
            Fault::Stall { after } => response.body_mut().end_after(*after, Ending::Stall),
            Fault::Cut { after } => response.body_mut().end_after(*after, Ending::Cut),
            Fault::Reset { after } => response.body_mut().end_after(*after, Ending::Reset),
            Fault::Drip { bytes_per_second } => response.body_mut().drip = Some((*bytes_per_second).max(1)),
            Fault::TruncatedChunked { after } if !bodiless => {
                response.headers_mut().remove(hyper::header::CONTENT_LENGTH);
                response.body_mut().truncate_chunked(*after);
            }
            Fault::FlipByte { offset } if call.request.op == Op::GetObject => {
                response.body_mut().flip = Some(*offset)
            }
            _ => {}
        }
    }
    Ok(())
}
