//! The gradients of a step: one f32 arena with the layout of the parameters, cut into buckets that are summed over all
//! ranks as soon as backward has finished them.

use std::ops::Range;
use std::sync::Arc;

use muster_allreduce::{BucketOptions, BucketPlan, SumBuffer, TableRows};
use muster_kernels::{Pool, elementwise};

use crate::params::{Layout, Table};

/// Gradients, bucket by bucket. The word table is the last bucket; few of its rows have gradients in a step, so it is
/// kept with the numbers of those rows, and everything but them is zero.
pub struct Gradients {
    plan: Arc<BucketPlan>,
    /// In the order of the plan; a bucket that is being summed is not there.
    buffers: Vec<Option<SumBuffer>>,
    /// Elements and columns of the word table.
    word_len: usize,
    width: usize,
    /// Rows of the word table that have been written; ascending and each once after [`Gradients::settle`].
    touched: Vec<u32>,
}

/// The elements of a bucket that is there: backward and the optimizer run only while none is lent.
const LENT: &str = "no bucket is used while it is being summed";

impl Gradients {
    /// Zeros in private memory. `words` is the first parameter of the layout.
    pub fn new(layout: &Layout, words: &Table) -> Self {
        assert_eq!(words.range.start, 0, "the word table is what forward reads first");
        let borders = layout.groups();
        let first_end = borders.get(1).copied().unwrap_or(layout.arena_len());
        let plan = BucketPlan::new(layout.arena_len(), borders, first_end, BucketOptions::default());
        let plan = plan.expect("groups of a layout ascend from 0");
        let buffers = plan.buckets().iter().map(|range| Some(SumBuffer::new(range.len()))).collect();
        Self {
            plan: Arc::new(plan),
            buffers,
            word_len: words.range.len(),
            width: words.cols,
            touched: Vec::new(),
        }
    }

    /// Lengths of the buckets that are summed as a whole in every step: all but the word table.
    pub fn dense_lens(&self) -> Vec<usize> {
        let buckets = self.plan.buckets();
        buckets[..buckets.len() - 1].iter().map(Range::len).collect()
    }

    /// Replaces the memory of the buckets of [`Gradients::dense_lens`]; their gradients are then what is in it. The
    /// word table's are zero.
    ///
    /// # Panics
    /// If the lengths are others.
    pub fn replace(&mut self, buffers: Vec<SumBuffer>) {
        assert!(
            buffers.iter().map(|b| b.len()).eq(self.dense_lens()),
            "buffers must have the lengths of the buckets"
        );
        let words = self.plan.buckets()[buffers.len()].len();
        self.buffers = buffers.into_iter().chain([SumBuffer::new(words)]).map(Some).collect();
        self.touched.clear();
    }

    /// The buckets.
    pub fn plan(&self) -> &Arc<BucketPlan> {
        &self.plan
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

    /// Says that rows of the word table have been written.
    pub fn touch(&mut self, rows: &[u32]) {
        self.touched.extend_from_slice(rows);
    }

    /// Brings the numbers of the touched rows in order.
    pub fn settle(&mut self) {
        self.touched.sort_unstable();
        self.touched.dedup();
    }

    /// The touched rows of the word table, after [`Gradients::settle`].
    pub fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// Index of the word table among the buckets.
    pub fn word_bucket(&self) -> usize {
        self.buffers.len() - 1
    }

    /// The gradients of the whole word table and its width.
    pub fn words(&self) -> (&[f32], usize) {
        let buffer = self.buffers[self.word_bucket()].as_ref().expect(LENT);
        (&buffer[..self.word_len], self.width)
    }

    /// As [`Gradients::words`], to write.
    pub fn words_mut(&mut self) -> (&mut [f32], usize) {
        let bucket = self.word_bucket();
        (&mut self.buffers[bucket].as_mut().expect(LENT)[..self.word_len], self.width)
    }

    /// Copies of the touched rows.
    pub fn touched_rows(&self) -> TableRows {
        let (words, width) = self.words();
        let row = |id: &u32| &words[*id as usize * width..][..width];
        TableRows { ids: self.touched.clone(), values: self.touched.iter().flat_map(row).copied().collect() }
    }

    /// Overwrites rows of the word table, which are all that have gradients now.
    pub fn set_rows(&mut self, rows: TableRows) {
        let (words, width) = self.words_mut();
        for (id, row) in rows.ids.iter().zip(rows.values.chunks(width)) {
            words[*id as usize * width..][..width].copy_from_slice(row);
        }
        self.touched = rows.ids;
    }

    /// Sets everything to zero.
    pub fn clear(&mut self, pool: &Pool) {
        for (_, part) in self.dense_mut() {
            elementwise::zero(pool, part);
        }
        let touched = std::mem::take(&mut self.touched);
        let (words, width) = self.words_mut();
        touched.iter().for_each(|&id| words[id as usize * width..][..width].fill(0.0));
    }

    /// The optimizer has set every gradient to zero.
    pub fn cleared(&mut self) {
        self.touched.clear();
    }

    /// All buckets but the word table, with their ranges of the arena.
    pub fn dense(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        self.parts().take(self.word_bucket())
    }

    /// As [`Gradients::dense`], to write.
    pub fn dense_mut(&mut self) -> impl Iterator<Item = (Range<usize>, &mut [f32])> {
        let dense = self.word_bucket();
        let buffers = self.buffers[..dense].iter_mut().map(|b| &mut b.as_mut().expect(LENT)[..]);
        self.plan.buckets().iter().cloned().zip(buffers)
    }

    fn parts(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        self.plan.buckets().iter().cloned().zip(self.buffers.iter().map(|b| &b.as_ref().expect(LENT)[..]))
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

    /// A word table of 50 rows of 2 and three other parameters.
    fn layout() -> (Layout, Table, Vec<Range<usize>>) {
        let mut layout = Layout::default();
        let mut push = |len: usize| layout.push(String::new(), &[len], ParamKind::Matrix, false);
        let ids = [push(100), push(10 << 20), push(300 << 10), push(17)];
        let ranges = ids.map(|id| layout.get(id).range.clone()).to_vec();
        let words = Table { range: ranges[0].clone(), rows: 50, cols: 2 };
        (layout, words, ranges)
    }

    #[test]
    fn parameters_are_found_in_their_buckets() {
        let (layout, words, ranges) = layout();
        let mut gradients = Gradients::new(&layout, &words);
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
        let zeros = all.len() - ranges.iter().map(Range::len).sum::<usize>();
        assert_eq!(all.iter().filter(|&&x| x == 0.0).count(), zeros);
    }

    #[test]
    fn touched_rows_of_the_word_table_travel_and_are_cleared() {
        let (layout, words, ranges) = layout();
        let mut gradients = Gradients::new(&layout, &words);
        gradients.slice_mut(ranges[0].clone())[6..8].copy_from_slice(&[1.0, 2.0]);
        gradients.touch(&[40, 3]);
        gradients.touch(&[3]);
        gradients.settle();
        let rows = gradients.touched_rows();
        assert_eq!((&rows.ids[..], &rows.values[..]), (&[3, 40][..], &[1.0, 2.0, 0.0, 0.0][..]));
        gradients.set_rows(TableRows { ids: vec![3, 7], values: vec![5.0, 6.0, 7.0, 8.0] });
        assert_eq!(gradients.slice(0..16)[6..8], [5.0, 6.0]);
        gradients.clear(&Pool::new(1).unwrap());
        assert!(gradients.to_vec().iter().all(|&g| g == 0.0) && gradients.touched().is_empty());
    }
}
