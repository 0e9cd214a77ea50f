//! Logits against candle-transformers, an implementation that shares no code with ours: its own loader, tensors and
//! models read the same Hugging Face files.

mod fixture;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use candle_transformers::models::{bert, debertav2};
use fixture::{Fixture, fixtures, load, max_difference};

/// Two f32 implementations with different summation orders, two layers deep.
const TOLERANCE: f32 = 2e-5;

fn weights(name: &str) -> VarBuilder<'static> {
    let bytes = std::fs::read(fixtures().join(name).join("model.safetensors")).unwrap();
    VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu).unwrap()
}

fn config<C: serde::de::DeserializeOwned>(name: &str) -> C {
    let text = std::fs::read_to_string(fixtures().join(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn row_tensor(ids: &[u32]) -> Tensor {
    Tensor::new(ids, &Device::Cpu).unwrap().unsqueeze(0).unwrap()
}

/// Rows go through candle one at a time: it pads, we don't.
fn compare(fixture: &Fixture, mut logits: impl FnMut(&Tensor, &Tensor) -> candle_core::Result<Tensor>) {
    let mut engine = fixture.engine::<f32>(2);
    for row in 0..fixture.batch.rows() {
        let batch = fixture.row(row);
        let theirs = logits(&row_tensor(&batch.ids), &row_tensor(&batch.type_ids)).unwrap();
        let theirs: Vec<f32> = theirs.flatten_all().unwrap().to_vec1().unwrap();
        let difference = max_difference(&engine.predict(&batch), &theirs);
        assert!(difference <= TOLERANCE, "{} row {row}: logits differ by {difference:e}", fixture.name);
    }
}

#[test]
fn bert_logits_equal_candle() {
    let fixture = load("bert");
    let vb = weights("bert");
    let model = bert::BertModel::load(vb.clone(), &config("bert")).unwrap();
    let pooler = candle_nn::linear(32, 32, vb.pp("bert.pooler.dense")).unwrap();
    let classifier = candle_nn::linear(32, fixture.model.outputs(), vb.pp("classifier")).unwrap();
    compare(&fixture, |ids, types| {
        let hidden = model.forward(ids, types, None)?;
        classifier.forward(&pooler.forward(&hidden.narrow(1, 0, 1)?.squeeze(1)?)?.tanh()?)
    });
}

#[test]
fn deberta_v3_logits_equal_candle() {
    let fixture = load("deberta-v3");
    let config: debertav2::Config = config("deberta-v3");
    let model =
        debertav2::DebertaV2SeqClassificationModel::load(weights("deberta-v3").pp("deberta"), &config, None)
            .unwrap();
    compare(&fixture, |ids, types| {
        let mask = Tensor::ones(ids.shape(), DType::U32, &Device::Cpu)?;
        model.forward(ids, Some(types.clone()), Some(mask))
    });
}
