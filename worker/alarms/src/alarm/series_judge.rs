//! Judges the changed readings of a device's metric by the rules that apply to it.

mod reading_page;
mod rule_judge;

use std::collections::VecDeque;

use garenne_protocol::sensor::{Counter, Unit};

use super::{
    change::{Alarm, AlarmChange},
    condition::{Condition, Micros, Sample},
    history::{History, LookBack, Span},
    pending::Pending,
    rules::Rule,
};
use reading_page::ReadingPage;
use rule_judge::RuleJudge;

/// How many readings are loaded at once.
#[derive(Clone, Copy, Debug)]
pub struct PageSizes {
    /// Readings after a changed one. Most judgements converge within a few.
    pub following: usize,
    /// Readings of a further page, at most. Further pages double up to it.
    pub further: usize,
    /// Readings before a changed one, where a rule needs more than one.
    pub preceding: usize,
    /// Readings before these, where they do not suffice.
    pub more_preceding: usize,
    /// Places in a series at which pages are loaded together.
    pub places: usize,
}

impl Default for PageSizes {
    fn default() -> Self {
        Self { following: 32, further: 8192, preceding: 64, more_preceding: 4096, places: 64 }
    }
}

/// A reading that was stored, replaced or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangedReading {
    /// The time at which the sensor took it.
    pub at: Micros,
    /// Whether the reading as it is stored now can be judged.
    pub is_usable: bool,
}

/// Alarms of a series that are to be loaded, without withdrawn ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlarmSpan {
    /// The earliest `since`.
    pub from: Micros,
    /// The latest `since`.
    pub to: Micros,
    /// Whether the last alarm before `from` is wanted, too.
    pub and_previous: bool,
}

/// Judges changed readings, so that the alarms become those of judging all stored readings in order of time.
///
/// Judging starts at the earliest changed reading, from the state that the alarms and a few readings before it
/// imply, and goes on until no further reading is judged differently than before the change. So it takes as many
/// readings as the change concerns, whose number has no limit, but holds only a page of them. It continues at the next
/// changed reading.
///
/// The caller loads [`spans`](Self::spans) for [`add_readings`](Self::add_readings), then the alarms of
/// [`alarm_spans`](Self::alarm_spans) for [`judge`](Self::judge), then stores the changes, and repeats this until there
/// are no spans.
#[derive(Debug)]
pub struct SeriesJudge<'r> {
    rules: Vec<RuleJudge<'r>>,
    sizes: PageSizes,
    /// The changed readings that were not reached, in order of time.
    changed: VecDeque<ChangedReading>,
    /// Pages that start at changed readings that were not reached.
    pages: VecDeque<ReadingPage>,
    segment: Option<Segment>,
    wanted: Wanted,
    /// The alarms that the loaded readings need.
    alarm_spans: Vec<AlarmSpan>,
}

/// The readings from a changed one until judging converges.
#[derive(Debug)]
struct Segment {
    /// The time of the first changed reading.
    start: Micros,
    /// The time of the last changed reading that was reached.
    last_changed: Micros,
    page: ReadingPage,
    /// The time of the newest reading that was judged.
    newest: Option<Micros>,
    is_restored: bool,
    /// How many readings the next page has.
    next_limit: usize,
}

/// The readings to load.
#[derive(Debug)]
enum Wanted {
    Nothing,
    /// Pages at changed readings, with the readings before them.
    Pages(Vec<ReadingPage>),
    /// Readings before the segment.
    History(Vec<Span>),
    /// The page that follows that of the segment.
    Next(Span),
}

impl<'r> SeriesJudge<'r> {
    /// Judges changed readings by the rules that apply to the series. `pending` has the state of rules, by their places,
    /// after the newest reading before the change; rules without it read the readings before a changed one. `counter` says
    /// how the values of a counter differ, and in which unit they are stored.
    pub fn new(
        rules: impl IntoIterator<Item = &'r Rule>,
        counter: Option<(Counter, Option<Unit>)>,
        mut changed: Vec<ChangedReading>,
        pending: impl IntoIterator<Item = (usize, Pending)>,
        sizes: PageSizes,
    ) -> Self {
        changed.sort_unstable();
        let is_judged = |rule: &&Rule| !matches!(rule.condition, Condition::Silent { .. });
        let rules = rules.into_iter().enumerate().filter(|(_, rule)| is_judged(rule));
        let of_rule = |rule: &Rule| counter.map(|(counter, unit)| counter.converted(unit, rule.unit));
        let rules: Vec<_> = rules.map(|(place, rule)| RuleJudge::new(place, rule, of_rule(rule))).collect();
        if rules.is_empty() {
            changed.clear();
        }
        let mut new = Self {
            rules,
            sizes,
            changed: changed.into(),
            pages: VecDeque::new(),
            segment: None,
            wanted: Wanted::Nothing,
            alarm_spans: Vec::new(),
        };
        for (place, pending) in pending {
            if let Some(rule) = new.rules.iter_mut().find(|rule| rule.place() == place) {
                rule.pending = Some(pending);
            }
        }
        if !new.changed.is_empty() {
            // Most batches bring consecutive readings.
            new.wanted = Wanted::Pages(vec![new.page_from(0, None, &[None])]);
        }
        new
    }

