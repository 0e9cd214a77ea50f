//! `muster predict`: texts in, one JSON object per text out, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::Context;
use muster_kernels::loss::softmax_rows;
use muster_proto::limits::MAX_TEXT_BYTES;
use muster_proto::run_spec::TaskType;
use muster_trainer::data::{Budget, Reader, SourceOptions, Task, is_table, pack};
use muster_trainer::engine::Engine;
use muster_trainer::metrics::{argmax, logit_of};
use muster_trainer::tokenizer::Encoding;
use muster_trainer::train::{TrainError, Trained, collate_encodings};
use serde_json::{Map, Value, json};

use crate::args::PredictArgs;
use crate::eval::{BATCH_TOKENS, open};
use crate::exit::Exit;

/// Texts that are computed together and held in memory at once.
const CHUNK_ROWS: usize = 256;

const WRITE: &str = "can't write the answers";

/// A text or a pair.
type Texts = (String, Option<String>);

/// Applies a trained model to texts. Signals keep their usual effect: there is nothing to save, and whoever waits at a
/// terminal for the next line must be able to leave.
///
/// # Errors
/// An unusable model or input, or an output that can't be written.
pub fn run(args: &PredictArgs) -> anyhow::Result<Exit> {
    let (trained, threads) = open(&args.model, &args.compute)?;
    let texts = source(args)?;
    let mut engine = trained.engine::<f32>(&args.model, threads)?;
    let mut out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| format!("can't write {}", path.display()))?,
        )),
        None => Box::new(BufWriter::new(io::stdout().lock())),
    };
    match predict_all(&trained, &mut engine, texts, &mut out) {
        // `muster predict ... | head -1` is no failure.
        Err(error) if is_broken_pipe(&error) => Ok(Exit::Success),
        other => other.map(|()| Exit::Success),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn predict_all(
    trained: &Trained,
    engine: &mut Engine<f32>,
    mut texts: Source,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    loop {
        let chunk = texts()?;
        if chunk.is_empty() {
            return Ok(());
        }
        for ((text, pair), logits) in chunk.iter().zip(logits(trained, engine, &chunk)?) {
            let mut object = Map::new();
            object.insert("text".into(), json!(text));
            if let Some(pair) = pair {
                object.insert("text_pair".into(), json!(pair));
            }
            answer(trained, &logits, &mut object);
            let line = serde_json::to_string(&object)? + "\n";
            out.write_all(line.as_bytes()).context(WRITE)?;
        }
        out.flush().context(WRITE)?;
    }
}

/// The logits of each text, in order.
fn logits(trained: &Trained, engine: &mut Engine<f32>, chunk: &[Texts]) -> anyhow::Result<Vec<Vec<f32>>> {
    let encode = |(text, pair): &Texts| trained.tokenizer.encode(text, pair.as_deref(), &trained.rule);
    let rows: Vec<Encoding> = chunk.iter().map(encode).collect::<Result<_, _>>().map_err(TrainError::from)?;
    let indices: Vec<u64> = (0..rows.len() as u64).collect();
    let mut answers = vec![Vec::new(); rows.len()];
    for group in pack(&indices, |row| rows[row as usize].ids.len(), Budget::tokens(BATCH_TOKENS)) {
        let batch = collate_encodings(group.iter().map(|&row| &rows[row as usize]));
        let logits = engine.predict(&batch);
        for (&row, values) in group.iter().zip(logits.chunks_exact(trained.names.len())) {
            answers[row as usize] = values.to_vec();
        }
    }
    Ok(answers)
}

/// Adds what the model says: a label with its score, the labels above the threshold, or the values.
fn answer(trained: &Trained, logits: &[f32], object: &mut Map<String, Value>) {
    let named = |values: &[f32]| -> Map<String, Value> {
        trained.names.iter().cloned().zip(values.iter().map(|v| json!(v))).collect()
    };
    match trained.task {
        TaskType::SingleLabel => {
            let mut scores = vec![0.0; logits.len()];
            softmax_rows(logits.len(), logits, &mut scores);
            // As in evaluation; logits that are not finite give no label.
            let best = argmax(logits);
            object.insert("label".into(), json!(best.map(|best| &trained.names[best])));
            object.insert("score".into(), json!(best.map(|best| scores[best])));
            object.insert("scores".into(), Value::Object(named(&scores)));
        }
        TaskType::MultiLabel => {
            let scores: Vec<f32> = logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
            let cut = logit_of(trained.threshold);
            let given = trained.names.iter().zip(logits).filter(|(_, logit)| **logit >= cut);
            object.insert("labels".into(), json!(given.map(|(name, _)| name).collect::<Vec<_>>()));
            object.insert("scores".into(), Value::Object(named(&scores)));
        }
        TaskType::Regression => {
            if let [value] = logits {
                object.insert("value".into(), json!(value));
            }
            object.insert("values".into(), Value::Object(named(logits)));
        }
    }
}

/// Texts that are there already, at most [`CHUNK_ROWS`]; none at the end of the input.
type Source = Box<dyn FnMut() -> anyhow::Result<Vec<Texts>>>;

fn source(args: &PredictArgs) -> anyhow::Result<Source> {
    let Some(path) = &args.file else {
        let texts: Vec<_> = args.text.iter().map(|text| Ok((text.clone(), None))).collect();
        return Ok(in_chunks(texts.into_iter()));
    };
    // Any other file holds one text per line.
    if is_table(path) {
        let mut options = SourceOptions::new(args.columns.text_column.clone(), Vec::new(), Task::Unlabelled);
        options.text_pair.clone_from(&args.columns.text_pair_column);
        let reader = Reader::open(std::slice::from_ref(path), &options).map_err(TrainError::from)?;
        return Ok(in_chunks(reader.map(|row| {
            let row = row.map_err(TrainError::from)?;
            Ok((row.text, row.pair))
        })));
    }
    if path == Path::new("-") {
        return Ok(lines(io::stdin(), "stdin".into()));
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok(lines(file, name)),
        Err(source) => Err(InputError::Read { name, source }.into()),
    }
}

fn in_chunks(mut rows: impl Iterator<Item = anyhow::Result<Texts>> + 'static) -> Source {
    Box::new(move || rows.by_ref().take(CHUNK_ROWS).collect())
}

/// Lines of text that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file can't be opened or read.
    #[error("can't read {name}")]
    Read {
        /// File, or `stdin`.
        name: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A line that would fill the memory.
    #[error("{name}:{number}: the line is longer than {MAX_TEXT_BYTES} bytes")]
    TooLong {
        /// File, or `stdin`.
        name: String,
        /// Line, from 1.
        number: u64,
    },
    /// A line in another encoding.
    #[error("{name}:{number}: the line is not UTF-8")]
    NotUtf8 {
        /// File, or `stdin`.
        name: String,
        /// Line, from 1.
        number: u64,
    },
}

impl InputError {
    /// Says what the user can do, where there is something to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => None,
            Self::TooLong { .. } => Some("the input holds one text per line: split it".into()),
            Self::NotUtf8 { .. } => Some("convert it: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW".into()),
        }
    }
}

