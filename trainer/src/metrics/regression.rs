//! Errors and correlations of a regression task.

/// True and predicted values, kept because ranks need all of them: 8 bytes per value.
#[derive(Debug, Clone, PartialEq)]
pub struct ValuePairs {
    /// Per target: (truth, prediction).
    targets: Vec<Vec<(f32, f32)>>,
}

/// The numbers of one target; `None` where one does not exist.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ValueScores {
    pub mse: Option<f64>,
    pub mae: Option<f64>,
    pub pearson: Option<f64>,
    pub spearman: Option<f64>,
}

impl ValuePairs {
    /// Starts with no rows.
    pub fn new(width: usize) -> Self {
        Self { targets: vec![Vec::new(); width] }
    }

    /// Adds rows of predictions and targets, both `(R, width)`.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn add(&mut self, predictions: &[f32], targets: &[f32]) {
        let width = self.targets.len();
        assert_eq!(predictions.len(), targets.len(), "predictions and targets must be (rows, {width})");
        for (row, truth) in predictions.chunks_exact(width).zip(targets.chunks_exact(width)) {
            for ((pairs, &p), &t) in self.targets.iter_mut().zip(row).zip(truth) {
                pairs.push((t, p));
            }
        }
    }

    /// Adds the rows of another set of the same task.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.targets.len(), other.targets.len(), "pairs of one task have one width");
        self.targets.iter_mut().zip(&other.targets).for_each(|(a, b)| a.extend_from_slice(b));
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.targets.first().map_or(0, |t| t.len() as u64)
    }

    /// Rows with a prediction that is not finite.
    pub fn unpredicted(&self) -> u64 {
        let row_is_bad = |row: usize| self.targets.iter().any(|t| !t[row].1.is_finite());
        (0..self.rows() as usize).filter(|&row| row_is_bad(row)).count() as u64
    }

    /// Tells whether every prediction is the same although the truth varies: a collapsed model.
    pub fn is_constant(&self) -> bool {
        self.targets.iter().any(|t| varies(t.iter().map(|p| p.0)))
            && self.targets.iter().all(|t| !varies(t.iter().map(|p| p.1)))
    }

    pub(super) fn scores(&self) -> Vec<ValueScores> {
        self.targets.iter().map(|pairs| scores(pairs)).collect()
    }
}

fn varies(mut values: impl Iterator<Item = f32>) -> bool {
    let first = values.next();
    values.any(|v| Some(v) != first)
}

fn scores(pairs: &[(f32, f32)]) -> ValueScores {
    let finite = pairs.iter().all(|(t, p)| t.is_finite() && p.is_finite());
    if pairs.is_empty() || !finite {
        return ValueScores { mse: None, mae: None, pearson: None, spearman: None };
    }
    // Sorted first, so that sums do not depend on the order in which rows came.
    let mut sorted = pairs.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let truth: Vec<f64> = sorted.iter().map(|p| f64::from(p.0)).collect();
    let prediction: Vec<f64> = sorted.iter().map(|p| f64::from(p.1)).collect();
    let mean = |f: fn(f64) -> f64| {
        truth.iter().zip(&prediction).map(|(t, p)| f(p - t)).sum::<f64>() / truth.len() as f64
    };
    ValueScores {
        mse: Some(mean(|d| d * d)),
        mae: Some(mean(f64::abs)),
        pearson: pearson(&truth, &prediction),
        spearman: pearson(&ranks(&truth), &ranks(&prediction)),
    }
}

/// Linear correlation; `None` for fewer than two rows or a constant side.
fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    let constant = |v: &[f64]| v.iter().all(|a| *a == v[0]);
    if x.len() < 2 || constant(x) || constant(y) {
        return None;
    }
    let n = x.len() as f64;
    let (mx, my) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (a, b) in x.iter().zip(y) {
        let (da, db) = (a - mx, b - my);
        xx += da * da;
        yy += db * db;
        xy += da * db;
    }
    let spread = xx.sqrt() * yy.sqrt();
    (spread > 0.0).then(|| (xy / spread).clamp(-1.0, 1.0))
}

/// Ranks from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let value = values[order[start]];
        let end = start + order[start..].iter().take_while(|&&i| values[i] == value).count();
        for &i in &order[start..end] {
            ranks[i] = (start + 1 + end) as f64 / 2.0;
        }
        start = end;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_their_mean_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(ranks(&[0.0, -0.0]), [1.5, 1.5], "the two zeros are equal");
    }

    #[test]
    fn a_correlation_that_does_not_exist_is_none() {
        let mut pairs = ValuePairs::new(1);
        pairs.add(&[0.1, 0.1, 0.1], &[1.0, 2.0, 3.0]);
        let s = pairs.scores()[0];
        assert_eq!((s.pearson, s.spearman), (None, None));
        assert!(s.mse.is_some() && pairs.is_constant());
    }

    #[test]
    fn a_prediction_that_is_not_finite_gives_no_numbers() {
        let mut pairs = ValuePairs::new(1);
        pairs.add(&[f32::NAN, 1.0], &[1.0, 2.0]);
        assert_eq!((pairs.scores()[0].mse, pairs.unpredicted()), (None, 1));
    }
}
