//! Saves checkpoints in a loop until it is killed; the crash test of `checkpoint.rs` runs it.
//!
//! `checkpoint_writer DIR`: continues behind the newest checkpoint. Every number of checkpoint `n` is `n`, so a
//! reader can tell a mixture. Prints the step after each finished save.

use std::io::Write;
use std::path::PathBuf;

use muster_tests::checkpoints::{contents, layout, state};
use muster_trainer::checkpoint::{Store, latest_valid};
use muster_trainer::weights::FileDtype;

fn main() -> anyhow::Result<()> {
    let dir = PathBuf::from(
        std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("usage: checkpoint_writer DIR"))?,
    );
    let store = Store::open(&dir, 2)?;
    let layout = layout();
    let config = serde_json::json!({ "model_type": "bert" });
    let mut step = latest_valid(&dir)?.map_or(0, |found| found.step);
    let mut out = std::io::stdout().lock();
    loop {
        step += 1;
        let arena = vec![step as f32; layout.arena_len()];
        let state = state(&layout, step);
        store.save(&contents(&state, &layout, &arena, &config, FileDtype::F32))?;
        writeln!(out, "{step}")?;
        out.flush()?;
    }
}
