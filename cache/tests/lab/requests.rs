//! What walks, epochs and opens cost in requests.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use nearfs_cache::{CachedFileSystem, Lifetime};
use nearfs_lab::{Model, Op};

use super::{MIB, World, path, read_all};

/// Walks as `find` does, asking for every name. Returns the files.
async fn walk(cache: &Arc<CachedFileSystem>, dir: &str) -> Vec<String> {
    let (mut todo, mut files) = (vec![dir.to_string()], Vec::new());
    while let Some(dir) = todo.pop() {
        let listing = cache.read_dir(&path(&dir)).await.unwrap();
        let (mut from, mut dirs) = (0, Vec::new());
        loop {
            let page = listing.entries(from, 1000).await.unwrap();
            for entry in page.entries.iter() {
                let name = format!("{dir}/{}", String::from_utf8_lossy(&entry.name));
                let metadata = cache.lookup(&path(&name)).await.unwrap().metadata.unwrap();
                if metadata.is_dir() { dirs.push(name) } else { files.push(name) }
            }
            from += page.entries.len();
            if page.end {
                break;
            }
        }
        dirs.reverse();
        todo.append(&mut dirs);
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn k3_a_walk_costs_a_listing_for_each_directory_and_the_second_nothing() {
    let world = World::new(|_| ()).await;
    world.lab.tree("b", "t", 100, 50, 10);
    world.lab.set_model(Model { list_ms: Some(30.0), ..Model::default() });
    assert_eq!(walk(&world.cache, "t").await.len(), 5000);
    let counters = world.lab.counters();
    assert_eq!((counters.lists(), counters.of(Op::HeadObject)), (101, 0));
    assert!(counters.in_flight_max > 8, "the next directories are listed ahead: {}", counters.in_flight_max);
    assert_eq!(walk(&world.cache, "t").await.len(), 5000);
    assert_eq!(world.lab.counters().lists(), 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn k3_one_name_of_a_big_directory_does_not_list_it() {
    let world = World::new(|_| ()).await;
    world.lab.tree("b", "big", 1, 20_000, 0);
    world.open("big/d0000/f12345.bin").await;
    let counters = world.lab.counters();
    assert!(counters.total() <= 2, "{:?}", counters.requests);
    assert_eq!(world.names("big/d0000").await.len(), 20_000);
    let lists = world.lab.counters().lists();
    assert!(lists <= 22, "{lists} LISTs for 20 pages");
    // `ls -l`: every entry is known from the listing.
    for name in world.names("big/d0000").await.iter().step_by(97) {
        world.open(&format!("big/d0000/{name}")).await;
    }
    assert_eq!(world.lab.counters().lists(), lists);
    assert!(world.lab.counters().of(Op::HeadObject) <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_of_small_files_costs_one_get_each_and_no_head() {
    for shuffled in [false, true] {
        let world = World::new(|c| c.memory = 256 << 20).await;
        let mut keys = world.lab.tree("b", "s", 2, 400, 50_000);
        world.lab.set_model(Model::network(5.0, 0.0));
        assert_eq!(walk(&world.cache, "s").await.len(), 800);
        if shuffled {
            keys.sort_by_key(|key| nearfs_lab::stamp::key_id(key).wrapping_mul(2_654_435_761));
        }
        let reads = keys.iter().map(|key| {
            let world = &world;
            async move { assert_eq!(read_all(&*world.open(key).await, MIB).await.unwrap(), 1) }
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(32);
        while reads.next().await.is_some() {}
        let counters = world.lab.counters();
        assert_eq!(
            (counters.of(Op::GetObject), counters.of(Op::HeadObject)),
            (800, 0),
            "shuffled {shuffled}"
        );
        assert!(counters.lists() <= 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cold_opens_by_name_cost_few_listings_and_revalidation_one_for_each_directory() {
    let world = World::new(|c| c.metadata_ttl = Lifetime::For(Duration::from_secs(3))).await;
    let keys = world.lab.tree("b", "s", 1, 3000, 10);
    world.lab.set_model(Model::network(5.0, 0.0));
    let open = |key: &String| {
        let key = path(key);
        let cache = world.cache.clone();
        async move { cache.lookup(&key).await.unwrap().metadata.expect("it is there").size }
    };
    let mut opens = futures::stream::iter(keys.iter().map(open)).buffer_unordered(32);
    while opens.next().await.is_some() {}
    let counters = world.lab.counters();
    assert!(counters.of(Op::HeadObject) <= 60 && counters.lists() <= 70, "{:?}", counters.requests);
    tokio::time::sleep(Duration::from_secs(4)).await;
    world.lab.reset_counters();
    let mut opens = futures::stream::iter(keys.iter().map(open)).buffer_unordered(32);
    while opens.next().await.is_some() {}
    let counters = world.lab.counters();
    assert!(counters.of(Op::HeadObject) == 0 && counters.lists() <= 8, "{:?}", counters.requests);
}
