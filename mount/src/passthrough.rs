//! Passthrough: the kernel reads a file of the cache by itself, and this process sees none of it. Whether that can be
//! done here, and how often it is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::thread::{CapabilitySet, capabilities};
use serde_json::{Value, json};

use crate::tree::Roots;

/// Smaller files are not worth an open of their own: kept pages serve them as fast.
pub(crate) const LEAST: u64 = 1 << 20;

/// Filesystems that lie on others, by the number that `statfs` gives: overlayfs, eCryptfs, FUSE (which may pass its
/// files through).
const STACKED: [i64; 3] = [0x794c_7630, 0xf15f, 0x6573_5546];

/// What is known of passthrough on one mount.
#[derive(Debug)]
pub(crate) struct Passthrough {
    /// Why it is not used; nothing while it is.
    off: Mutex<Option<String>>,
    /// The last failure that concerned one file only.
    failed: Mutex<Option<String>>,
    /// Layers of filesystems that may lie below the mount, as the kernel is told: 1 or 2.
    pub(crate) depth: u32,
    opens: AtomicU64,
    open_now: Arc<AtomicU64>,
}

impl Passthrough {
    /// For a mount of `roots` that passes files through if that can be done.
    pub(crate) fn wanted(roots: &Roots) -> Self {
        let dirs = roots.cache_dirs();
        let off = if dirs.is_empty() {
            Some("there is no cache on disk".to_owned())
        } else {
            // Without it the kernel refuses every file; if it cannot be asked, that is seen then.
            let may =
                |sets: rustix::thread::CapabilitySets| sets.effective.contains(CapabilitySet::SYS_ADMIN);
            (!capabilities(None).map_or(true, may)).then(|| needs_right().to_owned())
        };
        let depth = if dirs.iter().any(|dir| is_stacked(dir)) { 2 } else { 1 };
        Passthrough { depth, ..Self::with(off) }
    }

    /// For a mount that is not to pass files through.
    pub(crate) fn unwanted() -> Self {
        Self::with(Some("not asked for".to_owned()))
    }

    fn with(off: Option<String>) -> Self {
        Passthrough {
            off: Mutex::new(off),
            failed: Mutex::default(),
            depth: 1,
            opens: AtomicU64::new(0),
            open_now: Arc::default(),
        }
    }

    /// Why it is not used; nothing while it is.
    pub(crate) fn reason(&self) -> Option<String> {
        self.off.lock().clone()
    }

    /// True while files are passed through.
    pub(crate) fn is_on(&self) -> bool {
        self.off.lock().is_none()
    }

    /// No file is passed through from now on, because of `reason`. True if that is new.
    pub(crate) fn switch_off(&self, reason: String) -> bool {
        let mut off = self.off.lock();
        let new = off.is_none();
        off.get_or_insert(reason);
        new
    }

    /// The kernel refused a file with `error`. The reason, if it refuses every file because of that and this is new.
    pub(crate) fn refused(&self, error: &io::Error) -> Option<String> {
        let reason = match error.raw_os_error()? {
            libc::EPERM => needs_right(),
            libc::ELOOP => "the cache lies on more layers of filesystems than the kernel passes through",
            libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS => "this kernel was built without it",
            _ => return None,
        };
        self.switch_off(reason.to_owned()).then(|| reason.to_owned())
    }

    /// A file could not be passed through because of `reason`. True if the last one had another.
    pub(crate) fn failed(&self, reason: &str) -> bool {
        let mut failed = self.failed.lock();
        let new = failed.as_deref() != Some(reason);
        *failed = Some(reason.to_owned());
        new
    }

    /// A handle was opened in passthrough.
    pub(crate) fn opened(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// A file is open in passthrough for as long as what this gives lives.
    pub(crate) fn count(&self) -> Counted {
        self.open_now.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.open_now))
    }

    /// What the statistics show.
    pub(crate) fn to_json(&self) -> Value {
        let off = self.off.lock().clone();
        json!({
            "available": off.is_none(),
            "reason": off.or_else(|| self.failed.lock().clone()),
            "opens": self.opens.load(Ordering::Relaxed),
            "open_files": self.open_now.load(Ordering::Relaxed),
        })
    }
}

/// A file that is open in passthrough.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn needs_right() -> &'static str {
    "it needs the capability SYS_ADMIN, which this process does not have"
}

/// False also if nobody knows: then the kernel refuses the files, and says so.
fn is_stacked(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|stat| STACKED.contains(&stat.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays_and_is_told_once() {
        let p = Passthrough::with(None);
        assert!(p.is_on());
        assert!(p.failed("one"));
        assert!(!p.failed("one"), "the same again is no news");
        let refused = |errno| p.refused(&io::Error::from_raw_os_error(errno));
        assert_eq!(refused(libc::EMFILE), None);
        assert!(p.is_on(), "one file was refused, not all");
        assert!(refused(libc::EPERM).is_some());
        assert_eq!((refused(libc::EPERM), refused(libc::ELOOP)), (None, None));
        let json = p.to_json();
        assert_eq!(json["available"], false);
        assert!(json["reason"].as_str().unwrap().contains("SYS_ADMIN"), "{json}");
    }

    #[test]
    fn files_count_while_they_are_open() {
        let p = Passthrough::with(None);
        let (a, b) = (p.count(), p.count());
        assert_eq!(p.to_json()["open_files"], 2);
        drop((a, b));
        assert_eq!(p.to_json()["open_files"], 0);
        assert!(p.to_json()["reason"].is_null());
    }
}
