//! SentencePiece's normalizer: character map, white-space rules, the marker U+2581 in place of blanks.
//!
//! It follows `normalizer.cc` step by step, since the ids of a pretrained model depend on every one of them: leading
//! blanks are dropped *before* the dummy prefix is added, a rule's replacement counts as a whole when blanks are
//! merged, and user-defined symbols are exempt from rewriting.

use super::charsmap::CharsMap;
use super::proto::NormalizerSpec;
use super::trie::Trie;

/// The marker that stands for a blank inside pieces.
const MARKER: &[u8] = "\u{2581}".as_bytes();
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Where the dummy blank goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dummy {
    Before,
    After,
    None,
}

/// Rewrites a text into the alphabet of the pieces.
#[derive(Debug)]
pub(super) struct Normalizer {
    map: Option<CharsMap>,
    user_defined: Option<Trie>,
    dummy: Dummy,
    space: &'static [u8],
    remove_extra: bool,
}

impl Normalizer {
    /// Reads the rules of a model file.
    ///
    /// # Errors
    /// What is wrong with the character map.
    pub fn new(
        spec: NormalizerSpec,
        as_suffix: bool,
        user_defined: Vec<(&[u8], u32)>,
    ) -> Result<Self, String> {
        let map = match spec.precompiled_charsmap {
            Some(blob) if !blob.is_empty() => Some(CharsMap::parse(&blob)?),
            _ => None,
        };
        let dummy = match (spec.add_dummy_prefix.unwrap_or(true), as_suffix) {
            (false, _) => Dummy::None,
            (true, false) => Dummy::Before,
            (true, true) => Dummy::After,
        };
        Ok(Self {
            map,
            user_defined: (!user_defined.is_empty()).then(|| Trie::build(user_defined)),
            dummy,
            space: if spec.escape_whitespaces.unwrap_or(true) { MARKER } else { b" " },
            remove_extra: spec.remove_extra_whitespaces.unwrap_or(true),
        })
    }

    /// Normalizes `text`; the result is UTF-8 if the model file is sound.
    pub fn normalize(&self, text: &str) -> Vec<u8> {
        let mut rest = text.as_bytes();
        if self.remove_extra {
            rest = self.without_leading_blanks(rest);
        }
        let mut out = Vec::new();
        if rest.is_empty() {
            return out;
        }
        out.reserve(rest.len() + rest.len() / 2 + 8);
        if self.dummy == Dummy::Before {
            out.extend_from_slice(self.space);
        }
        let mut after_blank = self.remove_extra;
        while !rest.is_empty() {
            let (length, mut part) = self.prefix(rest);
            while after_blank && let Some(shorter) = part.strip_prefix(b" ") {
                part = shorter;
            }
            if let Some(last) = part.last() {
                self.push(&mut out, part);
                after_blank = self.remove_extra && *last == b' ';
            }
            rest = &rest[length..];
        }
        if self.remove_extra {
            while out.ends_with(self.space) {
                out.truncate(out.len() - self.space.len());
            }
        }
        if self.dummy == Dummy::After {
            out.extend_from_slice(self.space);
        }
        out
    }

    fn without_leading_blanks<'a>(&self, mut text: &'a [u8]) -> &'a [u8] {
        while !text.is_empty() {
            let (length, part) = self.prefix(text);
            if part != b" " {
                break;
            }
            text = &text[length..];
        }
        text
    }

    /// Appends `part` with its blanks escaped.
    fn push(&self, out: &mut Vec<u8>, part: &[u8]) {
        for piece in part.split_inclusive(|&byte| byte == b' ') {
            match piece.split_last() {
                Some((b' ', head)) => {
                    out.extend_from_slice(head);
                    out.extend_from_slice(self.space);
                }
                _ => out.extend_from_slice(piece),
            }
        }
    }

    /// How many bytes the next rule (or character) takes from a text that is not empty, and what it becomes.
    fn prefix<'a>(&'a self, text: &'a [u8]) -> (usize, &'a [u8]) {
        if let Some(symbols) = &self.user_defined {
            let mut longest = 0;
            symbols.prefixes(text, |length, _| longest = length);
            if longest > 0 {
                return (longest, &text[..longest]);
            }
        }
        if let Some(rule) = self.map.as_ref().and_then(|map| map.longest(text)) {
            return (rule.length, rule.replacement);
        }
        // A damaged map may have consumed half a character; what is left of it is not valid text.
        let length = char_len(text);
        match std::str::from_utf8(&text[..length]) {
            Ok(_) => (length, &text[..length]),
            Err(_) => (1, REPLACEMENT),
        }
    }
}

/// Bytes of the character that `text` starts with, by its first byte, at most what is left.
pub(super) fn char_len(text: &[u8]) -> usize {
    let length = match text.first() {
        None => 0,
        Some(0xf0..) => 4,
        Some(0xe0..) => 3,
        Some(0xc0..) => 2,
        Some(_) => 1,
    };
    length.min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(spec: NormalizerSpec, as_suffix: bool, text: &str) -> String {
        let normalizer = Normalizer::new(spec, as_suffix, vec![(b"a  b", 0)]).unwrap();
        String::from_utf8(normalizer.normalize(text)).unwrap()
    }

    #[test]
    fn blanks_are_merged_trimmed_and_marked() {
        let spec = NormalizerSpec::default;
        assert_eq!(normalized(spec(), false, "  x   y "), "▁x▁y");
        assert_eq!(normalized(spec(), true, "  x   y "), "x▁y▁");
        assert_eq!(normalized(spec(), false, "   "), "");
        assert_eq!(normalized(spec(), false, ""), "");
    }

    #[test]
    fn a_model_may_keep_every_blank() {
        let spec = NormalizerSpec { remove_extra_whitespaces: Some(false), ..NormalizerSpec::default() };
        assert_eq!(normalized(spec.clone(), false, " x  y "), "▁▁x▁▁y▁");
        let spec = NormalizerSpec { add_dummy_prefix: Some(false), escape_whitespaces: Some(false), ..spec };
        assert_eq!(normalized(spec, false, " x  y "), " x  y ");
    }

    #[test]
    fn user_defined_symbols_are_not_rewritten() {
        assert_eq!(normalized(NormalizerSpec::default(), false, "a  b  c"), "▁a▁▁b▁c");
    }
}
