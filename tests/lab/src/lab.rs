//! The server as a value: start, fill, steer, watch, stop.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::watch;

use crate::access::{Access, AccessKey, Auth, Rights};
use crate::counters::{Counters, KeyCounters, LogEntry};
use crate::fault::{FaultId, Rule, RuleState};
use crate::model::Model;
use crate::ops::put::plain;
use crate::server::{Shared, serve};
use crate::store::{Condition, Object, Refused};

/// How long a stopping server waits for its threads.
const STOP: Duration = Duration::from_secs(2);

/// How a [`Lab`] is to be.
#[derive(Clone, Debug)]
pub struct LabBuilder {
    listen: String,
    admin: Option<String>,
    access: Access,
    buckets: Vec<String>,
    model: Model,
    region: String,
    min_part: u64,
    threads: usize,
    log: usize,
    seed: u64,
}

impl LabBuilder {
    /// Where to listen. Default: `127.0.0.1:0`, a free port of the kernel's choice.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = address.into();
        self
    }

    /// Where the admin endpoint listens, see [`Lab::admin_address`]. Default: there is none.
    #[must_use]
    pub fn admin(mut self, address: impl Into<String>) -> Self {
        self.admin = Some(address.into());
        self
    }

    /// Whether requests must be signed. Default: anything goes.
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.access.auth = auth;
        self
    }

    /// With this access key; may be repeated. Default: none.
    #[must_use]
    pub fn access_key(mut self, key: AccessKey) -> Self {
        self.access.keys.push(key);
        self
    }

    /// With this empty bucket; may be repeated. Default: none.
    #[must_use]
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.buckets.push(bucket.into());
        self
    }

    /// Every answer's first byte comes this much later. Default: zero.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.model.first_byte_ms = latency.as_secs_f64() * 1000.0;
        self
    }

    /// The whole latency model. Default: as fast as the machine.
    #[must_use]
    pub fn model(mut self, model: Model) -> Self {
        self.model = model;
        self
    }

    /// The region the buckets say they are in. Default: `us-east-1`.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = region.into();
        self
    }

    /// Least bytes of a part that is not the last one. Default: 5 MiB, as on S3.
    #[must_use]
    pub fn min_part_size(mut self, bytes: u64) -> Self {
        self.min_part = bytes;
        self
    }

    /// Threads that serve. Default: 2.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Requests kept in the log; older ones are dropped. Default: 65 536; 0 keeps none.
    #[must_use]
    pub fn log_size(mut self, requests: usize) -> Self {
        self.log = requests;
        self
    }

    /// Seed of jitter, slow GETs and the like. Default: 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Starts the server on threads and a runtime of its own, and returns when it accepts connections.
    /// It may be called from anywhere, also inside an async runtime: it blocks for a moment only.
    ///
    /// # Errors
    /// The address cannot be bound, or a thread cannot be started.
    pub fn start(self) -> io::Result<Lab> {
        let listener = TcpListener::bind(&self.listen)?;
        let address = listener.local_addr()?;
        let admin = self.admin.map(TcpListener::bind).transpose()?;
        let admin_address = admin.as_ref().map(TcpListener::local_addr).transpose()?;
        let shared =
            Arc::new(Shared::new(self.model, self.access, self.region, self.min_part, self.log, self.seed));
        for bucket in &self.buckets {
            shared.store.create_bucket(bucket);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .thread_name("nearfs-lab")
            .enable_all()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let server = shared.clone();
        let thread = std::thread::Builder::new().name("nearfs-lab".to_owned()).spawn(move || {
            // The connection tasks run on the runtime's workers; this thread only waits for the end.
            let served = runtime.block_on(async {
                if let Some(listener) = admin {
                    tokio::spawn(crate::admin::serve(server.clone(), listener, stopped.clone()));
                }
                tokio::spawn(serve(server, listener, stopped)).await
            });
            runtime.shutdown_timeout(STOP);
            if let Ok(Err(error)) = served {
                eprintln!("nearfs-lab: cannot serve: {error}");
            }
        })?;
        Ok(Lab { shared, address, admin_address, stop, thread: Some(thread) })
    }
}

