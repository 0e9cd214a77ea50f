//! The canonical order of summation: a balanced tree over the ranks of each node, then one over the nodes.
//!
//! A tree over n values whose number is no power of two folds the first 2 (n - 2^floor(log2 n)) values in pairs and
//! halves the rest: what recursive doubling does. Ranks that do not take part are left out and their partner's value
//! goes up alone. Every algorithm but the ring gives this order, so results do not depend on which one ran.

/// Combines the values of all ranks, `nodes[i]` of them in the i-th node, in canonical order.
///
/// `leaf` gives a rank's value, or none if the rank does not take part; the result is none if nobody does.
pub fn fold<T>(
    nodes: &[usize],
    mut leaf: impl FnMut(usize) -> Option<T>,
    mut combine: impl FnMut(T, T) -> T,
) -> Option<T> {
    let mut next = 0;
    let mut sums = Vec::with_capacity(nodes.len());
    for &len in nodes {
        let values = (next..next + len).map(&mut leaf).collect();
        sums.push(tree(values, &mut combine));
        next += len;
    }
    tree(sums, &mut combine)
}

fn tree<T>(values: Vec<Option<T>>, combine: &mut impl FnMut(T, T) -> T) -> Option<T> {
    if values.is_empty() {
        return None;
    }
    let mut both = |a: Option<T>, b: Option<T>| match (a, b) {
        (Some(a), Some(b)) => Some(combine(a, b)),
        (one, other) => one.or(other),
    };
    let folded = values.len() - (1 << values.len().ilog2());
    let mut values = values.into_iter();
    let mut level = Vec::new();
    for _ in 0..folded {
        let (a, b) = (values.next().flatten(), values.next().flatten());
        level.push(both(a, b));
    }
    level.extend(values);
    while level.len() > 1 {
        let mut pairs = level.into_iter();
        let mut up = Vec::new();
        while let Some(a) = pairs.next() {
            up.push(both(a, pairs.next().flatten()));
        }
        level = up;
    }
    level.pop().flatten()
}

/// The sum of weights, in canonical order, so that every algorithm finds the same bits.
pub fn total_weight(nodes: &[usize], weights: &[f32]) -> f32 {
    fold(nodes, |rank| Some(weights[rank]).filter(|w| *w != 0.0), |a, b| a + b).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(nodes: &[usize], absent: &[usize]) -> Option<String> {
        let leaf = |r: usize| (!absent.contains(&r)).then(|| r.to_string());
        fold(nodes, leaf, |a, b| format!("({a}{b})"))
    }

    #[test]
    fn the_tree_folds_the_first_pairs_and_halves_the_rest() {
        let flat = |n: usize| expression(&[n], &[]).unwrap();
        assert_eq!(flat(1), "0");
        assert_eq!(flat(3), "((01)2)");
        assert_eq!(flat(5), "(((01)2)(34))");
        assert_eq!(flat(6), "(((01)(23))(45))");
        assert_eq!(flat(8), "(((01)(23))((45)(67)))");
        assert_eq!(expression(&[3, 2], &[]).unwrap(), "(((01)2)(34))");
        assert_eq!(expression(&[2, 2, 2], &[]).unwrap(), "(((01)(23))(45))");
    }

    #[test]
    fn absent_ranks_change_nothing_but_their_own_place() {
        assert_eq!(expression(&[4], &[1]).unwrap(), "(0(23))");
        assert_eq!(expression(&[2, 2], &[0, 1]).unwrap(), "(23)");
        assert_eq!(expression(&[2, 2], &[0, 1, 2, 3]), None);
        assert_eq!(expression(&[], &[]), None);
    }

    #[test]
    fn weights_of_zero_count_nothing() {
        assert_eq!(total_weight(&[2, 1], &[1.5, 0.0, 2.0]), 3.5);
        assert_eq!(total_weight(&[2], &[0.0, 0.0]), 0.0);
    }
}
