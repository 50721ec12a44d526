//! Reading, writing, copying and deleting objects.

mod common;

use common::Client;
use nearfs_lab::{Lab, Op, stamp};

fn lab() -> (Lab, Client) {
    let lab = Lab::builder().bucket("b").min_part_size(1).start().unwrap();
    let client = Client::new(&lab);
    (lab, client)
}

#[test]
fn put_get_head_and_delete() {
    let (lab, mut c) = lab();
    let put = c.put("/b/k", &[("content-type", "text/plain"), ("x-amz-meta-who", "me")], b"hello");
    assert_eq!((put.status, put.header("etag")), (200, Some("\"5d41402abc4b2a76b9719d911017c592\"")));
    let got = c.get("/b/k");
    assert_eq!((got.status, got.text().as_str()), (200, "hello"));
    assert_eq!(got.header("content-type"), Some("text/plain"));
    assert_eq!(got.header("x-amz-meta-who"), Some("me"));
    assert_eq!(got.header("accept-ranges"), Some("bytes"));
    assert_eq!(got.header("etag"), put.header("etag"));
    let head = c.head_of("/b/k");
    assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
    assert_eq!(lab.get("b", "k").unwrap(), "hello");
    assert_eq!(c.delete("/b/k").status, 204);
    assert_eq!(c.delete("/b/k").status, 204, "what is not there is as good as deleted");
    let gone = c.get("/b/k");
    assert_eq!((gone.status, gone.code().as_str()), (404, "NoSuchKey"));
    let head = c.head_of("/b/k");
    assert_eq!((head.status, head.body.len()), (404, 0));
    assert_eq!(c.get("/nobucket/k").code(), "NoSuchBucket");
    assert_eq!(lab.counters().connections_total, 1, "all of it over one connection");
}

#[test]
fn ranges_are_served_and_refused() {
    let (lab, mut c) = lab();
    lab.put_synthetic("b", "s", 100_000, 7);
    lab.put("b", "empty", &b""[..]);
    for (range, status, content_range, len) in [
        ("bytes=0-0", 206, "bytes 0-0/100000", 1),
        ("bytes=16-31", 206, "bytes 16-31/100000", 16),
        ("bytes=5-70004", 206, "bytes 5-70004/100000", 70_000),
        ("bytes=99990-", 206, "bytes 99990-99999/100000", 10),
        ("bytes=99990-200000", 206, "bytes 99990-99999/100000", 10),
        ("bytes=-16", 206, "bytes 99984-99999/100000", 16),
    ] {
        let got = c.get_with("/b/s", &[("range", range)]);
        assert_eq!(
            (got.status, got.header("content-range"), got.body.len()),
            (status, Some(content_range), len)
        );
        let start: u64 = content_range[6..].split('-').next().unwrap().parse().unwrap();
        assert!(stamp::verify(&got.body, start, 7).is_ok(), "{range}");
    }
    let whole = c.get("/b/s");
    assert_eq!((whole.status, stamp::verify(&whole.body, 0, 7)), (200, Ok(1)));
    for target in ["/b/s", "/b/empty"] {
        let bad = c.get_with(target, &[("range", "bytes=100000-")]);
        assert_eq!((bad.status, bad.code().as_str()), (416, "InvalidRange"), "{target}");
    }
    assert_eq!(c.get("/b/empty").header("content-length"), Some("0"));
    assert_eq!(c.get_with("/b/s", &[("range", "bytes=0-1,5-6")]).status, 200, "several ranges are ignored");
}

