//! Groups of ranks, and ranges of elements.

use std::ops::Range;

use muster_proto::Rank;

/// Ranks that work together, in canonical order: node by node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    ranks: Vec<Rank>,
    /// How many of the ranks each node has.
    nodes: Vec<usize>,
}

impl Group {
    /// A group of all ranks of a world whose nodes have these sizes.
    pub fn world(nodes: &[usize]) -> Self {
        let count: usize = nodes.iter().sum();
        Self { ranks: (0..count as u32).map(Rank).collect(), nodes: nodes.to_vec() }
    }

    /// A group of these ranks, each on a node of its own: the counterparts of a rail, or the two ends of a transfer.
    pub fn flat(ranks: Vec<Rank>) -> Self {
        Self { nodes: vec![1; ranks.len()], ranks }
    }

    /// How many ranks there are.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether there is no rank.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// The rank at a position.
    pub fn rank(&self, position: usize) -> Rank {
        self.ranks[position]
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Sizes of the nodes.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// Ranks per node, if every node has as many.
    pub fn equal_nodes(&self) -> Option<usize> {
        let first = *self.nodes.first()?;
        self.nodes.iter().all(|&len| len == first).then_some(first)
    }
}

/// Contiguous ranges of elements, one per position, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    /// Where each starts, and the end of the last.
    borders: Vec<u64>,
}

impl Shards {
    /// Divides `count` elements into `shards` ranges whose borders lie at multiples of 64 bytes and whose lengths
    /// differ by at most 64 bytes, but for the rest of the last one.
    pub fn even(count: u64, shards: usize, element_bytes: u64) -> Self {
        let unit = (64 / element_bytes).max(1);
        let units = count.div_ceil(unit);
        let (base, extra) = (units / shards as u64, units % shards as u64);
        let mut borders = vec![0];
        let mut at = 0;
        for i in 0..shards as u64 {
            at += base + u64::from(i < extra);
            borders.push((at * unit).min(count));
        }
        Self { borders }
    }

    /// Ranges of these lengths.
    ///
    /// Lengths whose sum exceeds 64 bits are cut off; callers check it.
    pub fn of(counts: &[u64]) -> Self {
        let mut borders = vec![0_u64];
        for &count in counts {
            borders.push(borders[borders.len() - 1].saturating_add(count));
        }
        Self { borders }
    }

    /// The range of one position.
    pub fn range(&self, position: usize) -> Range<u64> {
        self.borders[position]..self.borders[position + 1]
    }

    /// Elements of all together.
    pub fn total(&self) -> u64 {
        self.borders[self.borders.len() - 1]
    }
}

/// Cuts a range into segments of `segment` elements; the last one may be shorter, an empty range has none.
pub(super) fn segments(range: Range<u64>, segment: u64) -> Vec<Range<u64>> {
    let count = (range.end - range.start).div_ceil(segment);
    let cut = |k: u64| range.start + k * segment..(range.start + (k + 1) * segment).min(range.end);
    (0..count).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_shards_have_aligned_borders_and_cover_everything() {
        for count in [0, 1, 15, 16, 17, 1000, 4096, 1 << 33] {
            for n in 1..10 {
                for bytes in [2, 4, 8] {
                    let shards = Shards::even(count, n, bytes);
                    assert_eq!((shards.borders.len(), shards.total()), (n + 1, count));
                    let aligned = |b: &u64| b.is_multiple_of(64 / bytes) || *b == count;
                    assert!(shards.borders.iter().all(aligned), "{count} by {n}: {shards:?}");
                    assert!(shards.borders.is_sorted());
                }
            }
        }
        assert_eq!(Shards::even(100, 3, 4).borders, [0, 48, 80, 100]);
    }

    #[test]
    fn segments_cover_their_range() {
        assert_eq!(segments(5..5, 4), []);
        assert_eq!(segments(5..14, 4), [5..9, 9..13, 13..14]);
    }
}
