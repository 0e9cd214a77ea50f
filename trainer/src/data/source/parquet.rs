//! Parquet through the record interface: only the wanted columns are read, one data page of each in memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::super::error::{DataError, FieldProblem, FileProblem, Place, Position, RowProblem};
use super::fields::Value;
use super::watch::StallWatch;
use super::{RawRow, file, locate};
use muster_proto::limits::STALL_REPORT_INTERVAL;

/// An open Parquet file positioned before its next row.
pub struct ParquetFile {
    path: PathBuf,
    rows: RowIter<'static>,
    row: u64,
    /// Where each wanted column stands among the projected ones, which keep the file's order.
    order: Vec<usize>,
    wanted: Vec<String>,
    watch: StallWatch,
}

impl ParquetFile {
    /// Reads the footer and selects the wanted columns.
    pub fn open(path: &Path, wanted: &[String]) -> Result<Self, DataError> {
        // The checks (regular, not empty) are those of every format; Parquet then seeks in a handle of its own.
        drop(file::open(path)?);
        let watch = StallWatch::log(path, STALL_REPORT_INTERVAL);
        let handle = std::fs::File::open(path).map_err(|source| file::read_error(path, source))?;
        let fail = |message| DataError::File { path: path.into(), problem: FileProblem::Parquet(message) };
        let opened = watch.during(|| guarded(|| SerializedFileReader::new(handle)));
        let reader = opened.map_err(fail)?;
        let schema = reader.metadata().file_metadata().schema_descr().root_schema_ptr();
        let columns: Vec<String> = schema.get_fields().iter().map(|field| field.name().to_owned()).collect();
        let indices = locate(path, wanted, &columns)?;

        let mut kept = indices.clone();
        kept.sort_unstable();
        kept.dedup();
        let order = indices.iter().map(|idx| kept.partition_point(|k| k < idx)).collect();
        let fields: Vec<Arc<Type>> = kept.iter().map(|&idx| Arc::clone(&schema.get_fields()[idx])).collect();
        let projection = Type::group_type_builder(schema.name()).with_fields(fields).build();
        let projection = projection.map_err(|e| fail(e.to_string()))?;
        let rows = RowIter::from_file_into(Box::new(reader));
        let rows = rows.project(Some(projection)).map_err(|e| fail(e.to_string()))?;
        Ok(Self { path: path.into(), rows, row: 0, order, wanted: wanted.to_vec(), watch })
    }

    /// Reads the next row's wanted fields.
    pub fn next_row(&mut self) -> Result<Option<RawRow>, DataError> {
        self.row += 1;
        let rows = &mut self.rows;
        let next = self.watch.during(|| guarded(|| rows.next().transpose()));
        let place = || Place { file: self.path.as_path().into(), position: Position::Row(self.row) };
        let fail = |message| DataError::Row { place: place(), problem: RowProblem::Parquet(message) };
        let Some(row) = next.map_err(fail)? else {
            return Ok(None);
        };
        let mut fields: Vec<Option<Field>> =
            row.into_columns().into_iter().map(|(_, field)| Some(field)).collect();
        let mut values = Vec::with_capacity(self.order.len());
        for (&idx, name) in self.order.iter().zip(&self.wanted) {
            let field = fields[idx].take().expect("no column is wanted twice (SourceOptions::validate)");
            values.push(value(field).map_err(|problem| DataError::Field {
                place: place(),
                column: name.clone(),
                problem,
            })?);
        }
        Ok(Some((Position::Row(self.row), values)))
    }
}

/// Runs `work` of the parquet crate, whose decoders panic on some damaged files; a panic becomes a message.
fn guarded<T>(work: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("the file is damaged".into()),
    }
}

fn value(field: Field) -> Result<Value, FieldProblem> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(flag) => Value::Bool(flag),
        Field::Byte(n) => Value::Integer(n.into()),
        Field::Short(n) => Value::Integer(n.into()),
        Field::Int(n) => Value::Integer(n.into()),
        Field::Long(n) => Value::Integer(n.into()),
        Field::UByte(n) => Value::Integer(n.into()),
        Field::UShort(n) => Value::Integer(n.into()),
        Field::UInt(n) => Value::Integer(n.into()),
        Field::ULong(n) => Value::Integer(n.into()),
        Field::Float16(x) => Value::Float(x.to_f64()),
        Field::Float(x) => Value::Float(x.into()),
        Field::Double(x) => Value::Float(x),
        Field::Str(text) => Value::Text(text),
        // Old writers store text without its type.
        Field::Bytes(bytes) => match String::from_utf8(bytes.data().to_vec()) {
            Ok(text) => Value::Text(text),
            Err(e) => return Err(FieldProblem::NotUtf8(e.utf8_error().valid_up_to() + 1)),
        },
        Field::ListInternal(list) => {
            let items: Result<Vec<Value>, FieldProblem> =
                list.elements().iter().cloned().map(value).collect();
            Value::List(items?)
        }
        Field::Group(_) => Value::Other("a struct"),
        Field::MapInternal(_) => Value::Other("a map"),
        Field::Decimal(_) => Value::Other("a decimal"),
        Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_) => Value::Other("a date or time"),
    })
}
