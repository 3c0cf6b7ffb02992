//! Points ordered by `value - slope * time`, and the inversions between two such orders.

use std::iter::{Copied, Map};
use std::slice::Iter;

/// Two points, by their places in time.
pub(super) type Place = (usize, usize);

/// The order of the points at one slope. A pair whose own slope is less is inverted in it against
/// the order in time; one whose slope is the same or more is not.
pub(super) struct Order {
    pub(super) slope: f64,
    /// How many pairs have a slope less than this one.
    pub(super) below: u64,
    /// The points' places in time, in this order.
    sequence: Vec<u32>,
}

impl Order {
    /// `seconds` ascend, values of one instant too.
    pub(super) fn new(seconds: &[f64], values: &[f64], slope: f64) -> Self {
        let key = |second: f64, value: f64| match slope {
            f64::NEG_INFINITY => second,
            f64::INFINITY => -second,
            _ => value - slope * second,
        };
        let points = seconds.iter().zip(values);
        let mut keyed: Vec<(f64, u32)> =
            points.zip(0..).map(|((s, v), place)| (key(*s, *v), place)).collect();
        keyed.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let sequence: Vec<u32> = keyed.into_iter().map(|(_, place)| place).collect();
        let mut below = 0;
        let mut work = sequence.clone();
        merge_sort(&mut work, &mut vec![0; sequence.len()], &mut |left, _| below += left.len() as u64);
        Self { slope, below, sequence }
    }

    /// Visits every pair whose slope is at least this order's and less than the other's, some at a
    /// time.
    pub(super) fn between(
        &self,
        high: &Self,
        mut visit: impl FnMut(Map<Copied<Iter<'_, u32>>, &dyn Fn(u32) -> Place>),
    ) {
        let mut rank = vec![0_u32; high.sequence.len()];
        for (place, at) in high.sequence.iter().zip(0..) {
            rank[*place as usize] = at;
        }
        let mut work: Vec<u32> = self.sequence.iter().map(|place| rank[*place as usize]).collect();
        let place = |rank: u32| high.sequence[rank as usize] as usize;
        merge_sort(&mut work, &mut vec![0; rank.len()], &mut |left, right| {
            let right = place(right);
            let pair = |left| (place(left), right);
            visit(left.iter().copied().map(&pair as &dyn Fn(u32) -> Place));
        });
    }
}

/// Sorts, and tells each element that comes after larger ones which these are.
fn merge_sort(work: &mut [u32], spare: &mut [u32], inverted: &mut impl FnMut(&[u32], u32)) {
    if work.len() <= 12 {
        for end in 1..work.len() {
            let element = work[end];
            let start = work[..end].partition_point(|before| *before < element);
            if start < end {
                inverted(&work[start..end], element);
                work.copy_within(start..end, start + 1);
                work[start] = element;
            }
        }
        return;
    }
    let (left, right) = work.split_at_mut(work.len() / 2);
    let (spare_left, spare_right) = spare.split_at_mut(left.len());
    merge_sort(left, spare_left, inverted);
    merge_sort(right, spare_right, inverted);
    let merged = &mut spare[..left.len() + right.len()];
    let (mut at_left, mut at_right) = (0, 0);
    for slot in merged.iter_mut() {
        let take_right = match (left.get(at_left), right.get(at_right)) {
            (Some(left), Some(right)) => right < left,
            (None, _) => true,
            _ => false,
        };
        if take_right {
            if at_left < left.len() {
                inverted(&left[at_left..], right[at_right]);
            }
            *slot = right[at_right];
            at_right += 1;
        } else {
            *slot = left[at_left];
            at_left += 1;
        }
    }
    work.copy_from_slice(merged);
}
