//! What the tests of this module share: files in a temporary directory, a word tokenizer, a Parquet writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parquet::data_type::{ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use tempfile::TempDir;

use muster_proto::run_spec::OnLong;

use super::cache::{BuildOptions, BuildProgress, TokenStore};
use super::error::DataError;
use super::source::{Role, SourceOptions, Task};
use super::survey::{DataSet, Known};
use crate::batch::Encoding;

/// A directory with data files.
pub struct Files {
    pub dir: TempDir,
}

impl Files {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).expect("a temporary file");
        path
    }

    /// Writes a file and returns it as the only file of a set.
    pub fn set(&self, name: &str, content: impl AsRef<[u8]>) -> Vec<PathBuf> {
        vec![self.write(name, content)]
    }

    /// Message and hint of an error, without the directory.
    pub fn said(&self, error: &DataError) -> String {
        let hint = error.hint().map_or(String::new(), |hint| format!(" | hint: {hint}"));
        let prefix = format!("{}/", self.dir.path().display());
        format!("{error}{hint}").replace(&prefix, "")
    }
}

pub fn single_label() -> SourceOptions {
    SourceOptions::new("text", vec!["label".into()], Task::SingleLabel)
}

pub fn training<'a>(files: &'a [PathBuf], options: &'a SourceOptions) -> DataSet<'a> {
    DataSet { files, options, role: Role::Train, known: Known::Nothing }
}

/// One token per word between two special tokens, at most `limit` in all.
pub fn words(limit: usize) -> impl Fn(&str, Option<&str>) -> Result<Encoding, String> + Sync {
    move |text, pair| {
        let id =
            |word: &str| word.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into())) % 1000 + 3;
        let mut ids = vec![1];
        ids.extend(text.split_whitespace().map(id));
        ids.push(2);
        let mut second_from = ids.len();
        if let Some(pair) = pair {
            ids.extend(pair.split_whitespace().map(id));
            ids.push(2);
        }
        let full_len = ids.len() as u32;
        ids.truncate(limit);
        second_from = second_from.min(ids.len());
        Ok(Encoding { ids, second_from: second_from as u32, full_len })
    }
}

pub static NEVER: AtomicBool = AtomicBool::new(false);

pub fn build_options<'a>(cache_dir: Option<&'a Path>) -> BuildOptions<'a> {
    BuildOptions {
        cache_dir,
        threads: 2,
        on_long: OnLong::Truncate,
        tokenizer_fingerprint: 1,
        rule_fingerprint: 2,
        stop: &NEVER,
        progress: &|_: BuildProgress| {},
    }
}

/// A store in memory whose row `r` has `lengths[r]` tokens (at least 2) and the class `r % 3`.
pub fn store_of_lengths(lengths: &[usize]) -> Arc<TokenStore> {
    let mut text = String::from("text,label\n");
    for (row, len) in lengths.iter().enumerate() {
        text.push_str(&format!("{},c{}\n", vec![format!("w{row}"); len - 2].join(" "), row % 3));
    }
    let files = Files::new();
    let set = files.set("rows.csv", text);
    let options = single_label();
    let store =
        TokenStore::open_or_build(&training(&set, &options), &words(usize::MAX), &build_options(None));
    Arc::new(store.expect("valid rows"))
}

/// Columns of a Parquet file; the schema says which are optional (definition levels then come from `None`).
pub enum ParquetColumn {
    Text(Vec<Option<&'static [u8]>>),
    Integers(Vec<Option<i64>>),
    Doubles(Vec<Option<f64>>),
    /// A three-level list of integers.
    IntegerLists(Vec<Vec<i64>>),
}

pub fn write_parquet(path: &Path, schema: &str, columns: &[ParquetColumn]) {
    let schema = Arc::new(parse_message_type(schema).expect("a valid schema"));
    let file = std::fs::File::create(path).expect("a temporary file");
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(file, schema, properties).expect("a writer");
    let mut group = writer.next_row_group().expect("a row group");
    for column in columns {
        let mut out = group.next_column().expect("no i/o error").expect("as many columns as the schema has");
        match column {
            ParquetColumn::Text(values) => {
                let present: Vec<_> = values.iter().flatten().map(|v| v.to_vec().into()).collect();
                out.typed::<ByteArrayType>()
                    .write_batch(&present, Some(&levels(values)), None)
                    .expect("written");
            }
            ParquetColumn::Integers(values) => {
                let present: Vec<i64> = values.iter().flatten().copied().collect();
                out.typed::<Int64Type>().write_batch(&present, Some(&levels(values)), None).expect("written");
            }
            ParquetColumn::Doubles(values) => {
                let present: Vec<f64> = values.iter().flatten().copied().collect();
                out.typed::<DoubleType>()
                    .write_batch(&present, Some(&levels(values)), None)
                    .expect("written");
            }
            ParquetColumn::IntegerLists(lists) => {
                let (mut definition, mut repetition, mut present) = (vec![], vec![], vec![]);
                for list in lists {
                    if list.is_empty() {
                        definition.push(0);
                        repetition.push(0);
                    }
                    for (at, &value) in list.iter().enumerate() {
                        definition.push(1);
                        repetition.push(i16::from(at > 0));
                        present.push(value);
                    }
                }
                let out = out.typed::<Int64Type>();
                out.write_batch(&present, Some(&definition), Some(&repetition)).expect("written");
            }
        }
        out.close().expect("closed");
    }
    group.close().expect("closed");
    writer.close().expect("closed");
}

fn levels<T>(values: &[Option<T>]) -> Vec<i16> {
    values.iter().map(|value| i16::from(value.is_some())).collect()
}
