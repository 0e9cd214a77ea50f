//! Every way a file can be wrong, with the words the user reads; and the same rows from every format.

use std::path::PathBuf;

use super::super::error::DataError;
use super::super::testing::{Files, ParquetColumn, single_label, write_parquet};
use super::{Answer, Reader, Row, SourceOptions, Task};

fn read(files: &[PathBuf], options: &SourceOptions) -> Result<Vec<Row>, DataError> {
    Reader::open(files, options)?.collect()
}

/// Message and hint that reading one file gives.
fn refusal(name: &str, content: impl AsRef<[u8]>, options: &SourceOptions) -> String {
    let files = Files::new();
    let set = files.set(name, content);
    files.said(&read(&set, options).expect_err("the file is wrong"))
}

fn multi(columns: &[&str]) -> SourceOptions {
    let columns = columns.iter().map(|c| (*c).to_owned()).collect();
    SourceOptions::new("text", columns, Task::MultiLabel { separator: "|".into() })
}

fn regression(columns: &[&str]) -> SourceOptions {
    let columns = columns.iter().map(|c| (*c).to_owned()).collect();
    SourceOptions::new("text", columns, Task::Regression)
}

#[test]
fn every_format_gives_the_same_rows() {
    let files = Files::new();
    let csv = files.write("a.csv", "\u{feff}id,label,text\r\n1,pos,\"Rates, up\"\r\n2,neg,Döwn\r\n");
    let tsv = files.write("a.tsv", "id\tlabel\ttext\n1\tpos\tRates, up\n2\t neg \tDöwn");
    let jsonl = files.write(
        "a.jsonl",
        "{\"text\": \"Rates, up\", \"label\": \"pos\"}\n\n{\"label\": \"neg\", \"x\": {}, \"text\": \"D\\u00f6wn\"}",
    );
    let parquet = files.dir.path().join("a.parquet");
    let schema =
        "message rows { optional int64 id; optional binary label (UTF8); optional binary text (UTF8); }";
    let text = |values: [&'static str; 2]| ParquetColumn::Text(values.map(|v| Some(v.as_bytes())).to_vec());
    let columns =
        [ParquetColumn::Integers(vec![Some(1), Some(2)]), text(["pos", "neg"]), text(["Rates, up", "Döwn"])];
    write_parquet(&parquet, schema, &columns);

    let rows = read(&[csv, tsv, jsonl, parquet], &single_label()).expect("valid files");
    let content: Vec<(&str, &Answer)> = rows.iter().map(|row| (row.text.as_str(), &row.answer)).collect();
    let expected = [("Rates, up", Answer::Label("pos".into())), ("Döwn", Answer::Label("neg".into()))];
    for pair in content.chunks(2) {
        assert_eq!(pair, [(expected[0].0, &expected[0].1), (expected[1].0, &expected[1].1)]);
    }
    assert_eq!(content.len(), 8);
    let places: Vec<String> = rows.iter().map(|row| row.place.to_string()).collect();
    let name = |place: &str| place.rsplit('/').next().map(str::to_owned);
    let places: Vec<String> = places.iter().filter_map(|place| name(place)).collect();
    let expected = ["a.csv:2", "a.csv:3", "a.tsv:2", "a.tsv:3", "a.jsonl:1", "a.jsonl:3"];
    assert_eq!(places[..6], expected);
    assert_eq!(places[6..], ["a.parquet: row 1", "a.parquet: row 2"]);
}

#[test]
fn pairs_and_unlabelled_rows_are_read() {
    let files = Files::new();
    let set = files.set("a.csv", "premise,hypothesis\na,b\nc,\n");
    let mut options = SourceOptions::new("premise", vec!["label".into()], Task::Unlabelled);
    options.text_pair = Some("hypothesis".into());
    let rows = read(&set, &options).expect("labels are not needed");
    let pairs: Vec<(&str, Option<&str>)> =
        rows.iter().map(|r| (r.text.as_str(), r.pair.as_deref())).collect();
    assert_eq!(pairs, [("a", Some("b")), ("c", Some(""))]);
    assert!(rows.iter().all(|row| row.answer == Answer::None));
}

#[test]
fn multi_labels_come_from_text_lists_or_columns() {
    let files = Files::new();
    let answers = |set: Vec<PathBuf>, options: &SourceOptions| -> Vec<Answer> {
        read(&set, options).expect("valid").into_iter().map(|row| row.answer).collect()
    };
    let labels = |names: &[&str]| Answer::Labels(names.iter().map(|n| (*n).to_owned()).collect());
    let text = files.set("a.csv", "text,label\nx,b|a\ny,\nz, c | c \n");
    assert_eq!(answers(text, &multi(&["label"])), [labels(&["a", "b"]), labels(&[]), labels(&["c"])]);
    let list = files.set("a.jsonl", "{\"text\":\"x\",\"label\":[\"b\",3]}\n{\"text\":\"y\",\"label\":[]}\n");
    assert_eq!(answers(list, &multi(&["label"])), [labels(&["3", "b"]), labels(&[])]);
    let columns = files.set("b.csv", "text,a,b\nx,1,0\ny,0,true\n");
    let flags = answers(columns, &multi(&["a", "b"]));
    assert_eq!(flags, [Answer::Flags(vec![true, false]), Answer::Flags(vec![false, true])]);
    let path = files.dir.path().join("l.parquet");
    let schema = "message rows { optional binary text (UTF8); required group label (LIST) { repeated group list { required int64 element; } } }";
    let columns = [
        ParquetColumn::Text(vec![Some(b"x"), Some(b"y"), Some(b"z")]),
        ParquetColumn::IntegerLists(vec![vec![2, 1], vec![], vec![7]]),
    ];
    write_parquet(&path, schema, &columns);
    assert_eq!(answers(vec![path], &multi(&["label"])), [labels(&["1", "2"]), labels(&[]), labels(&["7"])]);
}

#[test]
fn regression_targets_come_from_numbers_text_lists_or_columns() {
    let files = Files::new();
    let csv = files.write("a.csv", "text,x,y\na, 1.5 ,-2\n");
    let rows = read(&[csv], &regression(&["x", "y"])).expect("valid");
    assert_eq!(rows[0].answer, Answer::Values(vec![1.5, -2.0]));
    let jsonl = files.write("a.jsonl", "{\"text\":\"a\",\"v\":[1,2.5]}\n{\"text\":\"a\",\"v\":7}\n");
    let rows = read(&[jsonl], &regression(&["v"])).expect("valid");
    assert_eq!(
        (&rows[0].answer, &rows[1].answer),
        (&Answer::Values(vec![1.0, 2.5]), &Answer::Values(vec![7.0]))
    );
    let path = files.dir.path().join("a.parquet");
    let schema = "message rows { optional binary text (UTF8); optional double v; }";
    write_parquet(
        &path,
        schema,
        &[ParquetColumn::Text(vec![Some(b"a")]), ParquetColumn::Doubles(vec![Some(0.25)])],
    );
    assert_eq!(read(&[path], &regression(&["v"])).expect("valid")[0].answer, Answer::Values(vec![0.25]));
}

#[test]
fn files_that_cannot_be_data_are_refused() {
    let options = single_label();
    for (name, content, said) in [
        ("a.csv", &b""[..], "a.csv: is empty"),
        ("a.csv", b"\xef\xbb\xbf", "a.csv: is empty"),
        ("a.csv", b"\n\n", "a.csv: is empty"),
        ("a.jsonl", b"\n \n", "a.jsonl: has blank lines but no rows"),
        (
            "a.csv",
            b"text,label\n\n",
            "a.csv: has a header but no rows | hint: the first line of a CSV file is its header; a file without header needs one",
        ),
        (
            "a.csv",
            b"\xff\xfet\0e\0",
            "a.csv: is UTF-16 text; UTF-8 is needed | hint: convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW",
        ),
        (
            "a.txt",
            b"text,label\n",
            "a.txt: can't tell the format from the extension \".txt\" | hint: use .csv, .tsv, .jsonl or .parquet, or set data.format",
        ),
        ("a.csv", b"text,label,text\na,b,c\n", "a.csv: the header names the column \"text\" twice"),
        (
            "a.csv",
            b"Text,lable,id\na,b,c\n",
            "a.csv: has no column \"text\"; its columns are \"Text\", \"lable\", \"id\" | hint: did you mean \"Text\"?",
        ),
        (
            "a.csv",
            b"text,lable,id\na,b,c\n",
            "a.csv: has no column \"label\"; its columns are \"text\", \"lable\", \"id\" | hint: did you mean \"lable\"?",
        ),
        (
            "a.csv",
            b"text,q,z\na,b,c\n",
            "a.csv: has no column \"label\"; its columns are \"text\", \"q\", \"z\"",
        ),
    ] {
        assert_eq!(refusal(name, content, &options), said);
    }
    assert!(
        refusal("a.parquet", "PAR1 this is not parquet", &options)
            .starts_with("a.parquet: is not a readable Parquet file: ")
    );
}

#[test]
fn files_that_are_not_there_or_not_files_are_refused() {
    let files = Files::new();
    let options = single_label();
    let said = |name: &str| {
        let error = read(&[files.dir.path().join(name)], &options).expect_err("not a file");
        let source = std::error::Error::source(&error).map_or(String::new(), |e| format!(" ({e})"));
        files.said(&error) + &source
    };
    assert_eq!(
        said("none.csv"),
        "can't open none.csv | hint: check the path; paths in a run file are relative to its directory (No such file or directory (os error 2))"
    );
    std::fs::create_dir(files.dir.path().join("d.csv")).expect("a directory");
    assert_eq!(said("d.csv"), "d.csv: is a directory, not a regular file | hint: name the files inside it");
    assert_eq!(files.said(&read(&[], &options).expect_err("no files")), "no data file is named");
}

#[test]
fn case_65_a_fifo_is_refused_at_once_instead_of_waiting_for_its_writer() {
    let files = Files::new();
    let path = files.dir.path().join("pipe.csv");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let error = read(&[path], &single_label()).expect_err("nobody writes to it");
    assert_eq!(
        files.said(&error),
        "pipe.csv: is a pipe (FIFO), not a regular file | hint: data is read more than once: write it to a file first and name that file"
    );
}

#[test]
fn rows_that_are_not_well_formed_name_their_line() {
    let options = single_label();
    let quotes = "inside a quoted field a quote is written twice: \"\"";
    let latin = "the file seems to be in another encoding: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW";
    for (name, content, said) in [
        (
            "a.csv",
            &b"text,label\na,b\nc, d, e\n"[..],
            "a.csv:3: has 3 fields, the header has 2 | hint: put a field that holds the delimiter or a line break in double quotes".to_owned(),
        ),
        (
            "a.csv",
            b"text,label\n\"a\nb\",x\n\n\"c,y\nd,z\n",
            format!("a.csv:5: a quoted field starts here (column 1) and is never closed | hint: {quotes}"),
        ),
        ("a.csv", b"text,label\n\"a\"b,x\n", format!("a.csv:2: text follows the closing quote of column 1 | hint: {quotes}")),
        ("a.csv", b"text,label\nx,y\nd\xf6wn,x\n", format!("a.csv:3: column \"text\": byte 2 of the field is not UTF-8 | hint: {latin}")),
        ("a.jsonl", b"{\"text\": \"a\xf6\"}", format!("a.jsonl:1: byte 12 of the line is not UTF-8 | hint: {latin}")),
        (
            "a.jsonl",
            b"{\"text\":\"a\",\"label\":\"b\"}\n{\"text\": a}\n",
            "a.jsonl:2: is not valid JSON (character 10): expected value | hint: JSON Lines holds one complete object per line".to_owned(),
        ),
        (
            "a.json",
            b"[{\"text\":\"a\",\"label\":\"b\"}]",
            "a.json:1: is a JSON array; each line must be an object | hint: JSON Lines holds one object per line: jq -c '.[]' FILE > NEW.jsonl".to_owned(),
        ),
        ("a.jsonl", b"3\n", "a.jsonl:1: is a JSON number; each line must be an object".to_owned()),
    ] {
        assert_eq!(refusal(name, content, &options), said);
    }
}

#[test]
fn fields_that_do_not_fit_name_line_and_column() {
    let options = single_label();
    for (name, content, said) in [
        (
            "a.csv",
            "text,label\nx,y\nx, \n",
            "a.csv:3: column \"label\": is empty; a label (text, integer or boolean) is needed",
        ),
        (
            "a.jsonl",
            "{\"text\":\"a\",\"Label\":\"b\"}",
            "a.jsonl:1: column \"label\": is missing; this row has \"text\", \"Label\" | hint: did you mean \"Label\"?",
        ),
        ("a.jsonl", "{\"text\":null,\"label\":\"b\"}", "a.jsonl:1: column \"text\": is null; text is needed"),
        (
            "a.jsonl",
            "{\"text\":5,\"label\":\"b\"}",
            "a.jsonl:1: column \"text\": is the integer 5; text is needed",
        ),
        (
            "a.jsonl",
            "{\"text\":\"a\",\"label\":1.5}",
            "a.jsonl:1: column \"label\": is the number 1.5; a label (text, integer or boolean) is needed",
        ),
        (
            "a.jsonl",
            "{\"text\":\"a\",\"label\":{}}",
            "a.jsonl:1: column \"label\": is an object; a label (text, integer or boolean) is needed",
        ),
    ] {
        assert_eq!(refusal(name, content, &options), said);
    }
    let flags = refusal("a.csv", "text,a,b\nx,0,2\n", &multi(&["a", "b"]));
    assert_eq!(flags, "a.csv:2: column \"b\": is the text \"2\"; 0 or 1 is needed");
    let numbers = |content| refusal("a.csv", content, &regression(&["v"]));
    assert_eq!(
        numbers("text,v\nx,high\n"),
        "a.csv:2: column \"v\": is the text \"high\"; a number is needed"
    );
    let finite = "is not a finite 32-bit number | hint: remove the row or give it a finite target";
    assert_eq!(numbers("text,v\nx,nan\n"), format!("a.csv:2: column \"v\": NaN {finite}"));
    assert_eq!(numbers("text,v\nx,-inf\n"), format!("a.csv:2: column \"v\": -inf {finite}"));
    assert!(numbers("text,v\nx,1e300\n").ends_with(finite));
}

#[test]
fn parquet_fields_that_do_not_fit_name_row_and_column() {
    let files = Files::new();
    let path = files.dir.path().join("a.parquet");
    let said = |schema: &str, columns: [ParquetColumn; 2]| {
        write_parquet(&path, schema, &columns);
        files.said(&read(std::slice::from_ref(&path), &single_label()).expect_err("the file is wrong"))
    };
    let text = || ParquetColumn::Text(vec![Some(b"a"), Some(b"b")]);
    let schema = "message rows { optional binary text (UTF8); optional binary label (UTF8); }";
    let null = said(schema, [text(), ParquetColumn::Text(vec![Some(b"x"), None])]);
    assert_eq!(
        null,
        "a.parquet: row 2: column \"label\": is null; a label (text, integer or boolean) is needed"
    );
    let schema = "message rows { optional int64 text; optional binary lable (UTF8); }";
    let missing = said(schema, [ParquetColumn::Integers(vec![Some(1)]), ParquetColumn::Text(vec![None])]);
    assert_eq!(
        missing,
        "a.parquet: has no column \"label\"; its columns are \"text\", \"lable\" | hint: did you mean \"lable\"?"
    );
    let schema = "message rows { optional int64 text; optional binary label; }";
    let number =
        said(schema, [ParquetColumn::Integers(vec![Some(1)]), ParquetColumn::Text(vec![Some(b"x")])]);
    assert_eq!(number, "a.parquet: row 1: column \"text\": is the integer 1; text is needed");
    let schema = "message rows { optional binary text; optional binary label; }";
    let bytes =
        said(schema, [ParquetColumn::Text(vec![Some(b"a\xff")]), ParquetColumn::Text(vec![Some(b"x")])]);
    assert!(
        bytes.starts_with("a.parquet: row 1: column \"text\": byte 2 of the field is not UTF-8"),
        "{bytes}"
    );
    let empty = said(schema, [ParquetColumn::Text(vec![]), ParquetColumn::Text(vec![])]);
    assert_eq!(empty, "a.parquet: has a schema but no rows");
}

#[test]
fn a_damaged_parquet_file_gives_an_error_and_never_a_panic() {
    let files = Files::new();
    let path = files.dir.path().join("a.parquet");
    let schema = "message rows { optional binary text (UTF8); optional binary label (UTF8); }";
    let column = || ParquetColumn::Text((0..50).map(|_| Some(&b"some text"[..])).collect());
    write_parquet(&path, schema, &[column(), column()]);
    let whole = std::fs::read(&path).expect("just written");
    let mut refused = 0;
    for at in (0..whole.len()).step_by(3) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        std::fs::write(&path, &bytes).expect("a temporary file");
        refused += usize::from(read(std::slice::from_ref(&path), &single_label()).is_err());
        std::fs::write(&path, &whole[..at]).expect("a temporary file");
        assert!(read(std::slice::from_ref(&path), &single_label()).is_err(), "cut at {at}");
    }
    assert!(refused > 0);
}

