//! Random histories of a store that others change, looked at through the cache, against what may be answered.
//!
//! The model keeps, for every name, all contents it has had and until when each was current. An answer is right if
//! it was true at some moment within its lifetime before now; a read is right if it is one version as a whole.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use nearfs_backends::layer::{Fault, FaultAction, Operation};
use nearfs_backends::{ErrorKind, FileSystemExt};
use nearfs_lab::stamp;
use proptest::prelude::*;

use super::{World, path, seconds};

const NAMES: [&str; 8] = ["a", "b", "d/1", "d/2", "d/3", "d/4", "d/e/x", "d/e/y"];
const DIRS: [&str; 3] = ["", "d", "d/e"];
const METADATA: u64 = 60_000;
const NEGATIVE: u64 = 2_000;

#[derive(Debug, Clone)]
enum Step {
    /// Somebody else writes so many bytes.
    Put(usize, u32),
    /// Somebody else deletes.
    Remove(usize),
    /// Written through the cache.
    Write(usize, u32),
    Wait(u64),
    Lookup(usize),
    Poll(usize),
    List(usize),
    Read(usize, u32, u32),
    /// The next call of this kind fails.
    Fail(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        3 => (name.clone(), 1u32..300_000).prop_map(|(n, size)| Step::Put(n, size)),
        1 => name.clone().prop_map(Step::Remove),
        1 => (name.clone(), 1u32..300_000).prop_map(|(n, size)| Step::Write(n, size)),
        3 => prop_oneof![1u64..500, 1_000u64..3_000, 30_000u64..70_000].prop_map(Step::Wait),
        6 => name.clone().prop_map(Step::Lookup),
        2 => name.clone().prop_map(Step::Poll),
        2 => (0..DIRS.len()).prop_map(Step::List),
        5 => (name, 0u32..300_000, 1u32..200_000).prop_map(|(n, at, len)| Step::Read(n, at, len)),
        1 => (0u8..3).prop_map(Step::Fail),
    ]
}

/// What one name was, one after the other: size and version of the content, or absent.
#[derive(Debug, Default)]
struct History(Vec<(u64, Option<(u64, u32)>)>);

impl History {
    fn now(&self) -> Option<(u64, u32)> {
        self.0.last().and_then(|(_, content)| *content)
    }

    /// Everything it was at some moment from `since` on.
    fn after(&self, since: u64) -> Vec<Option<(u64, u32)>> {
        let mut seen: Vec<_> = self.0.iter().filter(|(at, _)| *at >= since).map(|(_, c)| *c).collect();
        seen.push(self.0.iter().rev().find(|(at, _)| *at < since).and_then(|(_, c)| *c));
        seen
    }
}

struct Model {
    world: World,
    names: HashMap<usize, History>,
    now: u64,
    next: u32,
    /// Own changes are seen at once: nothing older is right any more.
    floor: HashMap<usize, u64>,
}

impl Model {
    fn set(&mut self, name: usize, content: Option<(u64, u32)>) {
        self.names.entry(name).or_default().0.push((self.now, content));
    }

    fn content(&mut self, name: usize, size: u32) -> Bytes {
        self.next += 1;
        self.set(name, Some((u64::from(size), self.next)));
        stamp::make(size as usize, name as u32, self.next).into()
    }

    /// What may be answered of `name` now.
    fn allowed(&self, name: usize) -> Vec<Option<(u64, u32)>> {
        let floor = self.floor.get(&name).copied().unwrap_or(0);
        let Some(history) = self.names.get(&name) else { return vec![None] };
        let within = |lifetime: u64| history.after((self.now + 1).saturating_sub(lifetime).max(floor));
        let mut allowed: Vec<_> = within(METADATA).into_iter().filter(Option::is_some).collect();
        allowed.extend(within(NEGATIVE).into_iter().filter(Option::is_none));
        allowed
    }

    async fn lookup(&self, name: usize, peek: bool) -> Result<(), TestCaseError> {
        let path = path(NAMES[name]);
        let lookup = match peek {
            true => match self.world.cache.peek(&path) {
                Some(lookup) => Ok(lookup),
                None => return Ok(()),
            },
            false => self.world.cache.lookup(&path).await,
        };
        match lookup {
            Ok(lookup) => {
                let sizes: Vec<_> = self.allowed(name).into_iter().map(|c| c.map(|(size, _)| size)).collect();
                let found = lookup.metadata.map(|m| m.size);
                prop_assert!(sizes.contains(&found), "{path}: {found:?}, not one of {sizes:?}");
            }
            Err(e) => prop_assert_eq!(e.kind(), ErrorKind::Unavailable, "{}", e),
        }
        Ok(())
    }

