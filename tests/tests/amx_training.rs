//! Training on the AMX path, on any x86-64 host: tests/amx-trap executes the tile instructions.
//!
//! The only test of its binary: what it installs and promises holds for the whole process, and nothing in the process
//! may have asked for the use of real tiles.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod fixture;

use fixture::{Fixture, load};
use half::bf16;
use muster_kernels::Element;
use muster_kernels::isa::{self, Isa};
use muster_kernels::pool::Pool;
use muster_proto::Step;
use muster_trainer::engine::{Engine, Hyper, Update};

/// Losses of some updates on one batch, which fall as it is learnt by heart.
fn losses<E: Element>(fixture: &Fixture) -> Vec<f64> {
    let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let pool = Pool::new(2).unwrap();
    assert_eq!(pool.isa(), Isa::Amx);
    let mut engine = Engine::<E>::new(fixture.model.clone(), fixture.weights.clone(), hyper, 1, pool);
    let rows = fixture.batch.rows();
    let step = |number: u64| {
        let loss = engine.train(&fixture.batch, Step(number - 1), rows) / rows as f64;
        let applied = engine.apply(&Update { number, learning_rate: 1e-3, max_grad_norm: Some(1.0) });
        assert_eq!(applied.non_finite, None);
        loss
    };
    (1..=5).map(step).collect()
}

#[test]
fn bf16_training_on_tiles_follows_f32() {
    muster_amx_trap::install();
    // SAFETY: the trap is installed and stays.
    unsafe { isa::assume_tiles() };
    for name in ["bert", "deberta-v3"] {
        let fixture = load(name);
        let before = muster_amx_trap::counts();
        let full = losses::<f32>(&fixture);
        assert_eq!(muster_amx_trap::counts(), before, "{name}: f32 products don't use bf16 tiles");
        let narrow = losses::<bf16>(&fixture);
        // bf16 keeps eight bits: two layers and a few updates stay within a tenth (as in transformers_parity).
        for (step, (f, n)) in full.iter().zip(&narrow).enumerate() {
            assert!(
                (f - n).abs() <= 0.1 * f.abs().max(1.0),
                "{name} step {step}: f32 {full:?}, bf16 {narrow:?}"
            );
        }
        assert!(narrow.last() < narrow.first(), "{name}: the loss falls: {narrow:?}");
    }
    let counts = muster_amx_trap::counts();
    assert!(counts.products > 0, "what the trap executed: {counts:?}");
}
