//! The canonical order of summation: a balanced tree over the ranks of each node, then one over the nodes.
//!
//! [`fold`] is its definition. Every algorithm but the ring gives this order, so results do not depend on which one ran.

pub use muster_kernels::reduce::fold;

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
