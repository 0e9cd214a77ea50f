//! `muster eval`.

use crate::args::{EvalArgs, Global};
use crate::exit::Exit;

/// Measures a trained model.
///
/// # Errors
/// Always: this build was made before the command was merged.
pub fn run(_args: &EvalArgs, _global: &Global) -> anyhow::Result<Exit> {
    anyhow::bail!("this build has no `muster eval`")
}
