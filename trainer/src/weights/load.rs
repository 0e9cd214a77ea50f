//! Fits the tensors of a file to the parameters of a model.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use super::dtype::StoredDtype;
use super::error::WeightsError;
use super::files::WeightFiles;
use crate::params::{Layout, Param, ParamKind};

/// Names shown of a long list.
const SHOWN: usize = 10;

/// What a missing or differently shaped head parameter means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRule {
    /// Fine-tuning starts: the head keeps its initial values and is reported as new.
    MayBeNew,
    /// A trained model is read: a missing head is an error.
    Required,
}

/// How names in files relate to names of parameters.
#[derive(Debug, Clone)]
pub struct LoadRules {
    /// Prefixes of the base model, which files of a bare encoder leave out.
    pub base_prefixes: Vec<String>,
    /// Whether the head may be missing.
    pub head: HeadRule,
    /// Tensors starting with one of these (base prefix removed) are known to be of no use when unmatched.
    pub ignored_prefixes: Vec<String>,
    /// The same for ends of names.
    pub ignored_suffixes: Vec<String>,
}

impl LoadRules {
    /// Rules for BERT, RoBERTa and DeBERTa files as found on the hub.
    pub fn new(head: HeadRule) -> Self {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        Self {
            base_prefixes: owned(&["bert.", "roberta.", "deberta."]),
            head,
            ignored_prefixes: owned(&[
                "lm_predictions.",
                "mask_predictions.",
                "cls.",
                "lm_head.",
                "pooler.",
                "embeddings.position_embeddings.",
            ]),
            ignored_suffixes: owned(&["position_ids", "word_embeddings._weight"]),
        }
    }

    fn strip<'a>(&self, name: &'a str) -> &'a str {
        self.base_prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_str())).unwrap_or(name)
    }

    fn is_ignored(&self, name: &str) -> bool {
        let bare = self.strip(name);
        self.ignored_prefixes.iter().any(|prefix| bare.starts_with(prefix))
            || self.ignored_suffixes.iter().any(|suffix| bare.ends_with(suffix))
    }

    /// Names under which `param` may be stored, best first: as it is, without the base prefix, and both again
    /// with the names that LayerNorm had in TensorFlow.
    fn candidates(&self, param: &Param) -> Vec<String> {
        let mut names = vec![param.name.clone()];
        let bare = self.strip(&param.name);
        if bare != param.name {
            names.push(bare.to_owned());
        }
        if matches!(param.kind, ParamKind::Gain | ParamKind::Bias) && param.name.contains("LayerNorm") {
            let old: Vec<String> = names.iter().filter_map(|name| old_norm_name(name)).collect();
            names.extend(old);
        }
        names
    }
}

fn old_norm_name(name: &str) -> Option<String> {
    let old = |stem: &str, end| format!("{stem}.{end}");
    name.strip_suffix(".weight")
        .map(|stem| old(stem, "gamma"))
        .or_else(|| name.strip_suffix(".bias").map(|stem| old(stem, "beta")))
}

/// A head parameter that the file holds in another shape, usually for other labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reshaped {
    /// The parameter.
    pub name: String,
    /// Shape in the file.
    pub stored: Vec<usize>,
    /// Shape in the model.
    pub wanted: Vec<usize>,
}

/// What came from the file and what didn't. Display gives it line by line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// The file, or the index of its shards.
    pub origin: String,
    /// Element types of the tensors used; everything becomes f32.
    pub dtypes: Vec<StoredDtype>,
    /// Parameters read from the file.
    pub loaded: Vec<String>,
    /// Numbers read from the file.
    pub loaded_elements: usize,
    /// Head parameters that keep their initial values.
    pub new: Vec<String>,
    /// Head parameters among `new` that the file holds in another shape.
    pub reshaped: Vec<Reshaped>,
    /// Tensors without a use that such files usually hold, e.g. of the pre-training head.
    pub ignored: Vec<String>,
    /// Tensors without a use that nobody expects; they deserve a look.
    pub unexpected: Vec<String>,
}

