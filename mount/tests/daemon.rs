//! Mounts of other processes: ones that die, hang, or belong to a user without rights.
//!
//! This program is its own daemon: `daemon serve DIR` mounts on DIR and serves until its standard input ends (with
//! `stall`, all but the names in the root hangs; with `passthrough=CACHE` files are opened in passthrough, and it tells
//! what became of that). `daemon hang PATH` reads PATH in a thread that is not the process's first. Without arguments, or with names to choose by, it runs the tests.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearfs_backends::layer::{Fault, FaultAction, FaultLayer, Operation};
use nearfs_backends::{ErrorKind, FileSystemExt, FsPath, MemoryFileSystem, Spawner};
use nearfs_cache::{CacheConfig, CachedFileSystem, DiskConfig, DiskSize, DiskTier};
use nearfs_mount::{
    Liveness, Mount, MountOptions, MountSession, OpenMode, UnmountOptions, Unmounted, list_mounts, probe,
    unmount,
};
use tokio::runtime::Runtime;

const SOON: Duration = Duration::from_secs(20);
/// What a killed caller may take: one second is promised, the machine may be busy.
const KILLED: Duration = Duration::from_secs(3);
/// Of calls into a stalled daemon.
const DEADLINE: Duration = Duration::from_secs(8);
/// A user without rights; Debian's `nobody`.
const NOBODY: u32 = 65534;

type Test = (&'static str, fn());

const TESTS: [Test; 12] = [
    ("m1_the_daemon_dies", m1_the_daemon_dies),
    ("a_daemon_that_hangs_is_seen_and_can_be_ended", a_daemon_that_hangs_is_seen_and_can_be_ended),
    ("a_user_mounts_through_the_helper", a_user_mounts_through_the_helper),
    ("a_user_may_let_others_in_only_if_allowed", a_user_may_let_others_in_only_if_allowed),
    ("an_ordered_stop_exits_with_success", an_ordered_stop_exits_with_success),
    ("a_caller_that_is_not_the_first_thread_is_freed", a_caller_that_is_not_the_first_thread_is_freed),
    ("a_caller_in_a_pid_namespace_below_is_freed", a_caller_in_a_pid_namespace_below_is_freed),
    (
        "a_daemon_that_cannot_see_its_callers_ends_them_by_the_deadline_only",
        unseen_callers_end_by_the_deadline_only,
    ),
    ("root_passes_files_through", root_passes_files_through),
    ("a_user_without_rights_passes_nothing_through", a_user_without_rights_passes_nothing_through),
    ("root_of_a_user_namespace_passes_nothing_through", root_of_a_namespace_passes_nothing_through),
    ("a_passed_file_outlives_its_daemon_and_is_not_evicted", a_passed_file_outlives_its_daemon),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", dir, options @ ..] => return serve(Path::new(dir), options),
        ["hang", path] => return hang(Path::new(path)),
        ["serve-and-read", dir, cache] => return serve_and_read(Path::new(dir), Path::new(cache)),
        _ => {}
    }
    let chosen: Vec<_> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let mut failed = 0;
    for (name, test) in TESTS {
        if chosen.is_empty() || chosen.iter().any(|c| name.contains(c.as_str())) {
            let ok = std::panic::catch_unwind(test).is_ok();
            println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
            failed += u8::from(!ok);
        }
    }
    ExitCode::from(failed)
}

