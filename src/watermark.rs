//! The watermark of one shard: how far everything is settled.
//!
//! The position is a function of what is open: it is the sequence number that was delivered just
//! before the oldest open delivery, or the last one delivered when nothing is open. So nothing is
//! kept about settled deliveries, not even as runs; a delivery that stays open for a day costs what
//! one open delivery costs, whatever passes it.
//!
//! Order is arrival order, by *place*: a number that this object gives each delivery and never
//! gives twice. Sequence numbers are carried, never compared. Deliveries out of one aggregated
//! record share a number; the position does not reach it before the last of them is settled. A
//! record that yielded no delivery takes no place: the position passes it with what came before.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::segment::Segment;
use crate::sequence_numbers::SequenceNumbers;

/// An open delivery whose page was given up: it owns what it needs.
#[derive(Debug)]
struct Straggler {
    /// First place that shares its sequence number.
    run_start: u64,
    /// The sequence number delivered before that place.
    before: Option<Arc<str>>,
    held: bool,
}

/// Tracks the deliveries of one shard, in arrival order.
#[derive(Debug, Default)]
pub struct Watermark {
    /// Pages with open deliveries, by the place of their first one.
    segments: BTreeMap<u64, Segment>,
    /// Open deliveries without a page, by place.
    stragglers: BTreeMap<u64, Straggler>,
    /// The last number delivered since the last reset.
    last: Option<Arc<str>>,
    next_place: u64,
    /// Place of the oldest open delivery; `next_place` when nothing is open.
    oldest: u64,
    /// Start of the run of the oldest open delivery: the position is the number before it, so the
    /// watermark has moved exactly when this has.
    frontier: u64,
    open: usize,
    held: usize,
}

impl Watermark {
    /// Nothing delivered yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a page its places; returns the first of them.
    ///
    /// The one way to move the position without settling anything: past records that yielded no
    /// delivery, when nothing before them is open.
    pub fn deliver(&mut self, numbers: Arc<SequenceNumbers>) -> u64 {
        let base = self.next_place;
        if let Some(last) = numbers.last() {
            let before = self.last.replace(last.into());
            if !numbers.is_empty() {
                self.next_place += numbers.len() as u64;
                self.open += numbers.len();
                // With nothing open, `oldest` is already the place that this page starts at.
                self.segments.insert(base, Segment::new(numbers, before));
            }
        }
        base
    }

    /// Settles one delivery; whether the watermark moved. A place that is not open changes nothing.
    pub fn settle(&mut self, place: u64) -> bool {
        let Some(was_held) = self.close(place) else {
            return false;
        };
        self.open -= 1;
        self.held -= usize::from(was_held);
        place == self.oldest && self.advance()
    }

    /// Settles what is open in a run of places; whether the watermark moved.
    ///
    /// The cost follows what is open, not the length of the run.
    pub fn settle_range(&mut self, run: Range<u64>) -> bool {
        if run.is_empty() {
            return false;
        }
        // The page that holds the first place may start before it.
        let from = self.base_of(run.start).unwrap_or(run.start);
        let mut touched = Vec::new();
        for (&base, segment) in self.segments.range_mut(from..run.end) {
            let local = index(base, run.start)..index(base, run.end);
            let (closed, released) = segment.settle_range(local);
            self.open -= closed;
            self.held -= released;
            touched.push(base);
        }
        for base in touched {
            self.tidy(base);
        }
        let places: Vec<u64> = self
            .stragglers
            .range(run.clone())
            .map(|(p, _)| *p)
            .collect();
        for place in places {
            if let Some(straggler) = self.stragglers.remove(&place) {
                self.open -= 1;
                self.held -= usize::from(straggler.held);
            }
        }
        run.contains(&self.oldest) && self.advance()
    }

    /// Marks a delivery as refused: it stays open. Whether that changed anything.
    pub fn hold(&mut self, place: u64) -> bool {
        let news = if let Some(straggler) = self.stragglers.get_mut(&place) {
            !std::mem::replace(&mut straggler.held, true)
        } else if let Some(base) = self.base_of(place) {
            let news = self
                .segments
                .get_mut(&base)
                .is_some_and(|segment| segment.hold(index(base, place)));
            self.tidy(base);
            news
        } else {
            false
        };
        self.held += usize::from(news);
        news
    }

