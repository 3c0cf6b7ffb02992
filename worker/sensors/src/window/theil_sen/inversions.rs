//! Points ordered by `value - slope * time`, and the inversions between two such orders.

use std::iter::{Copied, Map};
use std::slice::Iter;

/// Two points, by their indices in time.
pub(super) type PointPair = (usize, usize);

/// The order of the points at a slope. It inverts exactly the pairs with a smaller slope, compared with the order in
/// time.
pub(super) struct SlopeOrder {
    pub(super) slope: f64,
    /// The number of pairs with a smaller slope.
    pub(super) below: u64,
    /// The indices of the points in time, in this order.
    sequence: Vec<u32>,
}

impl SlopeOrder {
    /// Needs points sorted by time, then by value.
    pub(super) fn new(seconds: &[f64], values: &[f64], slope: f64) -> Self {
        let key = |second: f64, value: f64| match slope {
            f64::NEG_INFINITY => second,
            f64::INFINITY => -second,
            _ => value - slope * second,
        };
        let points = seconds.iter().zip(values);
        let mut keyed: Vec<(f64, u32)> =
            points.zip(0..).map(|((s, v), index)| (key(*s, *v), index)).collect();
        keyed.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let sequence: Vec<u32> = keyed.into_iter().map(|(_, index)| index).collect();
        let mut below = 0;
        let mut work = sequence.clone();
        merge_sort(&mut work, &mut vec![0; sequence.len()], &mut |left, _| below += left.len() as u64);
        Self { slope, below, sequence }
    }

    /// Visits every pair whose slope is at least that of `self` and less than that of `high`, in groups.
    pub(super) fn between(
        &self,
        high: &Self,
        mut visit: impl FnMut(Map<Copied<Iter<'_, u32>>, &dyn Fn(u32) -> PointPair>),
    ) {
        let mut rank = vec![0_u32; high.sequence.len()];
        for (index, at) in high.sequence.iter().zip(0..) {
            rank[*index as usize] = at;
        }
        let mut work: Vec<u32> = self.sequence.iter().map(|index| rank[*index as usize]).collect();
        let index = |rank: u32| high.sequence[rank as usize] as usize;
        merge_sort(&mut work, &mut vec![0; rank.len()], &mut |left, right| {
            let right = index(right);
            let pair = |left| (index(left), right);
            visit(left.iter().copied().map(&pair as &dyn Fn(u32) -> PointPair));
        });
    }
}

/// Sorts `work`, and calls `inverted` for each element that follows larger ones, with those and the element. `spare`
/// is as long as `work`.
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