/// Bytes that tell where they are.
fn content() -> Vec<u8> {
    (0..4_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn start(dir: &Path, options: MountOptions) -> nearfs_backends::Result<(Runtime, MountSession)> {
    start_with(dir, options, false, None)
}

fn disk_tier(dir: &Path) -> nearfs_backends::Result<Arc<DiskTier>> {
    let size = Some(DiskSize::Bytes(64 << 20));
    DiskTier::open(&DiskConfig { dirs: vec![dir.to_owned()], size, free: 0.0, ..Default::default() })
}

fn start_with(
    dir: &Path,
    options: MountOptions,
    stall: bool,
    disk: Option<Arc<DiskTier>>,
) -> nearfs_backends::Result<(Runtime, MountSession)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let memory = MemoryFileSystem::new();
    for name in ["d/file", "known"] {
        runtime.block_on(memory.write(&FsPath::parse(name)?, content().into()))?;
    }
    let spawner = Spawner::new(runtime.handle().clone());
    let store = FaultLayer::new(Arc::new(memory));
    let config = CacheConfig { cache_local: disk.is_some(), ..Default::default() };
    let fs = CachedFileSystem::with_disk(Arc::new(store.clone()), config, disk, spawner.clone());
    runtime.block_on(fs.lookup(&FsPath::parse("known")?))?;
    if stall {
        for operation in [Operation::Stat, Operation::List, Operation::Open, Operation::Read] {
            store.inject(Fault::on(operation, FaultAction::Stall(0)));
        }
    }
    let session = Mount::start(fs, dir, options, spawner)?;
    Ok((runtime, session))
}

fn serve(dir: &Path, options: &[&str]) -> ExitCode {
    let has = |name: &str| options.contains(&name);
    let deadline = if has("stall") { DEADLINE } else { Duration::from_secs(60) };
    match start_with(
        dir,
        MountOptions { allow_other: has("allow_other"), deadline, ..Default::default() },
        has("stall"),
        None,
    ) {
        Err(e) => {
            println!("failed: {e} (hint: {})", e.context("hint").unwrap_or("none"));
            ExitCode::FAILURE
        }
        Ok((_runtime, session)) => {
            println!("ready");
            let mut end = Vec::new();
            let _ = std::io::stdin().read_to_end(&mut end);
            match session.unmount(UnmountOptions::default()) {
                Ok(_) => ExitCode::SUCCESS,
                Err(e) => {
                    println!("failed: {e}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

/// Mounts with passthrough on `dir`, reads a file until the cache in `cache` has it, and opens it once more. Prints
/// what the statistics say of that, and serves until its standard input ends.
fn serve_and_read(dir: &Path, cache: &Path) -> ExitCode {
    let read = || -> nearfs_backends::Result<(Runtime, MountSession)> {
        let disk = disk_tier(cache)?;
        let options = MountOptions { open: OpenMode::Passthrough, ..Default::default() };
        let (runtime, session) = start_with(dir, options, false, Some(Arc::clone(&disk)))?;
        let file = dir.join("d/file");
        for _ in 0..100 {
            if std::fs::read(&file)? != content() {
                return Err(nearfs_backends::Error::new(ErrorKind::Corrupt, "other bytes"));
            }
            runtime.block_on(disk.flush());
            let passthrough = &session.stats()["mount"]["passthrough"];
            if passthrough["opens"] != 0 || passthrough["available"] == false {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok((runtime, session))
    };
    match read() {
        Err(e) => {
            println!("failed: {}", e.chain());
            ExitCode::FAILURE
        }
        Ok((_runtime, session)) => {
            println!("{}", session.stats()["mount"]);
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            match session.unmount(UnmountOptions::default()) {
                Ok(_) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// Looks at `path` in a second thread and exits with the errno.
fn hang(path: &Path) -> ExitCode {
    let path = path.to_owned();
    let looker = std::thread::spawn(move || errno(std::fs::metadata(path)).unwrap_or(0));
    ExitCode::from(looker.join().unwrap_or(255) as u8)
}

/// A serving process; killed, and its mount taken away, when dropped.
struct Daemon {
    child: Child,
    said: String,
    dir: std::path::PathBuf,
}

impl Daemon {
    fn start(dir: &Path, user: Option<u32>, options: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(id) = user {
            command.uid(id).gid(id);
        }
        Self::run(command, dir, options)
    }

    fn run(mut command: Command, dir: &Path, options: &[&str]) -> Self {
        command.arg("serve").arg(dir).args(options);
        Self::spawn(command, dir)
    }

    /// A process that mounts with passthrough and tells what became of it.
    fn passing(mut command: Command, dir: &Path, cache: &Path) -> Self {
        command.arg("serve-and-read").arg(dir).arg(cache);
        Self::spawn(command, dir)
    }

    fn spawn(mut command: Command, dir: &Path) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Daemon { child, said: said.trim().to_owned(), dir: dir.canonicalize().unwrap_or(dir.to_owned()) }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: sends a signal to a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn wait(&mut self) -> Option<i32> {
        ended(&mut self.child, SOON)
    }
}

/// The exit code of a process, -1 if a signal ended it; `None` if it has not ended within `limit`.
fn ended(child: &mut Child, limit: Duration) -> Option<i32> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap_or(-1));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while mounted(&self.dir) {
            if unmount(&self.dir, UnmountOptions { force: true, ..Default::default() }).is_err() {
                return;
            }
        }
    }
}

fn mounted(dir: &Path) -> bool {
    list_mounts().unwrap().iter().any(|m| m.dir == dir)
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

fn m1_the_daemon_dies() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().canonicalize().unwrap();
    let mut daemon = Daemon::start(&dir, None, &[]);
    assert_eq!(daemon.said, "ready");
    assert_eq!(probe(&dir, SOON).unwrap(), Liveness::Alive);
    let readers: Vec<_> = (0..4).map(|_| std::fs::File::open(dir.join("d/file")).unwrap()).collect();
    let mut inside = Command::new("sleep").arg("60").current_dir(dir.join("d")).spawn().unwrap();
    daemon.signal(libc::SIGKILL);
    daemon.wait().unwrap();

    let start_of_reads = Instant::now();
    for reader in &readers {
        let error = errno(reader.read_at(&mut [0; 100], 2_000_000));
        assert!(matches!(error, Some(libc::ENOTCONN | libc::EIO | libc::ECONNABORTED)), "{error:?}");
    }
    assert!(start_of_reads.elapsed() < SOON, "nobody hangs");
    assert_eq!(errno(std::fs::metadata(&dir)), Some(libc::ENOTCONN));
    assert_eq!(probe(&dir, SOON).unwrap(), Liveness::Dead);
    assert!(mounted(&dir));

    // With readers and a working directory still in it, the same path works again without a manual step.
    for _ in 0..2 {
        let mut next = Daemon::start(&dir, None, &[]);
        assert_eq!(next.said, "ready");
        assert_eq!(std::fs::read(dir.join("d/file")).unwrap(), content());
        assert_eq!(list_mounts().unwrap().iter().filter(|m| m.dir == dir).count(), 1, "none is stacked");
        let other = Daemon::start(&dir, None, &[]);
        let pid = next.child.id().to_string();
        assert!(other.said.contains("memory:///") && other.said.contains(&pid), "{}", other.said);
        std::mem::forget(other);
        next.signal(libc::SIGKILL);
        next.wait().unwrap();
        std::mem::forget(next);
    }
    let (_runtime, session) = start(&dir, MountOptions::default()).unwrap();
    assert_eq!(probe(&dir, SOON).unwrap(), Liveness::Alive);
    drop(session);
    inside.kill().unwrap();
    inside.wait().unwrap();
}

fn a_daemon_that_hangs_is_seen_and_can_be_ended() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().canonicalize().unwrap();
    let mut daemon = Daemon::start(&dir, None, &[]);
    assert_eq!(daemon.said, "ready");
    daemon.signal(libc::SIGSTOP);
    // The signal is there before every thread has stopped.
    let tasks = format!("/proc/{}/task", daemon.child.id());
    let stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let asked = Instant::now();
    while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
        assert!(asked.elapsed() < SOON, "a stopped process stops");
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = Instant::now();
    assert_eq!(probe(&dir, Duration::from_millis(500)).unwrap(), Liveness::Silent);
    assert!(mounted(&dir), "listing mounts does not hang");
    let error = start(&dir, MountOptions::default()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.context("hint").is_some_and(|h| h.contains("unmount -f")));
    assert!(begin.elapsed() < SOON);
    let stuck = std::thread::spawn({
        let dir = dir.clone();
        move || std::fs::metadata(dir.join("never/seen")).is_err()
    });
    std::thread::sleep(Duration::from_millis(200));
    let force = UnmountOptions { force: true, ..Default::default() };
    assert_eq!(unmount(&dir, force).unwrap(), Unmounted::Forced);
    assert!(stuck.join().unwrap(), "who waited got an error");
    assert!(!mounted(&dir));
    daemon.signal(libc::SIGCONT);
    drop(daemon.child.stdin.take());
    assert_eq!(daemon.wait(), Some(0), "it notices and ends");
}

/// Lets users open the device, as every distribution does, until dropped.
struct OpenDevice(std::fs::Permissions);

impl OpenDevice {
    fn new() -> Self {
        let before = std::fs::metadata("/dev/fuse").unwrap().permissions();
        std::fs::set_permissions("/dev/fuse", std::fs::Permissions::from_mode(0o666)).unwrap();
        OpenDevice(before)
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        std::fs::set_permissions("/dev/fuse", self.0.clone()).unwrap();
    }
}

fn a_user_mounts_through_the_helper() {
    let _device = OpenDevice::new();
    let tmp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(tmp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let dir = tmp.path().canonicalize().unwrap().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut daemon = Daemon::start(&dir, Some(NOBODY), &[]);
    assert_eq!(daemon.said, "ready");
    let mount = list_mounts().unwrap().into_iter().find(|m| m.dir == dir).expect("type fuse.nearfs");
    assert!(mount.read_only && !mount.allow_other);
    assert_eq!(mount.source, "memory:///");
    assert_eq!(errno(std::fs::metadata(dir.join("d/file"))), Some(libc::EACCES), "not even root is let in");
    let sum = Command::new("cat").arg(dir.join("d/file")).uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(sum.status.success() && sum.stdout == content());
    drop(daemon.child.stdin.take());
    assert_eq!(daemon.wait(), Some(0));
    assert!(!mounted(&dir), "unmounted through the helper");
}

fn a_user_may_let_others_in_only_if_allowed() {
    let _device = OpenDevice::new();
    let tmp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(tmp.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let allowed = std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    let daemon = Daemon::start(tmp.path(), Some(NOBODY), &["allow_other"]);
    match allowed {
        true => {
            assert_eq!(daemon.said, "ready");
            assert_eq!(std::fs::read(tmp.path().join("d/file")).unwrap(), content());
        }
        false => assert!(daemon.said.contains("user_allow_other"), "{}", daemon.said),
    }
}

fn an_ordered_stop_exits_with_success() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().canonicalize().unwrap();
    let mut daemon = Daemon::start(&dir, None, &[]);
    let _held = std::fs::File::open(dir.join("d/file")).unwrap();
    drop(daemon.child.stdin.take());
    assert_eq!(daemon.wait(), Some(0), "in time, also with a file open");
    assert!(!mounted(&dir));
}

/// Starts a caller that hangs in a lookup.
fn caller(mut command: Command, path: &Path) -> Child {
    let mut child = command.arg("hang").arg(path).spawn().unwrap();
    assert_eq!(ended(&mut child, Duration::from_millis(700)), None, "it hangs");
    child
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

/// This program in a PID namespace of its own; it is killed when the process that waits for it is.
fn this_program_in_a_pid_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    command
}

fn a_caller_that_is_not_the_first_thread_is_freed() {
    let tmp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(tmp.path(), None, &["stall"]);
    assert_eq!(daemon.said, "ready");
    let mut child = caller(this_program(), &tmp.path().join("unknown"));
    child.kill().unwrap();
    assert_eq!(ended(&mut child, KILLED), Some(-1));
}

fn a_caller_in_a_pid_namespace_below_is_freed() {
    let tmp = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(tmp.path(), None, &["stall"]);
    assert_eq!(daemon.said, "ready");
    let mut child = caller(this_program_in_a_pid_namespace(), &tmp.path().join("unknown"));
    // The processes in it cannot be waited for from here: they are the ones that have the mount's name as argument.
    let name = tmp.path().join("unknown");
    let outside = child.id();
    let inside = || processes_with_argument(&name).into_iter().filter(|pid| *pid != outside).count();
    assert_eq!(inside(), 1);
    child.kill().unwrap();
    let end = Instant::now() + KILLED;
    while inside() > 0 {
        assert!(Instant::now() < end, "the caller is seen from above and freed");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait().unwrap();
}

fn processes_with_argument(path: &Path) -> Vec<u32> {
    let name = path.to_str().unwrap();
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    let has = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|c| c.split('\0').any(|a| a == name))
    };
    pids.filter(has).collect()
}

fn unseen_callers_end_by_the_deadline_only() {
    let tmp = tempfile::tempdir().unwrap();
    let daemon = Daemon::run(this_program_in_a_pid_namespace(), tmp.path(), &["stall"]);
    assert_eq!(daemon.said, "ready");
    let begin = Instant::now();
    let mut living = caller(this_program(), &tmp.path().join("one"));
    let mut killed = caller(this_program(), &tmp.path().join("two"));
    killed.kill().unwrap();
    // Nobody below can see that it was killed; what is promised then is the deadline.
    assert_eq!(ended(&mut killed, DEADLINE + KILLED), Some(-1));
    assert_eq!(ended(&mut living, DEADLINE + KILLED), Some(libc::ETIMEDOUT), "and nobody is taken for dead");
    assert!(begin.elapsed() < DEADLINE + SOON);
}

/// Places for a mount and a cache that `owner` may use. The cache is on the disk that this program was built on.
struct Places {
    mount: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Places {
    fn of(owner: u32) -> Self {
        let mount = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for dir in [mount.path(), cache.path()] {
            std::os::unix::fs::chown(dir, Some(owner), Some(owner)).unwrap();
        }
        Places { mount, cache }
    }

    fn pass(&self, command: Command) -> (Daemon, serde_json::Value) {
        let daemon = Daemon::passing(command, self.mount.path(), self.cache.path());
        let stats = serde_json::from_str(&daemon.said).unwrap_or_else(|_| panic!("it said: {}", daemon.said));
        (daemon, stats)
    }
}

fn root_passes_files_through() {
    let places = Places::of(0);
    let (mut daemon, stats) = places.pass(this_program());
    assert_eq!((&stats["open_mode"], &stats["passthrough"]["opens"]), (&"passthrough".into(), &1.into()));
    assert!(std::fs::read(places.mount.path().join("d/file")).unwrap() == content());
    drop(daemon.child.stdin.take());
    assert_eq!(daemon.wait(), Some(0));
}

fn a_user_without_rights_passes_nothing_through() {
    let _device = OpenDevice::new();
    let places = Places::of(NOBODY);
    let mut command = this_program();
    command.uid(NOBODY).gid(NOBODY);
    let (mut daemon, stats) = places.pass(command);
    assert_eq!((&stats["open_mode"], &stats["passthrough"]["opens"]), (&"plain".into(), &0.into()));
    let reason = stats["passthrough"]["reason"].as_str().unwrap();
    assert!(reason.contains("SYS_ADMIN"), "{reason}");
    let what: Vec<_> =
        stats["notes"].as_array().unwrap().iter().map(|n| n["what"].as_str().unwrap()).collect();
    assert!(what.contains(&"passthrough") && what.contains(&"read_ahead"), "{what:?}");
    drop(daemon.child.stdin.take());
    assert_eq!(daemon.wait(), Some(0));
}

/// It has the capability, as far as it can see, but not where it counts.
fn root_of_a_namespace_passes_nothing_through() {
    let _device = OpenDevice::new();
    let places = Places::of(0);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]).arg(std::env::current_exe().unwrap());
    let (mut daemon, stats) = places.pass(command);
    assert_eq!((&stats["open_mode"], &stats["passthrough"]["opens"]), (&"plain".into(), &0.into()));
    assert!(stats["passthrough"]["reason"].as_str().unwrap().contains("SYS_ADMIN"), "{stats}");
    drop(daemon.child.stdin.take());
    assert_eq!(daemon.wait(), Some(0));
}

fn a_passed_file_outlives_its_daemon() {
    let places = Places::of(0);
    let (mut daemon, _) = places.pass(this_program());
    let name = places.mount.path().join("d/file");
    let file = std::fs::File::open(&name).unwrap();
    let mut bytes = vec![0; content().len()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    daemon.signal(libc::SIGKILL);
    daemon.wait().unwrap();
    // Another process finds that somebody still has it, whoever that is.
    let disk = disk_tier(places.cache.path()).unwrap();
    let cleared = disk.clear();
    assert_eq!((cleared.kept, cleared.objects), (1, 0), "{cleared:?}");
    bytes.fill(0);
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == content());
    drop(file);
    // Takes the dead mount away, and with it what the kernel had.
    drop(daemon);
    let end = Instant::now() + SOON;
    while disk.clear().objects == 0 {
        assert!(Instant::now() < end, "it goes with the last handle");
        std::thread::sleep(Duration::from_millis(50));
    }
}
