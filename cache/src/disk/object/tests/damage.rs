//! Whatever happens to the files of an object, nobody is served wrong bytes.

use std::os::unix::fs::FileExt;

use super::*;

const SIZE: u64 = 3 * MIB + 777;
const UNITS: u64 = SIZE.div_ceil(UNIT);

/// A deterministic sequence for choosing what to damage; SplitMix64's finaliser over a counter.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

fn write_at(path: &Path, at: u64, data: &[u8]) {
    std::fs::File::options().write(true).open(path).unwrap().write_all_at(data, at).unwrap();
}

fn all_but(gone: &[u64]) -> Vec<u64> {
    (0..UNITS).filter(|u| !gone.contains(u)).collect()
}

#[test]
fn j2_after_another_boot_every_unit_is_proven_before_its_first_use() {
    let world = World::new(64 * MIB);
    let before = world.whole("a", SIZE);
    let charged = world.charged("a", SIZE);
    let (data, _) = world.files("a", SIZE);
    // Power loss: a page of zeros, a flipped bit, and the end.
    write_at(&data, 5 * UNIT, &[0; 4096]);
    write_at(&data, 7 * UNIT + 12_345, &[content(7 * UNIT + 12_345..7 * UNIT + 12_346)[0] ^ 0x10]);
    write_at(&data, SIZE - 1, &[0]);
    let ground = world.next_boot();
    let large = world.open_with(&ground, "a", SIZE).unwrap();
    assert_eq!(large.resident(0..SIZE), (true, 0..SIZE));
    assert!(large.begin(&(0..1)).is_none(), "not before it was proven");
    assert!(!large.is_whole() && large.lend().unwrap().is_none());
    assert!(large.prove(&(0..5 * UNIT)).unwrap());
    assert!(large.begin(&(0..5 * UNIT)).is_some() && large.begin(&(0..5 * UNIT + 1)).is_none());
    assert!(!large.prove(&(0..SIZE)).unwrap());
    assert_eq!(readable(&large), all_but(&[5, 7, UNITS - 1]));
    assert_eq!(world.charged("a", SIZE), charged - 2 * UNIT - blocks(&(SIZE / UNIT * UNIT..SIZE)));
    // What was wrong is fetched again, and then all is well, for the next process too.
    assert_eq!(fill(&large, 0..SIZE), 2 * UNIT + SIZE % UNIT);
    assert!(large.is_whole() && check(&large, 0..SIZE));
    assert_eq!(world.charged("a", SIZE), charged);
    let next = world.open_with(&ground, "a", SIZE).unwrap();
    assert!(next.begin(&(0..SIZE)).is_some() && large.lend().unwrap().is_some());
    drop(before);
}

#[test]
fn j2_claims_of_another_boot_hold_nobody_up() {
    let world = World::new(64 * MIB);
    let large = world.make("a", SIZE);
    fill(&large, 0..4 * UNIT);
    assert_eq!(large.claim(0..SIZE).len(), 2);
    // The slot of the process table may belong to somebody who lives now.
    let large = world.open_with(&world.next_boot(), "a", SIZE).unwrap();
    assert_eq!(fill(&large, 0..SIZE), SIZE - 4 * UNIT);
    assert!(check(&large, 0..SIZE));
}

#[test]
fn bytes_that_others_changed_in_this_boot_are_proven_again() {
    let world = World::new(64 * MIB);
    for (name, filled) in [("whole", SIZE), ("part", 20 * UNIT)] {
        let large = world.make(name, SIZE);
        fill(&large, 0..filled);
        drop(large);
        let (data, _) = world.files(name, SIZE);
        write_at(&data, 3 * UNIT + 5, b"foreign");
        let large = world.open(name, SIZE).unwrap();
        assert!(large.begin(&(0..1)).is_none(), "{name}");
        let right: Vec<u64> = (0..filled.div_ceil(UNIT)).filter(|u| *u != 3).collect();
        assert_eq!(readable(&large), right, "{name}");
        // Only once: the next one finds it as it was left.
        assert!(world.open(name, SIZE).unwrap().begin(&(0..3 * UNIT)).is_some(), "{name}");
    }
}