    /// Whether everything is judged.
    pub fn is_done(&self) -> bool {
        matches!(self.wanted, Wanted::Nothing)
    }

    /// The state of rules after the newest reading, by their places, when everything [is judged](Self::is_done). Without
    /// rules whose state is not known.
    pub fn pending(&self) -> impl Iterator<Item = (usize, Pending)> {
        self.rules.iter().filter_map(|rule| Some((rule.place(), rule.pending?)))
    }

    /// The spans of readings to load next. None if everything is judged.
    pub fn spans(&self) -> Vec<Span> {
        match &self.wanted {
            Wanted::Nothing => Vec::new(),
            Wanted::Pages(pages) => pages.iter().flat_map(ReadingPage::spans).collect(),
            Wanted::History(spans) => spans.clone(),
            Wanted::Next(span) => vec![*span],
        }
    }

    /// Adds the readings of each of the [`spans`](Self::spans).
    pub fn add_readings(&mut self, readings: Vec<Vec<Sample>>) {
        let mut readings = readings.into_iter();
        self.alarm_spans.clear();
        match std::mem::replace(&mut self.wanted, Wanted::Nothing) {
            Wanted::Nothing => {}
            Wanted::Pages(pages) => {
                for mut page in pages {
                    page.load(&mut readings);
                    let (from, to) = (page.from(), page.to());
                    self.alarm_spans.push(AlarmSpan { from, to, and_previous: true });
                    self.pages.push_back(page);
                }
            }
            Wanted::History(spans) => {
                let segment = self.segment.as_mut().expect("a segment asked for its history");
                for (span, samples) in spans.into_iter().zip(readings) {
                    segment.page.history.add(span, samples);
                }
            }
            Wanted::Next(span) => {
                let segment = self.segment.as_mut().expect("a segment asked for its next page");
                let loaded = segment.page.to();
                segment.page.replace(span, readings.next().unwrap_or_default());
                let to = segment.page.to();
                if loaded < to {
                    let from = loaded.saturating_add(1).max(segment.start);
                    self.alarm_spans.push(AlarmSpan { from, to, and_previous: false });
                }
            }
        }
    }

    /// The alarms to load after [`add_readings`](Self::add_readings).
    pub fn alarm_spans(&self) -> &[AlarmSpan] {
        &self.alarm_spans
    }

    /// Judges the loaded readings. `alarms` are those of the [`alarm_spans`](Self::alarm_spans), each with the place of
    /// its rule; `new_id` makes the id of a new alarm. Returns the changes in order of time.
    pub fn judge(
        &mut self,
        alarms: Vec<(usize, Alarm)>,
        mut new_id: impl FnMut() -> String,
    ) -> Vec<AlarmChange> {
        for (index, alarm) in alarms {
            let rule = self.rules.iter_mut().find(|rule| rule.place() == index);
            rule.expect("the place of a rule").alarms.add_known(alarm);
        }
        self.wanted = loop {
            let wanted = match self.segment.take() {
                None => self.start_segment(),
                Some(segment) if !segment.is_restored => self.restore(segment),
                Some(segment) => self.judge_page(segment, &mut new_id),
            };
            if let Some(wanted) = wanted {
                break wanted;
            }
        };
        self.rules.iter_mut().flat_map(|rule| rule.alarms.take_changes()).collect()
    }

    fn start_segment(&mut self) -> Option<Wanted> {
        let Some(&ChangedReading { at: start, .. }) = self.changed.front() else {
            return Some(Wanted::Nothing);
        };
        while self.pages.pop_front_if(|page| page.from() < start).is_some() {}
        let Some(page) = self.pages.pop_front_if(|page| page.from() == start) else {
            return Some(Wanted::Pages(self.next_pages()));
        };
        let next_limit = self.sizes.following;
        self.segment =
            Some(Segment { start, last_changed: start, page, newest: None, is_restored: false, next_limit });
        None
    }

