use super::*;

#[test]
fn what_a_slot_stores_comes_back() {
    let access = Access::first(5, 1_800_000_000, 4096).again(9, 1_800_000_060).again(1 << 40, u32::MAX);
    assert_eq!(Access::from_words(access.words(), 4096), access);
    assert_eq!((access.count, access.last, access.gap), (3, 1 << 40, 4u64.midpoint((1 << 40) - 9)));
}
