//! The atomics under the state of large objects: the processor's, or those of the schedule explorer.
//!
//! State lies in a mapping that several processes share, so its words are `std`'s atomics in any build. The protocol
//! on them is written against these traits, and its tests run it on words whose every access is a point where another
//! thread may go on.

use std::fmt::Debug;
use std::sync::atomic::{self, Ordering};

/// One atomic integer.
pub(crate) trait Word<T>: Debug + Send + Sync {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn compare_exchange(&self, current: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
    fn fetch_or(&self, bits: T, order: Ordering) -> T;
    fn fetch_and(&self, bits: T, order: Ordering) -> T;
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    fn fetch_max(&self, value: T, order: Ordering) -> T;
}

/// A family of atomics.
pub(crate) trait Words: Debug + Copy + Send + Sync + 'static {
    type U64: Word<u64>;
    type U32: Word<u32>;

    fn fence(order: Ordering);
}

macro_rules! word {
    ($value:ty, $atomic:ty, $ordered:expr) => {
        impl Word<$value> for $atomic {
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, $ordered(order))
            }

            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, $ordered(order));
            }

            fn swap(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::swap(self, value, $ordered(order))
            }

            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                <$atomic>::compare_exchange(self, current, new, $ordered(success), $ordered(failure))
            }

            fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                <$atomic>::fetch_or(self, bits, $ordered(order))
            }

            fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                <$atomic>::fetch_and(self, bits, $ordered(order))
            }

            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_add(self, value, $ordered(order))
            }

            fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::fetch_max(self, value, $ordered(order))
            }
        }
    };
}

/// The processor's atomics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Real;

impl Words for Real {
    type U64 = atomic::AtomicU64;
    type U32 = atomic::AtomicU32;

    fn fence(order: Ordering) {
        atomic::fence(order);
    }
}

word!(u64, atomic::AtomicU64, as_it_is);
word!(u32, atomic::AtomicU32, as_it_is);

fn as_it_is(order: Ordering) -> Ordering {
    order
}

/// Atomics whose accesses the schedule explorer interleaves. It knows one order only, the strongest.
#[cfg(all(test, feature = "shuttle"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Modelled;

#[cfg(all(test, feature = "shuttle"))]
mod modelled {
    use super::{Modelled, Ordering, Word, Words};

    impl Words for Modelled {
        type U64 = shuttle::sync::atomic::AtomicU64;
        type U32 = shuttle::sync::atomic::AtomicU32;

        fn fence(_: Ordering) {}
    }

    word!(u64, shuttle::sync::atomic::AtomicU64, strongest);
    word!(u32, shuttle::sync::atomic::AtomicU32, strongest);

    fn strongest(_: Ordering) -> Ordering {
        Ordering::SeqCst
    }
}
