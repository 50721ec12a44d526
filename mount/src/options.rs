//! [`MountOptions`]: everything a mount can be told, as plain data with working defaults.

use std::time::Duration;

use nearfs_backends::{Error, ErrorKind, Result};

/// How files are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpenMode {
    /// The fastest mode that the mount and the kernel allow: [`OpenMode::Stateless`] on a read-only mount, else
    /// [`OpenMode::Plain`].
    #[default]
    Auto,
    /// The kernel opens files without asking and keeps their pages. Read-only mounts on kernels that know it
    /// (4.14 and later); elsewhere it becomes [`OpenMode::Plain`], which the mount's statistics show.
    Stateless,
    /// One round trip per open; pages are kept.
    Plain,
    /// The kernel reads files of 1 MiB and more that are wholly in the cache on disk by itself, from the next open
    /// after they are; the other files are opened as with [`OpenMode::Plain`]. Needs a cache on disk, Linux 6.9 and
    /// the capability `SYS_ADMIN`; elsewhere it becomes [`OpenMode::Plain`], and the mount's statistics say why.
    Passthrough,
}

impl OpenMode {
    /// The word of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            OpenMode::Auto => "auto",
            OpenMode::Stateless => "stateless",
            OpenMode::Plain => "plain",
            OpenMode::Passthrough => "passthrough",
        }
    }
}

impl std::str::FromStr for OpenMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [OpenMode::Auto, OpenMode::Stateless, OpenMode::Plain, OpenMode::Passthrough]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| {
                let text =
                    format!("unknown open mode `{text}`, expected auto, stateless, passthrough or plain");
                Error::new(ErrorKind::InvalidInput, text)
            })
    }
}

/// Options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Allow writing. Default: `false`; `true` is refused by [`MountOptions::validate`] until writing exists.
    pub read_write: bool,
    /// How files are opened. Default: [`OpenMode::Auto`].
    pub open: OpenMode,
    /// Longest time any call into the mount may take before it fails with `ETIMEDOUT`; from 100 ms to one day.
    /// Default: 60 s.
    pub deadline: Duration,
    /// Let users other than the mounting one in. Default: `false`.
    pub allow_other: bool,
    /// Owner of everything. Default: `None`, the effective user of this process.
    pub uid: Option<u32>,
    /// Group of everything. Default: `None`, the effective group of this process.
    pub gid: Option<u32>,
    /// Permission bits taken away from everything (0 to 0o777). Default: 0.
    pub umask: u32,
    /// Permission bits of files whose store has none. Default: 0o444.
    pub file_mode: u32,
    /// Permission bits of directories whose store has none. Default: 0o555.
    pub dir_mode: u32,
    /// Threads that take requests from the kernel, 1 to 64. Default: `None`, one for each core, from 2 to 16.
    pub threads: Option<usize>,
    /// What `/proc/mounts` shows as source; must hold no secrets. Default: `None`, the filesystem's URL, or
    /// `nearfs` if several are mounted.
    pub source: Option<String>,
    /// What `.nearfs/config` shows. Default: an empty object.
    pub config: serde_json::Value,
    /// How long [`Mount::start`](crate::Mount::start) waits for the directory to answer. Default: 30 s.
    pub ready_timeout: Duration,
    /// Kernel readahead to ask for, in KiB (needs root). Default: 1024, the largest request the kernel sends.
    pub read_ahead_kib: u32,
    /// Refuse to execute files. Default: `false`.
    pub no_exec: bool,
    /// Newest version of the FUSE protocol, `(major, minor)`, whose features are used: with `(7, 34)` the mount does
    /// what it would do on Linux 5.14. Default: `None`, all that the kernel has.
    pub protocol: Option<(u32, u32)>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_write: false,
            open: OpenMode::Auto,
            deadline: Duration::from_secs(60),
            allow_other: false,
            uid: None,
            gid: None,
            umask: 0,
            file_mode: 0o444,
            dir_mode: 0o555,
            threads: None,
            source: None,
            config: serde_json::Value::Object(serde_json::Map::new()),
            ready_timeout: Duration::from_secs(30),
            read_ahead_kib: 1024,
            no_exec: false,
            protocol: None,
        }
    }
}

impl MountOptions {
    /// Checks what can be checked without mounting.
    ///
    /// # Errors
    /// `Unsupported` for modes that do not exist yet; `InvalidInput` for values out of range.
    pub fn validate(&self) -> Result<()> {
        if self.read_write {
            return Err(Error::unsupported(
                "read-write mounts are not available yet: mount read-only, which is the default",
            ));
        }
        let range = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
        if !range.contains(&self.deadline) {
            let text = format!("the deadline is {:?}, expected 100ms to 24h", self.deadline);
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        for (name, bits) in
            [("umask", self.umask), ("file mode", self.file_mode), ("dir mode", self.dir_mode)]
        {
            if bits > 0o777 {
                let text = format!("the {name} is {bits:o}, expected 0 to 777 (octal)");
                return Err(Error::new(ErrorKind::InvalidInput, text));
            }
        }
        if self.threads.is_some_and(|n| !(1..=64).contains(&n)) {
            return Err(Error::new(ErrorKind::InvalidInput, "the number of threads must be 1 to 64"));
        }
        Ok(())
    }

    /// Event-loop threads to start.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(2, |n| n.get()).clamp(2, 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exist_yet_is_refused_before_mounting() {
        let options = MountOptions { read_write: true, ..Default::default() };
        let error = options.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().starts_with("read-write mounts are not available yet"));
    }

    #[test]
    fn ranges_are_checked() {
        assert!(MountOptions::default().validate().is_ok());
        for bad in [
            MountOptions { deadline: Duration::ZERO, ..Default::default() },
            MountOptions { umask: 0o1777, ..Default::default() },
            MountOptions { threads: Some(0), ..Default::default() },
        ] {
            assert_eq!(bad.validate().unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn open_modes_read_as_on_the_command_line() {
        for mode in [OpenMode::Auto, OpenMode::Stateless, OpenMode::Plain, OpenMode::Passthrough] {
            assert_eq!(mode.as_str().parse::<OpenMode>().unwrap(), mode);
        }
        assert!("fast".parse::<OpenMode>().is_err());
    }
}
