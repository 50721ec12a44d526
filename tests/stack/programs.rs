//! Unchanged programs on a real mount: what they read equals the source.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nearfs_lab::Lab;
use tempfile::TempDir;

use crate::harness::{BUCKET, Mount, isolate, lab, output, run};

/// A local source tree and the same bytes in the lab's bucket.
struct Source {
    dir: TempDir,
    lab: Lab,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

fn source() -> Source {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    for class in 0..5 {
        let class_dir = root.join(format!("train/class {class}"));
        fs::create_dir_all(&class_dir).unwrap();
        for i in 0..40 {
            fs::write(
                class_dir.join(format!("img_{i:03}.jpg")),
                bytes(class * 100 + i, 1000 + 997 * i as usize),
            )
            .unwrap();
        }
    }
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("große Datei é+%2B.bin"), bytes(7, 3 << 20)).unwrap();
    fs::write(root.join("shard.bin"), bytes(8, (20 << 20) + 123)).unwrap();
    run(Command::new("python3")
        .arg("-c")
        .arg(
            "import sys, zipfile, sqlite3, os\n\
         r = sys.argv[1]\n\
         z = zipfile.ZipFile(r + '/a.zip', 'w', zipfile.ZIP_DEFLATED)\n\
         [z.writestr(f'm{i}.txt', f'member {i} ' * (i * 50)) for i in range(200)]\n\
         z.close()\n\
         d = sqlite3.connect(r + '/a.sqlite')\n\
         d.execute('create table t (i integer primary key, s text)')\n\
         d.executemany('insert into t values (?, ?)', ((i, 'row %d' % i) for i in range(20000)))\n\
         d.commit(); d.close()\n",
        )
        .arg(root));
    fs::copy("/bin/ls", root.join("tool")).unwrap();
    let lab = lab();
    upload(&lab, root, root);
    Source { dir, lab }
}

fn upload(lab: &Lab, root: &Path, dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            upload(lab, root, &path);
        } else {
            let key = path.strip_prefix(root).unwrap().to_str().unwrap();
            lab.put(BUCKET, key, fs::read(&path).unwrap());
        }
    }
}

fn sh(dir: &Path, script: &str) -> String {
    run(Command::new("sh").args(["-c", script]).current_dir(dir).env("LC_ALL", "C"))
}

/// The script prints the same in the source and in the mount, and prints something.
fn same(source: &Source, mount: &Mount, script: &str) {
    let expected = sh(source.dir.path(), script);
    assert!(!expected.trim().is_empty(), "`{script}` prints nothing, so it compares nothing");
    assert_eq!(expected, sh(mount.path(), script), "`{script}` differs in the mount");
}

#[test]
fn shell_tools_see_the_source() {
    let source = source();
    let mount = Mount::bucket(&source.lab);
    same(&source, &mount, "find . | sort");
    same(&source, &mount, "find . -type f -size +1000c -printf '%p %s\\n' | sort");
    same(&source, &mount, "ls -lR --time-style=+ . | grep '^-' | awk '{print $5, $6, $7, $8}'");
    same(&source, &mount, "find . -type f -print0 | sort -z | xargs -0 sha256sum");
    same(&source, &mount, "tar c --sort=name --mtime=@0 --owner=0 --group=0 --mode=0 . | sha256sum");
    same(&source, &mount, "du -ab --apparent-size train | grep jpg | sort");
    same(
        &source,
        &mount,
        "head -c 1000000 shard.bin | sha256sum; tail -c 1000 shard.bin | sha256sum; wc -c < empty",
    );
    same(&source, &mount, "dd if=shard.bin bs=64k iflag=direct status=none | sha256sum");

    let copy = TempDir::new().unwrap();
    sh(mount.path(), &format!("cp -r . {}/copy", copy.path().display()));
    sh(mount.path(), &format!("diff -r . {}/copy && echo same", copy.path().display()));
    let itemized = sh(
        mount.path(),
        &format!("rsync -rnci --no-perms --no-times ./ {}/ && echo done", source.dir.path().display()),
    );
    assert_eq!(itemized, "done\n", "rsync by checksum finds differences");
    mount.stop();
}

