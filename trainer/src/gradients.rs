//! The gradients of a step: one f32 arena with the layout of the parameters, cut into buckets that are summed over all
//! ranks as soon as backward has finished them.

use std::ops::Range;
use std::sync::Arc;

use muster_allreduce::{BucketOptions, BucketPlan, SumBuffer};

use crate::params::Layout;

/// Gradients, bucket by bucket.
pub struct Gradients {
    plan: Arc<BucketPlan>,
    /// In the order of the plan; a bucket that is being summed is not there.
    buffers: Vec<Option<SumBuffer>>,
}

/// The elements of a bucket that is there: backward and the optimizer run only while none is lent.
const LENT: &str = "no bucket is used while it is being summed";

impl Gradients {
    /// Zeros in private memory.
    pub fn new(layout: &Layout) -> Self {
        let plan = BucketPlan::new(layout.arena_len(), layout.groups(), BucketOptions::default());
        let plan = plan.expect("groups of a layout ascend from 0");
        let buffers = plan.buckets().iter().map(|range| Some(SumBuffer::new(range.len()))).collect();
        Self { plan: Arc::new(plan), buffers }
    }

    /// The buckets.
    pub fn plan(&self) -> &Arc<BucketPlan> {
        &self.plan
    }

    /// Replaces the memory of all buckets; the gradients are then what is in it.
    ///
    /// # Panics
    /// If the lengths are not those of the plan.
    pub fn replace(&mut self, buffers: Vec<SumBuffer>) {
        let lens = self.plan.buckets().iter().map(Range::len);
        assert!(buffers.iter().map(|b| b.len()).eq(lens), "buffers must have the lengths of the buckets");
        self.buffers = buffers.into_iter().map(Some).collect();
    }

    /// Takes a bucket out, to be summed.
    pub fn lend(&mut self, bucket: usize) -> SumBuffer {
        self.buffers[bucket].take().expect(LENT)
    }

    /// Puts a bucket back.
    pub fn put_back(&mut self, bucket: usize, buffer: SumBuffer) {
        self.buffers[bucket] = Some(buffer);
    }

    /// The gradients of elements that lie in one bucket.
    pub fn slice(&self, range: Range<usize>) -> &[f32] {
        let (bucket, inside) = self.place(&range);
        &self.buffers[bucket].as_ref().expect(LENT)[inside]
    }

    /// As [`Gradients::slice`], to add to.
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [f32] {
        let (bucket, inside) = self.place(&range);
        &mut self.buffers[bucket].as_mut().expect(LENT)[inside]
    }

    /// Two such slices, the second behind the first.
    pub fn pair_mut(&mut self, first: Range<usize>, second: Range<usize>) -> (&mut [f32], &mut [f32]) {
        assert!(
            first.end <= second.start,
            "the layout puts a bias behind its weight and a shift behind its gain"
        );
        let ((a, inside_a), (b, inside_b)) = (self.place(&first), self.place(&second));
        if a == b {
            let buffer = self.buffers[a].as_mut().expect(LENT);
            let (front, back) = buffer.split_at_mut(inside_b.start);
            return (&mut front[inside_a], &mut back[..inside_b.len()]);
        }
        let [one, other] = self.buffers.get_disjoint_mut([a, b]).expect("two buckets of the plan");
        (&mut one.as_mut().expect(LENT)[inside_a], &mut other.as_mut().expect(LENT)[inside_b])
    }

    /// All buckets with their ranges of the arena.
    pub fn parts(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        self.plan.buckets().iter().cloned().zip(self.buffers.iter().map(|b| &b.as_ref().expect(LENT)[..]))
    }

    /// As [`Gradients::parts`], to write.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut [f32])> {
        self.plan
            .buckets()
            .iter()
            .cloned()
            .zip(self.buffers.iter_mut().map(|b| &mut b.as_mut().expect(LENT)[..]))
    }

    /// A copy in arena order.
    pub fn to_vec(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.plan.arena_len()];
        for (range, values) in self.parts() {
            all[range].copy_from_slice(values);
        }
        all
    }

    fn place(&self, range: &Range<usize>) -> (usize, Range<usize>) {
        let bucket = self.plan.bucket_of(range.start);
        let start = self.plan.buckets()[bucket].start;
        (bucket, range.start - start..range.end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::ParamKind;

    #[test]
    fn parameters_are_found_in_their_buckets() {
        let mut layout = Layout::default();
        let mut push = |len: usize| layout.push(String::new(), &[len], ParamKind::Matrix, false);
        // The last bucket to be finished holds the first two, the first one the others.
        let ids = [push(100), push(10 << 20), push(300 << 10), push(17)];
        let ranges = ids.map(|id| layout.get(id).range.clone());
        let mut gradients = Gradients::new(&layout);
        assert_eq!(gradients.plan().buckets().len(), 3);
        for (i, range) in ranges.iter().enumerate() {
            gradients.slice_mut(range.clone()).fill(i as f32 + 1.0);
        }
        let (a, b) = gradients.pair_mut(ranges[2].clone(), ranges[3].clone());
        assert!(a.iter().all(|&x| x == 3.0) && b == [4.0; 17]);
        let (a, b) = gradients.pair_mut(ranges[0].clone(), ranges[3].clone());
        assert_eq!((a.len(), b.len(), a[0], b[0]), (100, 17, 1.0, 4.0));
        let all = gradients.to_vec();
        for (i, range) in ranges.iter().enumerate() {
            assert!(all[range.clone()].iter().all(|&x| x == i as f32 + 1.0));
        }
        assert_eq!(
            all.iter().filter(|&&x| x == 0.0).count(),
            all.len() - ranges.iter().map(Range::len).sum::<usize>()
        );
    }
}
