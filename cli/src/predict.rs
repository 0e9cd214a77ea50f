//! `muster predict`.

use crate::args::{Global, PredictArgs};
use crate::exit::Exit;

/// Applies a trained model.
///
/// # Errors
/// Always: this build was made before the command was merged.
pub fn run(_args: &PredictArgs, _global: &Global) -> anyhow::Result<Exit> {
    anyhow::bail!("this build has no `muster predict`")
}
