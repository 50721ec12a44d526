//! What a number of answers says about the share of calls that a store refuses.

/// Standard deviations granted to chance before the tolerated share counts as exceeded: low, as slowing down for
/// nothing costs little.
const CHANCE: f64 = 2.0;
/// The same between two measured shares, which are compared again and again.
const CHANCE_OF_TWO: f64 = 3.0;
/// Answers after which a sample begins to forget: few, so that an outage is noticed within its first calls.
const MEMORY: f64 = 400.0;
/// Of some ten refusals that come by chance the longest pause between two is about so many times the mean one.
const EVEN: f64 = 3.0;

/// Answers, and how many of them were refusals. Fractions come from forgetting.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    pub(super) answers: f64,
    refused: f64,
    /// Good answers since the last refusal, and most between two.
    quiet: f64,
    longest_quiet: f64,
}

impl Sample {
    pub(super) fn add(&mut self, refused: bool) {
        if self.answers >= MEMORY {
            self.halve();
        }
        self.answers += 1.0;
        if refused {
            self.refused += 1.0;
            self.quiet = 0.0;
        } else {
            self.quiet += 1.0;
            self.longest_quiet = self.longest_quiet.max(self.quiet);
        }
    }

    /// Makes what is there count half.
    pub(super) fn halve(&mut self) {
        self.answers /= 2.0;
        self.refused /= 2.0;
        self.longest_quiet = (self.longest_quiet / 2.0).max(self.quiet);
    }

    /// The refused share, from 0 to 1; of nothing 0.
    pub(super) fn share(&self) -> f64 {
        self.refused / self.answers.max(f64::MIN_POSITIVE)
    }

    /// Whether more were refused than chance makes of a true share of `share`.
    pub(super) fn exceeds(&self, share: f64) -> bool {
        self.share() > share + CHANCE * (share * (1.0 - share) / self.answers).sqrt()
    }

    /// Whether a greater share was refused than in `other`, by more than chance (the pooled z-test of two
    /// proportions). False where either is empty.
    pub(super) fn is_worse_than(&self, other: &Sample) -> bool {
        let pooled = (self.refused + other.refused) / (self.answers + other.answers);
        let variance = pooled * (1.0 - pooled) * (1.0 / self.answers + 1.0 / other.answers);
        self.share() > other.share() + CHANCE_OF_TWO * variance.sqrt()
    }

    /// Whether the refusals are spread as chance does it. Those of a limit come together, whenever it is overrun.
    pub(super) fn is_even(&self) -> bool {
        self.longest_quiet * self.share() < EVEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(answers: impl IntoIterator<Item = bool>) -> Sample {
        let mut sample = Sample::default();
        answers.into_iter().for_each(|refused| sample.add(refused));
        sample
    }

    #[test]
    fn shares_are_compared_with_what_chance_makes() {
        let one_in = |n: u32, of_all: u32| of((0..of_all).map(|i| i % n == 0));
        assert!(one_in(1, 1).exceeds(0.02), "the very first call");
        assert!(!one_in(10, 10).exceeds(0.1));
        assert!(!one_in(5, 10).exceeds(0.1), "two of ten");
        assert!(one_in(5, 300).exceeds(0.1), "sixty of three hundred");
        assert!(one_in(2, 300).is_worse_than(&one_in(4, 100)));
        assert!(!one_in(2, 20).is_worse_than(&one_in(4, 16)));
        assert!(!one_in(4, 100).is_worse_than(&one_in(2, 300)));
        let none = Sample::default();
        assert!(
            !none.exceeds(0.02) && !none.is_worse_than(&one_in(2, 9)) && !one_in(2, 9).is_worse_than(&none)
        );
    }

    #[test]
    fn refusals_in_a_heap_are_not_even() {
        assert!(of((0..100).map(|i| i % 10 == 0)).is_even());
        assert!(!of((0..100).map(|i| i < 10)).is_even());
    }

    #[test]
    fn a_sample_forgets() {
        let mut sample = of(std::iter::repeat_n(true, 1_000));
        (0..1_000).for_each(|_| sample.add(false));
        assert!(sample.answers <= MEMORY + 1.0 && sample.share() < 0.1, "{sample:?}");
    }
}