/// A running server. Dropping it stops it and closes every connection.
#[derive(Debug)]
pub struct Lab {
    shared: Arc<Shared>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Lab {
    /// A builder with the defaults.
    #[must_use]
    pub fn builder() -> LabBuilder {
        LabBuilder {
            listen: "127.0.0.1:0".to_owned(),
            admin: None,
            access: Access::default(),
            buckets: Vec::new(),
            model: Model::default(),
            region: "us-east-1".to_owned(),
            min_part: 5 << 20,
            threads: 2,
            log: 1 << 16,
            seed: 1,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`, for `AWS_ENDPOINT_URL` (path style).
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where the admin endpoint listens, if there is one. It speaks JSON over HTTP:
    ///
    /// ```text
    /// GET    /model                the latency model
    /// PUT    /model                {"first_byte_ms": 30}: changes the fields given
    /// GET    /faults               the rules, and how often each fired
    /// POST   /faults               a rule: {"ops": ["GetObject"], "times": 1, "fault": {"stall": {"after": 0}}}
    /// DELETE /faults, /faults/ID   takes all rules, or one, away
    /// GET    /access               keys and rights; PUT replaces them
    /// GET    /counters             totals; with ?reset=1 zeroes counters and log
    /// GET    /keys                 counters by key
    /// GET    /log                  the most recent requests
    /// PUT    /objects/BUCKET/KEY   the body becomes the object; DELETE deletes it
    /// POST   /synthetic            {"bucket": "b", "key": "k", "size": 1000, "key_id": 7}
    /// POST   /tree                 {"bucket": "b", "prefix": "p", "dirs": 2, "files_per_dir": 3, "size": 1000}
    /// ```
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// Makes a bucket; nothing happens when it exists.
    pub fn create_bucket(&self, bucket: &str) {
        self.shared.store.create_bucket(bucket);
    }

    /// Puts an object of these bytes; its version (1 for the first of this key). The bucket is made if need be.
    pub fn put(&self, bucket: &str, key: impl AsRef<[u8]>, data: impl Into<Bytes>) -> u32 {
        self.shared.store.insert(bucket, key.as_ref(), plain(data.into()))
    }

    /// [`Lab::put`] with headers that stay with the object: `content-type`, `content-encoding`, `x-amz-meta-*`,
    /// `x-amz-checksum-*` and others are sent back as they are, unchecked.
    ///
    /// # Panics
    /// A name or value is not a valid HTTP header.
    pub fn put_with(
        &self,
        bucket: &str,
        key: impl AsRef<[u8]>,
        data: impl Into<Bytes>,
        headers: &[(&str, &str)],
    ) -> u32 {
        let mut object = plain(data.into());
        let extra = object.extra.get_or_insert_default();
        for (name, value) in headers {
            let header = (
                HeaderName::try_from(*name).expect("a valid header name"),
                HeaderValue::try_from(*value).expect("a valid header value"),
            );
            let checksum = header.0.as_str().starts_with("x-amz-checksum-");
            if checksum { &mut extra.checksums } else { &mut extra.headers }.push(header);
        }
        self.shared.store.insert(bucket, key.as_ref(), object)
    }

    /// Puts an object whose bytes are computed, not kept: stamped with `key_id` and its version, which is
    /// returned (1 for the first of this key). The bucket is made if need be.
    pub fn put_synthetic(&self, bucket: &str, key: impl AsRef<[u8]>, size: u64, key_id: u32) -> u32 {
        self.shared.store.insert(bucket, key.as_ref(), Object::synthetic(key_id, size))
    }

    /// Puts `dirs * files_per_dir` synthetic objects named `prefix/d0000/f00000.bin`, each of `size` bytes and
    /// stamped with [`crate::stamp::key_id`] of its key; their keys, in order.
    pub fn tree(
        &self,
        bucket: &str,
        prefix: &str,
        dirs: usize,
        files_per_dir: usize,
        size: u64,
    ) -> Vec<String> {
        self.shared.store.tree(bucket, prefix, dirs, files_per_dir, size)
    }

    /// The bytes of an object (synthetic ones are written out: mind the size); none if it is not there.
    #[must_use]
    pub fn get(&self, bucket: &str, key: impl AsRef<[u8]>) -> Option<Bytes> {
        let object = self.shared.store.get(bucket, key.as_ref()).ok()?;
        Some(object.content.pieces(0, object.size).concat().into())
    }

    /// The quoted ETag of an object; none if it is not there.
    #[must_use]
    pub fn etag(&self, bucket: &str, key: impl AsRef<[u8]>) -> Option<String> {
        self.shared.store.get(bucket, key.as_ref()).ok().map(|o| o.etag())
    }

    /// The size of an object in bytes; none if it is not there.
    #[must_use]
    pub fn size(&self, bucket: &str, key: impl AsRef<[u8]>) -> Option<u64> {
        self.shared.store.get(bucket, key.as_ref()).ok().map(|o| o.size)
    }

    /// Whether there was such an object.
    pub fn delete(&self, bucket: &str, key: impl AsRef<[u8]>) -> bool {
        self.shared.store.delete(bucket, key.as_ref(), &Condition::default()) == Ok(true)
    }

    /// All keys of a bucket in the order of their bytes.
    #[must_use]
    pub fn keys(&self, bucket: &str) -> Vec<Vec<u8>> {
        let buckets = self.shared.store.buckets.read();
        buckets.get(bucket).map_or_else(Vec::new, |b| b.objects.keys().cloned().collect())
    }

    /// Moves an object to a storage class: `GLACIER` and `DEEP_ARCHIVE` refuse reads until `restored`.
    /// False when there is no such object.
    pub fn set_storage_class(
        &self,
        bucket: &str,
        key: impl AsRef<[u8]>,
        class: &str,
        restored: bool,
    ) -> bool {
        let done = self.shared.store.amend(bucket, key.as_ref(), |object| {
            let extra = object.extra.get_or_insert_default();
            extra.storage_class = (class != "STANDARD").then(|| class.to_owned());
            extra.restored = restored;
        });
        !matches!(done, Err(Refused::NoSuchBucket | Refused::NoSuchKey))
    }

    /// Gives an object another ETag, with quotes; `"…-5"` looks like one of a multipart upload of five parts.
    /// False when there is no such object.
    pub fn set_etag(&self, bucket: &str, key: impl AsRef<[u8]>, etag: &str) -> bool {
        self.shared.store.amend(bucket, key.as_ref(), |object| object.set_etag(etag)).is_ok()
    }

    /// Sets the time an object says it was last modified. False when there is no such object.
    pub fn set_modified(&self, bucket: &str, key: impl AsRef<[u8]>, modified: std::time::SystemTime) -> bool {
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.shared
            .store
            .amend(bucket, key.as_ref(), |object| object.modified = since.as_millis() as u64)
            .is_ok()
    }

    /// The latency model.
    #[must_use]
    pub fn model(&self) -> Model {
        *self.shared.model.read()
    }

    /// Changes the latency model, also for bodies on their way.
    pub fn set_model(&self, model: Model) {
        *self.shared.model.write() = model;
    }

    /// Who may do what.
    #[must_use]
    pub fn access(&self) -> Access {
        self.shared.access.read().clone()
    }

    /// Changes who may do what, from the next request on.
    pub fn set_access(&self, access: Access) {
        *self.shared.access.write() = access;
    }

    /// Whether requests must be signed.
    pub fn set_auth(&self, auth: Auth) {
        self.shared.access.write().auth = auth;
    }

    /// Adds an access key, or replaces the one with the same id.
    pub fn set_access_key(&self, key: AccessKey) {
        let mut access = self.shared.access.write();
        access.keys.retain(|k| k.id != key.id);
        access.keys.push(key);
    }

    /// From now on every request with this key is answered `ExpiredToken`. False when the key is not known.
    pub fn expire_access_key(&self, id: &str) -> bool {
        let mut access = self.shared.access.write();
        access.keys.iter_mut().filter(|k| k.id == id).map(|k| k.expired = true).count() > 0
    }

    /// What requests without a known key may not do while signatures are not required.
    pub fn set_anonymous_rights(&self, rights: Rights) {
        self.shared.access.write().anonymous = rights;
    }

    /// Adds a rule; it counts matching requests from now on.
    pub fn fault(&self, rule: Rule) -> FaultId {
        self.shared.faults.add(rule)
    }

    /// Takes a rule away; false when it is gone already.
    pub fn remove_fault(&self, id: FaultId) -> bool {
        self.shared.faults.remove(id)
    }

    /// Takes all rules away. Requests they already act on are not released.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// The rules, and how often each fired.
    #[must_use]
    pub fn faults(&self) -> Vec<RuleState> {
        self.shared.faults.states()
    }

    /// Totals since the start or the last reset.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.tally.snapshot()
    }

    /// What was asked of one key; listings count under their `prefix` parameter.
    #[must_use]
    pub fn key_counters(&self, bucket: &str, key: impl AsRef<[u8]>) -> KeyCounters {
        self.shared.tally.key(bucket, key.as_ref())
    }

    /// The counters of every (bucket, key) asked for.
    #[must_use]
    pub fn all_key_counters(&self) -> Vec<(String, Vec<u8>, KeyCounters)> {
        self.shared.tally.all_keys()
    }

    /// The most recent requests, oldest first.
    #[must_use]
    pub fn log(&self) -> Vec<LogEntry> {
        self.shared.tally.log()
    }

    /// Zeroes counters and log; what is open or in flight stays counted.
    pub fn reset_counters(&self) {
        self.shared.tally.reset();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The keys of [`Lab::tree`], in order.
#[must_use]
pub fn tree_keys(prefix: &str, dirs: usize, files_per_dir: usize) -> Vec<String> {
    let prefix = if prefix.is_empty() { String::new() } else { format!("{}/", prefix.trim_end_matches('/')) };
    let mut keys = Vec::with_capacity(dirs * files_per_dir);
    for dir in 0..dirs {
        for file in 0..files_per_dir {
            keys.push(format!("{prefix}d{dir:04}/f{file:05}.bin"));
        }
    }
    keys
}
