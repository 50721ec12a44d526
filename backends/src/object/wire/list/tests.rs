use std::time::{Duration, SystemTime};

use super::*;
use crate::error::ErrorKind;

fn page(inside: &str) -> Result<Page> {
    parse(
        format!("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3/\">{inside}</ListBucketResult>")
            .as_bytes(),
    )
}

fn contents(key: &str) -> String {
    format!("<Contents><Key>{key}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag></Contents>")
}

fn keys(page: &Page) -> Vec<String> {
    page.items.iter().map(|i| String::from_utf8_lossy(&i.key).into_owned()).collect()
}

#[test]
fn an_entry_is_read_completely() {
    let doc = "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><Contents><Key>a+b%2Bc%0A%C3%A9/%F0%9F%99%82</Key>\
        <LastModified>2024-05-06T07:08:09.123Z</LastModified><ETag>&quot;abc-2&quot;</ETag><Size>42</Size>\
        <StorageClass>STANDARD</StorageClass></Contents>";
    let page = page(doc).unwrap();
    assert_eq!(keys(&page), ["a b+c\né/🙂"]);
    let metadata = page.items[0].metadata.as_ref().unwrap();
    assert_eq!((metadata.size, &metadata.version), (42, &Version::Tag("abc-2".into())));
    assert_eq!(metadata.modified, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_714_979_289)));
    assert_eq!(metadata.modified, http_time("Mon, 06 May 2024 07:08:09 GMT"));
}

#[test]
fn keys_are_decoded_only_if_the_store_encoded_them() {
    let raw = page(&contents("a+b%20&#10;")).unwrap();
    assert_eq!(keys(&raw), ["a+b%20\n"]);
}

#[test]
fn keys_and_prefixes_become_one_sequence() {
    let doc = [contents("a"), contents("c"), contents("e")].concat()
        + "<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes>\
           <CommonPrefixes><Prefix>f/</Prefix></CommonPrefixes>";
    let page = page(&doc).unwrap();
    assert_eq!(keys(&page), ["a", "b/", "c", "d/", "e", "f/"]);
    assert_eq!(page.items.iter().filter(|i| i.metadata.is_none()).count(), 3);
}

#[test]
fn l1_a_page_that_hides_its_continuation_is_an_error() {
    let e = page("<IsTruncated>true</IsTruncated>").unwrap_err();
    assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::Corrupt, true));
    // A count that does not fit is not believed, nor is a token after the last page.
    let odd = page(
        "<KeyCount>7</KeyCount><IsTruncated>false</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
    );
    assert_eq!(odd.unwrap(), Page::default());
    let empty =
        page("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>").unwrap();
    assert_eq!(empty.next.as_deref(), Some("t"));
}

#[test]
fn what_is_no_listing_is_an_error() {
    for bad in
        ["", "<html></html>", "<ListBucketResult><Contents><Key>a</Key>", "<Error><Code>x</Code></Error>"]
    {
        assert_eq!(parse(bad.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt, "{bad}");
    }
    assert!(page("<Contents><Key>a</Key></Contents>").is_err(), "a size is needed");
    assert!(page("<Contents><Size>1</Size></Contents>").is_err(), "a key is needed");
    assert!(page("<Contents><Key>a</Key><Size>-1</Size></Contents>").is_err());
}

#[test]
fn archived_unless_restored() {
    let entry = |extra: &str| {
        let doc = format!("<Contents><Key>a</Key><Size>1</Size>{extra}</Contents>");
        page(&doc).unwrap().items[0].metadata.as_ref().unwrap().archived
    };
    assert!(!entry("<StorageClass>GLACIER_IR</StorageClass>"));
    assert!(entry("<StorageClass>GLACIER</StorageClass>"));
    let status = |busy: &str| {
        format!(
            "<StorageClass>DEEP_ARCHIVE</StorageClass><RestoreStatus><IsRestoreInProgress>{busy}</IsRestoreInProgress>\
             <RestoreExpiryDate>2030-01-01T00:00:00Z</RestoreExpiryDate></RestoreStatus>"
        )
    };
    assert!(!entry(&status("false")));
    assert!(entry(&status("true")));
}

#[test]
fn versions_of_lists_and_headers_are_equal() {
    assert_eq!(version(Some("\"a\"")), version(Some("a")));
    for unknown in [None, Some("W/\"a\""), Some(""), Some("\"\""), Some("a b"), Some("a\"b")] {
        assert_eq!(version(unknown), Version::Unknown, "{unknown:?}");
    }
}
