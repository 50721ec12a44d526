//! What the machine allows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearfs::config::Settings;
use nearfs::mount::{Liveness, list_mounts, probe};
use rustix::process::{Resource, geteuid, getrlimit};

use super::Finding;
use crate::cli::output::human_bytes;

/// Open files below which many connections and local files may not fit.
const FEW_FILES: u64 = 4096;
/// How long a mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![kernel(), device(), helper(), others()];
    findings.extend(background());
    findings.extend([memory(settings), files(), engine()]);
    findings.extend(mounts());
    findings
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut parts = release.split(['.', '-']).map(|p| p.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let mut able = Vec::new();
    for (since, feature) in [
        ((4, 7), "parallel lookups"),
        ((4, 14), "stateless opens"),
        ((4, 20), "1 MiB requests"),
        ((6, 9), "passthrough"),
    ] {
        if version >= since {
            able.push(feature);
        }
    }
    let found = format!(
        "Linux {release}: {}",
        if able.is_empty() { "none of the fast paths".to_owned() } else { able.join(", ") }
    );
    if version < (4, 20) {
        return Finding::note("kernel", found)
            .means("a mount works, with smaller requests and a round trip for each open")
            .advise("use Linux 4.20 or later");
    }
    Finding::ok("kernel", found)
}

fn device() -> Finding {
    let known =
        fs::read_to_string("/proc/filesystems").is_ok_and(|t| t.lines().any(|l| l.ends_with("\tfuse")));
    match fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Finding::ok("/dev/fuse", "can be opened"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !known => {
            Finding::attention("/dev/fuse", "is missing, and the kernel knows no FUSE")
                .means("nothing can be mounted; everything else works")
                .advise("load the module (`modprobe fuse`) on the host")
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Finding::attention("/dev/fuse", "is missing")
            .means("nothing can be mounted here; everything else works")
            .advise("in a container pass it in: `--device /dev/fuse --cap-add SYS_ADMIN`"),
        Err(e) => Finding::attention("/dev/fuse", format!("cannot be opened: {e}"))
            .means("this user cannot mount; everything else works")
            .advise("its mode is usually 0666: `chmod 0666 /dev/fuse`, or mount as root"),
    }
}

fn helper() -> Finding {
    let root = geteuid().is_root();
    let Some(path) = find_program("fusermount3").or_else(|| find_program("fusermount")) else {
        return if root {
            Finding::note("fusermount3", "not installed")
                .means("root needs it not; other users cannot mount without")
        } else {
            Finding::attention("fusermount3", "not installed")
                .means("only root can mount")
                .advise("install the package fuse3 (`apt-get install fuse3`)")
        };
    };
    let setuid = fs::metadata(&path).is_ok_and(|m| m.permissions().mode() & 0o4000 != 0);
    let found = format!("{}{}", path.display(), if setuid { ", setuid" } else { ", not setuid" });
    match (setuid, root) {
        (true, _) => Finding::ok("fusermount3", found),
        (false, true) => {
            Finding::note("fusermount3", found).means("root needs it not; other users cannot mount")
        }
        (false, false) => Finding::attention("fusermount3", found)
            .means("it cannot mount for this user")
            .advise(format!("as root: `chmod u+s {}`", path.display())),
    }
}

fn others() -> Finding {
    let allowed =
        fs::read_to_string("/etc/fuse.conf").is_ok_and(|t| t.lines().any(|l| l.trim() == "user_allow_other"));
    match (geteuid().is_root(), allowed) {
        (true, _) => Finding::ok("allow_other", "root may let others in with `--allow-other`"),
        (false, true) => Finding::ok("allow_other", "user_allow_other is in /etc/fuse.conf"),
        (false, false) => Finding::note("allow_other", "user_allow_other is not in /etc/fuse.conf")
            .means("`--allow-other` is refused for this user")
            .advise("add the line `user_allow_other` to /etc/fuse.conf if others shall read the mount"),
    }
}

/// Limits on requests in the background: for mounts of root they do not hold.
fn background() -> Option<Finding> {
    let read = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("/sys/module/fuse/parameters/{name}")).ok()?.trim().parse().ok()
    };
    let limit = read("max_user_bgreq")?;
    let pages: u64 = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
        .ok()
        .and_then(|t| t.trim().parse().ok())
        .unwrap_or(256);
    let found = format!("max_user_bgreq {limit}, requests up to {}", human_bytes(pages * 4096));
    if limit < 4096 && !geteuid().is_root() {
        return Some(
            Finding::note("fuse limits", found)
                .means("a store that hangs on one file can hold up readers of others sooner")
                .advise("as root: `echo 4096 > /sys/module/fuse/parameters/max_user_bgreq`"),
        );
    }
    Some(Finding::ok("fuse limits", found))
}

