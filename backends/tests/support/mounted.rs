//! A filesystem mounted for one test. Needs root.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Unmounted on drop, also by force.
pub struct Mounted {
    dir: tempfile::TempDir,
}

impl Mounted {
    /// An empty filesystem in memory that can hold `bytes`.
    pub fn tmpfs(bytes: u64) -> Self {
        let options = format!("size={bytes},mode=755");
        Mounted::new("tmpfs", "tmpfs", &options)
    }

    pub fn new(source: &str, kind: &str, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        mount(source, dir.path(), kind, MountFlags::empty(), options.as_c_str())
            .expect("tests that mount run as root");
        Mounted { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Takes it away while it is in use. A FUSE filesystem then answers every call in progress with an error.
    pub fn abort(&self) {
        let _ = unmount(self.dir.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.abort();
    }
}
