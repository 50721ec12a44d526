//! Who fetches what: [`DiskObject::plan`] and [`Claim`].

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{DiskObject, Shape, Stretch};
use crate::disk::claims::{Claimed, Waiter};
use crate::disk::key::Key;
use crate::disk::object::Large;
use crate::disk::state::UNIT;
use crate::disk::volume::{Filling, Turn};
use crate::disk::writer::{Outstanding, Place};

/// First and longest pause between two looks at a small object that somebody else is fetching.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));

/// A part of a range, and what is to be done about it.
#[derive(Debug)]
pub(crate) enum Segment {
    /// The disk has it.
    Resident(Range<u64>),
    /// The caller fetches it, for all who want it.
    Mine(Claim),
    /// Somebody else, alive, is fetching it.
    Theirs(Range<u64>),
    /// It is not kept on disk.
    Bare(Range<u64>),
}

/// What became of bytes that were handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    /// The disk did not take them, or there is no room that they are worth.
    No,
}

impl DiskObject {
    /// Says of each part of `range`, from front to back, what is to be done about it, and claims what nobody has.
    /// Ends behind the first part that somebody else is fetching.
    pub(crate) async fn plan(self: &Arc<Self>, range: Range<u64>) -> Vec<Segment> {
        if let Shape::Small(key) = &self.shape {
            return vec![self.plan_small(*key, range)];
        }
        let mut plan = Vec::new();
        for stretch in self.stretches(&range) {
            let create = self.volume.dir().writable().then_some(stretch.own.start);
            match self.tier.large(&stretch.handle, create).await {
                Some(large) => self.plan_large(&large, &stretch, &mut plan),
                None => plan.push(Segment::Bare(stretch.of(&stretch.own))),
            }
            if matches!(plan.last(), Some(Segment::Theirs(_))) {
                break;
            }
        }
        plan
    }

    fn plan_small(self: &Arc<Self>, key: Key, range: Range<u64>) -> Segment {
        if self.volume.has(&key) {
            return Segment::Resident(range);
        }
        if range != (0..self.size) {
            return Segment::Bare(range);
        }
        match self.volume.claim_small(&key, self.size) {
            Turn::Mine(filling) => Segment::Mine(self.claimed(range, Held::Small(filling))),
            Turn::There => Segment::Resident(range),
            Turn::Theirs => Segment::Theirs(range),
            Turn::No => Segment::Bare(range),
        }
    }

    fn claimed(self: &Arc<Self>, range: Range<u64>, held: Held) -> Claim {
        let _outstanding = self.tier.writer.expect();
        Claim { object: self.clone(), range, held: Some(held), _outstanding }
    }

    fn plan_large(self: &Arc<Self>, large: &Arc<Large>, stretch: &Stretch, plan: &mut Vec<Segment>) {
        let own = &stretch.own;
        // Units of which the range has only a part can be read, but not filled.
        let first = own.start.next_multiple_of(UNIT).min(own.end);
        let last = if own.end == large.size() { own.end } else { (own.end / UNIT * UNIT).max(first) };
        let edge = |range: Range<u64>| match large.resident(range.clone()) {
            _ if range.is_empty() => None,
            (true, there) if there.end == range.end => Some(Segment::Resident(stretch.of(&range))),
            _ => Some(Segment::Bare(stretch.of(&range))),
        };
        plan.extend(edge(own.start..first));
        if first < last {
            let mut pieces = large.claim(first..last).into_iter().map(|piece| {
                let range = stretch.of(&piece.range);
                match piece.claimed {
                    Claimed::Resident => Segment::Resident(range),
                    Claimed::Theirs(_) => Segment::Theirs(range),
                    Claimed::Refused => Segment::Bare(range),
                    Claimed::Mine => {
                        Segment::Mine(self.claimed(range, Held::Large(large.clone(), piece.range)))
                    }
                }
            });
            while let Some(piece) = pieces.next() {
                let ends = matches!(piece, Segment::Theirs(_));
                plan.push(piece);
                if ends {
                    // What is behind is claimed when it is its turn; these claims are given up here.
                    pieces.for_each(drop);
                    return;
                }
            }
        }
        plan.extend(edge(last..own.end));
    }

    /// Waits until something about the start of `range`, which others fetch, has changed, so that another plan may
    /// find more. False after `patience`.
    pub(crate) async fn wait(&self, range: &Range<u64>, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.wait_on(range)).await.is_ok()
    }

    async fn wait_on(&self, range: &Range<u64>) {
        if let Shape::Small(key) = &self.shape {
            let mut pause = PAUSES.0;
            while self.volume.is_busy(key) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            return;
        }
        let Some(stretch) = self.stretches(range).into_iter().next() else { return };
        let Some(large) = self.tier.large(&stretch.handle, None).await else { return };
        let first = stretch.own.start..stretch.own.end.min(stretch.own.start + UNIT);
        let mut waiter = Waiter::new();
        while let Some(pause) = large.wait(&mut waiter, &first) {
            tokio::time::sleep(pause).await;
        }
    }
}

/// The right, and the duty, to fetch a part of a file for all who want it. Dropping it leaves that to others.
#[derive(Debug)]
pub(crate) struct Claim {
    object: Arc<DiskObject>,
    range: Range<u64>,
    held: Option<Held>,
    _outstanding: Outstanding,
}

#[derive(Debug)]
enum Held {
    Small(Filling),
    /// With the bytes of the object's own file.
    Large(Arc<Large>, Range<u64>),
}

impl Claim {
    /// The bytes of the file.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Has `data`, all bytes of the range and proven, written behind the caller's back; `place` is theirs until then.
    /// `then` is told what became of it, on the thread that wrote.
    pub(crate) fn fill(self, place: Place, data: Vec<Bytes>, then: impl FnOnce(Written) + Send + 'static) {
        let tier = self.object.tier.clone();
        tier.writer.put(move || {
            let written = self.write(&data);
            drop((data, place));
            then(written);
        });
    }

    fn write(mut self, data: &[Bytes]) -> Written {
        // From here on they give the claim up themselves.
        let kept = match self.held.take() {
            Some(Held::Small(filling)) => filling.store(data),
            Some(Held::Large(large, own)) => large.fill(own.start, data),
            None => Ok(false),
        };
        if matches!(kept, Ok(true)) { Written::Yes } else { Written::No }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        match self.held.take() {
            // It gives itself up.
            Some(Held::Small(_)) | None => {}
            Some(Held::Large(large, own)) => large.release(&own),
        }
    }
}
