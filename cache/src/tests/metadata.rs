//! Lookups and listings: what is asked of the store, when, and what is believed how long.

use std::time::Duration;

use nearfs_backends::layer::{Fault, FaultAction, Operation};
use nearfs_backends::{ErrorKind, FileSystem, FileSystemExt, ListOptions};

use super::{World, path, seconds};
use crate::Lifetime;

#[tokio::test]
async fn a_lookup_is_good_for_its_lifetime_and_not_longer() {
    let world = World::new(|c| c.metadata_ttl = seconds(10));
    world.put("a/f", "12345").await;
    assert_eq!(world.size("a/f").await, Some(5));
    world.put("a/f", "1").await;
    world.clock.skip(Duration::from_millis(9_999));
    assert_eq!(world.size("a/f").await, Some(5));
    assert_eq!(world.calls(), (1, 0));
    world.clock.skip(Duration::from_millis(1));
    assert!(world.cache.peek(&path("a/f")).is_none());
    assert_eq!(world.size("a/f").await, Some(1));
    let lookup = world.cache.peek(&path("a/f")).unwrap();
    let left = lookup.expires - world.clock.instant(world.clock.now());
    assert_eq!(left, Duration::from_secs(10));
}

#[tokio::test]
async fn a_lifetime_of_zero_asks_every_time_and_for_ever_only_once() {
    let world = World::new(|c| c.metadata_ttl = seconds(0));
    world.put("a/f", "12345").await;
    for n in 1..=5 {
        assert_eq!(world.size("a/f").await, Some(5));
        assert_eq!(world.calls(), (n, 0));
        assert!(world.cache.peek(&path("a/f")).is_none());
    }
    assert_eq!(world.names("a").await, ["f"]);
    world.put("a/g", "").await;
    assert_eq!(world.names("a").await, ["f", "g"]);

    let world = World::new(|c| c.metadata_ttl = Lifetime::Forever);
    world.put("a/f", "12345").await;
    assert_eq!(world.size("a/f").await, Some(5));
    world.put("a/f", "1").await;
    world.clock.skip(Duration::from_secs(1 << 30));
    assert_eq!(world.size("a/f").await, Some(5));
    assert_eq!(world.calls(), (1, 0));
}

#[tokio::test]
async fn a_listing_answers_for_all_its_entries_and_is_renewed_as_a_whole() {
    let world = World::new(|_| ());
    for i in 0..300 {
        world.put(&format!("d/{i:03}"), vec![0; i]).await;
    }
    assert_eq!(world.names("d").await.len(), 300);
    for i in 0..300 {
        assert_eq!(world.size(&format!("d/{i:03}")).await, Some(i as u64));
    }
    assert_eq!(world.calls(), (0, 1));
    world.put("d/007", vec![0; 1000]).await;
    world.remove("d/008").await;
    world.clock.skip(Duration::from_secs(60));
    let names: Vec<_> = (0..300).map(|i| path(&format!("d/{i:03}"))).collect();
    let lookups = futures::future::join_all(names.iter().map(|name| world.cache.lookup(name))).await;
    for (i, lookup) in lookups.into_iter().enumerate() {
        let size = lookup.unwrap().metadata.map(|m| m.size);
        match i {
            7 => assert_eq!(size, Some(1000)),
            8 => assert_eq!(size, None),
            _ => assert_eq!(size, Some(i as u64)),
        }
    }
    assert_eq!(world.calls(), (0, 2), "one listing for all, no request for a single name");
}

