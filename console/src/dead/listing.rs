//! A list of dead letters: one page of the newest messages, and counts of all. Its memory is bounded by the page, not by the
//! queue.

use std::collections::BTreeMap;

use garenne_operator::dead::{DeadLetter, as_rfc3339};
use serde::Serialize;

use super::error_pattern::error_pattern;

/// Limit on combinations of kind and reason, and on those with an error, that are counted on their own. Publishers choose
/// kinds.
const MAX_GROUPS: usize = 1_000;

/// A page of a list, newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// Counted from 1.
    pub(crate) number: usize,
    /// Rows of a page.
    pub(crate) size: usize,
}

impl Page {
    /// A single page with all rows.
    pub(crate) const ALL: Self = Self { number: 1, size: usize::MAX };

    /// The number of rows before the page.
    fn skipped(self) -> usize {
        self.number.saturating_sub(1).saturating_mul(self.size)
    }
}

/// Letters of one kind and reason whose errors have the same pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ErrorGroup {
    pub(crate) kind: String,
    pub(crate) reason: String,
    /// The pattern of their errors; empty if they have none.
    pub(crate) error: String,
    pub(crate) count: u64,
    /// When the newest one died.
    #[serde(serialize_with = "as_rfc3339")]
    pub(crate) newest: Option<i64>,
    /// When the oldest one died.
    #[serde(serialize_with = "as_rfc3339")]
    pub(crate) oldest: Option<i64>,
}

impl ErrorGroup {
    fn add(&mut self, died_at: Option<i64>) {
        self.count += 1;
        self.newest = self.newest.max(died_at);
        self.oldest = [self.oldest, died_at].into_iter().flatten().min();
    }
}

/// A page that is filled while the queue is read.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    page: Page,
    /// The newest rows up to the end of the page, by time and then by position in the queue.
    rows: BTreeMap<(Option<i64>, u64), DeadLetter>,
    matched: u64,
    groups: BTreeMap<(String, String), u64>,
    errors: BTreeMap<(String, String, String), ErrorGroup>,
    /// Messages whose error is beyond [`MAX_GROUPS`].
    further_errors: u64,
    /// Messages beyond [`MAX_GROUPS`].
    ungrouped: u64,
}

impl Listing {
    pub(crate) fn new(page: Page) -> Self {
        Self { page, ..Self::default() }
    }

    /// Adds the next message of the queue.
    pub(crate) fn add(&mut self, letter: DeadLetter) {
        let group = (letter.kind.clone(), letter.reason.clone());
        if self.groups.len() < MAX_GROUPS || self.groups.contains_key(&group) {
            *self.groups.entry(group).or_default() += 1;
        } else {
            self.ungrouped += 1;
        }
        self.count_error(&letter);
        self.rows.insert((letter.died_at, self.matched), letter);
        self.matched += 1;
        if self.rows.len() > self.page.skipped().saturating_add(self.page.size) {
            self.rows.pop_first();
        }
    }

    fn count_error(&mut self, letter: &DeadLetter) {
        let error = error_pattern(letter.error.as_deref().unwrap_or_default());
        let key = (letter.kind.clone(), letter.reason.clone(), error);
        if self.errors.len() >= MAX_GROUPS && !self.errors.contains_key(&key) {
            self.further_errors += 1;
            return;
        }
        let (kind, reason, error) = key.clone();
        let new = || ErrorGroup { kind, reason, error, count: 0, newest: None, oldest: None };
        self.errors.entry(key).or_insert_with(new).add(letter.died_at);
    }

    /// Number of messages added.
    pub(crate) fn matched(&self) -> u64 {
        self.matched
    }

    /// The rows of the page, newest first.
    pub(crate) fn newest_first(&self) -> impl DoubleEndedIterator<Item = &DeadLetter> {
        let shown = self.rows.len().saturating_sub(self.page.skipped());
        self.rows.values().take(shown).rev()
    }

