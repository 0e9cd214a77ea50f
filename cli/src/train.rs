//! `muster train`.

use crate::args::{Global, TrainArgs};
use crate::exit::Exit;

/// Trains a model.
///
/// # Errors
/// Always: this build was made before the command was merged.
pub fn run(_args: &TrainArgs, _global: &Global) -> anyhow::Result<Exit> {
    anyhow::bail!("this build has no `muster train`")
}
