use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::config::DiskSize;
use crate::disk::children::{self, Child};

const MIB: u64 = 1 << 20;

fn config() -> DiskConfig {
    DiskConfig { size: Some(DiskSize::Bytes(64 * MIB)), free: 0.0, ..Default::default() }
}

fn open(path: &Path) -> Result<Arc<Directory>> {
    Directory::open(path, &config())
}

/// A child that opens the directory, says so, and waits.
fn user(args: &[String]) {
    match open(Path::new(&args[0])) {
        Ok(directory) => {
            children::say(directory.control().index_file().load(Ordering::SeqCst));
            children::wait();
        }
        Err(e) => children::say(e),
    }
}

#[test]
fn a_directory_is_made_opened_again_and_remembers_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path()).unwrap();
    assert_eq!((directory.limit(), directory.used(), directory.lent()), (64 * MIB, 0, 0));
    assert!(directory.writable());
    assert_eq!((directory.tick(), directory.tick(), directory.now()), (1, 2, 3));
    let other = Directory::open(dir.path(), &DiskConfig { size: None, ..config() }).unwrap();
    assert!(Arc::ptr_eq(&directory, &other), "one for all of a process");
    assert_eq!(other.limit(), 64 * MIB);
    let fan = std::fs::metadata(directory.path().join("objects/7f")).unwrap();
    assert_eq!(fan.mode() & 0o7777, 0o700);
    let mode = |name: &str| directory.path().join(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("control"), mode("index")), (0o600, 0o600));
    let index = directory.path().join("index").metadata().unwrap();
    assert!(index.blocks() * 512 >= index.len(), "no page without a place on disk");
    drop((directory, other));
    let directory = Directory::open(dir.path(), &DiskConfig { size: None, ..config() }).unwrap();
    assert_eq!(directory.limit(), 64 * MIB, "stored in the directory");
    assert_eq!(directory.now(), 3);
    open(dir.path()).unwrap().set_limit(128 * MIB);
    assert_eq!(directory.limit(), 128 * MIB);
}

#[test]
fn sizes_and_shares_become_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let total = place::prepare(dir.path(), Rights::private()).unwrap().total;
    let with = |size| DiskConfig { size, ..config() };
    let directory = Directory::open(dir.path(), &with(Some(DiskSize::Share(0.001)))).unwrap();
    assert_eq!(directory.limit(), DiskSize::Share(0.001).of(total));
    for (wrong, expected) in [
        (with(Some(DiskSize::Bytes(5))), "at least"),
        (DiskConfig { free: 0.99, ..config() }, "between 0 and 0.95"),
        (DiskConfig { free: f64::NAN, ..config() }, "between 0 and 0.95"),
    ] {
        let e = Directory::open(dir.path(), &wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        assert!(e.message().contains(expected), "{e}");
    }
    assert_eq!(directory.limit(), DiskSize::Share(0.001).of(total));
}

#[test]
fn the_first_alone_counts_anew() {
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path()).unwrap();
    directory.space().reserve(5 * MIB, &|_| 0).unwrap().commit(5 * MIB);
    std::mem::forget(directory.space().lend(MIB).unwrap());
    assert_eq!(directory.used(), 5 * MIB);
    std::fs::write(directory.path().join(".tmp-1-2-3"), "left over").unwrap();
    drop(directory);
    let directory = open(dir.path()).unwrap();
    assert_eq!((directory.used(), directory.lent()), (0, 0), "the index knows of nothing");
    assert!(!directory.path().join(".tmp-1-2-3").exists());
}

