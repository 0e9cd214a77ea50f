//! Label discovery and the data sets that can't be trained on.

use std::path::PathBuf;

use super::error::DataError;
use super::labels::Labels;
use super::source::{Role, SourceOptions, Task};
use super::survey::{DataSet, Known, Survey, survey};
use super::targets::TargetShape;
use super::testing::{Files, NEVER, single_label, training};

fn run(set: &DataSet) -> Result<Survey, DataError> {
    survey(set, &NEVER, &|_| {})
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn case_23_the_order_of_rows_and_files_does_not_change_the_mapping() {
    let files = Files::new();
    let rows = ["a,zebra", "b,ant", "c,mole", "d,ant", "e,zebra", "f,bee"];
    let content = |order: &[usize]| {
        "text,label\n".to_owned() + &order.iter().map(|&r| format!("{}\n", rows[r])).collect::<String>()
    };
    let forward = files.set("a.csv", content(&[0, 1, 2, 3, 4, 5]));
    let shuffled = files.set("b.csv", content(&[5, 2, 4, 0, 3, 1]));
    let parts = [files.write("c.csv", content(&[4, 5])), files.write("d.csv", content(&[3, 1, 0, 2]))];
    let options = single_label();
    let found = |set: &[PathBuf]| run(&training(set, &options)).expect("valid");
    let first = found(&forward);
    assert_eq!(first.labels.names(), ["ant", "bee", "mole", "zebra"]);
    assert_eq!(first.label_counts, [2, 1, 1, 2]);
    assert_eq!((first.rows, first.shape), (6, TargetShape::Class { classes: 4 }));
    assert_eq!(found(&shuffled), first);
    assert_eq!(found(&parts), first);
}

#[test]
fn an_explicit_order_is_kept_and_a_label_outside_it_is_refused() {
    let files = Files::new();
    let set = files.set("a.csv", "text,label\na,neg\nb,pos\nc,Neutral\n");
    let options = single_label();
    let with = |names: &[&str]| {
        let labels = Labels::explicit(&strings(names)).expect("a valid list");
        run(&DataSet { known: Known::Labels(&labels), ..training(&set, &options) })
    };
    let survey = with(&["pos", "neg", "Neutral", "mixed"]).expect("all labels are listed");
    assert_eq!(survey.labels.names(), ["pos", "neg", "Neutral", "mixed"]);
    assert_eq!(survey.label_counts, [1, 1, 1, 0]);
    let error = with(&["pos", "neg", "neutral"]).expect_err("case matters");
    assert_eq!(
        files.said(&error),
        "a.csv:4: column \"label\": label \"Neutral\" is not among the 3 labels of task.labels | hint: did you mean \"neutral\"?"
    );
}

#[test]
fn data_that_cannot_teach_is_refused_for_training_only() {
    let files = Files::new();
    let options = single_label();
    let one = files.set("a.csv", "text,label\na,yes\nb,yes\n");
    let error = run(&training(&one, &options)).expect_err("one class");
    assert_eq!(
        files.said(&error),
        "all 2 training rows have the label \"yes\"; classification needs two classes | hint: is data.label the right column? for numeric targets use type = \"regression\""
    );
    assert!(run(&DataSet { role: Role::Evaluate, ..training(&one, &options) }).is_ok());
    let options = SourceOptions::new("text", strings(&["label"]), Task::MultiLabel { separator: "|".into() });
    let none = files.set("b.csv", "text,label\na,\nb,\n");
    let error = run(&training(&none, &options)).expect_err("no label");
    assert!(files.said(&error).starts_with("none of the 2 training rows has any label"));
}

#[test]
fn label_columns_must_be_the_labels_of_the_task() {
    let files = Files::new();
    let set = files.set("a.csv", "text,x,y\na,1,0\nb,0,1\nc,1,1\n");
    let options =
        SourceOptions::new("text", strings(&["x", "y"]), Task::MultiLabel { separator: "|".into() });
    let found = run(&training(&set, &options)).expect("valid");
    assert_eq!((found.labels.names(), &found.label_counts[..]), (&strings(&["x", "y"])[..], &[2, 2][..]));
    let labels = Labels::explicit(&strings(&["y", "x"])).expect("valid");
    let known = DataSet { known: Known::Labels(&labels), ..training(&set, &options) };
    assert_eq!(run(&known).expect("another order").labels.names(), ["y", "x"]);
    let labels = Labels::explicit(&strings(&["y", "z"])).expect("valid");
    let known = DataSet { known: Known::Labels(&labels), ..training(&set, &options) };
    let error = run(&known).expect_err("other labels");
    assert_eq!(error.to_string(), "data.label: the 2 columns are not the 2 labels of the task");
}

#[test]
fn regression_rows_must_have_one_width() {
    let files = Files::new();
    let options = SourceOptions::new("text", strings(&["v"]), Task::Regression);
    let set = files.set("a.jsonl", "{\"text\":\"a\",\"v\":[1,2]}\n{\"text\":\"b\",\"v\":[1]}\n");
    let error = run(&training(&set, &options)).expect_err("widths differ");
    assert_eq!(files.said(&error), "a.jsonl:2: column \"v\": has 1 values; every row of the task has 2");
    let error =
        run(&DataSet { known: Known::Width(3), ..training(&set, &options) }).expect_err("training had 3");
    assert_eq!(files.said(&error), "a.jsonl:1: column \"v\": has 2 values; every row of the task has 3");
}

#[test]
fn a_column_of_free_text_as_label_is_noticed() {
    let files = Files::new();
    let rows: String = (0..70_000).map(|r| format!("t,{r}\n")).collect();
    let set = files.set("a.csv", format!("text,label\n{rows}"));
    let error = run(&training(&set, &single_label())).expect_err("70,000 labels");
    assert_eq!(
        files.said(&error),
        "a.csv:16386: column \"label\": holds more than 16384 different labels | hint: is this the label column? for numbers use type = \"regression\""
    );
}