#[tokio::test]
async fn b3_absence_has_its_own_lifetime_and_polling_does_not_extend_it() {
    for listed in [false, true] {
        let world = World::new(|c| c.metadata_ttl = seconds(3600));
        for name in ["ck/1", "ck/2", "ck/3"] {
            world.put(name, "x").await;
        }
        if listed {
            world.names("ck").await;
        }
        for tick in 0..150 {
            if tick == 50 {
                world.put("ck/step-4.pt", "1234").await;
                world.put("ck/new/x", "y").await;
            }
            let (file, dir) = (world.size("ck/step-4.pt").await, world.size("ck/new").await);
            if tick < 50 {
                assert_eq!((file, dir), (None, None));
            } else if tick >= 70 {
                assert_eq!((file, dir), (Some(4), Some(0)), "listed {listed}, tick {tick}");
            }
            world.clock.skip(Duration::from_millis(100));
        }
        let (stats, lists) = world.calls();
        assert!(stats <= 10 && lists <= 1 + u64::from(listed), "{stats} stats, {lists} lists for 300 polls");
        assert!(world.names("ck").await.contains(&"step-4.pt".to_string()), "the listing is outdated");
    }
}

#[tokio::test]
async fn d1_a_failure_is_never_taken_for_absence() {
    let kinds =
        [ErrorKind::Unavailable, ErrorKind::Throttled, ErrorKind::TimedOut, ErrorKind::PermissionDenied];
    for kind in kinds {
        let world = World::new(|_| ());
        world.put("d/f", "123").await;
        world.faults.inject(Fault::on(Operation::Stat, FaultAction::Fail(kind)).times(1));
        assert_eq!(world.cache.lookup(&path("d/f")).await.unwrap_err().kind(), kind);
        assert!(world.cache.peek(&path("d/f")).is_none());
        assert_eq!(world.size("d/f").await, Some(3), "{kind:?} was remembered");

        // The listing that would renew the directory fails: names are asked for one by one.
        world.names("d").await;
        world.clock.skip(Duration::from_secs(61));
        world.faults.inject(Fault::on(Operation::List, FaultAction::Fail(kind)));
        assert_eq!(world.size("d/f").await, Some(3));
        assert_eq!(world.size("d/g").await, None);
        world.faults.inject(Fault::on(Operation::Stat, FaultAction::Fail(kind)));
        assert_eq!(world.cache.lookup(&path("d/h")).await.unwrap_err().kind(), kind);
    }
}

#[tokio::test]
async fn l1_a_listing_that_broke_off_is_an_error_and_is_not_remembered() {
    let world = World::new(|_| ());
    for i in 0..2500 {
        world.put(&format!("d/{i:04}"), "x").await;
    }
    world.faults.inject(Fault::on(Operation::List, FaultAction::Cut(1200, ErrorKind::Unavailable)).times(1));
    let listing = world.cache.read_dir(&path("d")).await.unwrap();
    let mut seen = 0;
    let error = loop {
        match listing.entries(seen, 1000).await {
            Ok(page) => {
                assert!(!page.end, "a part looks complete");
                seen += page.entries.len();
            }
            Err(e) => break e,
        }
    };
    assert_eq!((error.kind(), seen), (ErrorKind::Unavailable, 1200));
    assert_eq!(world.size("d/2400").await, Some(1), "absent from a part is not absent");
    assert_eq!(world.names("d").await.len(), 2500);
}

#[tokio::test]
async fn the_third_name_of_an_unlisted_directory_brings_its_listing() {
    let world = World::new(|_| ());
    for i in 0..1000 {
        world.put(&format!("d/{i:04}"), "x").await;
    }
    for i in 0..1000 {
        assert_eq!(world.size(&format!("d/{:04}", (i * 7) % 1000)).await, Some(1));
    }
    assert_eq!(world.calls(), (2, 1));
}

#[tokio::test]
async fn one_name_of_a_large_directory_is_not_worth_a_listing_and_many_are() {
    let world = World::new(|_| ());
    for i in 0..30_000 {
        world.put(&format!("d/{i:05}"), "x").await;
    }
    for i in 0..2 {
        assert_eq!(world.size(&format!("d/{i:05}")).await, Some(1));
    }
    assert_eq!(world.calls(), (2, 0));
    // Ten pages are listed, then names behind them are asked for one by one, ten for each next ten pages.
    for i in 0..30_000 {
        assert_eq!(world.size(&format!("d/{:05}", (i * 7919) % 30_000)).await, Some(1));
    }
    let (stats, lists) = world.calls();
    assert!(lists == 1 && stats <= 40, "{stats} single requests, {lists} listings");
}

