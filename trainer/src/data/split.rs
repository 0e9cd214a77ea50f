//! Sets a fraction of the rows aside for evaluation, by (seed, row index) only.
//!
//! Whether a row is chosen depends on a hash of its index, so the split survives any change of batch, ranks or order
//! of training. With classes, each gives its share (largest remainders), and keeps at least one row for training.

use super::cache::TokenStore;
use super::error::SetProblem;
use super::rng::{self, Purpose};
use super::targets::TargetShape;

/// Row indices of both parts, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Rows to train on.
    pub train: Vec<u32>,
    /// Rows to evaluate on.
    pub eval: Vec<u32>,
}

/// Splits a data set; stratified by class for single-label data.
///
/// # Errors
/// A fraction outside (0, 1), or one that leaves either part empty.
pub fn split(store: &TokenStore, fraction: f64, seed: u64) -> Result<Split, SetProblem> {
    let class_of = |row: usize| match store.shape() {
        TargetShape::Class { .. } => store.target_words(row)[0] as usize,
        _ => 0,
    };
    let classes = match store.shape() {
        TargetShape::Class { classes } => classes,
        _ => 1,
    };
    split_by(store.rows(), classes, class_of, Fraction { fraction, seed })
}

#[derive(Clone, Copy)]
struct Fraction {
    fraction: f64,
    seed: u64,
}

fn split_by(
    rows: usize,
    classes: usize,
    class_of: impl Fn(usize) -> usize,
    wish: Fraction,
) -> Result<Split, SetProblem> {
    let Fraction { fraction, seed } = wish;
    let refuse = |reason: String| Err(SetProblem::Fraction { fraction, reason });
    if !(fraction > 0.0 && fraction < 1.0) {
        return refuse("it must be between 0 and 1".into());
    }
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); classes];
    for row in 0..rows {
        members[class_of(row)].push(row as u32);
    }
    let wanted = (rows as f64 * fraction).round() as usize;
    let sizes: Vec<usize> = members.iter().map(Vec::len).collect();
    let quotas = quotas(&sizes, fraction, wanted);
    let mut chosen = vec![false; rows];
    for (rows, &quota) in members.iter_mut().zip(&quotas) {
        rows.sort_unstable_by_key(|&row| (rng::key(seed, Purpose::Split, row.into()), row));
        rows[..quota].iter().for_each(|&row| chosen[row as usize] = true);
    }
    let (eval, train): (Vec<u32>, Vec<u32>) = (0..rows as u32).partition(|&row| chosen[row as usize]);
    match (train.is_empty(), eval.is_empty()) {
        (_, true) => refuse(format!("no row of {rows} would be left for evaluation")),
        (true, _) => refuse(format!("no row of {rows} would be left for training")),
        _ => Ok(Split { train, eval }),
    }
}

/// Evaluation rows per class: the whole part of each share, then one more by largest remainder up to `wanted`.
fn quotas(sizes: &[usize], fraction: f64, wanted: usize) -> Vec<usize> {
    let most = |size: usize| size.saturating_sub(1);
    let mut quotas: Vec<usize> =
        sizes.iter().map(|&size| ((size as f64 * fraction) as usize).min(most(size))).collect();
    let mut by_remainder: Vec<usize> = (0..sizes.len()).collect();
    let remainder = |class: usize| (sizes[class] as f64 * fraction).fract();
    by_remainder.sort_by(|&a, &b| remainder(b).total_cmp(&remainder(a)).then(a.cmp(&b)));
    for class in by_remainder {
        if quotas.iter().sum::<usize>() >= wanted {
            break;
        }
        if quotas[class] < most(sizes[class]) {
            quotas[class] += 1;
        }
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(fraction: f64, seed: u64) -> Fraction {
        Fraction { fraction, seed }
    }

    proptest! {
        #[test]
        fn parts_are_disjoint_complete_and_proportional(
            labels in prop::collection::vec(0usize..4, 20..300), fraction in 0.05f64..0.6, seed in any::<u64>(),
        ) {
            let Ok(split) = split_by(labels.len(), 4, |row| labels[row], wish(fraction, seed)) else {
                return Ok(());
            };
            let mut all: Vec<u32> = split.train.iter().chain(&split.eval).copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..labels.len() as u32).collect::<Vec<_>>());
            for class in 0..4 {
                let count = |rows: &[u32]| rows.iter().filter(|&&row| labels[row as usize] == class).count();
                let (train, eval) = (count(&split.train), count(&split.eval));
                let share = (train + eval) as f64 * fraction;
                prop_assert!((eval as f64 - share).abs() <= 1.0, "class {}: {} of {}", class, eval, train + eval);
                prop_assert!(train > 0 || eval == 0);
            }
        }
    }

    #[test]
    fn the_split_is_a_function_of_seed_and_row() {
        let of = |seed| split_by(500, 1, |_| 0, wish(0.2, seed)).expect("valid");
        assert_eq!(of(1), of(1));
        assert_ne!(of(1).eval, of(2).eval);
        assert_eq!(of(1).eval.len(), 100);
    }

    #[test]
    fn fractions_that_leave_a_part_empty_are_refused() {
        let said =
            |rows, fraction| split_by(rows, 1, |_| 0, wish(fraction, 1)).expect_err("refused").to_string();
        assert_eq!(said(10, 0.0), "data.eval_fraction = 0: it must be between 0 and 1");
        assert_eq!(said(10, 1.5), "data.eval_fraction = 1.5: it must be between 0 and 1");
        assert_eq!(said(10, 0.01), "data.eval_fraction = 0.01: no row of 10 would be left for evaluation");
        assert_eq!(said(1, 0.9), "data.eval_fraction = 0.9: no row of 1 would be left for evaluation");
    }
}