    async fn read(&self, name: usize, at: u64, len: u64) -> Result<(), TestCaseError> {
        let path = path(NAMES[name]);
        let Ok(lookup) = self.world.cache.lookup(&path).await else { return Ok(()) };
        let Some(metadata) = lookup.metadata else { return Ok(()) };
        let file = self.world.cache.file(&path, &metadata);
        match file.read(at..at + len).await {
            Ok(bytes) => {
                let expected = (at + len).min(metadata.size).saturating_sub(at);
                prop_assert_eq!(bytes.len() as u64, expected, "{}", path);
                if expected >= 32 {
                    let version = stamp::verify(&bytes, at, name as u32)
                        .map_err(|e| TestCaseError::fail(e.to_string()))?;
                    let known = self
                        .names
                        .get(&name)
                        .is_some_and(|h| h.0.iter().any(|(_, c)| *c == Some((metadata.size, version))));
                    prop_assert!(known, "{path}: version {version} never had {} bytes", metadata.size);
                }
            }
            Err(e) => {
                let right = matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Stale);
                prop_assert!(right, "{path}: {e}");
            }
        }
        Ok(())
    }

    async fn list(&self, dir: usize) -> Result<(), TestCaseError> {
        let prefix = if DIRS[dir].is_empty() { String::new() } else { format!("{}/", DIRS[dir]) };
        let Ok(listing) = self.world.cache.read_dir(&path(DIRS[dir])).await else { return Ok(()) };
        let mut found = HashMap::new();
        loop {
            let Ok(page) = listing.entries(found.len(), 3).await else { return Ok(()) };
            for entry in page.entries.iter() {
                let name = format!("{prefix}{}", String::from_utf8_lossy(&entry.name));
                prop_assert!(found.insert(name.clone(), entry.metadata.clone()).is_none(), "{name} twice");
            }
            if page.end {
                break;
            }
        }
        for (i, name) in NAMES.iter().enumerate() {
            let inside = name.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('/'));
            if !inside {
                continue;
            }
            // A listing is good for the metadata lifetime, in what it has and in what it has not.
            let floor = self.floor.get(&i).copied().unwrap_or(0);
            let since = (self.now + 1).saturating_sub(METADATA).max(floor);
            let was = self.names.get(&i).map_or(vec![None], |h| h.after(since));
            let sizes: Vec<_> = was.into_iter().map(|c| c.map(|(size, _)| size)).collect();
            let size = found.get(*name).map(|m| m.size);
            prop_assert!(sizes.contains(&size), "{name} in a listing: {size:?}, not one of {sizes:?}");
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Put(name, size) => {
                let content = self.content(name, size);
                self.world.store.write(&path(NAMES[name]), content).await.expect("the store takes it");
            }
            Step::Remove(name) => {
                if self.names.get(&name).and_then(History::now).is_some() {
                    self.world.remove(NAMES[name]).await;
                    self.set(name, None);
                }
            }
            Step::Write(name, size) => {
                let content = self.content(name, size);
                if self.world.cache.write(&path(NAMES[name]), content).await.is_ok() {
                    self.floor.insert(name, self.now);
                    // Only this content is right from now on.
                    let history = self.names.get_mut(&name).expect("just written");
                    let last = *history.0.last().expect("just written");
                    let kept: Vec<_> = history.0.iter().filter(|(at, _)| *at < self.now).copied().collect();
                    history.0 = kept;
                    history.0.push((self.now, last.1));
                    self.now += 1;
                    self.world.clock.skip(Duration::from_millis(1));
                    self.floor.insert(name, self.now);
                }
            }
            Step::Wait(ms) => {
                self.now += ms;
                self.world.clock.skip(Duration::from_millis(ms));
            }
            Step::Lookup(name) => self.lookup(name, false).await?,
            Step::Poll(name) => self.lookup(name, true).await?,
            Step::List(dir) => self.list(dir).await?,
            Step::Read(name, at, len) => self.read(name, u64::from(at), u64::from(len)).await?,
            Step::Fail(kind) => {
                let operation = [Operation::Stat, Operation::List, Operation::Read][usize::from(kind)];
                let action = match kind {
                    1 => FaultAction::Cut(1, ErrorKind::Unavailable),
                    2 => FaultAction::Cut(70_000, ErrorKind::Unavailable),
                    _ => FaultAction::Fail(ErrorKind::Unavailable),
                };
                self.world.faults.inject(Fault::on(operation, action).times(1));
            }
        }
        // Time moves with every step, so that one moment has one content.
        self.now += 1;
        self.world.clock.skip(Duration::from_millis(1));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_was_true_within_its_lifetime(steps in prop::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new(|c| {
                c.metadata_ttl = seconds(METADATA / 1000);
                c.negative_ttl = seconds(NEGATIVE / 1000);
                c.memory = 4 << 20;
            });
            let mut model = Model { world, names: HashMap::new(), now: 1, next: 0, floor: HashMap::new() };
            for step in &steps {
                model.step(step).await?;
            }
            let stats = model.world.cache.stats();
            prop_assert!(stats.memory_used <= stats.memory_limit);
            Ok(())
        })?;
    }
}