    /// The number of pages; at least 1.
    pub(crate) fn pages(&self) -> u64 {
        self.matched.div_ceil(self.page.size as u64).max(1)
    }

    pub(crate) fn page(&self) -> Page {
        self.page
    }

    /// Messages by kind and reason.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.groups.iter().map(|((kind, reason), count)| (kind.as_str(), reason.as_str(), *count))
    }

    /// The kinds, reasons and errors with the most messages, and the number of messages of the others.
    pub(crate) fn errors(&self, limit: usize) -> (Vec<&ErrorGroup>, u64) {
        let mut groups: Vec<_> = self.errors.values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        let others = groups.iter().skip(limit).map(|group| group.count).sum::<u64>();
        groups.truncate(limit);
        (groups, others + self.further_errors)
    }

    /// Messages of further kinds and reasons, which are not counted on their own.
    pub(crate) fn ungrouped(&self) -> u64 {
        self.ungrouped
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::letter, *};

    fn listing(page: Page, times: impl IntoIterator<Item = Option<i64>>) -> Listing {
        let mut listing = Listing::new(page);
        for died_at in times {
            listing.add(DeadLetter { died_at, ..letter("k", &[]) });
        }
        listing
    }

    fn times(listing: &Listing) -> Vec<Option<i64>> {
        listing.newest_first().map(|letter| letter.died_at).collect()
    }

    #[test]
    fn pages_begin_with_the_newest_whatever_the_order_of_the_queue() {
        let queue = [3, 1, 9, 7, 5].map(Some).into_iter().chain([None]);
        let page = |number| times(&listing(Page { number, size: 2 }, queue.clone()));
        assert_eq!(page(1), [Some(9), Some(7)]);
        assert_eq!(page(2), [Some(5), Some(3)]);
        assert_eq!(page(3), [Some(1), None]);
        assert_eq!(page(4), []);
        assert_eq!(listing(Page { number: 1, size: 2 }, queue.clone()).pages(), 3);
        assert_eq!(times(&listing(Page::ALL, queue)).len(), 6);
    }

    #[test]
    fn a_listing_keeps_no_more_than_its_page_and_those_before_it() {
        let listing = listing(Page { number: 2, size: 10 }, (0..10_000).map(Some));
        assert_eq!((listing.rows.len(), listing.matched()), (20, 10_000));
        assert_eq!(times(&listing)[0], Some(9_989));
        assert_eq!(listing.groups().collect::<Vec<_>>(), [("k", "unknown", 10_000)]);
    }

    #[test]
    fn letters_of_equal_time_are_all_listed() {
        assert_eq!(times(&listing(Page { number: 2, size: 3 }, [Some(7); 6])).len(), 3);
    }

    #[test]
    fn letters_are_counted_by_error_whatever_the_values_in_it() {
        let mut listing = Listing::new(Page { number: 1, size: 1 });
        for n in 0..10_000 {
            let error = (n % 10 > 0).then(|| format!("value {n}.5 is stored"));
            listing.add(DeadLetter { died_at: Some(n), error, ..letter("k", &[]) });
        }
        (0..MAX_GROUPS).for_each(|n| listing.add(letter(&n.to_string(), &[])));
        let (groups, others) = listing.errors(2);
        let told = groups.iter().map(|it| (it.error.as_str(), it.count, it.newest, it.oldest));
        let wanted = [("value … is stored", 9_000, Some(9_999), Some(1)), ("", 1_000, Some(9_990), Some(0))];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
        assert_eq!((listing.errors.len(), others), (MAX_GROUPS, MAX_GROUPS as u64));
    }

    #[test]
    fn further_kinds_are_counted_together() {
        let mut listing = Listing::new(Page { number: 1, size: 1 });
        (0..MAX_GROUPS + 5).for_each(|n| listing.add(letter(&n.to_string(), &[])));
        assert_eq!((listing.groups().count(), listing.ungrouped()), (MAX_GROUPS, 5));
    }
}
