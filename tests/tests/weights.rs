//! Weight files: formats, views, shards, and how they fit a model.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use muster_trainer::params::{Layout, ParamKind};
use muster_trainer::weights::{
    FileDtype, HeadRule, LoadReport, LoadRules, SafetensorsWriter, StoredDtype, TensorOut, WeightFiles,
    WeightsError, load_into,
};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/weights").join(name)
}

fn read(files: &WeightFiles, name: &str) -> Vec<f32> {
    let mut out = vec![f32::NAN; files.info(name).expect(name).shape.iter().product()];
    files.read_f32(name, &mut out).expect(name);
    out
}

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|k| k as f32 / 8.0).collect()
}

/// Writes f32 tensors with the `safetensors` crate itself, the independent oracle of our reader.
fn write_safetensors(path: &Path, tensors: &[(&str, &[usize], Vec<f32>)]) {
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(data)).unwrap();
        (*name, view)
    });
    safetensors::serialize_to_file(views.collect::<HashMap<_, _>>(), None, path).unwrap();
}

fn layout(prefix: &str) -> Layout {
    let mut layout = Layout::default();
    let mut push =
        |name: &str, shape: &[usize], kind| layout.push(format!("{prefix}{name}"), shape, kind, false);
    push("embeddings.word_embeddings.weight", &[6, 2], ParamKind::Embedding);
    push("embeddings.LayerNorm.weight", &[2], ParamKind::Gain);
    push("embeddings.LayerNorm.bias", &[2], ParamKind::Bias);
    push("encoder.layer.0.output.dense.weight", &[2, 2], ParamKind::Matrix);
    layout.push("classifier.weight".into(), &[3, 2], ParamKind::Matrix, true);
    layout
}

fn encoder(prefix: &str, norm: [&str; 2]) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let tensor = |name: String, shape: &[usize]| (name, shape.to_vec(), ramp(shape.iter().product()));
    vec![
        tensor(format!("{prefix}embeddings.word_embeddings.weight"), &[6, 2]),
        tensor(format!("{prefix}embeddings.LayerNorm.{}", norm[0]), &[2]),
        tensor(format!("{prefix}embeddings.LayerNorm.{}", norm[1]), &[2]),
        tensor(format!("{prefix}encoder.layer.0.output.dense.weight"), &[2, 2]),
    ]
}

fn load(
    tensors: &[(String, Vec<usize>, Vec<f32>)],
    layout: &Layout,
    head: HeadRule,
) -> Result<(LoadReport, Vec<f32>), WeightsError> {
    let dir = TempDir::new().unwrap();
    let list: Vec<_> = tensors.iter().map(|(n, s, d)| (n.as_str(), s.as_slice(), d.clone())).collect();
    write_safetensors(&dir.path().join("model.safetensors"), &list);
    let mut master = vec![-1.0; layout.arena_len()];
    let files = WeightFiles::open(dir.path())?;
    load_into(&files, layout, &LoadRules::new(head), &mut master).map(|report| (report, master))
}

#[test]
fn every_view_that_torch_saves_reads_as_torch_shows_it() {
    let files = WeightFiles::open_file(&fixture("torch_views.bin")).unwrap();
    // k / 8 is exact in every type, so no tolerance.
    for name in ["f32", "f16", "bf16", "f64"] {
        assert_eq!(read(&files, name), ramp(12), "{name}");
    }
    let transposed: Vec<f32> = (0..4).flat_map(|c| (0..3).map(move |r| (4 * r + c) as f32 / 8.0)).collect();
    assert_eq!(read(&files, "transposed"), transposed);
    assert_eq!(read(&files, "tail"), ramp(24)[12..]);
    assert_eq!(read(&files, "column"), [1, 5, 9, 13, 17, 21].map(|k| k as f32 / 8.0));
    assert_eq!(
        read(&files, "expanded"),
        [0.0, 0.0, 0.0, 0.0, 0.125, 0.125, 0.125, 0.125, 0.25, 0.25, 0.25, 0.25]
    );
    assert_eq!(read(&files, "parameter"), [0.0, 0.125]);
    assert_eq!(read(&files, "scalar"), [0.5]);
    assert_eq!(read(&files, "empty"), [0.0; 0]);
    assert_eq!(files.info("i64").unwrap().dtype, StoredDtype::Other("i64", 8));
    assert!(matches!(files.read_f32("i64", &mut [0.0; 5]), Err(WeightsError::Dtype { .. })));
    assert!(matches!(
        files.read_f32("f32", &mut [0.0; 5]),
        Err(WeightsError::Length { stored: 12, wanted: 5, .. })
    ));
    assert!(matches!(files.read_f32("none", &mut []), Err(WeightsError::UnknownTensor { .. })));
}