#[test]
fn python_reads_through_mmap_numpy_zip_and_sqlite() {
    let source = source();
    let mount = Mount::bucket(&source.lab);
    let script = "import sys, mmap, zipfile, sqlite3, hashlib\n\
        r = sys.argv[1]\n\
        f = open(r + '/shard.bin', 'rb')\n\
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
        print(len(m), hashlib.sha256(m).hexdigest(), m[12345678:12345698].hex(), m[-5:].hex())\n\
        import numpy\n\
        a = numpy.memmap(r + '/shard.bin', dtype='u1', mode='r')\n\
        print(a.shape, int(a[::4097].sum()), int(a[-1]))\n\
        z = zipfile.ZipFile(r + '/a.zip')\n\
        print(z.testzip(), len(z.namelist()), z.read('m150.txt')[:20])\n\
        d = sqlite3.connect(f'file:{r}/a.sqlite?mode=ro&immutable=1', uri=True)\n\
        print(d.execute('select count(*), sum(i), max(s) from t').fetchone(), d.execute('pragma integrity_check').fetchone())\n\
        d = sqlite3.connect(f'file:{r}/a.sqlite?mode=ro', uri=True)\n\
        print(d.execute('select s from t where i = 12345').fetchone())\n\
        try:\n\
        \x20   open(r + '/new', 'wb')\n\
        except OSError as e:\n\
        \x20   print('new', e.errno if r != sys.argv[2] else 30)\n";
    let venv = std::env::var("NEARFS_TEST_VENV")
        .expect("NEARFS_TEST_VENV names the tests' Python (tests/run sets it)");
    let python = |root: &Path| {
        run(Command::new(format!("{venv}/bin/python")).arg("-c").arg(script).arg(root).arg(source.dir.path()))
    };
    let expected = python(source.dir.path());
    let _ = fs::remove_file(source.dir.path().join("new"));
    assert!(expected.lines().count() >= 5, "{expected}");
    let mut expected: Vec<_> = expected.lines().map(str::to_owned).collect();
    if expected.last().is_none_or(|l| !l.starts_with("new")) {
        expected.push("new 30".into());
    }
    assert_eq!(expected, python(mount.path()).lines().map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn a_folder_reader_with_four_forked_processes_reads_every_file_twice() {
    let source = source();
    let mount = Mount::bucket(&source.lab);
    let script = "import sys, os, hashlib, multiprocessing as mp\n\
        root = sys.argv[1]\n\
        files = sorted(os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs)\n\
        keep = open(files[0], 'rb'); keep.read(1)\n\
        def one(p):\n\
        \x20   with open(p, 'rb') as f: return os.path.relpath(p, root), hashlib.md5(f.read()).hexdigest()\n\
        with mp.get_context('fork').Pool(4) as pool:\n\
        \x20   for epoch in range(2):\n\
        \x20       for p, h in sorted(pool.imap_unordered(one, files)): print(epoch, p, h)\n";
    let read = |root: &Path| run(Command::new("python3").arg("-c").arg(script).arg(root));
    let expected = read(source.dir.path());
    assert_eq!(expected.lines().count(), 2 * (200 + 6));
    assert_eq!(expected, read(mount.path()));
}

#[test]
fn a_program_runs_from_the_mount() {
    let source = source();
    let mount = Mount::start(&source.lab, &format!("s3://{BUCKET}"), &["--umask", "022"]);
    // Without `--umask` objects show as plain data (0444); with it, as libfuse does, as 0777 less the mask.
    assert_ne!(fs::metadata(mount.join("tool")).unwrap().permissions().mode() & 0o111, 0);
    let out = run(Command::new(mount.join("tool")).arg("--version"));
    assert!(out.contains("coreutils"), "{out}");
}

#[test]
fn rclone_check_agrees_with_the_store() {
    let source = source();
    let mount = Mount::bucket(&source.lab);
    let venv = std::env::var("NEARFS_TEST_VENV")
        .expect("NEARFS_TEST_VENV names the tests' Python (tests/run sets it)");
    let mut rclone = Command::new(format!("{venv}/bin/rclone"));
    isolate(&mut rclone, &source.lab);
    let remote: BTreeMap<&str, String> = BTreeMap::from([
        ("TYPE", "s3".into()),
        ("PROVIDER", "Other".into()),
        ("ENDPOINT", source.lab.endpoint()),
        ("ACCESS_KEY_ID", "test".into()),
        ("SECRET_ACCESS_KEY", "test-secret".into()),
        ("FORCE_PATH_STYLE", "true".into()),
    ]);
    for (key, value) in remote {
        rclone.env(format!("RCLONE_CONFIG_LAB_{key}"), value);
    }
    rclone
        .env("RCLONE_CONFIG", "/dev/null")
        .args(["check", "--download", &format!("lab:{BUCKET}")])
        .arg(mount.path());
    let out = output(&mut rclone);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("0 differences found") && text.contains("206 matching files"), "{text}");
}