#[test]
fn opening_does_not_cast_doubt_on_what_others_are_filling() {
    let world = World::new(64 * MIB);
    let large = world.make("a", SIZE);
    fill(&large, 0..4 * UNIT);
    // Somebody is between the write and the account of it.
    let piece = large.claim(4 * UNIT..5 * UNIT);
    assert_eq!(piece[0].claimed, Claimed::Mine);
    let (data, _) = world.files("a", SIZE);
    write_at(&data, 4 * UNIT, &content(4 * UNIT..5 * UNIT));
    let other = world.open("a", SIZE).unwrap();
    assert!(other.begin(&(0..4 * UNIT)).is_some());
    assert!(large.fill(4 * UNIT, &pieces(4 * UNIT..5 * UNIT)).unwrap());
    assert!(world.open("a", SIZE).unwrap().begin(&(0..5 * UNIT)).is_some());
}

#[test]
fn j2_files_of_others_in_the_place_of_the_data_file_are_not_served() {
    let world = World::new(64 * MIB);
    let other_size = SIZE + UNIT;
    world.whole("other", SIZE);
    world.whole("longer", other_size);
    let (other, _) = world.files("other", SIZE);
    type Damage<'a> = (&'a str, &'a dyn Fn(&Path));
    let ways: [Damage<'_>; 8] = [
        ("missing", &|data| std::fs::remove_file(data).unwrap()),
        ("shorter", &|data| {
            std::fs::File::options().write(true).open(data).unwrap().set_len(SIZE - 4096).unwrap();
        }),
        ("empty", &|data| std::fs::write(data, "").unwrap()),
        ("longer than it should be", &|data| {
            std::fs::File::options().write(true).open(data).unwrap().set_len(SIZE + 1).unwrap();
        }),
        ("a directory", &|data| {
            std::fs::remove_file(data).unwrap();
            std::fs::create_dir(data).unwrap();
        }),
        ("a link", &|data| {
            std::fs::remove_file(data).unwrap();
            std::os::unix::fs::symlink(&other, data).unwrap();
        }),
        ("a socket", &|data| {
            std::fs::remove_file(data).unwrap();
            std::os::unix::net::UnixListener::bind(data).unwrap();
        }),
        ("a pipe", &|data| {
            std::fs::remove_file(data).unwrap();
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, data, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }),
    ];
    for (name, damage) in ways {
        drop(world.whole(name, SIZE));
        damage(&world.files(name, SIZE).0);
        assert!(world.open(name, SIZE).is_none(), "{name}");
    }
    // Zeros, or the bytes of another object, in a file of the right length: found out unit by unit.
    for (name, foreign) in [("zeros", vec![0; SIZE as usize]), ("swapped", vec![0x55; SIZE as usize])] {
        drop(world.whole(name, SIZE));
        let (data, _) = world.files(name, SIZE);
        std::fs::remove_file(&data).unwrap();
        std::fs::write(&data, foreign).unwrap();
        let large = world.open(name, SIZE).unwrap();
        assert!(readable(&large).is_empty(), "{name}");
        assert_eq!(fill(&large, 0..SIZE), SIZE);
        assert!(check(&large, 0..SIZE), "{name}");
    }
    // A true copy is as good as the original once it is proven.
    drop(world.whole("copied", SIZE));
    let (data, _) = world.files("copied", SIZE);
    let bytes = std::fs::read(&data).unwrap();
    std::fs::remove_file(&data).unwrap();
    std::fs::write(&data, bytes).unwrap();
    let large = world.open("copied", SIZE).unwrap();
    assert!(large.begin(&(0..1)).is_none());
    assert!(check(&large, 0..SIZE) && large.is_whole());
}

