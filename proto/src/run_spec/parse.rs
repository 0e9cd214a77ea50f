//! From the text of a run file to a [`RunSpec`] with every default filled in.

use std::fs;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{Place, Problem, SpecError};
use super::reader::{Reader, UNBOUNDED, place_at};
use super::validate;
use super::*;
use crate::limits;

impl RunSpec {
    /// Reads a run file; relative paths in it become relative to its directory.
    ///
    /// # Errors
    /// A file that can't be read, and every mistake in it, all at once.
    pub fn load(path: &Path) -> Result<Self, SpecError> {
        Self::load_with(path, &[])
    }

    /// Reads a run file and replaces some of its values by `key=value` overrides, such as
    /// `train.learning_rate=1e-5`. A value that is no TOML is taken as text; relative paths in overrides stay
    /// relative to the working directory.
    ///
    /// # Errors
    /// As [`RunSpec::load`]; a mistake in an override names the override.
    pub fn load_with(path: &Path, overrides: &[String]) -> Result<Self, SpecError> {
        let read = |source| SpecError::Read { path: path.to_owned(), source };
        let bytes = fs::metadata(path).map_err(read)?.len();
        if bytes > limits::MAX_RUN_FILE_BYTES {
            return Err(SpecError::TooLarge { path: path.to_owned(), bytes });
        }
        let bytes = fs::read(path).map_err(read)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
            let Place::File { line, column } = place_at(&text, valid) else {
                unreachable!("place_at gives places in the file")
            };
            SpecError::NotUtf8 { path: path.to_owned(), line, column }
        })?;
        Self::parse_with(&text, path, overrides)
    }

    /// Reads the text of a run file as if it lay at `origin`.
    ///
    /// # Errors
    /// Every mistake of the text, all at once.
    pub fn parse(text: &str, origin: &Path) -> Result<Self, SpecError> {
        Self::parse_with(text, origin, &[])
    }

    /// As [`RunSpec::parse`], with overrides as in [`RunSpec::load_with`].
    ///
    /// # Errors
    /// Every mistake of the text and of the overrides, all at once.
    pub fn parse_with(text: &str, origin: &Path, overrides: &[String]) -> Result<Self, SpecError> {
        let (document, syntax) = DeTable::parse_recoverable(text);
        if !syntax.is_empty() {
            let problems = syntax.iter().map(|e| syntax_problem(text, e)).collect();
            return Err(SpecError::Invalid { path: origin.to_owned(), problems });
        }
        check_version(text, origin, document.get_ref())?;
        let overrides: Vec<_> = overrides.iter().map(|text| Override::parse(text)).collect();
        let mut reader = Reader::new(text, document.get_ref());
        if overrides.len() > limits::MAX_OVERRIDES {
            reader.problem("version", format!("--set is given more than {} times", limits::MAX_OVERRIDES));
        }
        for one in overrides.iter().take(limits::MAX_OVERRIDES) {
            match one {
                Override::Set { key, value, text } => reader.set(key, value, text),
                Override::NoEquals(text) => {
                    reader.note(Place::Override((*text).into()), "", "must be key=value".into());
                }
            }
        }
        let spec = read_spec(&mut reader, origin);
        validate::check(&spec, &mut reader);
        match reader.into_problems() {
            problems if problems.is_empty() => Ok(spec),
            problems => Err(SpecError::Invalid { path: origin.to_owned(), problems }),
        }
    }
}