#[test]
fn conditions_are_kept() {
    let (lab, mut c) = lab();
    lab.put("b", "k", &b"hello"[..]);
    let etag = lab.etag("b", "k").unwrap();
    let seen = c.head_of("/b/k").header("last-modified").unwrap().to_owned();
    let past = "Mon, 01 Jan 2001 00:00:00 GMT";
    for (name, value, status) in [
        ("if-match", etag.as_str(), 200),
        ("if-match", "*", 200),
        ("if-match", "\"x\", \"5d41402abc4b2a76b9719d911017c592\"", 200),
        ("if-match", "\"x\"", 412),
        ("if-none-match", etag.as_str(), 304),
        ("if-none-match", "\"x\"", 200),
        ("if-modified-since", seen.as_str(), 304),
        ("if-modified-since", past, 200),
        ("if-unmodified-since", seen.as_str(), 200),
        ("if-unmodified-since", past, 412),
    ] {
        assert_eq!(c.get_with("/b/k", &[(name, value)]).status, status, "{name}: {value}");
        assert_eq!(
            c.ask("HEAD", "/b/k", &[(name, value)], b"").unwrap().status,
            status,
            "HEAD {name}: {value}"
        );
    }
    assert_eq!(c.get_with("/b/k", &[("if-match", "\"x\""), ("range", "bytes=0-1")]).status, 412);
    assert_eq!(c.put("/b/k", &[("if-none-match", "*")], b"no").code(), "PreconditionFailed");
    assert_eq!(c.put("/b/k", &[("if-match", "\"x\"")], b"no").status, 412);
    assert_eq!(c.put("/b/absent", &[("if-match", "\"x\"")], b"no").status, 404);
    assert_eq!(c.put("/b/k", &[("if-match", &etag)], b"new").status, 200);
    assert_eq!(c.put("/b/new", &[("if-none-match", "*")], b"yes").status, 200);
    assert_eq!(lab.get("b", "k").unwrap(), "new");
    assert_eq!(c.ask("DELETE", "/b/k", &[("if-match", "\"x\"")], b"").unwrap().status, 412);
}

#[test]
fn keys_are_bytes_and_are_never_rewritten() {
    let (lab, mut c) = lab();
    let keys = [
        "a//b",
        "a/b",
        "/",
        "//",
        "/lead",
        "p/../q",
        "p/./q",
        "t/",
        "t",
        "dup",
        "dup/x",
        "a+b",
        "a b",
        "100%",
        "%2F",
        "[1]*?",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f600}",
        "nl\nin",
        "ctl\u{1}\u{7f}",
        "q?x=1&y#z",
        "back\\slash",
        "<&>\"'",
    ];
    for (i, key) in keys.iter().enumerate() {
        let target = format!("/b/{}", percent(key));
        assert_eq!(c.put(&target, &[], i.to_string().as_bytes()).status, 200, "{key:?}");
    }
    let mut sorted: Vec<Vec<u8>> = keys.iter().map(|k| k.as_bytes().to_vec()).collect();
    sorted.sort();
    assert_eq!(lab.keys("b"), sorted);
    for (i, key) in keys.iter().enumerate() {
        let got = c.get(&format!("/b/{}", percent(key)));
        assert_eq!((got.status, got.text()), (200, i.to_string()), "{key:?}");
        assert_eq!(lab.get("b", key).unwrap(), i.to_string(), "{key:?}");
    }
    assert_eq!(c.put("/b/%ff", &[], b"x").code(), "InvalidURI", "keys are UTF-8");
    assert_eq!(c.put(&format!("/b/{}", "k".repeat(1025)), &[], b"x").code(), "KeyTooLongError");
}

fn percent(key: &str) -> String {
    key.bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() || b == b'/' || b == b'.' {
                (b as char).to_string()
            } else {
                format!("%{b:02x}")
            }
        })
        .collect()
}

#[test]
fn versions_count_up_and_show_in_the_stamps() {
    let (lab, mut c) = lab();
    assert_eq!(lab.put_synthetic("b", "k", 64, 5), 1);
    let first = lab.etag("b", "k");
    assert_eq!(lab.put_synthetic("b", "k", 64, 5), 2);
    assert_ne!(lab.etag("b", "k"), first);
    assert!(lab.delete("b", "k"));
    assert!(!lab.delete("b", "k"));
    assert_eq!(lab.put_synthetic("b", "k", 64, 5), 3, "a deleted key goes on counting");
    let got = c.get("/b/k");
    assert_eq!(stamp::verify(&got.body, 0, 5), Ok(3));
    lab.put("b", "real", stamp::make(64, 5, 3));
    assert_eq!(c.get("/b/real").body, got.body, "the same bytes, computed or kept");
}

