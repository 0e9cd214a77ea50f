//! The token store: reuse, damage, fallbacks, threads, long rows.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use muster_proto::run_spec::OnLong;

use super::super::error::DataError;
use super::super::pack::collate;
use super::super::source::{Role, SourceOptions, Task};
use super::super::survey::{DataSet, Known};
use super::super::testing::{Files, build_options, single_label, training, words};
use super::{BuildOptions, BuildProgress, StoreOrigin, TokenStore};
use crate::batch::{Encoding, Targets};

/// A class label changes every row, the length varies.
fn csv(rows: usize) -> String {
    let row = |r: usize| format!("{},c{}\n", vec![format!("word{r}"); r % 9].join(" "), r % 3);
    "text,label\n".to_owned() + &(0..rows).map(row).collect::<String>()
}

/// Builds or opens the store of `set` and counts the tokenizer's calls.
fn open(set: &[PathBuf], cache: Option<&Path>) -> (TokenStore, usize) {
    open_with(set, &single_label(), build_options(cache))
}

fn open_with(set: &[PathBuf], options: &SourceOptions, build: BuildOptions) -> (TokenStore, usize) {
    let calls = AtomicUsize::new(0);
    let tokenizer = words(64);
    let counted = |text: &str, pair: Option<&str>| {
        calls.fetch_add(1, Ordering::Relaxed);
        tokenizer(text, pair)
    };
    let store = TokenStore::open_or_build(&training(set, options), &counted, &build).expect("valid data");
    (store, calls.load(Ordering::Relaxed))
}

/// Ids, start of the second text, target words and place.
type Stored = (Vec<u32>, u32, Vec<u32>, String);

fn content(store: &TokenStore) -> Vec<Stored> {
    let row = |r| {
        let (ids, second) = store.row(r);
        (ids.to_vec(), second, store.target_words(r).to_vec(), store.place(r).to_string())
    };
    (0..store.rows()).map(row).collect()
}

fn token_file(cache: &Path) -> PathBuf {
    let files: Vec<PathBuf> =
        std::fs::read_dir(cache).expect("a directory").map(|e| e.expect("an entry").path()).collect();
    assert_eq!(files.len(), 1, "one token file and nothing else: {files:?}");
    files[0].clone()
}

#[test]
fn the_second_open_maps_the_file_and_does_not_tokenise() {
    let files = Files::new();
    let set = files.set("a.csv", csv(1000));
    let cache = files.dir.path().join("deep/cache");
    let (first, calls) = open(&set, Some(&cache));
    assert_eq!((calls, first.origin()), (1000, StoreOrigin::Built));
    let (second, calls) = open(&set, Some(&cache));
    assert_eq!((calls, second.origin()), (0, StoreOrigin::Cached));
    let (memory, _) = open(&set, None);
    assert_eq!(memory.origin(), StoreOrigin::Memory);
    assert_eq!(content(&first), content(&second));
    assert_eq!(content(&first), content(&memory));
    assert_eq!(second.labels(), first.labels());
    assert_eq!((second.label_counts(), second.shape()), (&[334, 333, 333][..], first.shape()));
    assert_eq!((second.empty_texts(), second.tokens()), (112, first.tokens()));
    assert_eq!(second.place(5).to_string(), format!("{}:7", set[0].display()));
}

#[test]
fn content_tokenizer_and_settings_each_make_another_file() {
    let files = Files::new();
    let cache = files.dir.path().join("cache");
    let set = files.set("a.csv", csv(20));
    let tokenised =
        |set: &[PathBuf], options: &SourceOptions, build: BuildOptions| open_with(set, options, build).1 > 0;
    let base = || build_options(Some(&cache));
    let options = single_label();
    assert!(tokenised(&set, &options, base()));
    assert!(
        !tokenised(&set, &options, BuildOptions { threads: 1, ..base() }),
        "threads do not change tokens"
    );
    assert!(tokenised(&set, &options, BuildOptions { tokenizer_fingerprint: 9, ..base() }));
    assert!(tokenised(&set, &options, BuildOptions { rule_fingerprint: 9, ..base() }));
    assert!(tokenised(&set, &options, BuildOptions { on_long: OnLong::Error, ..base() }));
    let swapped =
        SourceOptions::new("label", vec!["text".into()], Task::MultiLabel { separator: " ".into() });
    assert!(tokenised(&set, &swapped, base()));
    std::fs::rename(&set[0], files.dir.path().join("b.csv")).expect("renamed");
    let renamed = vec![files.dir.path().join("b.csv")];
    assert!(!tokenised(&renamed, &options, base()), "content counts, not the name");
    let grown = files.set("a.csv", csv(21));
    assert!(tokenised(&grown, &options, base()));
}