#[test]
fn what_others_count_is_kept_by_who_comes_later() {
    if let Some((_, args)) = children::role() {
        return user(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path()).unwrap();
    directory.space().reserve(5 * MIB, &|_| 0).unwrap().commit(5 * MIB);
    let name = "what_others_count_is_kept_by_who_comes_later";
    let mut child = Child::start(module_path!(), name, "user", &[dir.path()]);
    let index = directory.path().join("index").metadata().unwrap().ino();
    assert_eq!(child.hear(), index.to_string());
    assert_eq!(directory.used(), 5 * MIB);
    child.go();
    child.end();
}

#[test]
fn processes_that_make_one_directory_at_once_agree() {
    if let Some((_, args)) = children::role() {
        children::say("ready");
        children::wait();
        return user(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "processes_that_make_one_directory_at_once_agree";
    for round in 0..3 {
        let path = dir.path().join(round.to_string());
        let mut all: Vec<_> = (0..4).map(|_| Child::start(module_path!(), name, "user", &[&path])).collect();
        all.iter_mut().for_each(|child| assert_eq!(child.hear(), "ready"));
        all.iter_mut().for_each(Child::go);
        let heard: Vec<_> = all.iter_mut().map(Child::hear).collect();
        let directory = open(&path).unwrap();
        let index = directory.path().join("index").metadata().unwrap().ino().to_string();
        assert!(heard.iter().all(|heard| *heard == index), "{heard:?}, the index is {index}");
        assert_eq!(directory.processes().len(), 5);
        let mut names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["control", "index", "objects"], "nothing half-made is left");
    }
}

#[test]
fn damaged_files_are_replaced_when_nobody_uses_them() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("nearfs-v1");
    place::prepare(dir.path(), Rights::private()).unwrap();
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 7] = [
        ("control", |path| std::fs::write(path, "not ours").unwrap()),
        ("control", |path| std::fs::write(path, vec![7; CONTROL_LEN as usize]).unwrap()),
        ("control", |path| {
            std::fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        }),
        ("index", |path| std::fs::write(path, "not ours").unwrap()),
        ("index", |path| std::fs::remove_file(path).unwrap()),
        ("index", |path| {
            std::fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        }),
        ("index", |path| std::fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap()),
    ];
    for (i, (name, damage)) in damages.into_iter().enumerate() {
        let path = inner.join(name);
        drop(open(dir.path()).unwrap());
        damage(&path);
        let directory = match open(dir.path()) {
            Ok(directory) => directory,
            // A link is not followed, and not removed either: it is nothing that a crash leaves.
            Err(e) if path.is_symlink() => {
                assert_eq!(name, "control", "{e}");
                std::fs::remove_file(&path).unwrap();
                continue;
            }
            Err(e) => panic!("damage {i} of {name}: {e:#}"),
        };
        assert!(path.metadata().unwrap().is_file());
        assert!(directory.writable());
        assert_eq!(directory.index().len(), 0);
    }
    assert!(Path::new("/etc/passwd").exists());
}

#[test]
fn damage_of_what_others_use_is_a_clear_error() {
    if let Some((_, args)) = children::role() {
        return user(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("nearfs-v1");
    let name = "damage_of_what_others_use_is_a_clear_error";
    let mut child = Child::start(module_path!(), name, "user", &[dir.path()]);
    child.hear();
    std::fs::rename(inner.join("index"), inner.join("elsewhere")).unwrap();
    let e = open(dir.path()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.message().contains("missing") && e.context("hint").is_some(), "{e}");
    std::fs::rename(inner.join("elsewhere"), inner.join("index")).unwrap();
    open(dir.path()).unwrap();
    child.go();
    child.end();
}

#[test]
fn another_machine_in_the_same_directory_is_refused() {
    if let Some((_, args)) = children::role() {
        return user(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "another_machine_in_the_same_directory_is_refused";
    let mut child = Child::start(module_path!(), name, "user", &[dir.path()]);
    child.hear();
    let place = place::prepare(dir.path(), Rights::private()).unwrap();
    let Found::Control(control) = Control::open(place.dir.as_fd()).unwrap() else { panic!("it was made") };
    let boot = control.boot().swap(12_345, Ordering::SeqCst);
    assert_eq!(boot, boot_tag());
    let e = open(dir.path()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
    assert!(e.message().contains("another machine"), "{e}");
    child.go();
    child.end();
    open(dir.path()).unwrap();
    assert_eq!(control.boot().load(Ordering::SeqCst), boot, "alone, and it is ours");
}

#[test]
fn a_directory_of_somebody_else_leads_to_the_fallback() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    std::fs::create_dir(&theirs).unwrap();
    std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&theirs, Some(1000), Some(1000)).unwrap();
    let mut config = DiskConfig { dirs: vec![theirs.clone()], ..config() };
    let e = Directory::open_all(&config).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.message().contains("belongs to user 1000"), "{e}");
    config.fallback = Some(ours.clone());
    let opened = Directory::open_all(&config).unwrap();
    assert_eq!(opened.len(), 1);
    assert_eq!(opened[0].path(), ours.join("nearfs-v1"));
    config.dirs = vec![theirs, ours];
    assert_eq!(Directory::open_all(&config).unwrap().len(), 1, "no directory twice");
    assert!(Directory::open_all(&DiskConfig::default()).unwrap().is_empty());
}

#[test]
fn a_group_shares_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared");
    let directory = Directory::open(&path, &DiskConfig { group: Some(4242), ..config() }).unwrap();
    for (name, mode) in
        [("", 0o2770), ("objects", 0o2770), ("objects/00", 0o2770), ("control", 0o660), ("index", 0o660)]
    {
        let metadata = directory.path().join(name).metadata().unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (mode, 4242), "{name}");
    }
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o2770);
}

