//! Which tokens of a text, or of a pair, are kept when both do not fit.
//!
//! The arithmetic of pairs is that of the `tokenizers` library (and so of every `transformers` 5 tokenizer): with
//! `longest_first` the longer text gives way until both are equal, then both do. If one token is left over it goes
//! to the longer text, and to the second if they are equally long. Special tokens are never cut.

use muster_proto::run_spec::{Keep, Truncation};

/// How rows longer than the limit are shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TruncationRule {
    /// Tokens of a row at most, special tokens included.
    pub max_length: usize,
    /// Which text gives way.
    pub strategy: Truncation,
    /// Which part of it is kept.
    pub keep: Keep,
}

/// Tokens to keep of the first and of the second text so that both fit into `room`, `None` if the rule can't do it.
///
/// A text that gives way keeps at least one token under `only_first` and `only_second`.
pub(super) fn kept_lengths(
    strategy: Truncation,
    first: usize,
    second: Option<usize>,
    room: usize,
) -> Option<(usize, usize)> {
    let other = second.unwrap_or(0);
    let excess = (first + other).saturating_sub(room);
    if excess == 0 {
        return Some((first, other));
    }
    match (strategy, second) {
        (Truncation::LongestFirst, Some(second)) => Some(longest_first(first, second, room)),
        (Truncation::LongestFirst | Truncation::OnlyFirst, _) => {
            (first > excess).then(|| (first - excess, other))
        }
        (Truncation::OnlySecond, _) => (other > excess).then(|| (first, other - excess)),
    }
}

fn longest_first(first: usize, second: usize, room: usize) -> (usize, usize) {
    let shorter = first.min(second);
    let (shorter, longer) =
        if 2 * shorter <= room { (shorter, room - shorter) } else { (room / 2, room - room / 2) };
    if first > second { (longer, shorter) } else { (shorter, longer) }
}

/// Shortens `ids` to `kept` tokens.
pub(super) fn cut(ids: &mut Vec<u32>, kept: usize, keep: Keep) {
    let gone = ids.len().saturating_sub(kept);
    if gone == 0 {
        return;
    }
    let from = match keep {
        Keep::Head => kept,
        Keep::Tail => 0,
        Keep::HeadTail => kept - kept / 2,
    };
    ids.drain(from..from + gone);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_19_longest_first_evens_out_the_pair() {
        let kept = |first, second| kept_lengths(Truncation::LongestFirst, first, Some(second), 125);
        assert_eq!(kept(10, 500), Some((10, 115)));
        assert_eq!(kept(500, 10), Some((115, 10)));
        assert_eq!(kept(300, 300), Some((62, 63)));
        assert_eq!(kept(301, 300), Some((63, 62)));
        assert_eq!(kept(62, 63), Some((62, 63)));
        assert_eq!(kept(0, 500), Some((0, 125)));
    }

    #[test]
    fn case_19_a_protected_text_is_never_cut() {
        let kept = |rule, first, second| kept_lengths(rule, first, second, 125);
        assert_eq!(kept(Truncation::OnlyFirst, 500, Some(10)), Some((115, 10)));
        assert_eq!(kept(Truncation::OnlyFirst, 10, Some(500)), None);
        assert_eq!(kept(Truncation::OnlySecond, 10, Some(500)), Some((10, 115)));
        assert_eq!(kept(Truncation::OnlySecond, 500, Some(10)), None);
        assert_eq!(kept(Truncation::OnlySecond, 500, None), None);
        assert_eq!(kept(Truncation::OnlyFirst, 500, None), Some((125, 0)));
        assert_eq!(kept(Truncation::OnlySecond, 100, None), Some((100, 0)));
    }

    #[test]
    fn head_tail_keeps_both_ends() {
        let cut = |kept, keep| {
            let mut ids: Vec<u32> = (0..10).collect();
            super::cut(&mut ids, kept, keep);
            ids
        };
        assert_eq!(cut(3, Keep::Head), [0, 1, 2]);
        assert_eq!(cut(3, Keep::Tail), [7, 8, 9]);
        assert_eq!(cut(3, Keep::HeadTail), [0, 1, 9]);
        assert_eq!(cut(4, Keep::HeadTail), [0, 1, 8, 9]);
        assert_eq!(cut(10, Keep::HeadTail).len(), 10);
        assert_eq!(cut(0, Keep::HeadTail).len(), 0);
    }
}