#[test]
fn a_damaged_file_is_rebuilt_wherever_the_damage_is() {
    let files = Files::new();
    let set = files.set("a.csv", csv(40));
    let cache = files.dir.path().join("cache");
    let (store, _) = open(&set, Some(&cache));
    let expected = content(&store);
    drop(store);
    let path = token_file(&cache);
    let whole = std::fs::read(&path).expect("a token file");
    let check = |what: String| {
        let (store, calls) = open(&set, Some(&cache));
        assert_eq!((calls, store.origin()), (40, StoreOrigin::Built), "{what} was not noticed");
        assert_eq!(content(&store), expected, "{what}");
        assert_eq!(
            std::fs::read(token_file(&cache)).expect("rebuilt"),
            whole,
            "a rebuild gives the same bytes"
        );
    };
    // A new inode each time, as a partial copy or a bad disk would leave it.
    let replace = |bytes: &[u8]| {
        std::fs::remove_file(&path).expect("the file is there");
        std::fs::write(&path, bytes).expect("written");
    };
    for len in (0..whole.len()).step_by(37).chain([1, 79, 80, 81, whole.len() - 1]) {
        replace(&whole[..len]);
        check(format!("truncation to {len}"));
    }
    for at in (0..whole.len()).step_by(29) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        replace(&bytes);
        check(format!("a flipped bit at {at}"));
    }
    replace(&[&whole[..], b"x"].concat());
    check("a longer file".into());
    replace(b"something else entirely, longer than a header would be: it is no token file at all, not one bit of it");
    check("a foreign file".into());
}

#[test]
fn a_file_of_another_key_is_not_used() {
    let files = Files::new();
    let cache = files.dir.path().join("cache");
    let set = files.set("a.csv", csv(10));
    open(&set, Some(&cache));
    let path = token_file(&cache);
    let other = files.set("b.csv", csv(11));
    open(&other, Some(&cache));
    let names = std::fs::read_dir(&cache).expect("a directory").map(|e| e.expect("an entry").path());
    let other_path = names.into_iter().find(|p| *p != path).expect("the second file");
    std::fs::copy(&path, &other_path).expect("copied over");
    let (store, calls) = open(&other, Some(&cache));
    assert_eq!((calls, store.rows()), (11, 11));
}

#[test]
fn an_unwritable_cache_directory_leaves_the_tokens_in_memory() {
    let files = Files::new();
    let set = files.set("a.csv", csv(30));
    // Below a regular file no directory can be made, not even by root.
    let cache = set[0].join("cache");
    let (store, calls) = open(&set, Some(&cache));
    assert_eq!((store.origin(), calls), (StoreOrigin::Memory, 30));
    assert_eq!(content(&store), content(&open(&set, None).0));
}

#[test]
fn what_a_killed_process_left_is_removed_and_a_live_writer_is_not_disturbed() {
    let files = Files::new();
    let set = files.set("a.csv", csv(10));
    let cache = files.dir.path().join("cache");
    std::fs::create_dir(&cache).expect("a directory");
    let dead = files.write("cache/tokens-dead.partial", "half");
    let live = files.write("cache/tokens-live.partial", "half");
    let writer = std::fs::File::open(&live).expect("the live file");
    writer.try_lock().expect("nobody else holds it");
    open(&set, Some(&cache));
    assert_eq!((dead.exists(), live.exists()), (false, true));
}

#[test]
fn the_number_of_threads_does_not_change_the_store() {
    let files = Files::new();
    let set = files.set("a.csv", csv(3000));
    let options = single_label();
    let one = open_with(&set, &options, BuildOptions { threads: 1, ..build_options(None) }).0;
    let four = open_with(&set, &options, BuildOptions { threads: 4, ..build_options(None) }).0;
    assert_eq!(content(&one), content(&four));
}

#[test]
fn case_32_progress_tells_rows_and_total_from_both_passes() {
    let files = Files::new();
    let set = files.set("a.csv", csv(10_000));
    let seen = Mutex::new(Vec::new());
    let progress = |p: BuildProgress| seen.lock().expect("no panic").push(p);
    open_with(&set, &single_label(), BuildOptions { progress: &progress, ..build_options(None) });
    let seen = seen.into_inner().expect("no panic");
    assert_eq!(seen[0], BuildProgress::Hashing { bytes_done: csv(10_000).len() as u64 });
    let checked: Vec<u64> = seen
        .iter()
        .filter_map(|p| if let BuildProgress::Checking { rows_done } = p { Some(*rows_done) } else { None })
        .collect();
    assert_eq!(checked, [4096, 8192, 10_000]);
    let done: Vec<u64> = seen
        .iter()
        .filter_map(|p| match p {
            BuildProgress::Tokenising { rows_done, rows: 10_000, .. } => Some(*rows_done),
            _ => None,
        })
        .collect();
    assert!(done.windows(2).all(|w| w[0] < w[1]) && done.len() >= 39, "{done:?}");
    assert_eq!(done.last(), Some(&10_000));
}

