//! The traces: what training jobs and other readers ask for, made from a seed.

/// One access of one object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) object: u32,
    pub(crate) size: u32,
}

/// A trace, and the cache that meets it.
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
    /// Bytes of the cache.
    pub(crate) limit: u64,
    /// Hits that no policy can pass, with foreknowledge or without, where that can be derived.
    pub(crate) bound: Option<u64>,
    /// What the default policy is to reach.
    pub(crate) target: Target,
}

/// The least that the default policy is to reach, by objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// 0.95 of Belady's optimum.
    Optimum,
    /// 0.9 of the better of exact LRU and exact W-TinyLFU.
    Others,
}

/// Size of the objects where all are equal: about that of an ImageNet image.
pub(crate) const OBJECT: u32 = 100 << 10;

/// SplitMix64: small, seeded, the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shuffle(&mut self, items: &mut [u32]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Draws ranks with probability proportional to `1 / rank^exponent`.
struct Zipf {
    sums: Vec<f64>,
    objects: Vec<u32>,
}

impl Zipf {
    fn new(objects: std::ops::Range<u32>, exponent: f64, random: &mut Random) -> Self {
        let mut ids: Vec<u32> = objects.collect();
        random.shuffle(&mut ids);
        let mut sum = 0.0;
        let sums = (1..=ids.len())
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        Zipf { sums, objects: ids }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let at = random.unit() * self.sums[self.sums.len() - 1];
        self.objects[self.sums.partition_point(|s| *s < at).min(self.objects.len() - 1)]
    }
}

fn equal(objects: impl IntoIterator<Item = u32>) -> Vec<Request> {
    objects.into_iter().map(|object| Request { object, size: OBJECT }).collect()
}

fn epochs(from: u32, objects: u32, n: u32, shuffled: bool, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (from..from + objects).collect();
    random.shuffle(&mut order);
    let mut all = Vec::new();
    for _ in 0..n {
        if shuffled {
            random.shuffle(&mut order);
        }
        all.extend_from_slice(&order);
    }
    all
}

/// All traces, for a cache of `cache` objects of equal size. The seed fixes them.
pub(crate) fn all(cache: u32, seed: u64) -> Vec<Trace> {
    let mut random = Random(seed);
    let random = &mut random;
    let limit = u64::from(cache) * u64::from(OBJECT.next_multiple_of(4096));
    let mut traces = Vec::new();
    let mut add = |name: String, requests: Vec<Request>, bound: Option<u64>| {
        let target = if name.contains("each epoch") || name.contains("shuffled") {
            Target::Optimum
        } else {
            Target::Others
        };
        traces.push(Trace { name, requests, limit, bound, target });
    };
    for (shuffled, word) in [(true, "shuffled epochs"), (false, "same order each epoch")] {
        for percent in [10, 25, 50] {
            let objects = cache * 100 / percent;
            let requests = equal(epochs(0, objects, 10, shuffled, random));
            // A hit of an epoch is of an object that was there when the epoch began: it is read once in an epoch.
            add(format!("{word}, {percent} %"), requests, Some(9 * u64::from(cache)));
        }
    }
    let (a, b) = (epochs(0, 4 * cache, 5, true, random), epochs(4 * cache, 4 * cache, 5, true, random));
    add("A five epochs, then B".into(), equal(a.into_iter().chain(b)), Some(8 * u64::from(cache)));
    add("two jobs at once".into(), equal(two_jobs(cache, random)), None);
    let zipf = Zipf::new(0..20 * cache, 0.9, random);
    let scan = 20 * cache..30 * cache;
    let (before, after): (Vec<_>, Vec<_>) =
        (0..40 * cache).map(|_| (zipf.draw(random), zipf.draw(random))).unzip();
    add("scan of 10 x cache in zipf".into(), equal(before.into_iter().chain(scan).chain(after)), None);
    add("zipf with drift".into(), equal(drift(cache, random)), None);
    add("validation every 10th epoch".into(), equal(validation(cache, random)), None);
    let (a, b) = (epochs(0, 4 * cache, 5, true, random), epochs(4 * cache, cache / 2, 20, true, random));
    add("A five epochs, then small B".into(), equal(a.into_iter().chain(b)), None);
    add("second reader behind".into(), equal(behind(cache)), Some(u64::from(20 * cache)));
    add("zipf, mixed sizes".into(), mixed(cache, random), None);
    traces
}

/// A of 1.5 times the cache and B of 6 times, read at the same rate, so that A comes round four times as often.
fn two_jobs(cache: u32, random: &mut Random) -> Vec<u32> {
    let (small, large) = (cache + cache / 2, 6 * cache);
    let a = epochs(0, small, 32, true, random);
    let b = epochs(small, large, 8, true, random);
    a.into_iter().zip(b).flat_map(|(a, b)| [a, b]).collect()
}

/// Every tenth access two objects change their places in the order of popularity.
fn drift(cache: u32, random: &mut Random) -> Vec<u32> {
    let mut zipf = Zipf::new(0..20 * cache, 0.9, random);
    let n = zipf.objects.len() as u64;
    (0..100 * cache)
        .map(|i| {
            if i.is_multiple_of(10) {
                let (a, b) = (random.below(n) as usize, random.below(n) as usize);
                zipf.objects.swap(a, b);
            }
            zipf.draw(random)
        })
        .collect()
}

/// Training on 4 times the cache; after every tenth epoch half a cache of validation data, in one order.
fn validation(cache: u32, random: &mut Random) -> Vec<u32> {
    let train = 4 * cache;
    (0..3)
        .flat_map(|_| {
            let mut part = epochs(0, train, 10, true, random);
            part.extend(train..train + cache / 2);
            part
        })
        .collect()
}

/// Ever new objects, each read again by a second reader that is a third of a cache behind.
fn behind(cache: u32) -> Vec<u32> {
    let lag = cache / 3;
    (0..20 * cache + lag)
        .flat_map(|i| [(i < 20 * cache).then_some(i), i.checked_sub(lag)])
        .flatten()
        .collect()
}

/// Sizes from 4 KiB to 4 MiB, evenly over the octaves, whatever the popularity.
fn mixed(cache: u32, random: &mut Random) -> Vec<Request> {
    let zipf = Zipf::new(0..5 * cache, 0.9, random);
    let sizes: Vec<u32> =
        zipf.objects.iter().map(|_| (4096.0 * (random.unit() * 10.0).exp2()) as u32).collect();
    (0..60 * cache)
        .map(|_| {
            let object = zipf.draw(random);
            Request { object, size: sizes[object as usize] }
        })
        .collect()
}
