//! Where in a directory the cache of this machine is, and what the filesystem below it is like.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nearfs_backends::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, IFlags, Mode, OFlags};

use super::FORMAT;
use super::rights::Rights;

/// The directory of this format version, ready to be used by this machine.
#[derive(Debug)]
pub(crate) struct Place {
    /// What was asked for.
    pub(crate) asked: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) dir: File,
    /// The directory it is in, with those of other format versions.
    pub(crate) parent: File,
    pub(crate) rights: Rights,
    /// Size of the filesystem in bytes.
    pub(crate) total: u64,
}

/// What makes backup programs leave a directory out: <https://bford.info/cachedir/>.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This directory holds what nearfs can fetch again. It can be removed when no nearfs runs.\n";

/// Filesystems that other machines may have mounted too (from statfs(2) and the kernel's `magic.h`; the last four
/// are not in the kernel: AFS of OpenAFS, GPFS, PanFS and BeeGFS). Shared memory is not shared over them, so each machine has its own
/// part. FUSE may be anything, and is taken for one of them.
const NETWORK: [u32; 18] = [
    0x6969,      // NFS
    0x517B,      // SMB
    0xFF53_4D42, // CIFS
    0xFE53_4D42, // SMB2
    0x6573_5546, // FUSE
    0x0BD0_0BD0, // Lustre
    0x00C3_6400, // Ceph
    0x0102_1997, // 9p
    0x7461_636F, // OCFS2
    0x0116_1970, // GFS2
    0x5346_414F, // AFS
    0x6B41_4653, // kAFS
    0x7375_7245, // Coda
    0x786F_4256, // VirtualBox shared folders
    0x0000_564C, // NCP
    0x4750_4653, // GPFS
    0xAAD7_AAEA, // PanFS
    0x1983_0326, // BeeGFS
];

/// Copy-on-write needs room to overwrite, which a mapping cannot ask for politely.
const BTRFS: u32 = 0x9123_683E;

/// Makes `path` and what the cache needs below it.
///
/// # Errors
/// `PermissionDenied` if the directory belongs to somebody else, `InvalidInput` if others may write to it, otherwise
/// what the filesystem says.
pub(crate) fn prepare(path: &Path, rights: Rights) -> Result<Place> {
    prepare_for(path, rights, &|kind| NETWORK.contains(&kind).then(machine_id))
}

/// The same, with the name of this machine if a filesystem of that kind is shared with others.
fn prepare_for(path: &Path, rights: Rights, machine: &dyn Fn(u32) -> Option<String>) -> Result<Place> {
    let at = |e: std::io::Error| Error::from(e).with_context("directory", path.display().to_string());
    let dir = outer(path, rights)?;
    let kind = rustix::fs::fstatfs(&dir).map_err(|e| at(e.into()))?.f_type as u32;
    tag(&dir, rights);
    let (host_path, host) = match &machine(kind) {
        None => (path.to_owned(), dir),
        Some(id) => {
            let (hosts, _) = rights.make_dir(dir.as_fd(), "hosts").map_err(at)?;
            rights.check(&hosts, &path.join("hosts"))?;
            let (host, _) = rights.make_dir(hosts.as_fd(), id).map_err(at)?;
            let host_path = path.join("hosts").join(id);
            rights.check(&host, &host_path)?;
            (host_path, host)
        }
    };
    let name = format!("nearfs-v{FORMAT}");
    let asked = path.to_owned();
    let path = host_path.join(&name);
    let (dir, _) = rights.make_dir(host.as_fd(), &name).map_err(at)?;
    let rights = rights.settle(&dir, &path)?;
    if kind == BTRFS {
        // New files inherit it. Where it is refused, the share kept free is what keeps mappings from failing.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&dir) {
            let _ = rustix::fs::ioctl_setflags(&dir, flags | IFlags::NOCOW);
        }
    }
    let statvfs = rustix::fs::fstatvfs(&dir).map_err(|e| at(e.into()))?;
    Ok(Place {
        asked,
        path,
        dir,
        parent: host,
        rights,
        total: statvfs.f_blocks.saturating_mul(statvfs.f_frsize),
    })
}