#[test]
fn stopping_ends_either_pass_soon() {
    let files = Files::new();
    let set = files.set("a.csv", csv(20_000));
    let options = single_label();
    let stopped_by = |at: fn(BuildProgress) -> bool| {
        let stop = AtomicBool::new(false);
        let progress = |p: BuildProgress| {
            stop.fetch_or(at(p), Ordering::Relaxed);
        };
        let build = BuildOptions { stop: &stop, progress: &progress, ..build_options(None) };
        match TokenStore::open_or_build(&training(&set, &options), &words(64), &build) {
            Err(error @ DataError::Interrupted(_)) => error.to_string(),
            Err(other) => panic!("another error: {other}"),
            Ok(_) => panic!("the stop was ignored"),
        }
    };
    assert_eq!(
        stopped_by(|p| matches!(p, BuildProgress::Checking { .. })),
        "stopped while checking the data files"
    );
    assert_eq!(
        stopped_by(|p| matches!(p, BuildProgress::Tokenising { .. })),
        "stopped while tokenising the data"
    );
}

#[test]
fn long_rows_are_counted_or_refused_with_their_line() {
    let files = Files::new();
    let set = files.set("a.csv", "text,label\na b,x\na b c d e f,y\n1 2 3 4 5,x\n");
    let options = single_label();
    let build = |on_long| {
        let build = BuildOptions { on_long, ..build_options(None) };
        TokenStore::open_or_build(&training(&set, &options), &words(6), &build)
    };
    let store = build(OnLong::Truncate).expect("rows are shortened");
    assert_eq!((store.truncated_rows(), store.longest_tokens(), store.longest_row()), (2, 8, 6));
    let error = build(OnLong::Error).err().expect("rows are refused");
    assert_eq!(
        files.said(&error),
        "a.csv:3: has 8 tokens, max_length is 6 | hint: raise data.max_length, shorten the row, or set data.on_long = \"truncate\""
    );
}

#[test]
fn a_tokenizer_that_fails_or_panics_names_the_first_row_and_ends_every_thread() {
    let files = Files::new();
    let set = files.set("a.csv", csv(5000));
    let options = single_label();
    let tokenizer = words(64);
    let said = |fail: &(dyn Fn() -> Encoding + Sync)| {
        let encode = |text: &str, pair: Option<&str>| match text.split(' ').next() {
            Some("word400" | "word4001") => Ok(fail()),
            _ => tokenizer(text, pair),
        };
        let build = BuildOptions { threads: 3, ..build_options(None) };
        let result = TokenStore::open_or_build(&training(&set, &options), &encode, &build);
        files.said(&result.err().expect("the tokenizer fails"))
    };
    assert_eq!(said(&|| Encoding { ids: vec![], second_from: 0, full_len: 0 }), "a.csv:402: has no tokens");
    let panicked = said(&|| panic!("a defect"));
    assert_eq!(panicked, "a.csv:402: can't be tokenised: the tokenizer panicked");
}

#[test]
fn a_file_that_changes_while_it_is_tokenised_is_refused_and_not_cached() {
    let files = Files::new();
    let set = files.set("a.csv", csv(300));
    let cache = files.dir.path().join("cache");
    let options = single_label();
    let tokenizer = words(64);
    let encode = |text: &str, pair: Option<&str>| {
        if text.starts_with("word100") {
            files.write("a.csv", csv(301));
        }
        tokenizer(text, pair)
    };
    let error = TokenStore::open_or_build(&training(&set, &options), &encode, &build_options(Some(&cache)));
    let said = files.said(&error.err().expect("the file changed"));
    assert_eq!(
        said,
        "a.csv: changed while it was read | hint: wait until the file is complete, then start again"
    );
    assert_eq!(std::fs::read_dir(&cache).expect("a directory").count(), 0);
}

