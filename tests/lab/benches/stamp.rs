//! How fast stamped content is made and checked, in bytes a second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nearfs_lab::stamp;

fn stamps(criterion: &mut Criterion) {
    let mut buffer = vec![0; 256 << 10];
    let mut group = criterion.benchmark_group("stamp");
    group.throughput(Throughput::Bytes(buffer.len() as u64));
    group.bench_function("fill", |b| b.iter(|| stamp::fill(black_box(&mut buffer), 1 << 30, 7, 1)));
    group.bench_function("verify", |b| b.iter(|| stamp::verify(black_box(&buffer), 1 << 30, 7)));
    group.finish();
}

criterion_group!(benches, stamps);
criterion_main!(benches);
