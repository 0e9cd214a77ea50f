//! `muster predict`: texts in, one JSON object per text out, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
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
use crate::stop;

/// Texts that are computed together and held in memory at once.
const CHUNK_ROWS: usize = 256;

/// A text or a pair.
type Texts = (String, Option<String>);
/// Texts as they come.
type Source = Box<dyn Iterator<Item = anyhow::Result<Texts>>>;

/// Applies a trained model to texts.
///
/// # Errors
/// An unusable model or input, or an output that can't be written.
pub fn run(args: &PredictArgs) -> anyhow::Result<Exit> {
    let stop = stop::on_signals()?;
    let (trained, threads) = open(&args.model, &args.compute)?;
    let texts = source(args)?;
    let mut engine = trained.engine::<f32>(&args.model, threads)?;
    let mut out: Box<dyn Write> = match &args.output {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| format!("can't write {}", path.display()))?,
        )),
        None => Box::new(BufWriter::new(io::stdout().lock())),
    };
    match predict_all(&trained, &mut engine, texts, &mut out, &stop) {
        // `muster predict ... | head -1` is no failure.
        Err(error) if is_broken_pipe(&error) => Ok(Exit::Success),
        other => other,
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
    stop: &AtomicBool,
) -> anyhow::Result<Exit> {
    loop {
        let chunk: Vec<Texts> = texts.by_ref().take(CHUNK_ROWS).collect::<anyhow::Result<_>>()?;
        if chunk.is_empty() {
            break;
        }
        for ((text, pair), logits) in chunk.iter().zip(logits(trained, engine, &chunk)?) {
            let mut object = Map::new();
            object.insert("text".into(), json!(text));
            if let Some(pair) = pair {
                object.insert("text_pair".into(), json!(pair));
            }
            answer(trained, &logits, &mut object);
            serde_json::to_writer(&mut *out, &object).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
        out.flush()?;
        if stop.load(Ordering::Relaxed) {
            return Ok(Exit::Interrupted);
        }
    }
    out.flush()?;
    Ok(Exit::Success)
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

fn source(args: &PredictArgs) -> anyhow::Result<Source> {
    let Some(path) = &args.file else {
        let texts: Vec<_> = args.text.iter().map(|text| Ok((text.clone(), None))).collect();
        return Ok(Box::new(texts.into_iter()));
    };
    // Any other file holds one text per line.
    if is_table(path) {
        let mut options = SourceOptions::new(args.columns.text_column.clone(), Vec::new(), Task::Unlabelled);
        options.text_pair.clone_from(&args.columns.text_pair_column);
        let reader = Reader::open(std::slice::from_ref(path), &options).map_err(TrainError::from)?;
        return Ok(Box::new(reader.map(|row| {
            let row = row.map_err(TrainError::from)?;
            Ok((row.text, row.pair))
        })));
    }
    if path == Path::new("-") {
        return Ok(Box::new(lines(io::stdin().lock(), "stdin".into())));
    }
    let file = File::open(path).with_context(|| format!("can't read {}", path.display()))?;
    Ok(Box::new(lines(BufReader::new(file), path.display().to_string())))
}

/// One text per line; a line over the limit is an error before it fills the memory.
fn lines(mut input: impl BufRead + 'static, name: String) -> impl Iterator<Item = anyhow::Result<Texts>> {
    let mut number = 0u64;
    std::iter::from_fn(move || {
        number += 1;
        line(&mut input, &name, number).transpose()
    })
}

fn line(input: &mut impl BufRead, name: &str, number: u64) -> anyhow::Result<Option<Texts>> {
    let mut bytes = Vec::new();
    let limit = MAX_TEXT_BYTES as u64 + 1;
    let read = input.by_ref().take(limit).read_until(b'\n', &mut bytes);
    read.with_context(|| format!("can't read {name}"))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.len() as u64 == limit {
        bail!("{name}:{number}: the line is longer than {MAX_TEXT_BYTES} bytes");
    }
    let text = String::from_utf8(bytes).with_context(|| format!("{name}:{number}: the line is not UTF-8"))?;
    Ok(Some((text.trim_end_matches(['\n', '\r']).to_owned(), None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Vec<Result<String, String>> {
        let texts = lines(io::Cursor::new(text.to_vec()), "in".into());
        texts.map(|t| t.map(|(text, _)| text).map_err(|e| e.to_string())).take(5).collect()
    }

    #[test]
    fn every_line_is_a_text_whatever_ends_it() {
        assert_eq!(read(b"one\r\n\ntwo"), [Ok("one".into()), Ok(String::new()), Ok("two".into())]);
        assert_eq!(read(b""), []);
    }

    #[test]
    fn a_line_that_is_not_text_is_named() {
        assert_eq!(read(b"fine\n\xff\n")[1], Err("in:2: the line is not UTF-8".into()));
    }
}
