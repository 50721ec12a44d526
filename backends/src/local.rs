//! [`LocalFileSystem`]: a directory of this machine.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::capability::Capabilities;
use crate::config::LocalConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileWriter};
use crate::fs::{EntryStream, FileSystem, Identity};
use crate::io::{Beat, BufferPool, Engine, EngineReport};
use crate::metadata::Metadata;
use crate::options::{CopyOptions, CreateOptions, ListOptions, OpenOptions};
use crate::path::FsPath;

mod attr;
mod file;
mod list;
mod namespace;
mod order;
mod temp;
mod walk;
mod writer;

use temp::TEMP_PREFIX;

/// Paths deleted by one call of a thread.
const DELETE_BATCH: usize = 256;

/// A directory of this machine as a filesystem.
///
/// * **Names** are the raw bytes of the directory entries. Names that begin with `.nearfs-tmp-` belong to writes in
///   progress: they are not listed, not found and refused.
/// * **Symbolic links** are followed, wherever they lead, so a name says nothing about where its bytes are. Links
///   that lead nowhere are left out of listings and counted; a recursive listing does not enter a directory that
///   it is inside of already. Writing, renaming and deleting act on the link itself.
/// * **Other kinds** (FIFOs, sockets, devices) are left out of listings and counted; opening one is refused without
///   touching it.
/// * **Versions** are inode, size and modification time. An open file is a descriptor: a rename over it or a
///   deletion leaves it readable. After each read its size and time are compared: a file changed in place is
///   `Stale` from then on. What cannot be seen: a change that leaves both as they were, one made
///   through a memory mapping, and the rest of a single write call that was under way at the moment of opening.
/// * **Writes** go to an unnamed or hidden file first, are synced, and get their name in one step. `Absent` is
///   enforced by the kernel. A version condition is checked under a lock that nearfs processes share, right before
///   that step; other programs do not know the lock.
/// * **Deadlines**: each call runs on a thread that is given up when it makes no progress for `io_timeout`.
///
/// It runs on its own threads and needs no runtime. Clones share them.
#[derive(Clone)]
pub struct LocalFileSystem {
    inner: Arc<Inner>,
}

/// What handles share with their filesystem.
pub(crate) struct Inner {
    config: LocalConfig,
    root: OwnedFd,
    engine: Engine,
    buffers: BufferPool,
    order: Arc<order::Order>,
}

impl LocalFileSystem {
    /// Shows `config.root`, which must be a directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `PermissionDenied` for the root; `InvalidInput` for a setting out of its range;
    /// `Unsupported` when `uring` is demanded and not permitted; `TimedOut` when the root hangs.
    pub async fn open(config: LocalConfig) -> Result<Self> {
        Self::with_buffers(config, BufferPool::default()).await
    }

    /// As [`LocalFileSystem::open`], with read buffers from `buffers`.
    ///
    /// # Errors
    /// As [`LocalFileSystem::open`].
    pub async fn with_buffers(mut config: LocalConfig, buffers: BufferPool) -> Result<Self> {
        let engine = Engine::new(config.engine_config()?)?;
        // The identity must not depend on the working directory.
        config.root = std::path::absolute(&config.root)?;
        let path = config.root.clone();
        let root = engine
            .pool()
            .run("open", move |_| {
                rustix::fs::open(&path, attr::DIRECTORY, rustix::fs::Mode::empty())
                    .map_err(|e| attr::error(e).during("open").with_context("root", path.display()))
            })
            .await?;
        Ok(LocalFileSystem {
            inner: Arc::new(Inner { config, root, engine, buffers, order: Arc::default() }),
        })
    }

    /// What reads its files; other local files can be read with it too.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// Which way of reading is used, and why.
    pub fn describe(&self) -> &EngineReport {
        self.inner.engine.describe()
    }

    /// Calls that were given up and still hang in the kernel.
    pub fn blocked_threads(&self) -> usize {
        self.inner.engine.blocked()
    }

    /// Runs `work`, which changes nothing, on a thread of the engine and says in errors what and where it was.
    async fn look<T, F>(&self, what: &'static str, path: &FsPath, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner, &FsPath, &Beat) -> Result<T> + Send + 'static,
    {
        let (inner, own) = (self.inner.clone(), path.clone());
        let run = self.inner.engine.pool().run(what, move |beat| {
            inner.order.settle();
            work(&inner, &own, beat)
        });
        run.await.map_err(|e| e.during(what).at(path))
    }

    /// As `look`, for work that changes something: later calls see its end even if this future is dropped.
    async fn change<T, F>(&self, what: &'static str, path: &FsPath, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner, &FsPath, &Beat) -> Result<T> + Send + 'static,
    {
        self.inner.check_writable().map_err(|e| e.during(what).at(path))?;
        let own = path.clone();
        let run = self.inner.change(what, move |inner, beat| work(inner, &own, beat));
        run.await.map_err(|e| e.during(what).at(path))
    }
}

impl Inner {
    async fn change<T, F>(self: &Arc<Self>, what: &'static str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner, &Beat) -> Result<T> + Send + 'static,
    {
        let inner = self.clone();
        let (_waiting, working) = self.order.begin();
        let run = self.engine.pool().run(what, move |beat| {
            working.settle();
            let result = work(&inner, beat);
            drop(working);
            result
        });
        run.await
    }

    fn check_writable(&self) -> Result<()> {
        if self.config.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the filesystem was opened read-only"));
        }
        Ok(())
    }
}

impl fmt::Debug for LocalFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalFileSystem").field(&self.inner.config.root).finish()
    }
}

