//! The best segmentation under a unigram language model: the sum of the pieces' log probabilities is largest.
//!
//! One forward pass keeps the best path to every byte. Arithmetic follows `unigram_model.cc` to the bit (sums are
//! stored in f32, compared in f64), since ties and near-ties decide ids.

use super::normalizer::char_len;
use super::trie::Trie;

/// How far below the least likely piece an unknown character is scored.
const UNKNOWN_PENALTY: f32 = 10.0;

/// One piece that can be part of a segmentation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Score {
    /// Log probability.
    Normal(f32),
    /// Chosen whenever it fits.
    UserDefined,
    /// In the vocabulary, but never chosen.
    Unused,
}

/// The pieces and their scores.
#[derive(Debug)]
pub(super) struct Unigram {
    trie: Trie,
    /// Score by id; ids outside the trie (control, byte, unknown) are `Unused`.
    scores: Vec<Score>,
    unknown_id: u32,
    unknown_score: f32,
    max_score: f32,
}

/// One piece of a segmentation: `from..to` in bytes of the normalized text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub id: u32,
    pub from: usize,
    pub to: usize,
}

/// The last piece of the best path to a byte.
#[derive(Clone, Copy)]
struct Best {
    id: u32,
    score: f32,
    from: usize,
}

/// `Best::from` where no path ends yet.
const NO_PATH: usize = usize::MAX;

impl Best {
    /// Takes the candidate if it is the first or strictly better: on a tie the earlier start (longer piece) stays.
    fn offer(&mut self, id: u32, score: f64, from: usize) {
        if self.from == NO_PATH || score > f64::from(self.score) {
            *self = Self { id, score: score as f32, from };
        }
    }
}

impl Unigram {
    /// Takes the pieces that may be chosen (`keys`: text and id) and the score of every id.
    pub fn new(keys: Vec<(&[u8], u32)>, scores: Vec<Score>, unknown_id: u32) -> Self {
        // The reference starts the maximum at the smallest positive float, not at minus infinity.
        let (mut min_score, mut max_score) = (f32::MAX, f32::MIN_POSITIVE);
        for score in &scores {
            if let Score::Normal(score) = score {
                min_score = min_score.min(*score);
                max_score = max_score.max(*score);
            }
        }
        Self {
            trie: Trie::build(keys),
            scores,
            unknown_id,
            unknown_score: min_score - UNKNOWN_PENALTY,
            max_score,
        }
    }

    /// Cuts `text` into pieces, in order. Cost: length × longest piece.
    pub fn segment(&self, text: &[u8]) -> Vec<Span> {
        let best = self.best_paths(text);
        let mut spans = Vec::new();
        let mut to = text.len();
        while to > 0 {
            let Best { id, from, .. } = best[to];
            spans.push(Span { id, from, to });
            to = from;
        }
        spans.reverse();
        spans
    }

    fn best_paths(&self, text: &[u8]) -> Vec<Best> {
        let mut best = vec![Best { id: self.unknown_id, score: 0.0, from: NO_PATH }; text.len() + 1];
        let mut from = 0;
        while from < text.len() {
            let here = best[from].score;
            let char_len = char_len(&text[from..]);
            let mut covers_char = false;
            self.trie.prefixes(&text[from..], |length, id| {
                let score = match self.scores[id as usize] {
                    Score::Normal(score) => f64::from(score),
                    Score::UserDefined => f64::from(length as f32 * self.max_score) - 0.1,
                    Score::Unused => return,
                };
                best[from + length].offer(id, score + f64::from(here), from);
                covers_char |= length == char_len;
            });
            if !covers_char {
                best[from + char_len].offer(self.unknown_id, f64::from(self.unknown_score + here), from);
            }
            from += char_len;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(model: &Unigram, text: &str) -> Vec<u32> {
        model.segment(text.as_bytes()).iter().map(|span| span.id).collect()
    }

    #[test]
    fn the_most_likely_segmentation_wins() {
        let scores = vec![
            Score::Unused,
            Score::Normal(-1.0),
            Score::Normal(-1.5),
            Score::Normal(-2.0),
            Score::Normal(-4.0),
        ];
        let model = Unigram::new(vec![(b"a", 1), (b"b", 2), (b"ab", 3), (b"abc", 4)], scores, 0);
        assert_eq!(ids(&model, "ab"), [3]);
        assert_eq!(ids(&model, "ba"), [2, 1]);
        assert_eq!(ids(&model, "abc"), [4]);
        assert_eq!(ids(&model, "axb"), [1, 0, 2]);
    }

    #[test]
    fn unused_pieces_are_unknown_and_user_defined_ones_always_win() {
        let scores = vec![Score::Unused, Score::Unused, Score::UserDefined, Score::Normal(-0.05)];
        let model = Unigram::new(vec![(b"a", 1), (b"xyz", 2), (b"x", 3)], scores, 0);
        assert_eq!(ids(&model, "a"), [0]);
        assert_eq!(ids(&model, "xyz"), [2]);
    }
}
