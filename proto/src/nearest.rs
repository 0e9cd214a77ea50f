//! The name that was probably meant.

use strsim::damerau_levenshtein;

/// The nearest of some names by edit distance, unless even that one is far: more than a third of the word (but two
/// characters may always be wrong), or all of it. Case, blanks, `-` and `_` make no difference.
pub fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let word = folded(word);
    let len = word.chars().count();
    let far = (len / 3).max(2).min(len.saturating_sub(1));
    names
        .into_iter()
        .map(|name| (damerau_levenshtein(&word, &folded(name)), name))
        .filter(|&(distance, _)| distance <= far)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

fn folded(name: &str) -> String {
    name.trim().to_lowercase().replace(['_', '-', ' '], "")
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not_offered() {
        let names = ["positive", "negative", "very_positive"];
        assert_eq!(nearest("postive", names), Some("positive"));
        assert_eq!(nearest("Very Positive", names), Some("very_positive"));
        assert_eq!(nearest("neutral", names), None);
        assert_eq!(nearest("x", ["id", "y"]), None, "nothing of the word would be left");
    }
}
