//! What the ranks of a scaling curve train: a run file of the user, or a model and data made on the spot.
//!
//! The made one is offline: DeBERTa-v3-xsmall's shape with its whole vocabulary, random weights, and rows of banking77's
//! lengths whose words follow Zipf's law, so that as many rows of the word table are touched as by real text.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use muster_kernels::rng;
use muster_proto::RunSpec;
use muster_trainer::data::Sampler;
use serde_json::json;
use toml_edit::{DocumentMut, Item, Table, value};

use crate::shapes::{BANKING77_LENGTHS, SHAPES, Shape};

/// Classes of banking77.
const CLASSES: u64 = 77;
/// Rows of the made data; a multiple of every usual global batch.
const ROWS: u64 = 4096;
/// Seed of the made rows, and of the run.
const SEED: u64 = 42;
/// Special tokens of the made vocabulary.
const SPECIAL: [&str; 5] = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"];

/// A run that can be started with other numbers of ranks and rows.
#[derive(Debug)]
pub struct Workload {
    /// The run file, without an end and without evaluation.
    pub run_file: PathBuf,
    /// What it is, for people.
    pub describe: String,
    /// Rows of its global batch.
    pub global_batch: usize,
    /// The made model's configuration and rows; none for a run file of the user.
    pub made: Option<Made>,
}

/// What a peer needs to do the same work.
#[derive(Debug)]
pub struct Made {
    /// `config.json`.
    pub config: PathBuf,
    lengths: Vec<u32>,
}

impl Made {
    /// Tokens of each row of each step, as the run orders them.
    pub fn steps(&self, global_batch: usize, steps: usize) -> Vec<Vec<u32>> {
        let sampler = Sampler::new(SEED, self.lengths.len() as u64, global_batch as u64);
        let order = sampler.epoch_order(0);
        let last = (steps as u64).min(sampler.steps_per_epoch());
        let length = |row: u64| self.lengths.get(row as usize).copied().unwrap_or(2);
        (0..last).map(|step| order.rows_of_step(step).map(length).collect()).collect()
    }
}

impl Workload {
    /// Makes the model `shape` and its data in `dir`.
    ///
    /// # Errors
    /// An unknown shape, or a disk that refuses.
    pub fn make(dir: &Path, shape: &str, global_batch: usize) -> Result<Self> {
        let known = SHAPES.map(|shape| shape.name).join(", ");
        let found = SHAPES.iter().find(|known| known.name == shape);
        let shape = found.with_context(|| format!("there is no shape {shape:?}; there are {known}"))?;
        let model = dir.join("model");
        fs::create_dir_all(&model).with_context(|| format!("can't make {}", model.display()))?;
        write(&model.join("config.json"), &shape.config_json())?;
        write(&model.join("tokenizer.json"), &tokenizer(shape))?;
        let (csv, lengths) = rows(shape);
        write(&dir.join("train.csv"), &csv)?;
        let run_file = dir.join("run.toml");
        let text = format!(
            "version = 1\nname = \"scaling\"\nseed = {SEED}\noutput_dir = \"out\"\n[model]\npath = \"model\"\ninit = \"random\"\n\
             [task]\ntype = \"single_label\"\n[data]\ntrain = \"train.csv\"\ncache_dir = \"cache\"\n[train]\n\
             global_batch = {global_batch}\nlearning_rate = 1e-4\nlog_every_steps = 1\n"
        );
        write(&run_file, &text)?;
        let describe = format!("{}, random weights, rows of banking77's lengths", shape.name);
        let made = Some(Made { config: model.join("config.json"), lengths });
        Ok(Self { run_file, describe, global_batch, made })
    }

    /// Takes a run file of the user: without evaluation, tests and an end, with paths that hold anywhere.
    ///
    /// # Errors
    /// A bad run file.
    pub fn of_run(dir: &Path, path: &Path, overrides: &[String]) -> Result<Self> {
        let spec = RunSpec::load_with(path, overrides)?;
        let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        let text = endless(&text, path, &spec)?;
        let run_file = dir.join("run.toml");
        write(&run_file, &text)?;
        let describe = format!("{} ({})", spec.name, spec.model.path);
        Ok(Self { run_file, describe, global_batch: spec.train.global_batch, made: None })
    }
}

/// The run file's text without evaluation and end. Overrides are given again to whoever starts it.
fn endless(text: &str, path: &Path, spec: &RunSpec) -> Result<String> {
    let mut document: DocumentMut = text.parse().context("the run file can't be edited")?;
    let absolute = |path: &Path| std::path::absolute(path).map(|path| path.to_string_lossy().into_owned());
    let base = path.parent().unwrap_or(Path::new("."));
    document.remove("eval");
    document.remove("checkpoint");
    let model = base.join(&spec.model.path);
    if model.is_dir() {
        table(&mut document, "model")?["path"] = value(absolute(&model)?);
    }
    let data = table(&mut document, "data")?;
    for key in ["eval", "eval_fraction", "test"] {
        data.remove(key);
    }
    let files =
        spec.data.train.iter().map(|file| absolute(file)).collect::<std::io::Result<toml_edit::Array>>()?;
    data["train"] = value(files);
    if let Some(cache) = &spec.data.cache_dir {
        data["cache_dir"] = value(absolute(cache)?);
    }
    let train = table(&mut document, "train")?;
    train.remove("epochs");
    train["log_every_steps"] = value(1);
    Ok(document.to_string())
}

