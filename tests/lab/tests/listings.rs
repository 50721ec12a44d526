//! Listings of both versions, page by page, with every kind of key.

mod common;

use std::time::{Duration, UNIX_EPOCH};

use common::{Answer, Client};
use nearfs_lab::{Fault, Lab, Op, Rule};

fn lab(keys: &[&str]) -> (Lab, Client) {
    let lab = Lab::builder().bucket("b").start().unwrap();
    for key in keys {
        lab.put("b", key, key.as_bytes().to_vec());
    }
    let client = Client::new(&lab);
    (lab, client)
}

fn form_decode(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                out.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).unwrap()
}

fn form_encode(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

/// The names on one page: keys, then common prefixes.
fn names(page: &Answer) -> (Vec<String>, Vec<String>) {
    assert_eq!(page.status, 200, "{}", page.text());
    let key = |c: &String| c.split("<Key>").nth(1).unwrap().split("</Key>").next().unwrap().to_owned();
    let keys = page.all("Contents").iter().map(key).collect();
    let prefix = |c: &String| c.replace("<Prefix>", "").replace("</Prefix>", "");
    (keys, page.all("CommonPrefixes").iter().map(prefix).collect())
}

#[test]
fn a_page_tells_all_about_its_keys() {
    let (lab, mut c) = lab(&["a", "d/x", "d/y", "e/"]);
    lab.set_modified("b", "a", UNIX_EPOCH + Duration::from_millis(1_735_689_600_123));
    lab.set_storage_class("b", "a", "GLACIER", false);
    let page = c.get("/b?list-type=2&delimiter=/&fetch-owner=true");
    assert_eq!(names(&page), (vec!["a".to_owned()], vec!["d/".to_owned(), "e/".to_owned()]));
    assert_eq!(page.one("LastModified"), "2025-01-01T00:00:00.123Z");
    assert_eq!(page.one("Size"), "1");
    assert_eq!(page.one("ETag"), lab.etag("b", "a").unwrap().replace('"', "&quot;"));
    assert_eq!(page.one("StorageClass"), "GLACIER");
    assert_eq!(
        (page.one("KeyCount"), page.one("IsTruncated"), page.one("ID")),
        ("3".into(), "false".into(), "lab".into())
    );
    let v1 = c.get("/b?delimiter=/&prefix=d/");
    assert_eq!(names(&v1), (vec!["d/x".to_owned(), "d/y".to_owned()], vec![]));
    assert_eq!(v1.all("KeyCount").len(), 0);
    assert_eq!(names(&c.get("/b/?list-type=2&start-after=d/x")).0, ["d/y", "e/"]);
    assert_eq!(names(&c.get("/b?marker=d/x")).0, ["d/y", "e/"]);
    assert_eq!(names(&c.get("/b?list-type=2&max-keys=0")).0.len(), 0);
    assert_eq!(c.get("/b?list-type=2&max-keys=x").code(), "InvalidArgument");
    assert_eq!(c.get("/b?list-type=2&continuation-token=x").code(), "InvalidArgument");
    assert_eq!(c.get("/b?list-type=2&encoding-type=base64").code(), "InvalidArgument");
    assert_eq!(c.get("/none?list-type=2").code(), "NoSuchBucket");
    let counters = lab.counters();
    assert_eq!((counters.of(Op::ListObjects), counters.lists()), (2, 9));
    assert_eq!(lab.key_counters("b", "d/").of(Op::ListObjects), 1, "listings count under their prefix");
}

#[test]
fn pages_of_every_size_join_to_the_whole() {
    let (lab, mut c) = lab(&[]);
    for i in 0..240 {
        lab.put("b", format!("dir/k{i:04}"), &b"x"[..]);
    }
    for i in 0..15 {
        lab.put("b", format!("dir/k{:04}x/sub", i * 16), &b"x"[..]);
    }
    let whole = names(&c.get("/b?list-type=2&prefix=dir/&delimiter=/"));
    assert_eq!((whole.0.len(), whole.1.len()), (240, 15));
    for size in [1, 7, 99, 255, 1000] {
        for v2 in [true, false] {
            let (mut keys, mut prefixes, mut next) = (Vec::new(), Vec::new(), String::new());
            let version = if v2 { "list-type=2&" } else { "" };
            for _ in 0..300 {
                let page = c.get(&format!("/b?{version}prefix=dir/&delimiter=/&max-keys={size}{next}"));
                let (k, p) = names(&page);
                assert!(k.len() + p.len() <= size);
                keys.extend(k);
                prefixes.extend(p);
                if page.one("IsTruncated") == "false" {
                    break;
                }
                next = if v2 {
                    format!("&continuation-token={}", form_encode(&page.one("NextContinuationToken")))
                } else {
                    format!("&marker={}", page.one("NextMarker"))
                };
            }
            assert_eq!((keys, prefixes), whole, "pages of {size}");
        }
    }
    let flat = c.get("/b?max-keys=5");
    assert_eq!(flat.all("NextMarker").len(), 0, "without a delimiter the service sends no marker");
}

#[test]
fn strange_keys_are_listed_exactly() {
    let keys = [
        "/",
        "//",
        "a b",
        "a+b",
        "a//b",
        "a/../b",
        "a%2Fb",
        "caf\u{e9}",
        "cafe\u{301}",
        "ctl\u{1}\u{b}",
        "nl\n",
        "q*?&<>\"'",
        "t",
        "t/",
        "\u{1f600}",
    ];
    let (_lab, mut c) = lab(&keys);
    let page = c.get("/b?list-type=2&encoding-type=url");
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let listed = names(&page).0;
    assert_eq!(listed.iter().map(|k| form_decode(k)).collect::<Vec<_>>(), sorted);
    assert!(
        listed.contains(&"a+b".to_owned()) && listed.contains(&"a%2Bb".to_owned()),
        "as a form: {listed:?}"
    );
    assert_eq!(page.one("EncodingType"), "url");
    let plain = c.get("/b?list-type=2");
    assert!(plain.text().contains("<Key>ctl&#x1;&#xb;</Key>"), "as references, which XML forbids");
    assert!(plain.text().contains("<Key>q*?&amp;&lt;&gt;&quot;'</Key>"));
    for key in keys {
        let found = c.get(&format!("/b?list-type=2&encoding-type=url&prefix={}", form_encode(key)));
        assert_eq!(form_decode(&names(&found).0[0]), key, "as a prefix");
    }
    let (files, dirs) = names(&c.get("/b?list-type=2&encoding-type=url&delimiter=%2F"));
    assert!(
        files.contains(&"t".to_owned()) && dirs.contains(&"t/".to_owned()) && dirs.contains(&"/".to_owned())
    );
}

#[test]
fn faults_of_listings() {
    let keys: Vec<String> = (0..10).map(|i| format!("k{i}")).collect();
    let (lab, mut c) = lab(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    let list = |c: &mut Client, token: &str| c.get(&format!("/b?list-type=2{token}"));
    lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListPageSize { keys: 4 }));

    lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListDropMarker).once());
    let page = list(&mut c, "");
    assert_eq!((page.one("IsTruncated").as_str(), page.all("NextContinuationToken").len()), ("true", 0));
    assert_eq!(names(&page).0.len(), 4);

    lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListEmptyPage).skip(1).once());
    let first = list(&mut c, "");
    let token = format!("&continuation-token={}", form_encode(&first.one("NextContinuationToken")));
    let empty = list(&mut c, &token);
    assert_eq!(
        (names(&empty).0.len(), empty.one("IsTruncated").as_str(), empty.one("KeyCount").as_str()),
        (0, "true", "0")
    );
    let token = format!("&continuation-token={}", form_encode(&empty.one("NextContinuationToken")));
    assert_eq!(names(&list(&mut c, &token)).0, ["k4", "k5", "k6", "k7"], "nothing is lost by going on");

    lab.fault(Rule::on(Op::ListObjectsV2, Fault::ListRepeatToken));
    let again = list(&mut c, &token);
    assert_eq!(format!("&continuation-token={}", form_encode(&again.one("NextContinuationToken"))), token);

    lab.clear_faults();
    lab.fault(Rule::on(Op::ListObjects, Fault::ListDropMarker));
    let v1 = c.get("/b?max-keys=2&delimiter=/");
    assert_eq!((v1.one("IsTruncated").as_str(), v1.all("NextMarker").len()), ("true", 0));
    assert_eq!(names(&list(&mut c, "")).0.len(), 10);
}

#[test]
fn a_tree_is_what_it_says() {
    let lab = Lab::builder().start().unwrap();
    let keys = lab.tree("t", "meta/m", 3, 4, 4096);
    assert_eq!(keys.len(), 12);
    assert_eq!((keys[0].as_str(), keys[11].as_str()), ("meta/m/d0000/f00000.bin", "meta/m/d0002/f00003.bin"));
    assert_eq!(lab.keys("t"), keys.iter().map(|k| k.clone().into_bytes()).collect::<Vec<_>>());
    let bytes = lab.get("t", &keys[5]).unwrap();
    assert_eq!(
        (bytes.len(), nearfs_lab::stamp::verify(&bytes, 0, nearfs_lab::stamp::key_id(&keys[5]))),
        (4096, Ok(1))
    );
}