#[test]
fn who_waits_too_long_for_another_process_says_so() {
    if let Some((_, args)) = children::role() {
        let file = File::options().read(true).write(true).open(&args[0]).unwrap();
        assert!(process::try_lock(file.as_fd(), OPENING).unwrap());
        children::say("locked");
        children::wait();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path()).unwrap();
    let name = "who_waits_too_long_for_another_process_says_so";
    let mut child = Child::start(module_path!(), name, "opener", &[&directory.path().join("control")]);
    child.hear();
    let patience = Duration::from_millis(50);
    let e = Opening::lock(directory.control(), patience).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::TimedOut);
    child.kill();
    assert!(Opening::lock(directory.control(), patience).is_ok());
}

#[test]
fn root_and_a_user_share_a_group_and_others_fall_back() {
    if let Some((role, args)) = children::role() {
        let mut config = DiskConfig { dirs: vec![PathBuf::from(&args[0])], ..config() };
        config.fallback = Some(PathBuf::from(&args[1]));
        config.group = (role == "member").then_some(4242);
        let opened = Directory::open_all(&config).unwrap();
        // Whatever the umask: the others must be able to use it.
        let made = Unnamed::create(opened[0].fan(7).unwrap(), opened[0].rights()).unwrap();
        made.publish(&role).unwrap().unwrap();
        children::say(opened[0].path().display());
        children::wait();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (shared, own) = (dir.path().join("shared"), dir.path().join("home"));
    std::fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(1000), Some(1000)).unwrap();
    let directory = Directory::open(&shared, &DiskConfig { group: Some(4242), ..config() }).unwrap();
    let name = "root_and_a_user_share_a_group_and_others_fall_back";
    for (role, groups, place) in
        [("member", "--groups=4242", shared.clone()), ("stranger", "--clear-groups", own.join("cache"))]
    {
        let mut child = Child::start_under(
            &["setpriv", "--reuid=1000", "--regid=1000", groups],
            module_path!(),
            name,
            role,
            &[&shared, &own.join("cache")],
        );
        assert_eq!(child.hear(), place.join("nearfs-v1").display().to_string(), "{role}");
        assert_eq!(directory.processes().len(), if role == "member" { 2 } else { 1 });
        child.go();
        child.end();
    }
    let made = directory.path().join("objects/07/member").metadata().unwrap();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (1000, 4242, 0o660));
}

