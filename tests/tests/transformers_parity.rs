//! Logits, loss and every gradient against what Hugging Face transformers computed (tests/fixtures/models).

mod fixture;

use fixture::{load, max_difference, numbers};
use half::bf16;
use muster_kernels::{Element, Pool};
use muster_proto::Step;
use muster_trainer::engine::{Engine, Hyper, Update};
use muster_trainer::model::{Dropouts, Model};
use safetensors::SafeTensors;

/// Of the logits, absolute (the fixtures' README: the oracle itself is off by 8e-7).
const LOGIT_TOLERANCE: f32 = 1e-5;
/// Of a gradient, relative to the largest entry of its tensor; the absolute part covers gradients that are zero.
const GRADIENT_TOLERANCE: f32 = 1e-4;
const GRADIENT_FLOOR: f32 = 1e-6;
/// Of a gradient that is exactly zero (a key bias), when it is summed in another order.
const SPLIT_FLOOR: f32 = 1e-7;

const WITH_GOLDEN: [&str; 10] = [
    "bert",
    "bert-multi-label",
    "bert-regression",
    "roberta",
    "xlm-roberta",
    "deberta-v3",
    "deberta-v2-conv",
    "deberta-v2-conv-tanh",
    "deberta-v2-absolute",
    "deberta-v2-unshared",
];

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, x| m.max(x.abs()))
}

#[test]
fn logits_loss_and_every_gradient_equal_transformers() {
    for name in WITH_GOLDEN {
        let fixture = load(name);
        let mut engine = fixture.engine::<f32>(2);
        let difference = max_difference(&engine.predict(&fixture.batch), &fixture.logits);
        assert!(difference <= LOGIT_TOLERANCE, "{name}: logits differ by {difference:e}");
        let rows = fixture.batch.rows();
        let loss = engine.train(&fixture.batch, Step(0), rows) / rows as f64;
        assert!((loss - f64::from(fixture.loss)).abs() <= 1e-5, "{name}: loss {loss}, not {}", fixture.loss);
        let golden = SafeTensors::deserialize(&fixture.golden).unwrap();
        let mut compared = 0;
        for param in fixture.model.layout().params() {
            let expected: Vec<f32> = numbers(&golden, &format!("grad.{}", param.name));
            let difference = max_difference(&engine.gradients()[param.range.clone()], &expected);
            let limit = GRADIENT_TOLERANCE * largest(&expected) + GRADIENT_FLOOR;
            assert!(difference <= limit, "{name}: {}: {difference:e} above {limit:e}", param.name);
            compared += 1;
        }
        let in_file = golden.names().iter().filter(|n| n.starts_with("grad.")).count();
        assert_eq!(compared, in_file, "{name}: every gradient of the file belongs to a parameter");
    }
}

#[test]
fn the_unused_relative_row_has_no_gradient() {
    let fixture = load("deberta-v3");
    let mut engine = fixture.engine::<f32>(1);
    engine.train(&fixture.batch, Step(0), 3);
    let layout = fixture.model.layout();
    let table = layout.params().iter().find(|p| p.name.ends_with("rel_embeddings.weight")).unwrap();
    assert!(engine.gradients()[table.range.clone()][..32].iter().all(|&g| g == 0.0));
}

/// Packed = alone = any split into micro-batches, with dropout on: keys go by data row and position.
#[test]
fn any_split_gives_the_same_loss_and_gradients() {
    for name in WITH_GOLDEN {
        let mut fixture = load(name);
        let mut config = fixture.model.config().clone();
        config.dropouts = Dropouts { hidden: 0.1, attention: 0.1, pooler: 0.1, classifier: 0.1 };
        fixture.model = Model::new(config, fixture.model.outputs());
        let rows = fixture.batch.rows();
        let mut packed = fixture.engine::<f32>(2);
        let mut alone = fixture.engine::<f32>(1);
        let loss = packed.train(&fixture.batch, Step(3), rows);
        let split: f64 = (0..rows).map(|row| alone.train(&fixture.row(row), Step(3), rows)).sum();
        assert!((loss - split).abs() <= 1e-6 * loss.abs(), "{name}: {loss} and {split}");
        for param in fixture.model.layout().params() {
            let (a, b) = (&packed.gradients()[param.range.clone()], &alone.gradients()[param.range.clone()]);
            let (difference, limit) = (max_difference(a, b), 1e-6 * largest(a) + SPLIT_FLOOR);
            assert!(difference <= limit, "{name}: {}: {difference:e} above {limit:e}", param.name);
        }
    }
}