#[test]
fn stored_encoding_storage_class_and_restore() {
    let (lab, mut c) = lab();
    c.put("/b/z", &[("content-encoding", "aws-chunked,gzip")], b"2\r\nzz\r\n0\r\n\r\n");
    let got = c.get("/b/z");
    assert_eq!((got.header("content-encoding"), got.text().as_str()), (Some("gzip"), "zz"));
    c.put("/b/cold", &[("x-amz-storage-class", "GLACIER")], b"ice");
    let head = c.head_of("/b/cold");
    assert_eq!((head.status, head.header("x-amz-storage-class")), (200, Some("GLACIER")));
    assert_eq!(head.header("x-amz-restore"), None);
    let refused = c.get("/b/cold");
    assert_eq!((refused.status, refused.code().as_str()), (403, "InvalidObjectState"));
    assert_eq!(c.post("/b/cold?restore", b"<RestoreRequest><Days>1</Days></RestoreRequest>").status, 202);
    assert_eq!(c.get("/b/cold").text(), "ice");
    assert!(c.head_of("/b/cold").header("x-amz-restore").unwrap().starts_with("ongoing-request=\"false\""));
    assert_eq!(c.post("/b/cold?restore", b"").status, 200);
    assert_eq!(c.post("/b/z?restore", b"").code(), "InvalidObjectState");
    assert!(lab.set_storage_class("b", "z", "DEEP_ARCHIVE", false));
    assert_eq!(c.get("/b/z").status, 403);
    assert!(!lab.set_storage_class("b", "absent", "GLACIER", false));
}

#[test]
fn checksums_are_kept_returned_and_checked() {
    let (_lab, mut c) = lab();
    // CRC32C of "123456789" is 0xe3069283 (RFC 3720 polynomial check value).
    let sum = "4waSgw==";
    assert_eq!(c.put("/b/k", &[("x-amz-checksum-crc32c", sum)], b"123456789").status, 200);
    assert_eq!(c.get("/b/k").header("x-amz-checksum-crc32c"), None);
    let asked = [("x-amz-checksum-mode", "ENABLED")];
    assert_eq!(c.get_with("/b/k", &asked).header("x-amz-checksum-crc32c"), Some(sum));
    assert_eq!(c.ask("HEAD", "/b/k", &asked, b"").unwrap().header("x-amz-checksum-crc32c"), Some(sum));
    assert_eq!(c.put("/b/bad", &[("x-amz-checksum-crc32c", sum)], b"12345678").code(), "BadDigest");
    assert_eq!(c.put("/b/bad", &[("content-md5", "AAAA")], b"x").code(), "BadDigest");
    let chunked = [
        ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        ("x-amz-trailer", "x-amz-checksum-crc32c"),
    ];
    let body = format!("4\r\n1234\r\n5\r\n56789\r\n0\r\nx-amz-checksum-crc32c:{sum}\r\n\r\n");
    assert_eq!(c.put("/b/t", &chunked, body.as_bytes()).status, 200);
    let got = c.get_with("/b/t", &asked);
    assert_eq!((got.text().as_str(), got.header("x-amz-checksum-crc32c")), ("123456789", Some(sum)));
    assert_eq!(c.put("/b/t", &chunked, b"4\r\n12").code(), "IncompleteBody");
}

#[test]
fn objects_can_be_given_any_headers_and_etag() {
    let (lab, mut c) = lab();
    let headers =
        [("content-encoding", "gzip"), ("x-amz-meta-a", "1"), ("x-amz-checksum-crc32c", "AAAAAA==")];
    assert_eq!(lab.put_with("b", "k", &b"bytes"[..], &headers), 1);
    let got = c.get_with("/b/k", &[("x-amz-checksum-mode", "ENABLED")]);
    for (name, value) in headers {
        assert_eq!(got.header(name), Some(value));
    }
    lab.put_synthetic("b", "s", 10, 1);
    for key in ["k", "s"] {
        assert!(lab.set_etag("b", key, "\"0123-5\""));
        assert_eq!(c.head_of(&format!("/b/{key}")).header("etag"), Some("\"0123-5\""));
    }
    assert!(!lab.set_etag("b", "absent", "\"x\""));
}

