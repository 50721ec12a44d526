//! Listings of more than one page, and what goes wrong with them.

use futures::StreamExt;
use nearfs_lab::{Fault, Op, Rule};

use super::*;

/// 402 files and 150 directories mixed by name; what a flat listing shows, in order.
fn fill(lab: &Lab) -> Vec<String> {
    for i in 0..402 {
        lab.put_synthetic("b", format!("d/k{i:04}"), 10, 1);
    }
    for i in 0..150 {
        lab.put_synthetic("b", format!("d/k{:04}x/file", i * 2), 10, 1);
    }
    let files = (0..402).map(|i| format!("d/k{i:04}"));
    let dirs = (0..150).map(|i| format!("d/k{:04}x/", i * 2));
    let mut all: Vec<_> = files.chain(dirs).collect();
    all.sort_by_key(|name| p(name.trim_end_matches('/')));
    all.sort_by(|a, b| p(a.trim_end_matches('/')).cmp_listing(&p(b.trim_end_matches('/'))));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn l1_every_page_size_gives_the_same_listing() {
    let lab = lab();
    let wanted = fill(&lab);
    let fs = fs(&lab).await;
    for keys in [1, 7, 999, 1000] {
        lab.clear_faults();
        lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListPageSize { keys }));
        assert_eq!(shown(&list(&fs, "d", false).await.unwrap()), wanted, "page size {keys}");
        assert_eq!(list(&fs, "", true).await.unwrap().len(), 1 + wanted.len() + 150);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l1_more_than_a_thousand_cost_a_request_per_thousand() {
    let lab = lab();
    lab.tree("b", "t", 1, 2_402, 1);
    let fs = fs(&lab).await;
    let all = list(&fs, "t/d0000", false).await.unwrap();
    assert_eq!(all.len(), 2_402);
    assert!(all.iter().all(|e| e.metadata.size == 1 && e.metadata.version.is_known()));
    assert_eq!(lab.counters().total(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn l1_a_listing_that_cannot_be_completed_is_an_error() {
    let lab = lab();
    let wanted = fill(&lab);
    let fs = fs(&lab).await;
    let pages = || lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListPageSize { keys: 100 }));

    pages();
    lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListEmptyPage).skip(1).once());
    assert_eq!(shown(&list(&fs, "d", false).await.unwrap()), wanted, "an empty page with more to come");

    for broken in [Fault::ListDropMarker, Fault::ListRepeatToken] {
        lab.clear_faults();
        pages();
        lab.fault(Rule::on(Op::ListObjectsV2, broken.clone()).skip(1));
        let e = list(&fs, "d", false).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{broken:?}");
    }
    lab.clear_faults();
    pages();
    lab.fault(Rule::on(Op::ListObjectsV2, Fault::status(503)).skip(1).once());
    assert_eq!(retryable(list(&fs, "d", false).await).kind(), ErrorKind::Throttled);
    lab.clear_faults();
    lab.fault(Rule::on(Op::ListObjectsV2, Fault::Cut { after: 1000 }).once());
    retryable(list(&fs, "d", false).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_resumes_after_any_entry() {
    let lab = lab();
    for key in ["a", "a!", "a!/y", "a#", "a/z", "a/z-/q", "a/z!", "b", "b-c/d", "b-c/d.e", "b.e", "é/ü"] {
        lab.put("b", key, &b"1"[..]);
    }
    let fs = fs(&lab).await;
    for recursive in [false, true] {
        for dir in ["", "a"] {
            let all = list(&fs, dir, recursive).await.unwrap();
            for (i, entry) in all.iter().enumerate() {
                let options = ListOptions { recursive, start_after: Some(entry.path.clone()) };
                let rest: Vec<_> = fs.list(&p(dir), options).try_collect().await.unwrap();
                assert_eq!(rest, all[i + 1..], "{dir:?} after {}", entry.path);
            }
        }
    }
    // Names that are not there, before and after everything.
    let after = |name: &str| ListOptions { recursive: false, start_after: Some(p(name)) };
    let from = |dir: &str, name: &str| fs.list(&p(dir), after(name)).try_collect::<Vec<_>>();
    assert_eq!(shown(&from("", "a$").await.unwrap()), ["a/", "b-c/", "b.e", "b", "é/"]);
    assert_eq!(from("a", "A").await.unwrap().len(), list(&fs, "a", false).await.unwrap().len());
    assert!(from("a", "b").await.unwrap().is_empty());
    assert!(from("", "\u{10ffff}").await.unwrap().is_empty());
    assert_eq!(kind(from("none", "none/x").await), ErrorKind::NotFound);
    assert_eq!(kind(from("b.e", "b.e/x").await), ErrorKind::NotADirectory);
}

#[tokio::test(flavor = "multi_thread")]
async fn resuming_reads_only_what_is_left() {
    let lab = lab();
    lab.tree("b", "t", 1, 5_000, 1);
    let fs = fs(&lab).await;
    let options = ListOptions { recursive: false, start_after: Some(p("t/d0000/f04500.bin")) };
    let rest: Vec<_> = fs.list(&p("t/d0000"), options).try_collect().await.unwrap();
    assert_eq!(rest.len(), 499);
    assert!(lab.counters().total() <= 3, "one page and the names `f04500`: {:?}", lab.counters());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_listing_fetches_one_page_ahead() {
    let lab = lab();
    lab.tree("b", "t", 1, 5_000, 1);
    let fs = fs(&lab).await;
    let mut entries = fs.list(&p("t/d0000"), ListOptions::default());
    entries.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lab.counters().lists(), 2);
    drop(entries);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(lab.counters().lists(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_heads_say_the_same() {
    let lab = lab();
    lab.put("b", "x", &b"12345"[..]);
    lab.set_modified("b", "x", std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_789));
    let fs = fs(&lab).await;
    let entry = list(&fs, "", false).await.unwrap().remove(0);
    assert_eq!(entry.metadata, fs.stat(&entry.path).await.unwrap());
    assert_eq!(entry.metadata.modified, Some(std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn l1_endless_promises_end() {
    let lab = lab();
    fill(&lab);
    lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListEmptyPage));
    let fs = fs(&lab).await;
    for result in [list(&fs, "d", false).await.map(drop), fs.stat(&p("d")).await.map(drop)] {
        assert_eq!(kind(result), ErrorKind::Corrupt);
    }
    assert!(lab.counters().lists() <= 2_002);
}
