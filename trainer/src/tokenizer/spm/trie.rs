//! A byte trie in flat arrays: which pieces begin at a position of the text.
//!
//! Nodes are numbered breadth first, so the children of a node are consecutive and an edge needs only its label:
//! edge `e` leads to node `e + 1`.

use std::collections::VecDeque;

/// A set of byte strings, each with a value.
#[derive(Debug)]
pub(super) struct Trie {
    /// Edges of node `n` are `first_edge[n]..first_edge[n + 1]`.
    first_edge: Vec<u32>,
    /// Label of each edge, ascending within a node.
    labels: Vec<u8>,
    /// Value of each node, `NONE` where no key ends.
    values: Vec<u32>,
    /// Children of the root by label, `NONE` where there is none: every position of a text asks for one.
    root: Box<[u32; 256]>,
}

/// A place in the trie: the bytes walked so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor(u32);

const NONE: u32 = u32::MAX;

impl Trie {
    /// Builds the trie of `keys`, which must be distinct and not empty.
    pub fn build(mut keys: Vec<(&[u8], u32)>) -> Self {
        keys.sort_unstable();
        let mut trie = Self {
            first_edge: Vec::new(),
            labels: Vec::new(),
            values: Vec::new(),
            root: Box::new([NONE; 256]),
        };
        let mut ranges = VecDeque::from([(0, keys.len(), 0)]);
        while let Some((from, to, depth)) = ranges.pop_front() {
            trie.first_edge.push(trie.labels.len() as u32);
            let mut at = from;
            let ends_here = at < to && keys[at].0.len() == depth;
            trie.values.push(if ends_here { keys[at].1 } else { NONE });
            at += usize::from(ends_here);
            while at < to {
                let label = keys[at].0[depth];
                let end = at + keys[at..to].partition_point(|(key, _)| key[depth] == label);
                trie.labels.push(label);
                ranges.push_back((at, end, depth + 1));
                at = end;
            }
        }
        trie.first_edge.push(trie.labels.len() as u32);
        for edge in 0..trie.first_edge[1] {
            trie.root[usize::from(trie.labels[edge as usize])] = edge + 1;
        }
        trie
    }

    /// Walks one byte down from the root.
    pub fn start(&self, byte: u8) -> Option<Cursor> {
        let node = self.root[usize::from(byte)];
        (node != NONE).then_some(Cursor(node))
    }

    /// Walks one byte down.
    pub fn step(&self, at: Cursor, byte: u8) -> Option<Cursor> {
        let (from, to) =
            (self.first_edge[at.0 as usize] as usize, self.first_edge[at.0 as usize + 1] as usize);
        let edge = self.labels[from..to].binary_search(&byte).ok()?;
        Some(Cursor((from + edge + 1) as u32))
    }

    /// The value of the key that ends here.
    pub fn value(&self, at: Cursor) -> Option<u32> {
        let value = self.values[at.0 as usize];
        (value != NONE).then_some(value)
    }

    /// Calls `found(length, value)` for every key that is a prefix of `text`, shortest first.
    pub fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let Some((&first, rest)) = text.split_first() else { return };
        let mut cursor = self.start(first);
        let mut length = 1;
        let mut rest = rest.iter();
        while let Some(at) = cursor {
            if let Some(value) = self.value(at) {
                found(length, value);
            }
            let Some(&byte) = rest.next() else { return };
            cursor = self.step(at, byte);
            length += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(trie: &Trie, text: &[u8]) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        trie.prefixes(text, |length, value| found.push((length, value)));
        found
    }

    #[test]
    fn finds_every_key_that_begins_the_text() {
        let trie = Trie::build(vec![(b"abc", 2), (b"a", 0), (b"ab", 1), (b"b", 7), (&[0xff, 0], 9)]);
        assert_eq!(prefixes(&trie, b"abcd"), [(1, 0), (2, 1), (3, 2)]);
        assert_eq!(prefixes(&trie, b"ac"), [(1, 0)]);
        assert_eq!(prefixes(&trie, &[0xff, 0, 1]), [(2, 9)]);
        assert_eq!(prefixes(&trie, b"x"), []);
        assert_eq!(prefixes(&trie, b""), []);
    }

    #[test]
    fn an_empty_set_matches_nothing() {
        assert_eq!(prefixes(&Trie::build(Vec::new()), b"a"), []);
    }
}
