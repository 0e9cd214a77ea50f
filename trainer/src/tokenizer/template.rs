//! Where special tokens stand around a text or a pair, and which token type each place has.

use crate::batch::Encoding;

/// One place of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A special token.
    Special(u32),
    /// The first text.
    First,
    /// The second text.
    Second,
}

/// The layout of a row: parts with their token types (0, then 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
    /// Index of the first part whose tokens have type 1.
    second_from: usize,
}

impl Template {
    /// Checks and takes parts with their token types.
    ///
    /// # Errors
    /// What is wrong: a text is missing or doubled, the order is not first, second, or the types are not 0s followed
    /// by 1s.
    pub fn new(parts: Vec<(Part, u32)>, texts: &[Part]) -> Result<Self, String> {
        let found: Vec<Part> =
            parts.iter().map(|(part, _)| *part).filter(|part| !matches!(part, Part::Special(_))).collect();
        if found != texts {
            return Err(format!("its template holds the texts {found:?}, expected {texts:?}"));
        }
        let second_from = parts.iter().position(|(_, kind)| *kind != 0).unwrap_or(parts.len());
        if parts[second_from..].iter().any(|(_, kind)| *kind != 1) {
            let kinds: Vec<u32> = parts.iter().map(|(_, kind)| *kind).collect();
            return Err(format!("its template gives the token types {kinds:?}, expected 0s followed by 1s"));
        }
        Ok(Self { parts: parts.into_iter().map(|(part, _)| part).collect(), second_from })
    }

    /// Counts the special tokens.
    pub fn special_count(&self) -> usize {
        self.specials().count()
    }

    /// The special tokens, in order.
    pub fn specials(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().filter_map(|part| match part {
            Part::Special(id) => Some(*id),
            _ => None,
        })
    }

    /// Puts the texts into their places; `full_len` is the length before anything was cut.
    pub fn fill(&self, first: &[u32], second: &[u32], full_len: usize) -> Encoding {
        let mut ids = Vec::with_capacity(self.parts.len() + first.len() + second.len());
        let mut second_from = None;
        for (index, part) in self.parts.iter().enumerate() {
            if index == self.second_from {
                second_from = Some(ids.len());
            }
            match part {
                Part::Special(id) => ids.push(*id),
                Part::First => ids.extend_from_slice(first),
                Part::Second => ids.extend_from_slice(second),
            }
        }
        let second_from = second_from.unwrap_or(ids.len()) as u32;
        Encoding { ids, second_from, full_len: full_len as u32 }
    }

    /// Bytes that differ whenever two templates do.
    pub fn signature(&self) -> Vec<u8> {
        let part = |part: &Part| match part {
            Part::Special(id) => u64::from(*id),
            Part::First => 1 << 32,
            Part::Second => 2 << 32,
        };
        self.parts.iter().map(part).chain([self.second_from as u64]).flat_map(u64::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fill_their_places_and_types_follow() {
        let parts = vec![
            (Part::Special(1), 0),
            (Part::First, 0),
            (Part::Special(2), 0),
            (Part::Second, 1),
            (Part::Special(2), 1),
        ];
        let template = Template::new(parts, &[Part::First, Part::Second]).unwrap();
        assert_eq!(template.special_count(), 3);
        let row = template.fill(&[10, 11], &[], 5);
        assert_eq!(row, Encoding { ids: vec![1, 10, 11, 2, 2], second_from: 4, full_len: 5 });
    }

    #[test]
    fn a_template_with_other_types_or_texts_is_refused() {
        let parts = vec![(Part::First, 0), (Part::Special(2), 2)];
        assert!(Template::new(parts, &[Part::First]).unwrap_err().contains("token types [0, 2]"));
        let parts = vec![(Part::Second, 0), (Part::First, 0)];
        assert!(Template::new(parts, &[Part::First, Part::Second]).unwrap_err().contains("[Second, First]"));
    }
}