#[tokio::test]
async fn a_file_cut_off_while_it_is_open_is_an_error_and_mended() {
    let world = World::new(64 * MIB);
    let large = world.whole("a", SIZE);
    let charged = world.charged("a", SIZE);
    let (data, _) = world.files("a", SIZE);
    std::fs::File::options().write(true).open(&data).unwrap().set_len(MIB).unwrap();
    let mut buf = vec![0; 2 * MIB as usize];
    assert_eq!(large.read(0, &mut buf).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(large.lend().unwrap().is_none());
    let token = large.begin(&(MIB - 10..MIB + 10));
    assert!(token.is_none(), "an attempt to lend it found out");
    // What is there is proven again; what cannot be read is dropped.
    assert_eq!(large.prove(&(0..SIZE)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(large.resident(0..SIZE), (true, 0..MIB));
    assert!(check(&large, 0..MIB));
    // The same by the reads of an engine, which do not look for themselves.
    let large = world.whole("b", SIZE);
    let (data, _) = world.files("b", SIZE);
    std::fs::File::options().write(true).open(&data).unwrap().set_len(MIB).unwrap();
    let token = large.begin(&(MIB - UNIT..MIB + UNIT)).unwrap();
    let buf = Buffer::with_capacity(2 * UNIT as usize);
    let (result, _) = large.read_into(MIB - UNIT, buf, 2 * UNIT as usize).await;
    assert_eq!(result.unwrap() as u64, UNIT);
    assert!(!large.finish(token));
    assert_eq!(large.resident(0..SIZE), (true, 0..MIB - UNIT));
    large.drop_units(&(0..SIZE), "test");
    assert_eq!(world.charged("b", SIZE), Large::overhead(SIZE));
    assert_eq!(fill(&large, 0..SIZE), SIZE);
    assert_eq!((check(&large, 0..SIZE), world.charged("b", SIZE)), (true, charged));
    assert!(large.lend().unwrap().is_some());
}

#[test]
fn j2_state_files_that_are_not_what_they_should_be_are_refused() {
    let world = World::new(64 * MIB);
    world.whole("other", SIZE);
    let (_, other) = world.files("other", SIZE);
    let other = std::fs::read(other).unwrap();
    let len = Large::overhead(SIZE) as usize;
    let mut newer = other.clone();
    newer[8] ^= 1;
    for (name, foreign) in [
        ("empty", Vec::new()),
        ("short", other[..len - 4096].to_vec()),
        ("shorter than a header", other[..100].to_vec()),
        ("long", [&other[..], &[0; 4096]].concat()),
        ("zeros", vec![0; len]),
        ("ones", vec![0xff; len]),
        ("of another object", other.clone()),
        ("of another format", newer),
    ] {
        drop(world.whole(name, SIZE));
        let (_, state) = world.files(name, SIZE);
        std::fs::remove_file(&state).unwrap();
        std::fs::write(&state, foreign).unwrap();
        assert!(world.open(name, SIZE).is_none(), "{name}");
        // Its files can be removed all the same, and made anew.
        discard(&world.cat.ground(), &key(name, SIZE)).unwrap();
        let again =
            Large::create(&world.cat.ground(), &key(name, SIZE), world.slot(name, SIZE), SIZE).unwrap();
        assert_eq!(fill(&again, 0..SIZE), SIZE);
        assert!(check(&again, 0..SIZE));
    }
    drop(world.whole("missing", SIZE));
    std::fs::remove_file(world.files("missing", SIZE).1).unwrap();
    assert!(world.open("missing", SIZE).is_none());
}

#[test]
fn j2_any_damage_to_a_state_file_costs_bytes_but_never_their_truth() {
    let world = World::new(64 * MIB);
    let mut dice = Dice(1);
    let len = Large::overhead(SIZE);
    let (mut refused, mut lost) = (0, 0);
    for round in 0..120 {
        let name = &format!("{round}");
        let large = world.make(name, SIZE);
        // Half of it is there; the rest is holes that must not be taken for bytes.
        for unit in (0..UNITS).filter(|u| u % 2 == round % 2) {
            fill(&large, unit * UNIT..unit * UNIT + 1);
        }
        let there = readable(&large).len();
        drop(large);
        let (_, state) = world.files(name, SIZE);
        let patch = match round % 4 {
            0 => vec![0xff; 1 + dice.below(len) as usize],
            1 => vec![0; 1 + dice.below(4096) as usize],
            2 => (0..dice.below(len)).map(|_| dice.below(256) as u8).collect(),
            _ => vec![1 << dice.below(8); 1 + dice.below(16) as usize],
        };
        // In what every header has, anywhere, or in the arrays.
        let from = match round % 3 {
            0 => dice.below(64),
            1 => dice.below(len),
            _ => 4096 + dice.below(len - 4096),
        };
        let end = (from as usize + patch.len()).min(len as usize);
        write_at(&state, from, &patch[..end - from as usize]);
        match world.open(name, SIZE) {
            None => refused += 1,
            Some(large) => {
                // `readable` compares every byte.
                lost += usize::from(readable(&large).len() < there);
                large.evict_units(u64::MAX);
                assert!(readable(&large).iter().all(|u| check(&large, u * UNIT..u * UNIT + 1)));
            }
        }
        let entry = world.cat.index().entry(world.slot(name, SIZE)).unwrap();
        evict::remove(&world.cat, &entry).unwrap();
    }
    assert!(refused > 0 && lost > 2, "{refused} refused, {lost} lost units: the damage does nothing");
}