    /// Forgets everything but the places it has given.
    pub fn reset(&mut self) {
        *self = Self {
            next_place: self.next_place,
            oldest: self.next_place,
            frontier: self.next_place,
            ..Self::default()
        };
    }

    /// Sequence number of the last delivery of the unbroken settled run since the last reset.
    #[must_use]
    pub fn position(&self) -> Option<&str> {
        if self.open == 0 {
            return self.last.as_deref();
        }
        if let Some(straggler) = self.stragglers.get(&self.oldest) {
            return straggler.before.as_deref();
        }
        let (&base, segment) = self.segments.range(..=self.oldest).next_back()?;
        segment.before(index(base, self.oldest))
    }

    /// Deliveries that are not settled, held ones included.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open
    }

    /// Open deliveries that were refused.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// The place that the next delivery will get.
    #[must_use]
    pub fn next_place(&self) -> u64 {
        self.next_place
    }

    /// The last place that has to be settled for the position to reach the record of `place`.
    ///
    /// Further than `place` only within an aggregated record; `place` itself where nothing of its
    /// record behind it is open.
    #[must_use]
    pub fn last_of_record(&self, place: u64) -> u64 {
        if let Some((base, segment)) = self.segments.range(..=place).next_back() {
            if let Some(last) = segment.run_last(index(*base, place)) {
                return base + last as u64;
            }
        }
        self.stragglers
            .range(place..)
            .take_while(|(_, straggler)| straggler.run_start <= place)
            .last()
            .map_or(place, |(last, _)| *last)
    }

    /// Place of the oldest open delivery.
    #[must_use]
    pub fn oldest_open(&self) -> Option<u64> {
        (self.open > 0).then_some(self.oldest)
    }

    /// Whether nothing is open but what is held.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.open == self.held
    }

    /// First place of the youngest page that does not start after `place`.
    fn base_of(&self, place: u64) -> Option<u64> {
        self.segments
            .range(..=place)
            .next_back()
            .map(|(base, _)| *base)
    }

    /// Closes an open place: whether it was held; `None` if it is not open.
    fn close(&mut self, place: u64) -> Option<bool> {
        if let Some((&base, segment)) = self.segments.range_mut(..=place).next_back() {
            if let Some(was_held) = segment.settle(index(base, place)) {
                // Looked at here so that the usual settlement does not search the page twice.
                if segment.open() == 0 || segment.is_wasteful() {
                    self.tidy(base);
                }
                return Some(was_held);
            }
        }
        self.stragglers
            .remove(&place)
            .map(|straggler| straggler.held)
    }

    /// Drops a page that is finished, and gives up one that only stragglers keep.
    fn tidy(&mut self, base: u64) {
        let Some(segment) = self.segments.get(&base) else {
            return;
        };
        if segment.open() > 0 {
            if !segment.is_wasteful() {
                return;
            }
            let mut shared: Option<(u64, Option<Arc<str>>)> = None;
            for (local, held) in segment.left() {
                let run_start = base + segment.run_start(local) as u64;
                // Stragglers of one aggregate share the copy of the number before it.
                let before = match shared.take() {
                    Some((run, before)) if run == run_start => before,
                    _ => segment.before(local).map(Arc::from),
                };
                shared = Some((run_start, before.clone()));
                let straggler = Straggler {
                    run_start,
                    before,
                    held,
                };
                self.stragglers.insert(base + local as u64, straggler);
            }
        }
        self.segments.remove(&base);
    }

    /// Finds the oldest open delivery anew; whether the watermark moved.
    fn advance(&mut self) -> bool {
        // The front page is never empty: a finished one is dropped at once.
        let page = self.segments.iter_mut().next().and_then(|(base, segment)| {
            let local = segment.oldest()?;
            let run_start = base + segment.run_start(local) as u64;
            Some((base + local as u64, run_start))
        });
        let straggler = self
            .stragglers
            .first_key_value()
            .map(|(place, straggler)| (*place, straggler.run_start));
        let (oldest, frontier) = match (page, straggler) {
            (Some(page), Some(straggler)) => page.min(straggler),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => (self.next_place, self.next_place),
        };
        self.oldest = oldest;
        frontier != std::mem::replace(&mut self.frontier, frontier)
    }
}

/// Index of a place within the page that starts at `base`; the start of the page for a place
/// before it, beyond any page for one that no index can express.
fn index(base: u64, place: u64) -> usize {
    usize::try_from(place.saturating_sub(base)).unwrap_or(usize::MAX)
}