#[test]
fn copies_and_multi_deletes() {
    let (lab, mut c) = lab();
    c.put("/b/src%20a", &[("x-amz-meta-m", "1")], b"copied");
    let done = c.put("/b/dst", &[("x-amz-copy-source", "/b/src%20a")], b"");
    assert_eq!(
        (done.status, done.one("ETag")),
        (200, lab.etag("b", "src a").unwrap().replace('"', "&quot;"))
    );
    assert_eq!(c.get("/b/dst").header("x-amz-meta-m"), Some("1"));
    let replace =
        [("x-amz-copy-source", "b/dst"), ("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-n", "2")];
    assert_eq!(c.put("/b/dst", &replace, b"").status, 200);
    let got = c.get("/b/dst");
    assert_eq!(
        (got.header("x-amz-meta-m"), got.header("x-amz-meta-n"), got.text().as_str()),
        (None, Some("2"), "copied")
    );
    assert_eq!(c.put("/b/dst", &[("x-amz-copy-source", "b/dst")], b"").code(), "InvalidRequest");
    assert_eq!(c.put("/b/x", &[("x-amz-copy-source", "b/none")], b"").code(), "NoSuchKey");
    let stale = [("x-amz-copy-source", "b/dst"), ("x-amz-copy-source-if-match", "\"x\"")];
    assert_eq!(c.put("/b/x", &stale, b"").code(), "PreconditionFailed");
    lab.put_synthetic("b", "syn", 1 << 40, 3);
    assert_eq!(c.put("/b/syn2", &[("x-amz-copy-source", "b/syn")], b"").status, 200);
    let part = c.get_with("/b/syn2", &[("range", "bytes=1099511627760-")]);
    assert_eq!(stamp::verify(&part.body, 1_099_511_627_760, 3), Ok(1));
    let xml = b"<Delete><Object><Key>dst</Key></Object><Object><Key>a&amp;b</Key></Object></Delete>";
    assert_eq!(c.post("/b?delete", xml).all("Key"), ["dst", "a&amp;b"]);
    assert_eq!(lab.keys("b"), [b"src a".to_vec(), b"syn".to_vec(), b"syn2".to_vec()]);
    assert_eq!(
        c.post("/b?delete", b"<Delete><Quiet>true</Quiet><Object><Key>syn</Key></Object></Delete>")
            .all("Key")
            .len(),
        0
    );
    assert_eq!(c.post("/b?delete", b"<Delete>").code(), "MalformedXML");
    assert_eq!(lab.counters().of(Op::DeleteObjects), 3);
}