enum Override<'a> {
    Set { key: &'a str, value: DeValue<'a>, text: &'a str },
    NoEquals(&'a str),
}

impl<'a> Override<'a> {
    fn parse(text: &'a str) -> Self {
        let Some((key, value)) = text.split_once('=') else {
            return Self::NoEquals(text);
        };
        let value = value.trim();
        let parsed = DeValue::parse(value).map(|v| v.into_inner());
        Self::Set { key: key.trim(), value: parsed.unwrap_or_else(|_| DeValue::String(value.into())), text }
    }
}

fn syntax_problem(text: &str, error: &toml::de::Error) -> Problem {
    let start = error.span().map_or(text.len(), |span| span.start);
    Problem { place: place_at(text, start), key: String::new(), message: error.message().to_owned() }
}

/// A file of another version is told as such: its other mistakes would mislead.
fn check_version(text: &str, origin: &Path, document: &DeTable<'_>) -> Result<(), SpecError> {
    let Some(value) = document.get("version") else { return Ok(()) };
    let DeValue::Integer(number) = value.get_ref() else { return Ok(()) };
    let found = i128::from_str_radix(number.as_str(), number.radix()).unwrap_or(i128::MAX);
    if found == i128::from(VERSION) {
        return Ok(());
    }
    let Place::File { line, column } = place_at(text, value.span().start) else {
        unreachable!("place_at gives places in the file")
    };
    Err(SpecError::Version { path: origin.to_owned(), line, column, found })
}

fn read_spec(r: &mut Reader<'_>, origin: &Path) -> RunSpec {
    let base = origin.parent().unwrap_or(Path::new("")).to_owned();
    let stem = origin.file_stem().map(|s| s.to_string_lossy().into_owned());
    if r.has("version") {
        r.whole("version", VERSION.into(), VERSION.into());
    } else {
        let migrate = format!(
            "is missing: run files name the version they were written for; add `version = {VERSION}` as the first line"
        );
        r.problem("version", migrate);
    }
    let name = r.text("name").or(stem).unwrap_or_else(|| "run".into());
    let output_dir = path(r, &base, "output_dir").unwrap_or_else(|| base.join("runs").join(&name));
    RunSpec {
        version: VERSION,
        name,
        seed: r.whole("seed", 0, UNBOUNDED).unwrap_or(42),
        output_dir,
        model: read_model(r, &base),
        task: read_task(r),
        data: read_data(r, &base),
        train: read_train(r),
        eval: read_eval(r),
        checkpoint: CheckpointSpec {
            every_steps: r.whole("checkpoint.every_steps", 1, UNBOUNDED),
            keep_last: count(r, "checkpoint.keep_last", limits::MAX_KEEP_LAST).unwrap_or(2),
        },
        ranks: read_ranks(r),
    }
}

fn read_model(r: &mut Reader<'_>, base: &Path) -> ModelSpec {
    let path = required(r, "model.path", |r| r.text("model.path")).unwrap_or_default();
    ModelSpec {
        path: model_path(r, base, path),
        revision: r.text("model.revision"),
        init: r.choice("model.init", Init::NAMES).unwrap_or(Init::Pretrained),
        hidden_dropout: r.number("model.hidden_dropout").map(|x| x as f32),
        attention_dropout: r.number("model.attention_dropout").map(|x| x as f32),
        classifier_dropout: r.number("model.classifier_dropout").map(|x| x as f32),
    }
}

/// A model that is a directory beside the run file, or looks like a path, is a path; anything else a hub name.
fn model_path(r: &Reader<'_>, base: &Path, path: String) -> String {
    if path.is_empty() || r.is_override("model.path") {
        return path;
    }
    let joined = base.join(&path);
    let looks_like_path = path.starts_with('.') || path.matches('/').count() > 1 || path.ends_with('/');
    if looks_like_path || joined.is_dir() { joined.to_string_lossy().into_owned() } else { path }
}

fn read_task(r: &mut Reader<'_>) -> TaskSpec {
    if !r.has("task.type") {
        r.problem(
            "task.type",
            "is required: \"single_label\" (one of several labels), \"multi_label\" (any number of labels) or \
             \"regression\" (numbers). It is never guessed from the number of labels: two labels are still \
             \"single_label\"",
        );
    }
    TaskSpec {
        kind: r.choice("task.type", TaskType::NAMES).unwrap_or(TaskType::SingleLabel),
        labels: r.texts("task.labels"),
        threshold: r.number("task.threshold").unwrap_or(0.5) as f32,
    }
}

fn read_data(r: &mut Reader<'_>, base: &Path) -> DataSpec {
    let kind: Option<TaskType> = r.text_choice("task.type");
    let label = Columns(r.texts("data.label").unwrap_or_else(|| vec!["label".into()]));
    let default_separator = (kind == Some(TaskType::MultiLabel) && label.single().is_some())
        .then(|| DEFAULT_LABEL_SEPARATOR.into());
    let length =
        r.whole("data.max_length", limits::MIN_SEQUENCE_TOKENS as u64, limits::MAX_SEQUENCE_TOKENS as u64);
    DataSpec {
        train: required(r, "data.train", |r| paths(r, base, "data.train")).unwrap_or_default(),
        eval: paths(r, base, "data.eval"),
        eval_fraction: r.number("data.eval_fraction"),
        test: paths(r, base, "data.test"),
        format: r.choice("data.format", DataFormat::NAMES).unwrap_or(DataFormat::Auto),
        text: r.text("data.text").unwrap_or_else(|| "text".into()),
        text_pair: r.text("data.text_pair"),
        label,
        label_separator: separator(r).or(default_separator),
        max_length: length.map_or(256, |n| n as usize),
        truncation: r.choice("data.truncation", Truncation::NAMES).unwrap_or(Truncation::LongestFirst),
        keep: r.choice("data.keep", Keep::NAMES).unwrap_or(Keep::Head),
        on_long: r.choice("data.on_long", OnLong::NAMES).unwrap_or(OnLong::Truncate),
        cache_dir: path(r, base, "data.cache_dir"),
    }
}

/// A separator may be blank (a space or a tab), unlike other texts.
fn separator(r: &mut Reader<'_>) -> Option<String> {
    match r.as_text("data.label_separator") {
        Some(blank) if !blank.is_empty() => Some(blank.to_owned()),
        _ => r.text("data.label_separator"),
    }
}

fn read_train(r: &mut Reader<'_>) -> TrainSpec {
    let warmup_steps = r.whole("train.warmup_steps", 0, limits::MAX_STEPS);
    let default_ratio = (!r.has("train.warmup_steps")).then_some(0.1);
    let max_grad_norm = r.number("train.max_grad_norm").unwrap_or(1.0);
    TrainSpec {
        epochs: r.number("train.epochs"),
        max_steps: r.whole("train.max_steps", 1, limits::MAX_STEPS),
        global_batch: count(r, "train.global_batch", limits::MAX_GLOBAL_BATCH).unwrap_or(32),
        micro_batch_tokens: auto(r, "train.micro_batch_tokens", limits::MAX_MICRO_BATCH_TOKENS),
        learning_rate: r.number("train.learning_rate").unwrap_or(2e-5),
        schedule: r.choice("train.schedule", Schedule::NAMES).unwrap_or(Schedule::Linear),
        warmup_steps,
        warmup_ratio: r.number("train.warmup_ratio").or(default_ratio),
        weight_decay: r.number("train.weight_decay").unwrap_or(0.01),
        beta1: r.number("train.beta1").unwrap_or(0.9),
        beta2: r.number("train.beta2").unwrap_or(0.999),
        epsilon: r.number("train.epsilon").unwrap_or(1e-8),
        max_grad_norm: (max_grad_norm != 0.0).then_some(max_grad_norm),
        precision: r.choice("train.precision", Precision::NAMES).unwrap_or(Precision::Auto),
        threads: auto(r, "train.threads", limits::MAX_THREADS),
        pin: r.choice("train.pin", Pin::NAMES).unwrap_or(Pin::Auto),
        recompute: r.choice("train.recompute", Recompute::NAMES).unwrap_or(Recompute::Never),
        on_non_finite: r.choice("train.on_non_finite", OnNonFinite::NAMES).unwrap_or(OnNonFinite::Stop),
        log_every_steps: r.whole("train.log_every_steps", 1, limits::MAX_STEPS).unwrap_or(10),
        report_to: r.choice("train.report_to", ReportTo::NAMES).unwrap_or_default(),
    }
}

fn read_eval(r: &mut Reader<'_>) -> EvalSpec {
    let every = match r.as_text("eval.every") {
        Some("epoch") => Some(EvalEvery::Epoch),
        Some("end") => Some(EvalEvery::End),
        Some(other) => {
            let found = format!("must be \"epoch\", \"end\" or a number of steps, not \"{other}\"");
            r.problem("eval.every", found);
            None
        }
        None => r.whole("eval.every", 1, limits::MAX_STEPS).map(EvalEvery::Steps),
    };
    EvalSpec {
        every: every.unwrap_or(EvalEvery::Epoch),
        metric: r.text("eval.metric"),
        early_stopping_patience: r
            .whole("eval.early_stopping_patience", 1, u32::MAX.into())
            .and_then(|n| u32::try_from(n).ok()),
        early_stopping_min_delta: r.number("eval.early_stopping_min_delta").unwrap_or(0.0),
    }
}

fn read_ranks(r: &mut Reader<'_>) -> RanksSpec {
    let most = u64::from(limits::MAX_RANKS);
    let number = |r: &mut Reader<'_>, key, most| r.whole(key, 1, most).and_then(|n| u32::try_from(n).ok());
    let per_node = match r.as_text("ranks.per_node") {
        Some("numa") => Some(PerNode::Numa),
        Some("package") => Some(PerNode::Package),
        Some(other) => {
            let found = format!("must be \"numa\", \"package\" or a number of ranks, not \"{other}\"");
            r.problem("ranks.per_node", found);
            None
        }
        None => number(r, "ranks.per_node", limits::MAX_RANKS_PER_NODE as u64).map(PerNode::Ranks),
    };
    RanksSpec {
        per_node: per_node.unwrap_or_default(),
        nodes: number(r, "ranks.nodes", limits::MAX_NODES as u64),
        min: number(r, "ranks.min", most),
        max: number(r, "ranks.max", most),
        patience_s: number(r, "ranks.patience_s", limits::MAX_PATIENCE_S).unwrap_or(PATIENCE_S),
        membind: r.choice("ranks.membind", Membind::NAMES).unwrap_or(Membind::Auto),
    }
}

fn required<T>(r: &mut Reader<'_>, key: &str, get: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Option<T> {
    if !r.has(key) {
        r.problem(key, "is required");
        return None;
    }
    get(r)
}

fn count(r: &mut Reader<'_>, key: &str, most: usize) -> Option<usize> {
    r.whole(key, 1, most as u64).map(|n| n as usize)
}

fn auto(r: &mut Reader<'_>, key: &str, most: usize) -> Option<usize> {
    r.auto_or_whole(key, most as u64).flatten().map(|n| n as usize)
}

fn path(r: &mut Reader<'_>, base: &Path, key: &str) -> Option<PathBuf> {
    let base = if r.is_override(key) { Path::new("") } else { base };
    r.text(key).map(|p| base.join(p))
}

fn paths(r: &mut Reader<'_>, base: &Path, key: &str) -> Option<Vec<PathBuf>> {
    let base = if r.is_override(key) { Path::new("") } else { base };
    let list = r.texts(key)?;
    if list.len() > limits::MAX_DATA_FILES {
        r.problem(key, format!("must have at most {} files, not {}", limits::MAX_DATA_FILES, list.len()));
    }
    Some(list.into_iter().map(|p| base.join(p)).collect())
}