#[tokio::test]
async fn an_unchanged_directory_keeps_its_identity_and_a_changed_one_does_not() {
    let world = World::new(|_| ());
    world.put("d/a", "1").await;
    let first = world.cache.read_dir(&path("d")).await.unwrap();
    first.entries(0, 10).await.unwrap();
    let expires = first.expires();
    assert_eq!(world.cache.read_dir(&path("d")).await.unwrap().id(), first.id());
    world.clock.skip(Duration::from_secs(60));
    let second = world.cache.read_dir(&path("d")).await.unwrap();
    assert_eq!(second.id(), first.id());
    assert_eq!(first.expires() - expires, Duration::from_secs(60));
    world.put("d/b", "2").await;
    world.clock.skip(Duration::from_secs(60));
    let third = world.cache.read_dir(&path("d")).await.unwrap();
    assert_ne!(third.id(), first.id());
    assert_eq!(world.names("d").await, ["a", "b"]);
    assert_eq!(world.calls(), (0, 3));
}

#[tokio::test]
async fn many_who_want_one_thing_share_one_request() {
    let world = World::new(|_| ());
    world.put("d/a", "1").await;
    world.faults.inject(Fault::on(Operation::Stat, FaultAction::Delay(Duration::from_millis(50))));
    let name = path("d/a");
    let lookups = (0..50).map(|_| world.cache.lookup(&name));
    for lookup in futures::future::join_all(lookups).await {
        assert_eq!(lookup.unwrap().metadata.unwrap().size, 1);
    }
    // The third asker of a directory brings a listing, however many ask for the same name.
    let (stats, lists) = world.calls();
    assert!(stats <= 1 && lists <= 1, "{stats} {lists}");
    let dir = path("d");
    let listings = futures::future::join_all((0..50).map(|_| world.cache.read_dir(&dir))).await;
    for listing in listings {
        assert_eq!(listing.unwrap().entries(0, 10).await.unwrap().entries.len(), 1);
    }
    assert!(world.calls().1 <= 2);
}

#[tokio::test]
async fn own_changes_are_seen_at_once_by_every_call() {
    let world = World::new(|c| c.metadata_ttl = Lifetime::Forever);
    world.put("d/a", "1").await;
    assert_eq!(world.size("d/new").await, None);
    assert_eq!(world.names("d").await, ["a"]);
    world.cache.write(&path("d/new"), "12".into()).await.unwrap();
    assert_eq!(
        (world.size("d/new").await, world.names("d").await),
        (Some(2), vec!["a".into(), "new".into()])
    );
    world.cache.write(&path("d/new"), "123".into()).await.unwrap();
    assert_eq!(world.size("d/new").await, Some(3));
    assert_eq!(world.cache.read(&path("d/new"), 10).await.unwrap(), "123");
    world.cache.rename(&path("d/new"), &path("e/moved"), Default::default()).await.unwrap();
    assert_eq!((world.size("d/new").await, world.size("e/moved").await), (None, Some(3)));
    world.cache.copy(&path("e/moved"), &path("e/copy"), Default::default()).await.unwrap();
    assert_eq!(world.names("e").await, ["copy", "moved"]);
    world.cache.create_dir(&path("f")).await.unwrap();
    assert_eq!(world.names("").await, ["d", "e", "f"]);
    world.cache.remove_dir(&path("f")).await.unwrap();
    assert_eq!(world.size("f").await, None);
    let gone = futures::stream::iter([path("e/copy")]);
    let results: Vec<_> = futures::StreamExt::collect(world.cache.delete(Box::pin(gone))).await;
    assert!(results.iter().all(|(_, r)| r.is_ok()));
    assert_eq!(world.names("e").await, ["moved"]);
    let listed =
        world.cache.list_all(&path(""), ListOptions { recursive: true, ..Default::default() }, 100).await;
    let listed: Vec<_> = listed.unwrap().iter().map(|e| e.path.to_string()).collect();
    assert_eq!(listed, ["d", "d/a", "e", "e/moved"]);
    assert_eq!(world.cache.list_all(&path("d"), ListOptions::default(), 100).await.unwrap().len(), 1);
}