/// One text per line. A chunk ends where the next line would have to be waited for, so that a program that writes one
/// line gets its answer before it writes the next.
fn lines(input: impl Read + 'static, name: String) -> Source {
    let mut input = BufReader::new(input);
    let mut number = 0u64;
    Box::new(move || {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK_ROWS && (chunk.is_empty() || input.buffer().contains(&b'\n')) {
            number += 1;
            match line(&mut input, &name, number)? {
                Some(text) => chunk.push((text, None)),
                None => break,
            }
        }
        Ok(chunk)
    })
}

/// The next line; one over the limit is an error before it fills the memory.
fn line(input: &mut impl BufRead, name: &str, number: u64) -> Result<Option<String>, InputError> {
    let name = || name.to_owned();
    let mut bytes = Vec::new();
    let limit = MAX_TEXT_BYTES as u64 + 1;
    let read = input.by_ref().take(limit).read_until(b'\n', &mut bytes);
    read.map_err(|source| InputError::Read { name: name(), source })?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 == limit {
        return Err(InputError::TooLong { name: name(), number });
    }
    let text = String::from_utf8(bytes).map_err(|_| InputError::NotUtf8 { name: name(), number })?;
    Ok(Some(text.trim_end_matches(['\n', '\r']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<Result<Vec<String>, String>> {
        let mut next = lines(io::Cursor::new(text.to_vec()), "in".into());
        let mut one = || next().map(|chunk| chunk.into_iter().map(|(text, _)| text).collect::<Vec<_>>());
        (0..3).map(|_| one().map_err(|e| e.to_string())).collect()
    }

    #[test]
    fn every_line_is_a_text_whatever_ends_it() {
        let texts = |list: &[&str]| Ok(list.iter().map(|&text| text.to_owned()).collect());
        // The last line has no end yet: more of it may come, so nobody waits for it in the first chunk.
        assert_eq!(read(b"one\r\n\ntwo"), [texts(&["one", ""]), texts(&["two"]), texts(&[])]);
        assert_eq!(read(b"")[0], texts(&[]));
    }

    #[test]
    fn a_line_that_is_not_text_is_named() {
        assert_eq!(read(b"fine\n\xff\n")[0], Err("in:2: the line is not UTF-8".into()));
    }
}