/// Copies the tensors of `files` into the f32 arena `master`.
///
/// Head parameters that the file lacks keep the values they have in `master`.
///
/// # Errors
/// An encoder parameter is missing or has another shape, or a tensor can't be read. `master` may then be partly
/// filled.
///
/// # Panics
/// If `master` is not as long as the layout's arena.
pub fn load_into(
    files: &WeightFiles,
    layout: &Layout,
    rules: &LoadRules,
    master: &mut [f32],
) -> Result<LoadReport, WeightsError> {
    assert_eq!(master.len(), layout.arena_len(), "weights must fill the arena");
    let plan = plan(files, layout, rules)?;
    let mut report = plan.report;
    let mut dtypes = BTreeSet::new();
    let mut reads = plan.reads;
    // In the order of the files: disks and network file systems like it.
    reads.sort_by_cached_key(|(stored, _)| files.position(stored));
    for (stored, param) in &reads {
        files.read_f32(stored, &mut master[param.range.clone()])?;
        dtypes.extend(files.info(stored).map(|info| info.dtype));
        report.loaded_elements += param.range.len();
    }
    report.loaded = reads.into_iter().map(|(_, param)| param.name.clone()).collect();
    report.dtypes = dtypes.into_iter().collect();
    Ok(report)
}

struct Plan<'a> {
    reads: Vec<(String, &'a Param)>,
    report: LoadReport,
}

/// Decides which tensor fills which parameter before any is read.
fn plan<'a>(files: &WeightFiles, layout: &'a Layout, rules: &LoadRules) -> Result<Plan<'a>, WeightsError> {
    let origin = files.describe().to_owned();
    let (mut reads, mut new, mut reshaped, mut missing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut used: HashSet<String> = HashSet::new();
    for param in layout.params() {
        let may_be_new = param.head && rules.head == HeadRule::MayBeNew;
        let found = rules.candidates(param).into_iter().find_map(|name| Some((files.info(&name)?, name)));
        match found {
            Some((info, name)) if info.shape == param.shape => {
                used.insert(name.clone());
                reads.push((name, param));
            }
            Some((info, name)) if may_be_new => {
                let (stored, wanted) = (info.shape.clone(), param.shape.clone());
                reshaped.push(Reshaped { name: param.name.clone(), stored, wanted });
                new.push(param.name.clone());
                used.insert(name);
            }
            Some((info, name)) => {
                let (stored, wanted) = (info.shape.clone(), param.shape.clone());
                return Err(WeightsError::Shape { origin, name, stored, wanted });
            }
            None if may_be_new => new.push(param.name.clone()),
            None => missing.push(param.name.clone()),
        }
    }
    let mut rest: Vec<&str> =
        files.tensors().map(|info| info.name.as_str()).filter(|name| !used.contains(*name)).collect();
    rest.sort_unstable();
    if !missing.is_empty() {
        let present =
            rest.iter().filter(|name| !rules.is_ignored(name)).take(3).map(|&name| name.to_owned()).collect();
        let (count, total) = (missing.len(), layout.params().len());
        missing.truncate(SHOWN);
        return Err(WeightsError::Missing { origin, missing, count, total, present });
    }
    let (ignored, unexpected) =
        rest.into_iter().map(str::to_owned).partition(|name: &String| rules.is_ignored(name));
    let (dtypes, loaded) = (Vec::new(), Vec::new());
    let report =
        LoadReport { origin, dtypes, loaded, loaded_elements: 0, new, reshaped, ignored, unexpected };
    Ok(Plan { reads, report })
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stored: Vec<String> = self.dtypes.iter().map(ToString::to_string).collect();
        let exact = !self.dtypes.contains(&StoredDtype::F64);
        let note = match self.dtypes.as_slice() {
            [] | [StoredDtype::F32] => String::new(),
            _ if exact => ", widened to f32 without loss".into(),
            _ => ", rounded to f32".into(),
        };
        write!(
            f,
            "loaded {} tensors ({:.2} M numbers, {}{note}) from {}",
            self.loaded.len(),
            self.loaded_elements as f64 / 1e6,
            stored.join(" + "),
            self.origin
        )?;
        if !self.new.is_empty() {
            write!(f, "\nnew, from the seed: {}", shown(&self.new))?;
        }
        for head in &self.reshaped {
            write!(
                f,
                "\n  {} is {:?} in the file, {:?} for these labels",
                head.name, head.stored, head.wanted
            )?;
        }
        if !self.ignored.is_empty() {
            write!(f, "\nnot needed, as usual: {} tensors (pre-training head, buffers)", self.ignored.len())?;
        }
        if !self.unexpected.is_empty() {
            write!(f, "\nunexpected, unused: {}", shown(&self.unexpected))?;
        }
        Ok(())
    }
}

fn shown(names: &[String]) -> String {
    let list = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}