#[test]
fn multipart_uploads() {
    let (lab, mut c) = lab();
    lab.put_synthetic("b", "syn", 1000, 9);
    let start = |c: &mut Client| {
        c.ask("POST", "/b/m?uploads", &[("x-amz-meta-m", "1")], b"").unwrap().one("UploadId")
    };
    let id = start(&mut c);
    let one = c.put(&format!("/b/m?partNumber=1&uploadId={id}"), &[], b"first");
    let copied = c.put(
        &format!("/b/m?partNumber=7&uploadId={id}"),
        &[("x-amz-copy-source", "/b/syn"), ("x-amz-copy-source-range", "bytes=16-47")],
        b"",
    );
    let (e1, e7) = (one.header("etag").unwrap().to_owned(), copied.one("ETag").replace("&quot;", "\""));
    assert_eq!(c.get(&format!("/b/m?uploadId={id}")).all("PartNumber"), ["1", "7"]);
    let page = c.get(&format!("/b/m?uploadId={id}&max-parts=1"));
    assert_eq!((page.one("IsTruncated").as_str(), page.one("NextPartNumberMarker").as_str()), ("true", "1"));
    assert_eq!(c.get("/b?uploads").all("UploadId"), std::slice::from_ref(&id));
    assert_eq!(c.get("/b/m").status, 404, "nothing shows before it is complete");
    let finish = |parts: &[(u32, &str)]| {
        let parts: String = parts
            .iter()
            .map(|(n, e)| format!("<Part><PartNumber>{n}</PartNumber><ETag>{e}</ETag></Part>"))
            .collect();
        format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>").into_bytes()
    };
    let target = format!("/b/m?uploadId={id}");
    assert_eq!(c.post(&target, &finish(&[(7, &e7), (1, &e1)])).code(), "InvalidPartOrder");
    assert_eq!(c.post(&target, &finish(&[(1, &e1), (2, &e7)])).code(), "InvalidPart");
    assert_eq!(c.post(&target, &finish(&[(1, &e7)])).code(), "InvalidPart");
    lab.put("b", "m", &b"other"[..]);
    let refused = c.ask("POST", &target, &[("if-none-match", "*")], &finish(&[(1, &e1), (7, &e7)])).unwrap();
    assert_eq!((refused.status, lab.get("b", "m").unwrap().as_ref()), (412, &b"other"[..]));
    let done = c.post(&target, &finish(&[(1, &e1), (7, &e7)]));
    assert!(done.one("ETag").ends_with("-2&quot;"), "{}", done.text());
    let got = c.get("/b/m");
    assert_eq!((&got.body[..5], stamp::verify(&got.body[5..], 16, 9)), (&b"first"[..], Ok(1)));
    assert_eq!(got.header("x-amz-meta-m"), Some("1"));
    assert_eq!(
        c.get_with("/b/m", &[("range", "bytes=3-6")]).body,
        [&b"st"[..], &stamp::record(9, 1, 16)[..2]].concat()
    );
    assert_eq!(c.post(&target, &finish(&[(1, &e1)])).code(), "NoSuchUpload");
    let id = start(&mut c);
    assert_eq!(c.put(&format!("/b/m?partNumber=0&uploadId={id}"), &[], b"x").code(), "InvalidArgument");
    assert_eq!(c.delete(&format!("/b/m?uploadId={id}")).status, 204);
    assert_eq!(c.delete(&format!("/b/m?uploadId={id}")).code(), "NoSuchUpload");
    assert_eq!(c.get("/b?uploads").all("UploadId").len(), 0);
}

#[test]
fn small_parts_are_refused_by_default() {
    let lab = Lab::builder().bucket("b").start().unwrap();
    let mut c = Client::new(&lab);
    let id = c.post("/b/m?uploads", b"").one("UploadId");
    let mut parts = String::new();
    for n in 1..=2 {
        let part = c.put(&format!("/b/m?partNumber={n}&uploadId={id}"), &[], b"small");
        parts += &format!(
            "<Part><PartNumber>{n}</PartNumber><ETag>{}</ETag></Part>",
            part.header("etag").unwrap()
        );
    }
    let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
    assert_eq!(c.post(&format!("/b/m?uploadId={id}"), body.as_bytes()).code(), "EntityTooSmall");
}

#[test]
fn buckets() {
    let (lab, mut c) = lab();
    assert_eq!(c.put("/new", &[], b"").status, 200);
    assert_eq!(c.put("/new", &[], b"").code(), "BucketAlreadyOwnedByYou");
    assert_eq!(c.get("/").all("Name"), ["b", "new"]);
    assert_eq!(c.head_of("/new").header("x-amz-bucket-region"), Some("us-east-1"));
    assert_eq!(c.head_of("/none").status, 404);
    assert!(c.get("/new?location").text().contains("></LocationConstraint>"), "the first region has no name");
    lab.put("new", "k", &b""[..]);
    assert_eq!(c.delete("/new").code(), "BucketNotEmpty");
    lab.delete("new", "k");
    assert_eq!(c.delete("/new").status, 204);
    assert_eq!(c.get("/b/k?acl").status, 501, "what it does not have it says");
    assert_eq!(c.get("/b/k?versionId=abc").status, 501);
}
