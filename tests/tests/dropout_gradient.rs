//! Gradients with dropout on: the masks of backward are those of forward.
//!
//! Masks are a function of keys, so the loss of one step is a smooth function of the weights, and its slope can be
//! measured. The fixtures of transformers can't tell: another library draws other masks.

mod fixture;

use fixture::load;
use muster_kernels::pool::Pool;
use muster_kernels::rng;
use muster_proto::Step;
use muster_trainer::engine::{Engine, Hyper};
use muster_trainer::model::{Dropouts, Model};

#[test]
fn every_gradient_is_the_slope_of_the_loss_with_dropout() {
    for name in ["bert", "roberta", "deberta-v3", "deberta-v2-conv"] {
        let mut fixture = load(name);
        let mut config = fixture.model.config().clone();
        config.dropouts = Dropouts { hidden: 0.3, attention: 0.3, pooler: 0.3, classifier: 0.3 };
        fixture.model = Model::new(config, fixture.model.outputs());
        let (rows, step) = (fixture.batch.rows(), Step(7));
        let engine = |weights: &[f32]| {
            let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
            Engine::<f32>::new(fixture.model.clone(), weights.to_vec(), hyper, 1, Pool::new(1).unwrap())
        };
        let mut base = engine(&fixture.weights);
        base.train(&fixture.batch, step, rows);
        for (index, param) in fixture.model.layout().params().iter().enumerate() {
            let gradient = &base.gradients()[param.range.clone()];
            // Along the gradient the slope is its norm: the largest signal there is.
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            if norm < 1e-6 {
                continue;
            }
            let length = 3e-3 * (1.0 + rng::uniform(5, index as u64)) / norm.max(0.1);
            let loss = |sign: f64| {
                let mut weights = fixture.weights.clone();
                let moved = weights[param.range.clone()].iter_mut().zip(gradient);
                moved.for_each(|(w, g)| *w += (sign * length * f64::from(*g) / norm.max(1e-30)) as f32);
                engine(&weights).train(&fixture.batch, step, rows) / rows as f64
            };
            let slope = (loss(1.0) - loss(-1.0)) / (2.0 * length);
            let difference = (slope - norm).abs();
            assert!(
                difference <= 0.03 * norm + 2e-4,
                "{name}: {}: slope {slope:e}, gradient {norm:e}",
                param.name
            );
        }
    }
}