    /// The pages at the next changed readings, which are not consecutive. The last page may be: it has the rest.
    fn next_pages(&self) -> Vec<ReadingPage> {
        let places = self.changed.len().min(self.sizes.places.max(1));
        let until = |place| (place + 1 < places).then(|| self.changed[place + 1].at);
        // The readings are likely late, so they may be within an alarm.
        let around =
            Alarm { id: String::new(), since: Micros::MIN, upto: Micros::MAX, ended: None, value: None };
        let open = [None, Some(&around)];
        (0..places).map(|place| self.page_from(place, until(place), &open)).collect()
    }

    /// The page from a changed reading, before the next page or with all further changed readings. It has the readings
    /// before them, for each of the alarms that may be open there.
    fn page_from(&self, place: usize, until: Option<Micros>, open: &[Option<&Alarm>]) -> ReadingPage {
        let PageSizes { following, further, preceding, more_preceding, .. } = self.sizes;
        let changed = self.changed.range(place..);
        let count = if until.is_some() { 1 } else { changed.len().min(further) };
        let from = self.changed[place].at;
        let span = Span {
            low: from,
            high: until.unwrap_or(Micros::MAX),
            newest_first: false,
            limit: count + following,
        };
        let history = History::new(LookBack { first: preceding, more: more_preceding });
        // If no reading can be judged, the readings before them are rarely needed.
        if !changed.take(count).any(|reading| reading.is_usable) {
            return ReadingPage::new(span, history, Vec::new());
        }
        let spans = distinct(self.rules.iter().flat_map(|rule| rule.history_of(from, open, &history)));
        ReadingPage::new(span, history, spans)
    }

    /// Restores the rules' states before the segment.
    fn restore(&mut self, mut segment: Segment) -> Option<Wanted> {
        let Segment { start, ref page, .. } = segment;
        let mut missing = Vec::new();
        for rule in &mut self.rules {
            missing.extend(rule.restore(start, page.is_empty_end(), &page.history));
        }
        let wanted = if missing.is_empty() {
            segment.is_restored = true;
            let from = self.rules.iter().map(|rule| rule.from).min().filter(|from| *from < start);
            from.map(|from| Wanted::Next(segment.next_span(from, &self.sizes)))
        } else {
            Some(Wanted::History(distinct(missing)))
        };
        self.segment = Some(segment);
        wanted
    }

    /// Judges the readings of the segment's page. Ends the segment or asks for the next page.
    fn judge_page(&mut self, mut segment: Segment, new_id: &mut impl FnMut() -> String) -> Option<Wanted> {
        while let Some(sample) = segment.page.next() {
            let Sample { at, .. } = sample;
            segment.newest = Some(at);
            while let Some(reading) = self.changed.pop_front_if(|reading| reading.at <= at) {
                segment.last_changed = reading.at;
            }
            for rule in &mut self.rules {
                rule.judge(&sample, segment.start, new_id);
            }
            let is_changed = self.changed.front().is_some_and(|reading| reading.at <= segment.page.to());
            let has_converged = |rule: &RuleJudge<'_>| rule.has_converged(at, segment.last_changed);
            if at >= segment.start && !is_changed && self.rules.iter().all(has_converged) {
                self.rules.iter_mut().for_each(|rule| rule.converge(at, new_id));
                return None;
            }
        }
        match segment.page.following() {
            Some(from) => match self.pages.pop_front_if(|page| page.from() == from) {
                Some(page) => segment.page = page,
                None => {
                    let wanted = Wanted::Next(segment.next_span(from, &self.sizes));
                    self.segment = Some(segment);
                    return Some(wanted);
                }
            },
            None => {
                self.changed.clear();
                self.rules.iter_mut().for_each(|rule| rule.finish(segment.newest, new_id));
                return None;
            }
        }
        self.segment = Some(segment);
        None
    }
}

impl Segment {
    fn next_span(&mut self, from: Micros, sizes: &PageSizes) -> Span {
        let limit = self.next_limit;
        self.next_limit = (limit * 2).min(sizes.further);
        self.page.span_from(from, limit)
    }
}

fn distinct(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut distinct = Vec::new();
    for span in spans {
        if !distinct.contains(&span) {
            distinct.push(span);
        }
    }
    distinct
}

#[cfg(test)]
mod tests;