#[test]
fn a_module_state_dict_with_its_metadata_reads() {
    let files = WeightFiles::open_file(&fixture("torch_module.bin")).unwrap();
    let mut names: Vec<_> = files.tensors().map(|info| (info.name.clone(), info.dtype)).collect();
    names.sort();
    let expected =
        ["0.bias", "0.weight", "1.bias", "1.weight"].map(|name| (name.to_owned(), StoredDtype::F16));
    assert_eq!(names, expected);
    assert_eq!(read(&files, "1.weight"), [1.0, 1.0]);
}

#[test]
fn torch_files_from_before_zip_are_named_as_such() {
    let error = WeightFiles::open_file(&fixture("torch_legacy.bin")).unwrap_err();
    assert!(matches!(error, WeightsError::NotZip { .. }), "{error}");
    assert!(error.to_string().contains("before 1.6"), "{error}");
}

#[test]
fn all_f16_and_bf16_values_widen_exactly() {
    // Case 9: every finite value of both types, through the file, equals the scalar conversion.
    let dir = TempDir::new().unwrap();
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|x| x.is_finite()).collect();
    let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).filter(|x| x.is_finite()).collect();
    let path = dir.path().join("model.safetensors");
    let h = TensorView::new(Dtype::F16, vec![halves.len()], bytemuck::cast_slice(&halves)).unwrap();
    let b = TensorView::new(Dtype::BF16, vec![brains.len()], bytemuck::cast_slice(&brains)).unwrap();
    safetensors::serialize_to_file([("h", h), ("b", b)], None, &path).unwrap();
    let files = WeightFiles::open(dir.path()).unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(read(&files, "h")), bits(halves.iter().map(|x| x.to_f32()).collect()));
    assert_eq!(bits(read(&files, "b")), bits(brains.iter().map(|x| x.to_f32()).collect()));
}

