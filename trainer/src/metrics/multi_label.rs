//! Counts of a multi-label task: each label is its own yes-or-no question.

use super::counts::LabelCounts;

/// Counts per label, and rows with every label right.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiLabelCounts {
    /// A label is given when `logit >= cut`.
    cut: f32,
    labels: Vec<LabelCounts>,
    rows: u64,
    exact: u64,
    unpredicted: u64,
}

impl MultiLabelCounts {
    /// Starts with no rows; a label is given when its probability is at least `threshold`, in (0, 1).
    pub fn new(width: usize, threshold: f32) -> Self {
        Self {
            cut: logit_of(threshold),
            labels: vec![LabelCounts::default(); width],
            rows: 0,
            exact: 0,
            unpredicted: 0,
        }
    }

    /// Adds rows by their logits and 0/1 targets, both `(R, width)`.
    ///
    /// A row with a logit that is not finite gets no label and is never exact.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn add_logits(&mut self, logits: &[f32], targets: &[f32]) {
        assert_eq!(logits.len(), targets.len(), "logits and targets must be (rows, labels)");
        let width = self.labels.len();
        assert_eq!(logits.len() % width.max(1), 0, "logits must be (rows, {width})");
        for (row, truth) in logits.chunks_exact(width).zip(targets.chunks_exact(width)) {
            let finite = row.iter().all(|x| x.is_finite());
            let mut exact = finite;
            for ((label, &x), &t) in self.labels.iter_mut().zip(row).zip(truth) {
                match (finite && x >= self.cut, t > 0.5) {
                    (true, true) => label.true_positive += 1,
                    (true, false) => label.false_positive += 1,
                    (false, true) => label.false_negative += 1,
                    (false, false) => continue,
                }
                exact &= (x >= self.cut) == (t > 0.5);
            }
            self.rows += 1;
            self.exact += u64::from(exact);
            self.unpredicted += u64::from(!finite);
        }
    }

    /// Adds the counts of other rows of the same task.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.labels.len(), other.labels.len(), "counts of one task have one width");
        self.labels.iter_mut().zip(&other.labels).for_each(|(a, b)| a.merge(*b));
        self.rows += other.rows;
        self.exact += other.exact;
        self.unpredicted += other.unpredicted;
    }

    /// Counts of every label.
    pub fn labels(&self) -> &[LabelCounts] {
        &self.labels
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows with a logit that is not finite.
    pub fn unpredicted(&self) -> u64 {
        self.unpredicted
    }

    /// Share of rows with every label right; `None` without rows.
    pub fn subset_accuracy(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.exact as f64 / self.rows as f64)
    }

    /// Tells whether every label is always or never given although some label varies: a collapsed model.
    pub fn is_constant(&self) -> bool {
        let whole = |n: u64| n == 0 || n == self.rows;
        self.rows > 1
            && self.labels.iter().all(|l| whole(l.predicted()))
            && self.labels.iter().any(|l| !whole(l.support()))
    }
}

/// The logit from which a label is given: `sigmoid(x) >= p` is `x >= ln(p / (1 - p))`. No exponential per logit, and no
/// rounding near the threshold.
pub fn logit_of(threshold: f32) -> f32 {
    let p = f64::from(threshold);
    (p / (1.0 - p)).ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_a_probability_and_inclusive() {
        let mut half = MultiLabelCounts::new(1, 0.5);
        half.add_logits(&[0.0, -0.001], &[1.0, 1.0]);
        assert_eq!(half.labels()[0].true_positive, 1);
        let mut high = MultiLabelCounts::new(1, 0.9);
        high.add_logits(&[2.19, 2.20], &[1.0, 1.0]); // ln(9) = 2.1972
        assert_eq!(high.labels()[0].true_positive, 1);
    }

    #[test]
    fn a_model_that_never_gives_a_label_is_constant() {
        let mut c = MultiLabelCounts::new(2, 0.5);
        c.add_logits(&[-1.0, -1.0, -1.0, -1.0], &[1.0, 0.0, 0.0, 0.0]);
        assert!(c.is_constant());
        c.add_logits(&[1.0, -1.0], &[1.0, 0.0]);
        assert!(!c.is_constant());
    }

    #[test]
    fn a_row_that_is_not_finite_is_never_exact() {
        let mut c = MultiLabelCounts::new(2, 0.5);
        c.add_logits(&[f32::NAN, -1.0], &[0.0, 0.0]);
        assert_eq!((c.subset_accuracy(), c.unpredicted()), (Some(0.0), 1));
    }
}