#[tokio::test]
async fn k3_a_walk_lists_each_directory_once_and_the_next_ones_ahead() {
    let world = World::new(|_| ());
    for dir in 0..60 {
        for file in 0..5 {
            world.put(&format!("t/{dir:02}/sub/{file}"), "x").await;
        }
    }
    world.faults.inject(Fault::on(Operation::List, FaultAction::Delay(Duration::from_millis(20))));
    let started = std::time::Instant::now();
    let mut todo = vec![String::from("t")];
    let mut files = 0;
    while let Some(dir) = todo.pop() {
        let mut dirs = Vec::new();
        for name in world.names(&dir).await {
            let name = format!("{dir}/{name}");
            match world.cache.lookup(&path(&name)).await.unwrap().metadata.unwrap().is_dir() {
                true => dirs.push(name),
                false => files += 1,
            }
        }
        dirs.reverse();
        todo.append(&mut dirs);
    }
    assert_eq!(files, 300);
    assert_eq!(world.calls(), (0, 121), "each directory once, no name by itself");
    let stats = world.cache.stats();
    assert!(stats.lists_ahead > 100, "{stats:?}");
    // 121 listings of 20 ms one after the other would take 2.4 s; far less shows that they went side by side.
    println!("walk of 121 directories at 20 ms: {:?}", started.elapsed());
}

#[tokio::test]
async fn a_directory_in_use_is_renewed_before_it_expires() {
    let world = World::new(|c| c.metadata_ttl = seconds(10));
    world.put("d/a", "1").await;
    world.put("e/a", "1").await;
    world.names("d").await;
    world.names("e").await;
    world.clock.skip(Duration::from_secs(5));
    assert_eq!(world.size("d/a").await, Some(1));
    world.clock.skip(Duration::from_secs(3));
    for _ in 0..100 {
        if world.cache.stats().lists_refreshed > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.cache.stats().lists_refreshed, 1, "only the one that was used");
    world.clock.skip(Duration::from_secs(5));
    assert!(world.cache.peek(&path("d/a")).is_some());
    assert!(world.cache.peek(&path("e/a")).is_none());
    assert_eq!(world.calls(), (0, 3));
}

#[tokio::test]
async fn more_entries_than_are_remembered_are_still_listed() {
    let world = World::new(|c| c.max_entries = 1000);
    for i in 0..25_000 {
        world.put(&format!("big/{i:05}"), "x").await;
    }
    for dir in 0..20 {
        for i in 0..100 {
            world.put(&format!("small/{dir}/{i}"), "x").await;
        }
    }
    let big = world.names("big").await;
    assert!(big.len() == 25_000 && big.is_sorted());
    for dir in 0..20 {
        assert_eq!(world.names(&format!("small/{dir}")).await.len(), 100);
    }
    let stats = world.cache.stats();
    assert!(stats.entries <= 1300 && stats.entries > 0, "{} entries remembered", stats.entries);
    // What was let go is listed again when a reader goes back.
    let listing = world.cache.read_dir(&path("big")).await.unwrap();
    let mut seen = 0;
    while seen < 25_000 {
        seen += listing.entries(seen, 1000).await.unwrap().entries.len();
    }
    assert!(listing.peek_entries(0, 10).is_none());
    for index in [0, 999, 1000, 4321] {
        let page = listing.entries(index, 10).await.unwrap();
        assert_eq!(&*page.entries[0].name, format!("{index:05}").as_bytes());
    }
    // Lookups do not make such a listing.
    let before = world.calls().1;
    for i in (0..25_000).step_by(100) {
        assert_eq!(world.size(&format!("big/{i:05}")).await, Some(1));
    }
    assert!(world.calls().1 <= before + 1);
}
