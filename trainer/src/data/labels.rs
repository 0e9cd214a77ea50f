//! The mapping between label names and class numbers: from the run file, or sorted; never by order of appearance.
//!
//! Two runs over the same rows in any order give the same mapping (case 23), and a label that the mapping lacks is
//! found while rows are validated, with its place (case 24).

use std::collections::HashMap;

use super::error::{FieldProblem, SetProblem};
use muster_proto::limits::MAX_LABELS;
use muster_proto::nearest;

/// Where a mapping comes from; part of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelOrigin {
    /// The list in the run file.
    RunFile,
    /// Found in the training data.
    TrainingData,
    /// The `id2label` of a trained model.
    Model,
}

impl LabelOrigin {
    pub(super) fn name(self) -> &'static str {
        match self {
            LabelOrigin::RunFile => "task.labels",
            LabelOrigin::TrainingData => "the training data",
            LabelOrigin::Model => "the model",
        }
    }
}

/// Label names in class order, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
    index: HashMap<String, u32>,
    origin: LabelOrigin,
}

impl Labels {
    /// Takes the list of the run file in its order.
    ///
    /// # Errors
    /// An empty list, an empty name, a name listed twice, too many names.
    pub fn explicit(names: &[String]) -> Result<Self, SetProblem> {
        let problem = |text: String| Err(SetProblem::LabelList(text));
        if names.is_empty() {
            return problem("the list is empty".into());
        }
        if names.len() > MAX_LABELS {
            return problem(format!("{} labels are listed, the limit is {MAX_LABELS}", names.len()));
        }
        let mut seen = HashMap::new();
        for (idx, name) in names.iter().enumerate() {
            if name.trim().is_empty() || name.trim() != name {
                return problem(format!("entry {} is empty or has blanks around it: \"{name}\"", idx + 1));
            }
            if let Some(before) = seen.insert(name, idx) {
                return problem(format!(
                    "\"{name}\" is listed twice (entries {} and {})",
                    before + 1,
                    idx + 1
                ));
            }
        }
        Ok(Self::of(names.to_vec(), LabelOrigin::RunFile))
    }

    /// Takes the labels found in training data: sorted as numbers if every name is one, by their bytes otherwise.
    pub fn sorted(names: impl IntoIterator<Item = String>) -> Self {
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        let numbers: Option<Vec<f64>> =
            names.iter().map(|name| name.parse::<f64>().ok().filter(|x| x.is_finite())).collect();
        if let Some(numbers) = numbers {
            let mut pairs: Vec<(f64, String)> = numbers.into_iter().zip(names).collect();
            // Equal numbers ("1", "1.0") keep the order of their bytes: the sort is stable.
            pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
            names = pairs.into_iter().map(|(_, name)| name).collect();
        }
        Self::of(names, LabelOrigin::TrainingData)
    }

    /// Takes the labels of a trained model: data with the same names in any order is mapped to them.
    pub fn of_model(names: &[String]) -> Self {
        Self::of(names.to_vec(), LabelOrigin::Model)
    }

    /// Restores a mapping that was stored (token cache, checkpoint, `id2label` of a model).
    pub(super) fn of(names: Vec<String>, origin: LabelOrigin) -> Self {
        let index = names.iter().enumerate().map(|(idx, name)| (name.clone(), idx as u32)).collect();
        Self { names, index, origin }
    }

    /// Names in class order (`id2label`).
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Tells whether there is no label (regression, prediction).
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Where the mapping comes from.
    pub fn origin(&self) -> LabelOrigin {
        self.origin
    }

    /// Class number of a name (`label2id`).
    pub fn id(&self, name: &str) -> Option<u32> {
        self.index.get(name).copied()
    }

    /// Class number of a name, or the error that names the nearest label.
    pub(super) fn require(&self, name: &str) -> Result<u32, FieldProblem> {
        self.id(name).ok_or_else(|| FieldProblem::UnknownLabel {
            label: name.into(),
            count: self.len(),
            origin: self.origin,
            nearest: nearest(name, self.names.iter().map(String::as_str)).map(Box::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn numeric_labels_sort_as_numbers_and_others_by_bytes() {
        assert_eq!(Labels::sorted(strings(&["10", "2", "-1", "2"])).names(), ["-1", "2", "10"]);
        assert_eq!(Labels::sorted(strings(&["10", "2", "x"])).names(), ["10", "2", "x"]);
        assert_eq!(Labels::sorted(strings(&["b", "Z", "a"])).names(), ["Z", "a", "b"]);
    }

    #[test]
    fn an_explicit_list_keeps_its_order_and_refuses_duplicates_and_blanks() {
        let labels = Labels::explicit(&strings(&["neg", "pos", "neu"])).expect("valid");
        assert_eq!((labels.id("neu"), labels.id("other"), labels.len()), (Some(2), None, 3));
        for (list, said) in [
            (strings(&["a", "b", "a"]), "task.labels: \"a\" is listed twice (entries 1 and 3)"),
            (strings(&["a", " "]), "task.labels: entry 2 is empty or has blanks around it: \" \""),
            (vec![], "task.labels: the list is empty"),
        ] {
            assert_eq!(Labels::explicit(&list).expect_err("invalid").to_string(), said);
        }
    }
}