fn memory(settings: &Settings) -> Finding {
    let limit = nearfs::memory_limit();
    let budget = match settings.memory {
        Some(size) => size.of(limit),
        None => (2 << 30).min(limit / 4),
    };
    let found = format!("{} may be used, {} of it for cached data", human_bytes(limit), human_bytes(budget));
    if budget > limit / 2 {
        return Finding::attention("memory", found)
            .means("more than half goes to cached data: other programs may run out")
            .advise("set `memory` lower");
    }
    if budget < 256 << 20 {
        return Finding::note("memory", found)
            .means("little to read ahead into: streams stay below the network's rate");
    }
    Finding::ok("memory", found)
}

fn files() -> Finding {
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(n) if n < FEW_FILES => Finding::note("open files", format!("at most {n}"))
            .means("many connections and open local files may not fit")
            .advise(format!("raise it: `ulimit -n {}`, or LimitNOFILE= in the unit", FEW_FILES * 16)),
        Some(n) => Finding::ok("open files", format!("at most {n}")),
        None => Finding::ok("open files", "no limit"),
    }
}

fn engine() -> Finding {
    match nearfs_backends::io::Engine::new(Default::default()) {
        Ok(engine) => {
            let report = engine.describe();
            match report.engine {
                nearfs_backends::io::EngineChoice::Uring => Finding::ok("local reads", report.reason.clone()),
                _ => Finding::note("local reads", report.reason.clone())
                    .means("local files and the cache are read by threads instead: the same results for some more CPU time")
                    .advise("allow io_uring (`kernel.io_uring_disabled`, the seccomp profile of the container)"),
            }
        }
        Err(e) => Finding::attention("local reads", e.to_string()),
    }
}

fn mounts() -> Vec<Finding> {
    let list = match list_mounts() {
        Ok(list) => list,
        Err(e) => return vec![Finding::attention("mounts", format!("{e:#}"))],
    };
    let mut findings = Vec::new();
    for mount in list {
        let what = format!("{} on {}", mount.source, mount.dir.display());
        findings.push(match probe(&mount.dir, PATIENCE) {
            Ok(Liveness::Alive) => Finding::ok("mount", format!("{what} answers")),
            Ok(Liveness::Dead) => Finding::attention("mount", format!("{what} is dead: its process is gone"))
                .means("everything that uses the directory fails")
                .advise("mount it again (the dead one is taken over), or `nearfs unmount` it"),
            Ok(Liveness::Silent) => Finding::attention("mount", format!("{what} does not answer"))
                .means("whoever uses the directory waits")
                .advise(format!("`nearfs unmount -f {}` ends it", mount.dir.display())),
            Ok(Liveness::Failed(errno)) => {
                let error = std::io::Error::from_raw_os_error(errno);
                Finding::note("mount", format!("{what}: {error}"))
            }
            Err(e) => Finding::note("mount", format!("{what} could not be asked: {e:#}")),
        });
    }
    findings
}

fn find_program(name: &str) -> Option<PathBuf> {
    // The places that mount(8) and shells of daemons use; asking the PATH would be asking the environment.
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
        .into_iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
}