#[test]
fn the_thread_count_changes_no_bit() {
    for name in ["bert", "deberta-v3", "deberta-v2-conv"] {
        let fixture = load(name);
        let mut one = fixture.engine::<f32>(1);
        let mut three = fixture.engine::<f32>(3);
        let losses = [&mut one, &mut three].map(|e| e.train(&fixture.batch, Step(0), 3));
        assert_eq!(losses[0].to_bits(), losses[1].to_bits(), "{name}: loss");
        let differing =
            one.gradients().into_iter().zip(three.gradients()).filter(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differing.count(), 0, "{name}: gradients");
    }
}

/// bf16 keeps eight bits: a logit of a few layers is good to a few hundredths.
#[test]
fn bf16_is_close_to_f32() {
    for name in WITH_GOLDEN {
        let fixture = load(name);
        let mut engine = fixture.engine::<bf16>(2);
        let difference = max_difference(&engine.predict(&fixture.batch), &fixture.logits);
        let limit = 0.06 * largest(&fixture.logits).max(1.0);
        assert!(difference <= limit, "{}: logits differ by {difference} of {limit}", fixture.name);
        let rows = fixture.batch.rows();
        let loss = engine.train(&fixture.batch, Step(0), rows) / rows as f64;
        assert!((loss - f64::from(fixture.loss)).abs() <= 0.1 * loss.abs().max(1.0), "{name}: {loss}");
        assert!(engine.gradients().iter().all(|g| g.is_finite()), "{name}: a gradient is not finite");
    }
}

/// Raw scores of 1e5 overflow a narrow softmax.
#[test]
fn case_1_huge_scores_stay_finite_and_agree_between_precisions() {
    let mut fixture = load("deberta-v3");
    for param in fixture.model.layout().params() {
        if param.name.contains("query_proj") || param.name.contains("key_proj") {
            fixture.weights[param.range.clone()].iter_mut().for_each(|w| *w *= 150.0);
        }
    }
    let rows = fixture.batch.rows();
    let full = fixture.engine::<f32>(1).train(&fixture.batch, Step(0), rows);
    let narrow = fixture.engine::<bf16>(1).train(&fixture.batch, Step(0), rows);
    assert!(full.is_finite() && narrow.is_finite(), "f32 {full}, bf16 {narrow}");
    assert!((full - narrow).abs() < 0.5 * full.abs().max(1.0), "f32 {full}, bf16 {narrow}");
}

/// Weights and logits after some steps whose rows differ; `look` reads all weights after each.
fn trained<E: Element>(look: bool) -> (Vec<f32>, Vec<f32>, u64) {
    let fixture = load("bert");
    let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.3 };
    let model = fixture.model.clone();
    let mut engine = Engine::<E>::new(model, fixture.weights.clone(), hyper, 1, Pool::new(2).unwrap());
    for step in 0..4 {
        engine.train(&fixture.row(step as usize % 2), Step(step), 1);
        engine.apply(&Update { number: step + 1, learning_rate: 1e-2, max_grad_norm: Some(1.0) });
        if look {
            engine.weights();
        }
    }
    let logits = engine.predict(&fixture.batch);
    let proof = engine.proof();
    assert_eq!(engine.state_digest(), engine.state_digest());
    engine.forget_spent_rows();
    assert_eq!(engine.proof(), proof, "no row has lost its moments yet");
    (engine.weights().to_vec(), logits, proof)
}

#[test]
fn decay_of_rows_that_nobody_reads_is_put_off_unseen() {
    assert!(trained::<f32>(true) == trained::<f32>(false));
    assert!(trained::<bf16>(true) == trained::<bf16>(false));
    let (fixture, (weights, ..)) = (load("bert"), trained::<f32>(false));
    let words = fixture.model.words();
    let unread: Vec<usize> =
        (0..words.rows).filter(|&row| !fixture.batch.ids.contains(&(row as u32))).collect();
    assert!(unread.len() > words.rows / 4, "most rows of the table are in no batch");
    for element in unread.into_iter().flat_map(|row| row * words.cols..(row + 1) * words.cols) {
        // lr 1e-2 and decay 0.3, four times.
        let expected = fixture.weights[element] * (1.0 - 3e-3_f32).powi(4);
        assert!((weights[element] - expected).abs() <= 1e-6 * expected.abs(), "{element}");
    }
}
