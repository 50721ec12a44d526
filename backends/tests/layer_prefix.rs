//! `PrefixLayer`: the same as a filesystem of its own, and nothing outside is seen or touched.

use std::sync::Arc;

use futures::StreamExt;
use nearfs_backends::layer::PrefixLayer;
use nearfs_backends::{
    CopyOptions, CreateOptions, Error, ErrorKind, FileSystem, FileSystemExt, FsPath, ListOptions,
    MemoryFileSystem,
};
use proptest::prelude::*;

fn path(text: &str) -> FsPath {
    FsPath::parse(text).unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Write(FsPath, u8),
    Delete(FsPath),
    Rename(FsPath, FsPath, bool),
    Copy(FsPath, FsPath, bool),
    CreateDir(FsPath),
    RemoveDir(FsPath),
    Stat(FsPath),
    Read(FsPath),
    List(FsPath, bool, Option<FsPath>),
}

/// Few names, so that they meet; among them those of the prefix itself.
fn name() -> impl Strategy<Value = FsPath> {
    prop::collection::vec(prop::sample::select(vec!["pre", "fix", "a", "b"]), 0..4)
        .prop_map(|c| path(&c.join("/")))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (name(), any::<u8>()).prop_map(|(p, n)| Step::Write(p, n)),
        1 => name().prop_map(Step::Delete),
        1 => (name(), name(), any::<bool>()).prop_map(|(a, b, n)| Step::Rename(a, b, n)),
        1 => (name(), name(), any::<bool>()).prop_map(|(a, b, n)| Step::Copy(a, b, n)),
        1 => name().prop_map(Step::CreateDir),
        1 => name().prop_map(Step::RemoveDir),
        1 => name().prop_map(Step::Stat),
        1 => name().prop_map(Step::Read),
        1 => (name(), any::<bool>(), prop::option::of(name())).prop_map(|(p, r, a)| Step::List(p, r, a)),
    ]
}

/// What a caller can tell of a result: the value as text, or kind and path of the error.
async fn observe(fs: &dyn FileSystem, step: &Step) -> String {
    fn told<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
        match result {
            Ok(value) => format!("{value:?}"),
            Err(e) => format!("{:?} {:?} {:?}", e.kind(), e.operation(), e.path()),
        }
    }
    let options = |no_replace: &bool| CopyOptions { no_replace: *no_replace };
    match step {
        Step::Write(p, n) => told(fs.write(p, vec![*n; usize::from(*n)].into()).await.map(|m| m.size)),
        Step::Delete(p) => {
            let results: Vec<_> = fs.delete(futures::stream::iter([p.clone()]).boxed()).collect().await;
            results.into_iter().map(|(path, result)| format!("{path}: {}", told(result))).collect()
        }
        Step::Rename(a, b, n) => told(fs.rename(a, b, options(n)).await),
        Step::Copy(a, b, n) => told(fs.copy(a, b, options(n)).await),
        Step::CreateDir(p) => told(fs.create_dir(p).await),
        Step::RemoveDir(p) => told(fs.remove_dir(p).await.map_err(|e| Error::new(e.kind(), ""))),
        Step::Stat(p) => told(fs.stat(p).await.map(|m| (m.kind, m.size))),
        Step::Read(p) => told(fs.read(p, 1 << 20).await),
        Step::List(p, recursive, start_after) => {
            let options = ListOptions { recursive: *recursive, start_after: start_after.clone() };
            let entries = fs.list_all(p, options, 1_000).await;
            told(entries.map(|all| all.into_iter().map(|e| (e.path, e.metadata.kind)).collect::<Vec<_>>()))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_history_looks_the_same_as_on_a_filesystem_of_its_own(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let whole = MemoryFileSystem::new();
            for neighbour in ["pre/fi", "pre/fix-2/f", "pre/g", "a/b", "zz"] {
                whole.write(&path(neighbour), "neighbour".into()).await.unwrap();
            }
            whole.create_dir(&path("pre/fix")).await.unwrap();
            let inner = PrefixLayer::new(Arc::new(whole.clone()), path("pre/fix"));
            let own = MemoryFileSystem::new();
            for step in &steps {
                // The root cannot be removed or renamed; the two say so in different words.
                match step {
                    Step::RemoveDir(p) if p.is_root() => {
                        assert!(inner.remove_dir(p).await.is_err());
                        continue;
                    }
                    Step::Rename(a, b, _) | Step::Copy(a, b, _) if a.is_root() || b.is_root() => {
                        assert!(inner.rename(a, b, CopyOptions::default()).await.is_err());
                        assert!(inner.copy(a, b, CopyOptions::default()).await.is_err());
                        continue;
                    }
                    _ => {}
                }
                assert_eq!(observe(&inner, step).await, observe(&own, step).await, "{step:?} of {steps:?}");
            }
            for neighbour in ["pre/fi", "pre/fix-2/f", "pre/g", "a/b", "zz"] {
                assert_eq!(whole.read(&path(neighbour), 100).await.unwrap(), "neighbour");
            }
        });
    }
}

#[tokio::test]
async fn an_absent_directory_is_an_empty_root_and_the_first_file_makes_it() {
    let whole = MemoryFileSystem::new();
    let inner = PrefixLayer::new(Arc::new(whole.clone()), path("not/there"));
    assert!(inner.stat(&FsPath::root()).await.unwrap().is_dir());
    assert!(inner.list_all(&FsPath::root(), ListOptions::default(), 10).await.unwrap().is_empty());
    assert_eq!(inner.identity().url, "memory:///not/there");
    inner.write(&path("f"), "x".into()).await.unwrap();
    assert_eq!(whole.read(&path("not/there/f"), 10).await.unwrap(), "x");
}

#[tokio::test]
async fn errors_name_the_path_that_the_caller_used() {
    let whole = MemoryFileSystem::new();
    whole.write(&path("pre/d/f"), "x".into()).await.unwrap();
    let inner = PrefixLayer::new(Arc::new(whole.clone()), path("pre"));
    let file = inner.open(&path("d/f"), Default::default()).await.unwrap();
    assert_eq!(file.path(), &path("d/f"));
    let mut writer = inner.create(&path("d/g"), CreateOptions::default()).await.unwrap();
    writer.write("y".into()).await.unwrap();
    whole.delete(futures::stream::iter([path("pre/d/f")]).boxed()).collect::<Vec<_>>().await;
    for e in [
        inner.stat(&path("d/x")).await.unwrap_err(),
        inner.open(&path("d/x"), Default::default()).await.unwrap_err(),
        inner.create(&path("d"), Default::default()).await.unwrap_err(),
        inner.read_dir(&path("d/x")).next().await.unwrap().unwrap_err(),
        inner.remove_dir(&path("d/x")).await.unwrap_err(),
    ] {
        assert!(e.path().unwrap().starts_with('d'), "{e}");
    }
    let file = PrefixLayer::new(Arc::new(whole), path("pre/d"));
    let e = file.write(&path("f/g"), "x".into()).await;
    assert!(e.is_ok() || e.unwrap_err().kind() == ErrorKind::NotADirectory);
}