#[test]
fn fields_over_the_limit_are_refused() {
    let mut options = single_label();
    options.field_bytes_max = 100;
    let long = "x".repeat(101);
    let csv = refusal("a.csv", format!("text,label\na,b\n{long},b\n"), &options);
    assert_eq!(csv, "a.csv:3: column \"text\": has 101 bytes, the limit is 100");
    let jsonl = refusal("a.jsonl", format!("{{\"text\":\"{long}\",\"label\":\"b\"}}\n"), &options);
    assert_eq!(jsonl, "a.jsonl:1: is longer than the limit of 100 bytes");
    options.field_bytes_max = 1000;
    let huge = format!("text,label\na,b\n\"{}", "x".repeat(1 << 20));
    assert_eq!(refusal("a.csv", huge, &options), "a.csv:3: is longer than the limit of 1000 bytes");
}

#[test]
fn options_that_contradict_the_task_are_refused() {
    let said = |options: SourceOptions| options.validate().expect_err("contradiction").to_string();
    let two = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(
        said(SourceOptions::new("text", two.clone(), Task::SingleLabel)),
        "data.label: single_label takes one column, 2 are named"
    );
    assert_eq!(said(SourceOptions::new("text", vec![], Task::Regression)), "data.label: no column is named");
    assert_eq!(
        said(SourceOptions::new("a", two, Task::Regression)),
        "the column \"a\" is used twice among data.text, data.text_pair and data.label"
    );
}
