//! A state in plain memory.

use super::{Layout, State, UNIT};
use crate::disk::words::Words;

#[derive(Debug)]
pub(in crate::disk) struct Memory<A: Words> {
    layout: Layout,
    header: Vec<A::U64>,
    bits: Vec<A::U64>,
    arrays: [Vec<A::U32>; 3],
}

impl<A: Words> Memory<A>
where
    A::U64: Default,
    A::U32: Default,
{
    pub(in crate::disk) fn new(units: usize) -> Self {
        let layout = Layout::new(units as u64 * UNIT);
        let words = |n| std::iter::repeat_with(A::U64::default).take(n).collect();
        Memory {
            layout,
            header: words(Layout::header_words()),
            bits: words(2 * units.div_ceil(64)),
            arrays: std::array::from_fn(|_| std::iter::repeat_with(A::U32::default).take(units).collect()),
        }
    }

    pub(in crate::disk) fn state(&self) -> State<'_, A> {
        State::new(self.layout, &self.header, &self.bits, self.arrays.each_ref().map(|a| &a[..]))
    }
}
