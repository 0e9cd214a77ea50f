//! `muster report`.

use muster_trainer::report::write_page;
use serde_json::json;

use crate::args::{Global, ReportArgs};
use crate::commands::print;
use crate::exit::Exit;

/// Writes the page about a run and says where it is.
///
/// # Errors
/// A directory that is not of a run, or can't be written.
pub fn run(args: &ReportArgs, global: &Global) -> anyhow::Result<Exit> {
    let page = write_page(&args.output_dir)?;
    print(global, &json!({ "report": page }), || format!("{}\n", page.display()))?;
    Ok(Exit::Success)
}
