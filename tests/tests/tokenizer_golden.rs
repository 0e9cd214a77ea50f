//! Tokenizers against their reference implementations (cases 13 to 16 and 19), and against damaged files.
//!
//! The fixtures were made by `fixtures/tokenizer/make.py`: ids of `spm_encode` and of `transformers`.

use std::fs;
use std::path::{Path, PathBuf};

use muster_proto::run_spec::{Keep, Truncation};
use muster_trainer::tokenizer::{
    Encoding, Spm, Texts, Tokenizer, TokenizerError, TokenizerFile, TruncationRule,
};
use proptest::prelude::*;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizer").join(name)
}

fn load(name: &str) -> Tokenizer {
    Tokenizer::load(&fixture(name)).unwrap()
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A copy of a fixture's directory, with another `tokenizer_config.json` if one is given.
fn directory(name: &str, config: Option<&str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    if let Some(config) = config {
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    }
    dir
}

fn rule(max_length: usize) -> TruncationRule {
    TruncationRule { max_length, strategy: Truncation::LongestFirst, keep: Keep::Head }
}

/// Compares every golden string. The ids of `golden` have `specials` special tokens at each end.
fn check(tokenizer: &Tokenizer, golden: &str, specials: usize) {
    let file = json("golden.json");
    let expected = file["ids"][golden].as_array().unwrap();
    assert!(expected.len() > 180, "{golden}: only {} strings", expected.len());
    for (text, expected) in file["strings"].as_array().unwrap().iter().zip(expected) {
        let text = text.as_str().unwrap();
        let expected = ids(expected);
        let inner = &expected[specials..expected.len() - specials];
        assert_eq!(tokenizer.encode_text(text).unwrap(), inner, "{golden}: {text:?}");
        let row = tokenizer.encode(text, None, &rule(100_000)).unwrap();
        assert_eq!(row.full_len as usize, row.ids.len());
        assert_eq!(row.second_from as usize, row.ids.len());
        assert_eq!(row.ids[1..row.ids.len() - 1], *inner, "{golden}: {text:?}");
        if specials > 0 {
            assert_eq!(row.ids, expected, "{golden}: {text:?}");
        }
    }
}

#[test]
fn case_13_raw_sentencepiece_gives_the_ids_of_spm_encode() {
    for name in ["deberta", "identity", "odd", "suffix"] {
        check(&load(name), name, 0);
    }
}

/// A saved DeBERTa carries a `tokenizer.json`, since `transformers` would rebuild the raw file with other ids.
#[test]
fn a_raw_file_is_saved_as_a_tokenizer_json_with_the_same_ids() {
    let raw = load("deberta");
    let saved = tempfile::tempdir().unwrap();
    for file in raw.files(64).unwrap() {
        // Without the raw file and its config.json only the conversion is left to be read.
        if let TokenizerFile::Made { name, bytes } = file {
            fs::write(saved.path().join(name), bytes).unwrap();
        }
    }
    let converted = Tokenizer::load(saved.path()).unwrap();
    assert!(converted.describe().contains("tokenizer.json"), "{}", converted.describe());
    assert_eq!(converted.special(), raw.special());
    let (mut compared, mut differing) = (0, Vec::new());
    for text in json("golden.json")["strings"].as_array().unwrap() {
        let text = text.as_str().unwrap();
        // There a special token in a text is special and the spelling of a byte is that byte; in the raw file both are text.
        if ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", "<0x"].iter().any(|special| text.contains(special))
        {
            continue;
        }
        let rows = [&raw, &converted].map(|t| t.encode(text, Some("a second text"), &rule(10_000)).unwrap());
        // The library looks whole grapheme clusters up in the character map, so combining marks may differ.
        assert!(rows[0] == rows[1] || !text.is_ascii(), "{text:?}: {:?}, not {:?}", rows[1], rows[0]);
        compared += 1;
        if rows[0] != rows[1] {
            differing.push(text.to_owned());
        }
    }
    assert!(compared > 400, "only {compared} strings compared");
    // The golden strings are nasty on purpose: so many of them hold such marks.
    assert_eq!(differing.len(), 45, "of {compared} strings these differ: {differing:?}");
    // Rules that a tokenizer.json can't express are not converted.
    assert!(load("suffix").files(64).unwrap().iter().all(|file| matches!(file, TokenizerFile::Copy(_))));
}

#[test]
fn case_13_xlm_roberta_moves_the_ids_of_its_raw_file_as_fairseq_does() {
    let tokenizer = load("xlmr");
    check(&tokenizer, "xlmr", 0);
    let (a, b) = (tokenizer.encode_text("profit").unwrap(), tokenizer.encode_text("loss").unwrap());
    let row = tokenizer.encode("profit", Some("loss"), &rule(64)).unwrap();
    let expected = [vec![0], a, vec![2, 2], b, vec![2]].concat();
    assert_eq!(row.ids, expected);
    assert_eq!(row.second_from as usize, expected.len(), "RoBERTa has one token type");
}

#[test]
fn deberta_settings_change_the_text_before_it_is_cut() {
    let lower = directory("deberta", Some(r#"{"do_lower_case": true}"#));
    check(&Tokenizer::load(lower.path()).unwrap(), "deberta_lower", 0);
    let punct = directory("deberta", Some(r#"{"split_by_punct": true}"#));
    check(&Tokenizer::load(punct.path()).unwrap(), "deberta_punct", 0);
}

#[test]
fn wordpiece_and_byte_level_bpe_give_the_ids_of_transformers() {
    for name in ["bert_uncased", "bert_cased", "bert_accents", "roberta"] {
        check(&load(name), name, 1);
    }
}

#[test]
fn truncation_and_padding_of_a_tokenizer_json_are_switched_off() {
    check(&load("json"), "roberta", 1);
}

#[test]
fn case_14_white_space_is_ruled_by_the_file() {
    let tokenizer = load("deberta");
    let id = |text: &str| tokenizer.encode_text(text).unwrap();
    assert_eq!(id("profit\tloss\nrate"), id("profit loss rate"));
    assert_eq!(id("  profit   loss  "), id("profit loss"));
    let keeps = load("identity");
    assert_ne!(keeps.encode_text("profit  loss").unwrap(), keeps.encode_text("profit loss").unwrap());
}

#[test]
fn case_14_the_fingerprint_changes_with_whatever_changes_ids() {
    let names =
        ["deberta", "identity", "odd", "suffix", "xlmr", "bert_uncased", "bert_cased", "roberta", "json"];
    let mut prints: Vec<u64> = names.iter().map(|name| load(name).fingerprint()).collect();
    for config in [r#"{"do_lower_case": true}"#, r#"{"split_by_punct": true}"#, r#"{"sep_token": "[PAD]"}"#] {
        prints.push(Tokenizer::load(directory("deberta", Some(config)).path()).unwrap().fingerprint());
    }
    let count = prints.len();
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), count);

    let renamed = directory("deberta", Some(r#"{"name_or_path": "elsewhere", "model_max_length": 7}"#));
    assert_eq!(Tokenizer::load(renamed.path()).unwrap().fingerprint(), load("deberta").fingerprint());
}

#[test]
fn case_15_the_vocabulary_that_is_there_is_read() {
    let both = directory("deberta", None);
    fs::copy(fixture("json/tokenizer.json"), both.path().join("tokenizer.json")).unwrap();
    let both = Tokenizer::load(both.path()).unwrap();
    assert_eq!(both.fingerprint(), load("deberta").fingerprint());
    let files = both.files(64).unwrap();
    let names: Vec<_> = files.iter().map(TokenizerFile::name).collect();
    assert_eq!(names, ["spm.model", "tokenizer.json", "tokenizer_config.json"]);

    let roberta = directory("json", None);
    fs::write(roberta.path().join("config.json"), r#"{"model_type": "roberta"}"#).unwrap();
    fs::copy(fixture("deberta/spm.model"), roberta.path().join("spm.model")).unwrap();
    let roberta = Tokenizer::load(roberta.path()).unwrap();
    assert!(roberta.describe().starts_with("tokenizer.json"), "{}", roberta.describe());
}

#[test]
fn case_15_without_a_vocabulary_the_error_lists_what_was_looked_for() {
    let none = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(none.path()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(none.path().to_str().unwrap()), "{text}");
    for name in
        ["spm.model", "tokenizer.json", "sentencepiece.bpe.model", "vocab.txt", "vocab.json + merges.txt"]
    {
        assert!(text.contains(name), "{text}");
    }
    assert!(error.hint().unwrap().contains("pretrained model"));
}

#[test]
fn case_16_embedding_rows_beyond_the_vocabulary_are_fine_and_missing_rows_are_not() {
    let tokenizer = load("deberta");
    let pieces = tokenizer.vocab_size() - 1;
    let special = tokenizer.special();
    assert_eq!(special.mask, Some(pieces as u32), "[MASK] follows the last piece");
    assert_eq!([special.pad, special.cls, special.sep, special.unk], [0, 1, 2, 3].map(Some));
    tokenizer.check_rows(pieces + 100).unwrap();
    tokenizer.check_rows(pieces).unwrap();
    let error = tokenizer.check_rows(pieces - 1).unwrap_err().to_string();
    let (id, rows) = (format!("id {}", pieces - 1), format!("{} rows", pieces - 1));
    assert!(error.contains(&id) && error.contains(&rows), "{error}");

    let bert = load("bert_uncased");
    bert.check_rows(bert.vocab_size()).unwrap();
    assert!(matches!(bert.check_rows(bert.vocab_size() - 1), Err(TokenizerError::RowsTooFew { .. })));
}

#[test]
fn case_16_a_mask_in_added_tokens_json_keeps_its_id() {
    let dir = directory("deberta", None);
    fs::write(dir.path().join("added_tokens.json"), r#"{"[MASK]": 900}"#).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((tokenizer.special().mask, tokenizer.vocab_size()), (Some(900), 901));
}

#[test]
fn case_19_truncated_pairs_equal_those_of_transformers() {
    let file = json("pairs.json");
    let max_length = file["max_length"].as_u64().unwrap() as usize;
    let tokenizers = ["bert_uncased", "roberta"].map(|name| (name, load(name)));
    let (mut rows, mut refused) = (0, 0);
    for row in file["rows"].as_array().unwrap() {
        let (_, tokenizer) = tokenizers.iter().find(|(name, _)| row["tokenizer"] == *name).unwrap();
        let strategy: Truncation = serde_json::from_value(row["strategy"].clone()).unwrap();
        let keep: Keep = serde_json::from_value(row["keep"].clone()).unwrap();
        let rule = TruncationRule { max_length, strategy, keep };
        let texts: Vec<&str> =
            ids(&row["texts"]).iter().map(|&text| file["texts"][text as usize].as_str().unwrap()).collect();
        let got = tokenizer.encode(texts[0], texts.get(1).copied(), &rule);
        let what = format!("{} {} {} {strategy:?} {keep:?}", row["tokenizer"], row["first"], row["second"]);
        if row["ids"].is_null() {
            assert!(
                matches!(got, Err(TokenizerError::CannotTruncate { .. })),
                "{what}: {got:?}, {}",
                row["error"]
            );
            refused += 1;
            continue;
        }
        let got = got.unwrap();
        let types = got.ids.len() - got.second_from as usize;
        assert_eq!(got.ids, ids(&row["ids"]), "{what}");
        assert_eq!(types as u64, row["types"].as_u64().unwrap(), "{what}");
        rows += 1;
    }
    assert!(rows > 60 && refused > 10, "{rows} rows, {refused} refused");
}

#[test]
fn case_19_head_tail_keeps_both_ends_and_every_special_token() {
    let tokenizer = load("deberta");
    let text = "profit rose in the third quarter and shares fell on weak demand";
    let whole = tokenizer.encode_text(text).unwrap();
    let last = |count: usize| &whole[whole.len() - count..];
    let rule = TruncationRule { max_length: 9, strategy: Truncation::LongestFirst, keep: Keep::HeadTail };
    let row = tokenizer.encode(text, None, &rule).unwrap();
    let expected = [&[1], &whole[..4], last(3), &[2]].concat();
    assert_eq!(row, Encoding { ids: expected, second_from: 9, full_len: whole.len() as u32 + 2 });
    let pair = tokenizer.encode(text, Some(text), &rule).unwrap();
    assert_eq!(pair.ids, [&[1], &whole[..2], last(1), &[2], &whole[..2], last(1), &[2]].concat());
    assert_eq!(pair.second_from, 5);
}

#[test]
fn a_limit_without_room_for_text_is_an_error() {
    let tokenizer = load("deberta");
    assert!(matches!(tokenizer.encode("a", None, &rule(2)), Err(TokenizerError::NoRoom { specials: 2, .. })));
    let pair = tokenizer.check_rule(&rule(3), Texts::Pair);
    assert!(matches!(pair, Err(TokenizerError::NoRoom { specials: 3, .. })));
    tokenizer.check_rule(&rule(3), Texts::One).unwrap();
    let error = tokenizer.check_rule(&rule(0), Texts::One).unwrap_err();
    assert_eq!(error.hint().unwrap(), "raise data.max_length");
}

#[test]
fn an_empty_text_is_only_its_special_tokens() {
    let tokenizer = load("deberta");
    assert_eq!(tokenizer.encode("", None, &rule(16)).unwrap().ids, [1, 2]);
    let row = tokenizer.encode("", Some("   "), &rule(16)).unwrap();
    assert_eq!(row, Encoding { ids: vec![1, 2, 2], second_from: 2, full_len: 3 });
}

#[test]
fn a_model_type_other_than_unigram_is_refused_by_name() {
    let error = Tokenizer::load(&fixture("bpe")).unwrap_err();
    assert!(error.to_string().contains("type BPE"), "{error}");
}

#[test]
fn damaged_files_are_refused_with_their_name() {
    let cut = directory("deberta", None);
    let bytes = fs::read(cut.path().join("spm.model")).unwrap();
    fs::write(cut.path().join("spm.model"), &bytes[..bytes.len() - 7]).unwrap();
    let error = Tokenizer::load(cut.path()).unwrap_err();
    assert!(error.to_string().contains("spm.model"), "{error}");

    let pointer = directory("deberta", None);
    let text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2464616\n";
    fs::write(pointer.path().join("spm.model"), text).unwrap();
    assert!(Tokenizer::load(pointer.path()).unwrap_err().hint().unwrap().contains("git-lfs"));

    let merges = directory("roberta", None);
    fs::write(merges.path().join("merges.txt"), "#version: 0.2\na b\nc\n").unwrap();
    let error = Tokenizer::load(merges.path()).unwrap_err().to_string();
    assert!(error.contains("merges.txt") && error.contains("line 3"), "{error}");

    let vocab = directory("bert_uncased", Some(r#"{"sep_token": "[NOWHERE]"}"#));
    let error = Tokenizer::load(vocab.path()).unwrap_err().to_string();
    assert!(error.contains("sep_token") && error.contains("[NOWHERE]"), "{error}");

    let setting = directory("deberta", Some(r#"{"do_lower_case": "yes"}"#));
    let error = Tokenizer::load(setting.path()).unwrap_err().to_string();
    assert!(error.contains("do_lower_case") && error.contains("\"yes\""), "{error}");
}

#[test]
fn a_file_larger_than_the_limit_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = fs::File::create(dir.path().join("spm.model")).unwrap();
    file.set_len(33 << 20).unwrap();
    assert!(matches!(Tokenizer::load(dir.path()), Err(TokenizerError::TooLarge { limit: 33_554_432, .. })));
}

#[test]
fn threads_share_one_tokenizer() {
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let tokenizer = shared(load("deberta"));
    let expected = tokenizer.encode_text("profit rose").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(tokenizer.encode_text("profit rose").unwrap(), expected));
        }
    });
}

/// Encodes with a model that may make no sense: an error or ids of the vocabulary, but no panic.
fn try_model(bytes: &[u8], text: &str) {
    if let Ok(model) = Spm::parse(Path::new("spm.model"), bytes) {
        let mut ids = Vec::new();
        model.encode(text, &mut ids);
        assert!(ids.iter().all(|&id| (id as usize) < model.piece_count()));
    }
}

/// Bytes to overwrite in a file.
fn flips(count: usize) -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..count)
}

fn flipped(path: &Path, flips: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    for (at, value) in flips {
        let at = at.index(bytes.len());
        bytes[at] = *value;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in ".*") {
        try_model(&bytes, &text);
    }

    #[test]
    fn a_model_with_flipped_bytes_never_panics(flips in flips(12), text in "\\PC*") {
        for name in ["suffix", "odd", "deberta"] {
            let bytes = flipped(&fixture(name).join("spm.model"), &flips);
            try_model(&bytes, &text);
            try_model(&bytes, "profit \u{fb01} x\u{308} \u{3000} \u{1f600}<num>xyz");
        }
    }

    #[test]
    fn a_tokenizer_json_with_flipped_bytes_never_panics(flips in flips(4)) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer.json"), flipped(&fixture("json/tokenizer.json"), &flips)).unwrap();
        if let Ok(tokenizer) = Tokenizer::load(dir.path()) {
            let _ = tokenizer.encode("profit rose", Some("<mask> loss"), &rule(32));
        }
    }

    #[test]
    fn a_row_is_never_longer_than_the_limit_and_keeps_its_special_tokens(
        first in "\\PC{0,80}", second in proptest::option::of("\\PC{0,80}"), max_length in 4usize..40,
        keep in prop::sample::select(vec![Keep::Head, Keep::Tail, Keep::HeadTail]),
    ) {
        let tokenizer = load("suffix");
        let rule = TruncationRule { max_length, strategy: Truncation::LongestFirst, keep };
        let row = tokenizer.encode(&first, second.as_deref(), &rule).unwrap();
        prop_assert_eq!(row.ids.len(), max_length.min(row.full_len as usize));
        prop_assert_eq!((row.ids[0], row.ids[row.ids.len() - 1]), (1, 2));
        if second.is_some() {
            prop_assert_eq!(row.ids[row.second_from as usize - 1], 2);
        }
    }
}
