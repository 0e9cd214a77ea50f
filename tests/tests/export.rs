//! Model folders: what is in them, and that nothing of the user's is lost.

use std::fs;

use muster_tests::checkpoints::layout;
use muster_trainer::export::{ConfigFields, ExportError, ModelExport, export_model, finish_config};
use muster_trainer::tokenizer::TokenizerFile;
use muster_trainer::weights::{FileDtype, HeadRule, LoadRules, WeightFiles, load_into};
use serde_json::json;
use tempfile::TempDir;

#[test]
fn an_exported_folder_reads_back_and_replaces_only_its_own_kind() {
    let parent = TempDir::new().unwrap();
    let layout = layout();
    let master: Vec<f32> = (0..layout.arena_len()).map(|k| (k % 1000) as f32 / 8.0).collect();
    let tokenizer = parent.path().join("tokenizer.json");
    fs::write(&tokenizer, "{}").unwrap();
    let (config, tokenizer_files) = (json!({ "model_type": "bert" }), [TokenizerFile::Copy(tokenizer)]);
    let dir = parent.path().join("a/model");
    // k / 8 below 125 needs up to 10 bits and bf16 has 8: it rounds by at most 2^-8 of the value.
    for (dtype, tolerance) in [(FileDtype::F32, 0.0), (FileDtype::Bf16, 1.0 / 256.0)] {
        let model = ModelExport {
            config: &config,
            layout: &layout,
            master: &master,
            dtype,
            tokenizer_files: &tokenizer_files,
        };
        export_model(&dir, &model).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
        assert_eq!(fs::read_dir(parent.path().join("a")).unwrap().count(), 1, "no temporary folder stays");
        let mut read = vec![0.0; layout.arena_len()];
        load_into(&WeightFiles::open(&dir).unwrap(), &layout, &LoadRules::new(HeadRule::Required), &mut read)
            .unwrap();
        for param in layout.params() {
            for (read, wanted) in read[param.range.clone()].iter().zip(&master[param.range.clone()]) {
                assert!((read - wanted).abs() <= tolerance * wanted.abs(), "{}: {read} {wanted}", param.name);
            }
        }
    }
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    let model = ModelExport {
        config: &config,
        layout: &layout,
        master: &master,
        dtype: FileDtype::F32,
        tokenizer_files: &tokenizer_files,
    };
    let error = export_model(&dir, &model).unwrap_err();
    assert!(matches!(&error, ExportError::Occupied { found, .. } if found == "notes.txt"), "{error}");
    assert_eq!(fs::read_to_string(dir.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn the_config_names_labels_both_ways_and_drops_stale_counts() {
    // Cases 23 and 76: labels in the given order, never LABEL_0.
    let source = json!({ "model_type": "bert", "num_labels": 9, "id2label": { "0": "LABEL_0" }, "torch_dtype": "float16", "hidden_size": 8 });
    let labels = ["neg".to_owned(), "neutral".to_owned(), "pos".to_owned()];
    let fields = ConfigFields {
        architecture: "BertForSequenceClassification",
        labels: &labels,
        problem_type: "single_label_classification",
        dtype: FileDtype::F32,
    };
    let config = finish_config(&source, &fields);
    assert_eq!(
        config,
        json!({
            "model_type": "bert", "hidden_size": 8, "architectures": ["BertForSequenceClassification"],
            "id2label": { "0": "neg", "1": "neutral", "2": "pos" }, "label2id": { "neg": 0, "neutral": 1, "pos": 2 },
            "problem_type": "single_label_classification", "dtype": "float32", "torch_dtype": "float32",
        })
    );
}