/// Opens `path`, or makes it with the right mode, and the directories above it with the usual one.
fn outer(path: &Path, rights: Rights) -> Result<File> {
    let at = |e: std::io::Error| Error::from(e).with_context("directory", path.display().to_string());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(std::io::Error::from);
    match open() {
        Ok(dir) => {
            rights.check(&dir, path)?;
            return Ok(dir);
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(at(e)),
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("expected a directory with a name in UTF-8 for the cache, found {}", path.display()),
        ));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    std::fs::create_dir_all(parent).map_err(at)?;
    let parent = File::open(parent).map_err(at)?;
    let (dir, made) = rights.make_dir(parent.as_fd(), name).map_err(at)?;
    if !made {
        rights.check(&dir, path)?;
    }
    Ok(dir)
}

/// Backups are a courtesy: a directory that cannot be tagged is used all the same.
fn tag(dir: &File, rights: Rights) {
    if rustix::fs::statat(dir, "CACHEDIR.TAG", AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return;
    }
    let written = super::publish::Unnamed::create(dir.as_fd(), rights).and_then(|unnamed| {
        std::io::Write::write_all(&mut unnamed.file(), TAG.as_bytes())?;
        unnamed.publish("CACHEDIR.TAG")
    });
    if let Err(e) = written {
        tracing::debug!(error = %e, "CACHEDIR.TAG not written");
    }
}

/// What tells this machine from others that have the same directory: the machine id of systemd or D-Bus, else the
/// host name. Two machines with one id, as from one image, are told apart when they meet (see `Directory::open`).
fn machine_id() -> String {
    let read = |path: &str| std::fs::read_to_string(path).ok().and_then(|text| plain(&text));
    read("/etc/machine-id")
        .or_else(|| read("/var/lib/dbus/machine-id"))
        .or_else(|| read("/proc/sys/kernel/hostname"))
        .unwrap_or_else(|| "unnamed".to_owned())
}

/// `text` as one harmless name of a directory, if anything is left of it.
fn plain(text: &str) -> Option<String> {
    let name: String =
        text.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(64).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_directory_is_made_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/cache");
        let place = prepare(&path, Rights::private()).unwrap();
        assert_eq!(place.path, path.join("nearfs-v1"));
        assert!(place.total > 0);
        for made in [&path, &place.path] {
            assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o7777, 0o700);
        }
        let tag = std::fs::read_to_string(path.join("CACHEDIR.TAG")).unwrap();
        assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55"));
        prepare(&path, Rights::private()).unwrap();
    }

    #[test]
    fn what_is_not_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(prepare(&file, Rights::private()).unwrap_err().kind(), ErrorKind::NotADirectory);
        // A link where the cache's own directory should be leads to somebody else's files.
        let path = dir.path().join("cache");
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(dir.path(), path.join("nearfs-v1")).unwrap();
        let e = prepare(&path, Rights::private()).unwrap_err();
        assert!(e.context("directory").is_some_and(|at| at.ends_with("cache")), "{e}");
    }

    #[test]
    fn on_network_filesystems_each_machine_has_its_own_part() {
        let dir = tempfile::tempdir().unwrap();
        let place = prepare_for(dir.path(), Rights::private(), &|_| Some("0f3a".to_owned())).unwrap();
        assert_eq!(place.path, dir.path().join("hosts/0f3a/nearfs-v1"));
        assert!(place.path.is_dir());
        assert!(dir.path().join("CACHEDIR.TAG").exists());
        let hosts = dir.path().join("hosts");
        std::fs::set_permissions(&hosts, std::fs::Permissions::from_mode(0o777)).unwrap();
        let e = prepare_for(dir.path(), Rights::private(), &|_| Some("0f3a".to_owned())).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }

    #[test]
    fn names_of_machines_are_harmless() {
        assert_eq!(plain("0f3a\n").unwrap(), "0f3a");
        assert_eq!(plain("../../etc").unwrap(), "etc");
        assert_eq!(plain("../.."), None);
        assert!(plain(&machine_id()).is_some());
    }
}