#[test]
fn a_cache_on_overlayfs_works_between_processes() {
    if let Some((_, args)) = children::role() {
        return user(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    // Below it a filesystem of its own, for overlays cannot be put on every other.
    let _disk = Mounted::tmpfs(dir.path(), "size=64m,mode=700");
    let path = |name: &str| dir.path().join(name);
    ["lower", "upper", "work", "merged"].iter().for_each(|name| std::fs::create_dir(path(name)).unwrap());
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        path("lower").display(),
        path("upper").display(),
        path("work").display()
    );
    let merged = path("merged");
    let _overlay = Mounted::with("overlay", &merged, &options);
    let directory = open(&merged.join("cache")).unwrap();
    let name = "a_cache_on_overlayfs_works_between_processes";
    let mut child = Child::start(module_path!(), name, "user", &[&merged.join("cache")]);
    let index = directory.path().join("index").metadata().unwrap().ino();
    assert_eq!(child.hear(), index.to_string());
    assert_eq!(directory.processes().len(), 2);
    child.kill();
    assert_eq!(directory.processes().len(), 1);
}

/// A child that reserves and gives back until it is killed.
fn reserve_for_ever(args: &[String]) {
    let directory = open(Path::new(&args[0])).unwrap();
    children::say("ready");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let directory = &directory;
            scope.spawn(move || {
                for i in 0u64.. {
                    let kept = directory.space().reserve(4096 * (1 + (i + thread) % 5), &|_| 0).unwrap();
                    directory.space().reserve(8192, &|_| 0).unwrap().commit(4096);
                    drop(kept);
                    directory.space().release(4096);
                }
            });
        }
    });
}

#[test]
fn j2_kill_9_never_makes_the_count_too_small() {
    if let Some((_, args)) = children::role() {
        return reserve_for_ever(&args);
    }
    let dir = tempfile::tempdir().unwrap();
    let directory = open(dir.path()).unwrap();
    let name = "j2_kill_9_never_makes_the_count_too_small";
    directory.space().reserve(MIB, &|_| 0).unwrap().commit(MIB);
    for round in 0..8 {
        let mut all: Vec<_> =
            (0..3).map(|_| Child::start(module_path!(), name, "worker", &[dir.path()])).collect();
        all.iter_mut().for_each(|child| assert_eq!(child.hear(), "ready"));
        std::thread::sleep(Duration::from_millis(3 + round * 5));
        for child in &mut all {
            assert!(child.runs(), "a worker found the count too small");
            child.kill();
            directory.space().reap();
        }
        // Each thread can have died between two steps, with 36 KiB at most.
        let left = directory.used() - MIB;
        assert!(left <= (round + 1) * 6 * (36 << 10), "round {round}: {left} bytes too many");
    }
    drop(directory);
    assert_eq!(open(dir.path()).unwrap().used(), 0, "counted anew");
}

#[test]
fn a_full_disk_leaves_nothing_half_made() {
    let dir = tempfile::tempdir().unwrap();
    // Smaller than an index; unmounted by the guard.
    let mount = Mounted::tmpfs(dir.path(), "size=4m,mode=700");
    let e = open(dir.path()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:#}");
    let names: Vec<_> = std::fs::read_dir(dir.path().join("nearfs-v1"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.is_empty(), "{names:?}");
    mount.again("size=64m");
    open(dir.path()).unwrap();
}

#[test]
fn a_read_only_disk_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mounted::tmpfs(dir.path(), "size=4m,mode=700,ro");
    let e = open(dir.path()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e:#}");
}

/// A small filesystem of its own; the tests run as root.
struct Mounted<'p>(&'p Path);

impl<'p> Mounted<'p> {
    fn tmpfs(path: &'p Path, options: &str) -> Self {
        Self::with("tmpfs", path, options)
    }

    fn with(kind: &str, path: &'p Path, options: &str) -> Self {
        Self::mount(kind, path, options);
        Mounted(path)
    }

    fn again(&self, options: &str) {
        Self::mount("tmpfs", self.0, &format!("remount,{options}"));
    }

    fn mount(kind: &str, path: &Path, options: &str) {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", kind, "-o", options, "none"]).arg(path);
        assert!(command.status().unwrap().success(), "mounting needs root");
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Lazily: the process keeps the control file open for ever.
        let done = std::process::Command::new("umount").arg("-l").arg(self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}