/// True if a component of `path` is a name that only temporary files have.
fn is_hidden(path: &FsPath) -> bool {
    path.components().any(|c| c.starts_with(TEMP_PREFIX))
}

#[async_trait]
impl FileSystem for LocalFileSystem {
    fn identity(&self) -> Identity {
        let root = self.inner.config.root.as_os_str().as_bytes();
        let shown = FsPath::parse_lenient(root)
            .map_or_else(|_| String::from_utf8_lossy(root).into(), |p| p.to_string());
        Identity { url: format!("file:///{}", shown.trim_start_matches('/')), endpoint: String::new() }
    }

    fn capabilities(&self) -> Capabilities {
        let write = !self.inner.config.read_only;
        Capabilities {
            write,
            empty_dirs: write,
            atomic_rename: write,
            server_side_copy: write,
            unix_mode: true,
            local_fd: true,
            ..Capabilities::default()
        }
    }

    async fn stat(&self, path: &FsPath) -> Result<Metadata> {
        if is_hidden(path) {
            return Err(Error::not_found(path).during("stat"));
        }
        self.look("stat", path, |fs, path, _| attr::stat(&fs.root, path)).await
    }

    fn list(&self, dir: &FsPath, options: ListOptions) -> EntryStream {
        list::list(self.inner.clone(), dir.clone(), options)
    }

    async fn open(&self, path: &FsPath, options: OpenOptions) -> Result<Arc<dyn File>> {
        if is_hidden(path) {
            return Err(Error::not_found(path).during("open"));
        }
        let shared = self.inner.clone();
        let wanted = options.metadata;
        let file = self.look("open", path, move |fs, path, _| file::open(fs, shared, path, wanted)).await?;
        Ok(Arc::new(file))
    }

    async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<Box<dyn FileWriter>> {
        let shared = self.inner.clone();
        let writer = self
            .change("create", path, move |_, path, _| writer::create(shared, path, options.condition))
            .await?;
        Ok(Box::new(writer))
    }

    fn delete(&self, paths: BoxStream<'static, FsPath>) -> BoxStream<'static, (FsPath, Result<()>)> {
        let fs = self.clone();
        let batches = paths.ready_chunks(DELETE_BATCH).then(move |batch| {
            let fs = fs.clone();
            async move { fs.delete_batch(batch).await }
        });
        batches.flat_map(futures::stream::iter).boxed()
    }

    async fn rename(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let to = to.clone();
        self.change("rename", from, move |fs, from, _| namespace::rename(fs, from, &to, options.no_replace))
            .await
    }

    async fn copy(&self, from: &FsPath, to: &FsPath, options: CopyOptions) -> Result<()> {
        let (shared, to) = (self.inner.clone(), to.clone());
        self.change("copy", from, move |_, from, beat| {
            namespace::copy(shared, from, &to, options.no_replace, beat)
        })
        .await
    }

    async fn create_dir(&self, path: &FsPath) -> Result<()> {
        self.change("create_dir", path, |fs, path, _| namespace::create_dir(fs, path)).await
    }

    async fn remove_dir(&self, path: &FsPath) -> Result<()> {
        self.change("remove_dir", path, |fs, path, _| namespace::remove_dir(fs, path)).await
    }
}

impl LocalFileSystem {
    async fn delete_batch(&self, batch: Vec<FsPath>) -> Vec<(FsPath, Result<()>)> {
        let paths = batch.clone();
        let delete = move |inner: &Inner, beat: &Beat| {
            inner.check_writable()?;
            let delete = |path: FsPath| {
                beat.touch();
                let result = namespace::delete(inner, &path).map_err(|e| e.during("delete").at(&path));
                (path, result)
            };
            Ok(paths.into_iter().map(delete).collect::<Vec<_>>())
        };
        // When the thread hangs, some of the batch may be deleted: which, nobody can tell.
        self.inner.change("delete", delete).await.unwrap_or_else(|e| {
            let failed = |path: FsPath| (path.clone(), Err(e.duplicate().during("delete").at(&path)));
            batch.into_iter().map(failed).collect()
        })
    }
}
