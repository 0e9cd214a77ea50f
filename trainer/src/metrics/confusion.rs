//! The confusion matrix of a single-label task.

use super::counts::LabelCounts;

/// Rows counted by true class and predicted class.
///
/// A row whose logits are not all finite has no prediction: it counts as wrong, for no class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confusion {
    classes: usize,
    /// `(truth, prediction)`, row-major.
    counts: Vec<u64>,
    /// Rows without a prediction, by true class.
    unpredicted: Vec<u64>,
}

impl Confusion {
    /// Starts with no rows.
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes], unpredicted: vec![0; classes] }
    }

    /// Adds rows by their logits, shape `(R, classes)`; the first of equal largest logits is the prediction.
    ///
    /// # Panics
    /// If the shapes differ or a target is not a class.
    pub fn add_logits(&mut self, logits: &[f32], targets: &[u32]) {
        assert_eq!(logits.len(), targets.len() * self.classes, "logits must be (rows, classes)");
        for (row, &truth) in logits.chunks_exact(self.classes).zip(targets) {
            self.add(truth as usize, argmax(row));
        }
    }

    /// Adds one row.
    ///
    /// # Panics
    /// If `truth` or `prediction` is not a class.
    pub fn add(&mut self, truth: usize, prediction: Option<usize>) {
        assert!(truth < self.classes, "class {truth} of {}", self.classes);
        match prediction {
            Some(class) => {
                assert!(class < self.classes, "class {class} of {}", self.classes);
                self.counts[truth * self.classes + class] += 1;
            }
            None => self.unpredicted[truth] += 1,
        }
    }

    /// Adds the rows of another matrix of the same size.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.classes, other.classes, "matrices of one task have one size");
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.unpredicted.iter_mut().zip(&other.unpredicted).for_each(|(a, b)| *a += b);
    }

    /// Rows of class `truth` that were predicted as `prediction`.
    pub fn count(&self, truth: usize, prediction: usize) -> u64 {
        self.counts[truth * self.classes + prediction]
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.counts.iter().chain(&self.unpredicted).sum()
    }

    /// Rows without a prediction.
    pub fn unpredicted(&self) -> u64 {
        self.unpredicted.iter().sum()
    }

    /// The matrix as one list per true class.
    pub fn matrix(&self) -> Vec<Vec<u64>> {
        self.counts.chunks_exact(self.classes.max(1)).map(<[u64]>::to_vec).collect()
    }

    /// Counts of every class.
    pub fn labels(&self) -> Vec<LabelCounts> {
        (0..self.classes)
            .map(|class| {
                let hits = self.count(class, class);
                LabelCounts {
                    true_positive: hits,
                    false_positive: self.predictions_of(class) - hits,
                    false_negative: self.truths_of(class) - hits,
                }
            })
            .collect()
    }

    /// Share of right rows; `None` without rows.
    pub fn accuracy(&self) -> Option<f64> {
        let rows = self.rows();
        (rows > 0).then(|| self.hits() as f64 / rows as f64)
    }

    /// Matthews correlation coefficient; 0 if truth or predictions are constant, `None` without rows.
    ///
    /// Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    pub fn mcc(&self) -> Option<f64> {
        let rows = i128::from(self.rows());
        if rows == 0 {
            return None;
        }
        let (mut joint, mut truths, mut predictions) = (0i128, 0i128, i128::from(self.unpredicted()).pow(2));
        for class in 0..self.classes {
            let (t, p) = (i128::from(self.truths_of(class)), i128::from(self.predictions_of(class)));
            joint += t * p;
            truths += t * t;
            predictions += p * p;
        }
        let covariance = (i128::from(self.hits()) * rows - joint) as f64;
        let spread = ((rows * rows - truths) as f64).sqrt() * ((rows * rows - predictions) as f64).sqrt();
        Some(if spread == 0.0 { 0.0 } else { covariance / spread })
    }

    /// The class given to every row although the truth has several: the sign of a collapsed model.
    pub fn only_prediction(&self) -> Option<usize> {
        let truths = (0..self.classes).filter(|&c| self.truths_of(c) > 0).count();
        let mut predicted = (0..self.classes).filter(|&c| self.predictions_of(c) > 0);
        let only = predicted.next()?;
        (truths > 1 && predicted.next().is_none() && self.unpredicted() == 0).then_some(only)
    }

    fn hits(&self) -> u64 {
        (0..self.classes).map(|c| self.count(c, c)).sum()
    }

    fn truths_of(&self, class: usize) -> u64 {
        let row = &self.counts[class * self.classes..(class + 1) * self.classes];
        row.iter().sum::<u64>() + self.unpredicted[class]
    }

    fn predictions_of(&self, class: usize) -> u64 {
        (0..self.classes).map(|truth| self.count(truth, class)).sum()
    }
}

/// Index of the largest logit, the first one of equals; `None` if one of them is not finite.
pub fn argmax(row: &[f32]) -> Option<usize> {
    if row.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = i;
        }
    }
    (!row.is_empty()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_give_the_first_class_and_nan_gives_none() {
        assert_eq!(argmax(&[1.0, 1.0]), Some(0));
        assert_eq!(argmax(&[1.0, 2.0, 2.0]), Some(1));
        assert_eq!(argmax(&[f32::NAN, 2.0]), None);
        assert_eq!(argmax(&[f32::INFINITY, 2.0]), None);
    }

    #[test]
    fn a_row_without_a_prediction_is_wrong_and_counted() {
        let mut c = Confusion::new(2);
        c.add_logits(&[f32::NAN, 0.0, 0.0, 1.0], &[1, 1]);
        assert_eq!((c.rows(), c.unpredicted(), c.accuracy()), (2, 1, Some(0.5)));
        let label = c.labels()[1];
        assert_eq!((label.support(), label.predicted(), label.recall()), (2, 1, Some(0.5)));
    }

    #[test]
    fn case_28_one_class_for_all_rows_is_detected() {
        let mut c = Confusion::new(3);
        for truth in [0, 1, 1, 2] {
            c.add(truth, Some(1));
        }
        assert_eq!((c.only_prediction(), c.mcc()), (Some(1), Some(0.0)));
        c.add(0, Some(0));
        assert_eq!(c.only_prediction(), None);
        let mut constant_truth = Confusion::new(3);
        constant_truth.add(1, Some(1));
        assert_eq!(constant_truth.only_prediction(), None, "all rows are of that class");
    }

    #[test]
    fn no_rows_give_no_numbers() {
        let c = Confusion::new(2);
        assert_eq!((c.accuracy(), c.mcc(), c.labels()[0].f1()), (None, None, None));
    }
}
