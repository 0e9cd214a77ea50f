//! Activations that backward computes again are those that forward computed, to the bit.

mod fixture;

use fixture::load;
use half::bf16;
use muster_kernels::{Element, Pool};
use muster_proto::Step;
use muster_proto::run_spec::Recompute;
use muster_trainer::engine::{Engine, Hyper};
use muster_trainer::model::{Dropouts, Model};

/// Loss and gradients of two micro-batches of one step, as bits.
fn bits<E: Element>(name: &'static str, recompute: Recompute) -> Vec<u64> {
    let fixture = load(name);
    let mut config = fixture.model.config().clone();
    config.dropouts = Dropouts { hidden: 0.3, attention: 0.3, pooler: 0.3, classifier: 0.3 };
    let model = Model::new(config, fixture.model.outputs());
    let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let mut engine = Engine::<E>::new(model, fixture.weights.clone(), hyper, 1, Pool::new(2).unwrap());
    engine.recompute(recompute);
    let losses = [&fixture.batch, &fixture.row(0)].map(|batch| engine.train(batch, Step(3), 4).to_bits());
    let gradients = engine.gradients().into_iter().map(|g| u64::from(g.to_bits()));
    losses.into_iter().chain(gradients).collect()
}

#[test]
fn recomputed_layers_give_the_same_loss_and_gradients() {
    for name in ["bert", "roberta", "deberta-v3", "deberta-v2-conv"] {
        let [never, layers] = [Recompute::Never, Recompute::Layers].map(|r| bits::<f32>(name, r));
        assert!(never == layers, "{name} in f32");
        let [never, layers] = [Recompute::Never, Recompute::Layers].map(|r| bits::<bf16>(name, r));
        assert!(never == layers, "{name} in bf16");
    }
}