#[test]
fn shards_read_as_one_and_every_inconsistency_is_named() {
    let dir = TempDir::new().unwrap();
    write_safetensors(&dir.path().join("a.safetensors"), &[("x", &[3], ramp(3))]);
    write_safetensors(&dir.path().join("b.safetensors"), &[("y", &[2, 2], ramp(4))]);
    let index = dir.path().join("model.safetensors.index.json");
    let with = |text: &str| {
        fs::write(&index, text).unwrap();
        WeightFiles::open(dir.path())
    };
    let files =
        with(r#"{"metadata":{"total_size":28},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#)
            .unwrap();
    assert_eq!((read(&files, "x"), read(&files, "y")), (ramp(3), ramp(4)));
    for (text, reason) in [
        (r#"{"weight_map":{"x":"gone.safetensors"}}"#, "`gone.safetensors` is missing"),
        (r#"{"weight_map":{"z":"a.safetensors"}}"#, "lacks tensor `z`"),
        (r#"{"weight_map":{"x":"../a.safetensors"}}"#, "not a plain file name"),
        (r#"{"weight_map":{"x":"/etc/hostname"}}"#, "not a plain file name"),
        (r#"{"weight_map":{}}"#, "empty"),
        (r#"{"weight_map":7}"#, "invalid type"),
        ("{", "EOF"),
    ] {
        let error = with(text).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("index.json"), "{text}: {error}");
    }
}

#[test]
fn an_empty_folder_lists_what_was_looked_for_and_foreign_weights() {
    let dir = TempDir::new().unwrap();
    let error = WeightFiles::open(dir.path()).unwrap_err().to_string();
    for name in ["model.safetensors", "pytorch_model.bin.index.json", &dir.path().display().to_string()] {
        assert!(error.contains(name), "{error}");
    }
    fs::write(dir.path().join("tf_model.h5"), "").unwrap();
    fs::write(dir.path().join("rust_model.ot"), "").unwrap();
    let error = WeightFiles::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("found only tf_model.h5, rust_model.ot"), "{error}");
    assert!(error.hint().unwrap().contains("safetensors"));
}

#[test]
fn a_git_lfs_pointer_is_recognised() {
    let dir = TempDir::new().unwrap();
    for name in ["model.safetensors", "pytorch_model.bin"] {
        let path = dir.path().join(name);
        fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap();
        let error = WeightFiles::open_file(&path).unwrap_err();
        assert!(matches!(error, WeightsError::LfsPointer { .. }), "{error}");
    }
}

#[test]
fn damaged_safetensors_headers_are_errors() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.safetensors");
    write_safetensors(&path, &[("x", &[100], ramp(100))]);
    let whole = fs::read(&path).unwrap();
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let overflow =
        br#"{"x":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,400]}}"#;
    let mut shaped = (overflow.len() as u64).to_le_bytes().to_vec();
    shaped.extend(overflow);
    shaped.extend([0; 400]);
    for bytes in [&whole[..4], &whole[..whole.len() - 1], &huge, &shaped, b"", b"{\"not\": \"safetensors\"}"]
    {
        fs::write(&path, bytes).unwrap();
        let error = WeightFiles::open_file(&path).unwrap_err();
        assert!(matches!(error, WeightsError::Header { .. }), "{error}");
    }
}

#[test]
fn prefixes_and_old_norm_names_find_their_parameters() {
    // Case 48: with and without the base prefix, with TensorFlow's names of LayerNorm.
    for prefix in ["bert.", "roberta.", "deberta."] {
        for stored in [prefix, ""] {
            for norm in [["weight", "bias"], ["gamma", "beta"]] {
                let layout = layout(prefix);
                let (report, master) = load(&encoder(stored, norm), &layout, HeadRule::MayBeNew).unwrap();
                assert_eq!((report.loaded.len(), report.new), (4, vec!["classifier.weight".to_owned()]));
                assert!(report.ignored.is_empty() && report.unexpected.is_empty());
                for param in &layout.params()[..4] {
                    assert_eq!(master[param.range.clone()], ramp(param.range.len()), "{}", param.name);
                }
                assert_eq!(
                    master[layout.params()[4].range.clone()],
                    [-1.0; 6],
                    "a new head keeps its values"
                );
            }
        }
    }
}

#[test]
fn an_incomplete_encoder_is_an_error_that_lists_names() {
    // Case 48: one layer missing, and a prefix that hides everything.
    let layout = layout("deberta.");
    let mut tensors = encoder("deberta.", ["weight", "bias"]);
    let dropped = tensors.pop().unwrap();
    let error = load(&tensors, &layout, HeadRule::MayBeNew).unwrap_err();
    assert!(
        error.to_string().contains(&dropped.0) && error.to_string().contains("lacks 1 of the 5"),
        "{error}"
    );
    let error =
        load(&encoder("model.deberta.", ["weight", "bias"]), &layout, HeadRule::MayBeNew).unwrap_err();
    assert!(error.to_string().contains("lacks 4 of the 5"), "{error}");
    assert!(
        error.hint().unwrap().contains("`model.deberta.embeddings.LayerNorm.bias`"),
        "{:?}",
        error.hint()
    );
    let mut many = Layout::default();
    for index in 0..25 {
        many.push(format!("deberta.encoder.layer.{index}.w"), &[1], ParamKind::Matrix, false);
    }
    let error = load(&encoder("", ["weight", "bias"]), &many, HeadRule::MayBeNew).unwrap_err().to_string();
    assert!(error.contains("layer.9.w and 15 more") && !error.contains("layer.10.w"), "{error}");
}

#[test]
fn extra_tensors_are_ignored_when_known_and_shown_when_not() {
    let layout = layout("deberta.");
    let mut tensors = encoder("deberta.", ["weight", "bias"]);
    for name in [
        "lm_predictions.lm_head.bias",
        "mask_predictions.dense.weight",
        "cls.predictions.bias",
        "lm_head.bias",
        "deberta.embeddings.position_ids",
        "deberta.embeddings.position_embeddings.weight",
        "deberta.embeddings.word_embeddings._weight",
        "deberta.pooler.dense.weight",
        "deberta.encoder.layer.1.w",
    ] {
        tensors.push((name.to_owned(), vec![1], vec![0.0]));
    }
    let (report, _) = load(&tensors, &layout, HeadRule::MayBeNew).unwrap();
    assert_eq!(
        (report.ignored.len(), report.unexpected.as_slice()),
        (8, ["deberta.encoder.layer.1.w".to_owned()].as_slice())
    );
    let text = report.to_string();
    for part in [
        "loaded 4 tensors",
        "new, from the seed: classifier.weight",
        "not needed, as usual: 8",
        "unexpected, unused: deberta.encoder.layer.1.w",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_head_for_other_labels_is_new_for_training_and_an_error_otherwise() {
    let layout = layout("bert.");
    let mut tensors = encoder("bert.", ["weight", "bias"]);
    tensors.push(("classifier.weight".into(), vec![7, 2], ramp(14)));
    let (report, master) = load(&tensors, &layout, HeadRule::MayBeNew).unwrap();
    assert_eq!((report.new.len(), report.reshaped[0].stored.as_slice()), (1, [7, 2].as_slice()));
    assert_eq!(master[layout.params()[4].range.clone()], [-1.0; 6]);
    let error = load(&tensors, &layout, HeadRule::Required).unwrap_err();
    assert!(matches!(error, WeightsError::Shape { .. }), "{error}");
    tensors.pop();
    let error = load(&tensors, &layout, HeadRule::Required).unwrap_err();
    assert!(matches!(error, WeightsError::Missing { count: 1, .. }), "{error}");
}

#[test]
fn another_vocabulary_size_names_both_shapes_and_advises_against_resizing() {
    // Case 16.
    let mut tensors = encoder("bert.", ["weight", "bias"]);
    tensors[0] = ("bert.embeddings.word_embeddings.weight".into(), vec![8, 2], ramp(16));
    let error = load(&tensors, &layout("bert."), HeadRule::MayBeNew).unwrap_err();
    assert!(error.to_string().contains("[8, 2]") && error.to_string().contains("[6, 2]"), "{error}");
    assert!(error.hint().unwrap().contains("vocab_size = 8"), "{:?}", error.hint());
}

#[test]
fn written_files_are_read_by_the_safetensors_crate() {
    let values: Vec<f32> = ramp(200_000).into_iter().map(|x| x * 1.001).collect();
    let tensors = vec![
        TensorOut { name: "a", shape: &[100_000, 2], data: &values },
        TensorOut { name: "b\"\\ü", shape: &[3], data: &values[..3] },
    ];
    for dtype in [FileDtype::F32, FileDtype::Bf16] {
        let writer = SafetensorsWriter::new(tensors.clone(), dtype);
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, writer.len_bytes());
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for tensor in &tensors {
            let view = read.tensor(tensor.name).unwrap();
            assert_eq!(view.shape(), tensor.shape);
            let expected: Vec<u8> = match dtype {
                FileDtype::F32 => bytemuck::cast_slice(tensor.data).to_vec(),
                // The scalar conversion rounds to nearest even.
                FileDtype::Bf16 => {
                    tensor.data.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
                }
            };
            assert!(view.data() == expected, "{} {dtype:?}", tensor.name);
        }
    }
}
