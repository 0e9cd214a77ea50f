//! Counts of one label and the averages over labels.

/// How often a label was right, wrongly given, and missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LabelCounts {
    /// Rows that have the label and got it.
    pub true_positive: u64,
    /// Rows that got the label without having it.
    pub false_positive: u64,
    /// Rows that have the label and did not get it.
    pub false_negative: u64,
}

impl LabelCounts {
    /// Rows that have the label.
    pub fn support(self) -> u64 {
        self.true_positive + self.false_negative
    }

    /// Rows that got the label.
    pub fn predicted(self) -> u64 {
        self.true_positive + self.false_positive
    }

    /// Tells whether the label occurs neither in the truth nor in the predictions.
    pub fn is_absent(self) -> bool {
        self.support() + self.predicted() == 0
    }

    /// Right ones among the predicted ones: 0 if there are none, `None` for an absent label.
    pub fn precision(self) -> Option<f64> {
        self.share(self.true_positive, self.predicted())
    }

    /// Found ones among the true ones: 0 if there are none, `None` for an absent label.
    pub fn recall(self) -> Option<f64> {
        self.share(self.true_positive, self.support())
    }

    /// Harmonic mean of precision and recall; `None` for an absent label.
    pub fn f1(self) -> Option<f64> {
        self.share(2 * self.true_positive, self.predicted() + self.support())
    }

    /// Adds the counts of other rows.
    pub fn merge(&mut self, other: Self) {
        self.true_positive += other.true_positive;
        self.false_positive += other.false_positive;
        self.false_negative += other.false_negative;
    }

    fn share(self, part: u64, whole: u64) -> Option<f64> {
        if self.is_absent() {
            None
        } else if whole == 0 {
            Some(0.0)
        } else {
            Some(part as f64 / whole as f64)
        }
    }
}

/// Mean F1 of the labels that occur.
pub(super) fn f1_macro(labels: &[LabelCounts]) -> Option<f64> {
    let scores: Vec<f64> = labels.iter().filter_map(|l| l.f1()).collect();
    (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
}

/// F1 of all decisions taken together.
pub(super) fn f1_micro(labels: &[LabelCounts]) -> Option<f64> {
    let mut all = LabelCounts::default();
    for label in labels {
        all.merge(*label);
    }
    all.f1()
}

/// Mean F1 weighted by support; 0 if no row has a label although some got one.
pub(super) fn f1_weighted(labels: &[LabelCounts]) -> Option<f64> {
    let support: u64 = labels.iter().map(|l| l.support()).sum();
    if support == 0 {
        return labels.iter().any(|l| !l.is_absent()).then_some(0.0);
    }
    let sum: f64 = labels.iter().filter_map(|l| Some(l.support() as f64 * l.f1()?)).sum();
    Some(sum / support as f64)
}
