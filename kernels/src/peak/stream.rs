//! Memory bandwidth of a pass with a given number of arrays read, updated in place and written.
//!
//! A pass over arrays beyond the caches can't be faster than the same traffic with no arithmetic to speak of. The mix
//! matters: a written array is fetched before it is overwritten, an updated one costs no more than that.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{BLOCK, Pool};

/// How many arrays a pass reads, updates in place, and writes without reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Only read.
    pub reads: usize,
    /// Read and written at the same place.
    pub updates: usize,
    /// Only written.
    pub writes: usize,
}

/// Arrays of f32 to pass over again and again.
#[derive(Debug)]
pub struct Stream {
    reads: Vec<Vec<f32>>,
    updates: Vec<Vec<f32>>,
    writes: Vec<Vec<f32>>,
    len: usize,
}

impl Stream {
    /// Allocates the arrays of a mix, each of `len` elements, and touches every page.
    pub fn new(mix: Mix, len: usize) -> Self {
        // Not zero: an untouched array of zeros would be one page of memory, read over and over.
        let arrays = |n: usize| (0..n).map(|_| vec![1.0_f32; len]).collect();
        Self { reads: arrays(mix.reads), updates: arrays(mix.updates), writes: arrays(mix.writes), len }
    }

    /// Bytes that one pass reads and writes, those of an updated array counted twice.
    pub fn bytes(&self) -> usize {
        4 * self.len * (self.reads.len() + 2 * self.updates.len() + self.writes.len())
    }

    /// Runs one pass and returns its time.
    pub fn pass(&mut self, pool: &Pool) -> Duration {
        let start = Instant::now();
        let mut updates: Vec<_> = self.updates.iter_mut().map(|a| a.chunks_mut(BLOCK)).collect();
        let mut writes: Vec<_> = self.writes.iter_mut().map(|a| a.chunks_mut(BLOCK)).collect();
        let reads = &self.reads;
        let parts = (0..self.len.div_ceil(BLOCK)).map(|b| {
            let range = b * BLOCK..((b + 1) * BLOCK).min(self.len);
            Block {
                reads: reads.iter().map(|a| &a[range.clone()]).collect(),
                updates: updates.iter_mut().filter_map(Iterator::next).collect(),
                writes: writes.iter_mut().filter_map(Iterator::next).collect(),
                len: range.len(),
                factor: black_box(0.5),
            }
        });
        pool.each(parts, |block| dispatch(pool.isa(), block));
        start.elapsed()
    }
}

/// Elements between two changes of array; the sums in between stay in the nearest cache.
const CHUNK: usize = 1024;

struct Block<'a> {
    reads: Vec<&'a [f32]>,
    updates: Vec<&'a mut [f32]>,
    writes: Vec<&'a mut [f32]>,
    len: usize,
    factor: f32,
}

impl Kernel for Block<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        for at in (0..self.len).step_by(CHUNK) {
            let range = at..(at + CHUNK).min(self.len);
            let mut sums = [0.0_f32; CHUNK];
            for array in &self.reads {
                sums.iter_mut().zip(&array[range.clone()]).for_each(|(sum, x)| *sum += x);
            }
            for array in &mut self.updates {
                let update = |(x, sum): (&mut f32, &f32)| *x = s.mul_add(*x, self.factor, *sum);
                array[range.clone()].iter_mut().zip(&sums).for_each(update);
            }
            for array in &mut self.writes {
                array[range.clone()].copy_from_slice(&sums[..range.len()]);
            }
            black_box(&sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_array_is_passed_over() {
        let pool = Pool::new(2).expect("threads start");
        let mut stream = Stream::new(Mix { reads: 2, updates: 1, writes: 2 }, 40_000);
        assert_eq!(stream.bytes(), 6 * 160_000);
        assert!(stream.pass(&pool) > Duration::ZERO);
        assert!(stream.updates[0].iter().all(|&x| x == 2.5), "half of one, and two");
        assert!(stream.writes.iter().flatten().all(|&x| x == 2.0));
    }
}