/// A table of a run file, made if it is not there.
///
/// # Errors
/// Something else of that name.
pub fn table<'a>(document: &'a mut DocumentMut, name: &str) -> Result<&'a mut Table> {
    let item = document.entry(name).or_insert(Item::Table(Table::new()));
    if item.is_inline_table() {
        let taken = std::mem::take(item);
        *item = Item::Table(taken.into_table().map_err(|_| anyhow::anyhow!("[{name}] is no table"))?);
    }
    item.as_table_mut().with_context(|| format!("[{name}] of the run file is no table"))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

/// One token per word, as many as the model has rows.
fn tokenizer(shape: &Shape) -> String {
    let words = SPECIAL.iter().map(ToString::to_string).chain((SPECIAL.len()..shape.vocab()).map(word));
    let vocab: serde_json::Map<_, _> = words.enumerate().map(|(id, word)| (word, json!(id))).collect();
    let added: Vec<_> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true })
        })
        .collect();
    let description = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1] },
        "model": { "type": "WordLevel", "unk_token": "[UNK]", "vocab": vocab },
    });
    description.to_string()
}

fn word(id: usize) -> String {
    format!("w{id}")
}

/// The rows as CSV, and the tokens of each.
fn rows(shape: &Shape) -> (String, Vec<u32>) {
    let key = rng::mix(SEED, 77);
    // Zipf's law over the ranks of words: P(rank <= r) = ln(r) / ln(words), so rank = words^u.
    let words = (shape.vocab() - SPECIAL.len()) as f64;
    let mut text = String::from("text,label\n");
    let mut lengths = Vec::new();
    for row in 0..ROWS {
        let quantile = rng::below(key, row, BANKING77_LENGTHS.len() as u64) as usize;
        let tokens = BANKING77_LENGTHS[quantile];
        for place in 0..u64::from(tokens - 2) {
            let rank = words.powf(rng::uniform(key, 1 << 32 | row << 10 | place)) as usize;
            let id = SPECIAL.len() + rank.min(words as usize - 1);
            // Writing to a string can't fail.
            let _ = write!(text, "{}{}", if place == 0 { "" } else { " " }, word(id));
        }
        let _ = writeln!(text, ",class{:02}", rng::below(key, 1 << 40 | row, CLASSES));
        lengths.push(tokens);
    }
    (text, lengths)
}

/// Refuses a batch that ranks can't share.
///
/// # Errors
/// Fewer rows than ranks.
pub fn check_rows(rows: usize, ranks: usize) -> Result<()> {
    ensure!(
        rows >= ranks,
        "a global batch of {rows} rows leaves some of {ranks} ranks without work; take more rows"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_run_file_loses_its_end_and_keeps_its_comments() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("m")).expect("made");
        let text = "# mine\nversion = 1\n[model]\npath = \"m\"\n[task]\ntype = \"single_label\"\n[data]\ntrain = \"t.csv\"\n\
            eval_fraction = 0.1 # tenth\n[eval]\nevery = \"end\"\n[train]\nepochs = 2\nglobal_batch = 8\n";
        let path = dir.path().join("mine.toml");
        fs::write(&path, text).expect("written");
        let out = tempfile::tempdir().expect("a directory");
        let workload = Workload::of_run(out.path(), &path, &[]).expect("a workload");
        let made = fs::read_to_string(&workload.run_file).expect("a run file");
        assert!(made.starts_with("# mine") && !made.contains("eval") && !made.contains("epochs"), "{made}");
        let spec = RunSpec::load_with(&workload.run_file, &["train.max_steps=5".into()]).expect("valid");
        assert_eq!(spec.data.train, [dir.path().join("t.csv")]);
        assert!(Path::new(&spec.model.path).is_absolute());
        assert_eq!((workload.global_batch, spec.train.log_every_steps), (8, 1));
    }

    #[test]
    fn made_rows_have_the_lengths_that_peers_are_told() {
        let (text, lengths) = rows(&SHAPES[0]);
        assert_eq!(lengths.len() as u64, ROWS);
        for (line, tokens) in text.lines().skip(1).zip(&lengths) {
            let words = line.split(',').next().map_or(0, |text| text.split(' ').count());
            assert_eq!(words + 2, *tokens as usize, "{line}");
        }
        let made = Made { config: PathBuf::new(), lengths };
        let steps = made.steps(32, 4);
        assert!(steps.len() == 4 && steps.iter().all(|rows| rows.len() == 32));
    }
}