#[test]
fn targets_of_every_task_reach_the_batch() {
    let files = Files::new();
    let batch = |content: &str, columns: &[&str], task: Task| {
        let set = files.set("t.csv", content);
        let options = SourceOptions::new("text", columns.iter().map(|c| (*c).to_owned()).collect(), task);
        let cache = files.dir.path().join("cache");
        let build = || open_with(&set, &options, build_options(Some(&cache))).0;
        let built = collate(&build(), &[1, 0]);
        let cached = collate(&build(), &[1, 0]);
        assert_eq!(built, cached);
        cached.targets
    };
    assert_eq!(batch("text,label\na,z\nb,y\n", &["label"], Task::SingleLabel), Targets::Class(vec![0, 1]));
    let separator = || Task::MultiLabel { separator: ",".into() };
    let several = Targets::Multi { width: 3, values: vec![0.0, 0.0, 0.0, 1.0, 0.0, 1.0] };
    assert_eq!(batch("text,x,y,z\na,1,0,1\nb,0,0,0\n", &["x", "y", "z"], separator()), several);
    let several = Targets::Multi { width: 2, values: vec![1.0, 1.0, 0.0, 1.0] };
    assert_eq!(batch("text,label\na,q\nb,\"p,q\"\n", &["label"], separator()), several);
    let values = Targets::Value { width: 2, values: vec![-1.0, 3.5, 0.5, 2.0] };
    assert_eq!(batch("text,u,v\na,.5,2\nb,-1,3.5\n", &["u", "v"], Task::Regression), values);
    assert_eq!(batch("text\na\nb\n", &[], Task::Unlabelled), Targets::None);
}

#[test]
fn more_labels_than_a_word_has_bits_are_kept_apart() {
    let files = Files::new();
    let text = "text,label\n".to_owned()
        + &(0..70).map(|l| format!("w,{l}|{}\n", (l + 35) % 70)).collect::<String>();
    let set = files.set("a.csv", text);
    let options =
        SourceOptions::new("text", vec!["label".into()], Task::MultiLabel { separator: "|".into() });
    let (store, _) = open_with(&set, &options, build_options(None));
    for row in 0..70 {
        let Targets::Multi { width: 70, values } = collate(&store, &[row as u64]).targets else {
            panic!("multi-label targets of 70 labels");
        };
        let on: Vec<usize> = (0..70).filter(|&l| values[l] == 1.0).collect();
        let mut expected = vec![row, (row + 35) % 70];
        expected.sort_unstable();
        assert_eq!(on, expected);
    }
}

#[test]
fn a_batch_holds_rows_end_to_end_with_positions_and_types() {
    let files = Files::new();
    let set = files.set("a.csv", "text,other,label\na b,c,x\nd,e f,y\n");
    let mut options = single_label();
    options.text_pair = Some("other".into());
    let (store, _) = open_with(&set, &options, build_options(None));
    let batch = collate(&store, &[1, 0]);
    assert_eq!(batch.offsets, [0, 6, 12]);
    assert_eq!(batch.positions, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    assert_eq!(batch.type_ids, [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]);
    assert_eq!(batch.row_ids, [1, 0]);
    assert_eq!(batch.ids[6..], *store.row(0).0);
    assert_eq!((batch.rows(), batch.tokens(), batch.max_len()), (2, 12, 6));
}

#[test]
fn case_24_a_label_that_training_lacks_is_found_with_its_line() {
    let files = Files::new();
    let train = files.set("train.csv", "text,label\na,positive\nb,negative\n");
    let eval = files.set("eval.csv", "text,label\na,positive\nb,postive\nc,other\n");
    let options = single_label();
    let store = open(&train, None).0;
    let set = DataSet {
        files: &eval,
        options: &options,
        role: Role::Evaluate,
        known: Known::Labels(store.labels()),
    };
    let error =
        TokenStore::open_or_build(&set, &words(64), &build_options(None)).err().expect("unknown label");
    assert_eq!(
        files.said(&error),
        "eval.csv:3: column \"label\": label \"postive\" is not among the 2 labels of the training data | hint: did you mean \"positive\"?"
    );
}

/// Real data, if this checkout has it: 10,003 rows, 77 intents, quoted texts with commas.
#[test]
fn banking77_is_read_as_published() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let shared = std::env::var("MUSTER_SHARED_DATA").unwrap_or_else(|_| "../shared/data".into());
    let dir = root.join(shared).join("banking77");
    if !dir.join("train.csv").exists() {
        eprintln!("skipped: banking77 is not at {}", dir.display());
        return;
    }
    let options = SourceOptions::new("text", vec!["category".into()], Task::SingleLabel);
    let (train, _) = open_with(&[dir.join("train.csv")], &options, build_options(None));
    assert_eq!((train.rows(), train.labels().len()), (10_003, 77));
    assert_eq!(train.label_counts().iter().sum::<u64>(), 10_003);
    let test = [dir.join("test.csv")];
    let set = DataSet {
        files: &test,
        options: &options,
        role: Role::Evaluate,
        known: Known::Labels(train.labels()),
    };
    let test = TokenStore::open_or_build(&set, &words(64), &build_options(None)).expect("the same labels");
    assert_eq!((test.rows(), test.label_counts().to_vec()), (3_080, vec![40; 77]));
}
