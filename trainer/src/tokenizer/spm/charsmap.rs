//! The precompiled character map: rewriting rules as a double array followed by the replacement texts.
//!
//! Layout: `u32` (little endian) size of the array in bytes, the array, then the replacements, each ended by a NUL.
//! A unit of the array holds a label, an offset to its children and a flag for "a rule ends here" (Darts-clone).
//! Every index is checked: a damaged map matches less, it never reads outside.

/// Rules that replace a run of bytes.
#[derive(Debug)]
pub(super) struct CharsMap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

/// A rule that applies at a position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule<'a> {
    /// Bytes of the text it replaces; never 0.
    pub length: usize,
    /// What it puts there; may be empty.
    pub replacement: &'a [u8],
}

impl CharsMap {
    /// Splits the blob of a model file.
    ///
    /// # Errors
    /// What is wrong with the blob.
    pub fn parse(blob: &[u8]) -> Result<Self, String> {
        let Some((size, rest)) = blob.split_first_chunk::<4>() else {
            return Err(format!("the character map has {} bytes, too few for its header", blob.len()));
        };
        let size = u32::from_le_bytes(*size) as usize;
        if size > rest.len() {
            let rest = rest.len();
            return Err(format!("the character map claims an array of {size} bytes, but {rest} follow"));
        }
        if size == 0 || !size.is_multiple_of(4) {
            return Err(format!("the character map's array has {size} bytes, not a positive multiple of 4"));
        }
        let (array, replacements) = rest.split_at(size);
        let units = array
            .chunks_exact(4)
            .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
            .collect();
        Ok(Self { units, replacements: replacements.to_vec() })
    }

    /// The rule for the longest run of bytes at the start of `text`.
    pub fn longest(&self, text: &[u8]) -> Option<Rule<'_>> {
        let mut best = None;
        let mut at = offset(*self.units.first()?);
        for (walked, &byte) in text.iter().enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            if label(unit) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if has_leaf(unit)
                && let Some(&leaf) = self.units.get(at)
                && let Some(replacement) = self.replacement((leaf & 0x7fff_ffff) as usize)
            {
                best = Some(Rule { length: walked + 1, replacement });
            }
        }
        best
    }

    /// The NUL-terminated replacement that starts at byte `from`.
    fn replacement(&self, from: usize) -> Option<&[u8]> {
        let text = self.replacements.get(from..)?;
        let end = text.iter().position(|&byte| byte == 0)?;
        Some(&text[..end])
    }
}

fn label(unit: u32) -> u32 {
    unit & 0x8000_00ff
}

fn has_leaf(unit: u32) -> bool {
    unit & 0x100 != 0
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 0x200) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_that_lies_about_its_size_is_refused() {
        assert!(CharsMap::parse(b"").unwrap_err().contains("0 bytes"));
        assert!(CharsMap::parse(&[200, 0, 0, 0, 1, 2]).unwrap_err().contains("200 bytes, but 2 follow"));
        assert!(CharsMap::parse(&[3, 0, 0, 0, 1, 2, 3, 4]).unwrap_err().contains("multiple of 4"));
    }

    #[test]
    fn an_array_that_points_outside_matches_nothing() {
        let mut blob = vec![4, 0, 0, 0];
        blob.extend_from_slice(&0xffff_ffffu32.to_le_bytes());
        let map = CharsMap::parse(&blob).unwrap();
        assert_eq!(map.longest(b"abc"), None);
    }
}
