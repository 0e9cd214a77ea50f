//! A small model and its checkpoints, shared by tests and the crash-test process.

use std::collections::BTreeMap;

use muster_trainer::checkpoint::{
    Best, Contents, Evaluation, Fingerprints, STATE_FORMAT, State, Totals, layout_fingerprint,
};
use muster_trainer::params::{Layout, ParamKind};
use muster_trainer::weights::FileDtype;
use serde_json::Value;

/// A layout with a gap, an adjacent pair and a head; about 200 kB.
pub fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("bert.embeddings.word_embeddings.weight".into(), &[500, 97], ParamKind::Embedding, false);
    layout.push("bert.encoder.layer.0.attention.self.query.weight".into(), &[8, 3], ParamKind::Matrix, false);
    layout.push_adjacent(
        "bert.encoder.layer.0.attention.self.key.weight".into(),
        &[8, 3],
        ParamKind::Matrix,
        false,
    );
    layout.push("bert.encoder.layer.0.output.LayerNorm.weight".into(), &[5], ParamKind::Gain, false);
    layout.push("bert.encoder.layer.0.output.LayerNorm.bias".into(), &[5], ParamKind::Bias, false);
    layout.push("classifier.weight".into(), &[3, 5], ParamKind::Matrix, true);
    layout.push("classifier.bias".into(), &[3], ParamKind::Bias, true);
    layout
}

/// A state in which every member has a value that a default would not have.
pub fn state(layout: &Layout, step: u64) -> State {
    State {
        format: STATE_FORMAT,
        step,
        epoch: 1,
        cursor_rows: step * 32,
        global_batch: 32,
        seed: 42,
        best: Some(Best { metric: "accuracy".into(), value: 0.1 + 0.2, step: 1 }),
        evaluations_without_improvement: 2,
        totals: Totals { rows: step * 32, tokens: step * 999, skipped_steps: 1, train_ms: 1234 },
        evaluations: vec![Evaluation { step: 1, metrics: BTreeMap::from([("accuracy".into(), 0.1 + 0.2)]) }],
        fingerprints: Fingerprints {
            run: 1,
            data: 2,
            tokenizer: 3,
            labels: 4,
            layout: layout_fingerprint(layout),
        },
    }
}

/// Contents whose weights and moments are all the same arena.
pub fn contents<'a>(
    state: &'a State,
    layout: &'a Layout,
    arena: &'a [f32],
    config: &'a Value,
    dtype: FileDtype,
) -> Contents<'a> {
    Contents {
        state,
        layout,
        master: arena,
        first_moment: arena,
        second_moment: arena,
        config,
        dtype,
        tokenizer_files: &[],
    }
}
