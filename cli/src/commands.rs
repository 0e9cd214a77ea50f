//! Which module runs which command.

use std::io::Write;

use anyhow::Context;
use serde::Serialize;

use crate::args::{Cli, Command, Global};
use crate::exit::Exit;
use crate::{bench, cluster, doctor, eval, plan, predict, rank, run_page, train};

/// Runs the command of the arguments.
///
/// # Errors
/// Whatever stopped the command; [`crate::report`] tells it.
pub fn run(cli: Cli) -> anyhow::Result<Exit> {
    let global = &cli.global;
    cap_instructions()?;
    match &cli.command {
        Command::Train(args) => train::run(args, global),
        Command::Plan(args) => plan::run(args, global),
        Command::Eval(args) => eval::run(args, global),
        Command::Predict(args) => predict::run(args),
        Command::Report(args) => run_page::run(args, global),
        Command::Doctor => doctor::run(global),
        Command::Bench(command) => bench::run(command, global),
        Command::Tune(options) => bench::tune(options, global),
        Command::Rank => rank::run(global),
        Command::Coordinator(args) => cluster::coordinator(args),
        Command::Trainer(args) => cluster::trainer(args),
        Command::Submit(args) => cluster::submit(args, global),
        Command::Runs(args) => cluster::list(args, global),
        Command::Status(args) => cluster::status(args, global),
        Command::Logs(args) => cluster::logs(args, global),
        Command::Cancel(args) => cluster::cancel(args, global),
        Command::Nodes(args) => cluster::nodes(args, global),
    }
}

/// Variable that caps the instruction set, for comparisons and for doubtful machines.
const MAX_ISA: &str = "MUSTER_MAX_ISA";

fn cap_instructions() -> anyhow::Result<()> {
    use muster_kernels::isa;

    if let Some(text) = std::env::var_os(MAX_ISA).filter(|text| !text.is_empty()) {
        let cap = isa::parse_cap(&text.to_string_lossy());
        isa::select(Some(cap.with_context(|| format!("{MAX_ISA} can't be used"))?));
    }
    Ok(())
}

/// Prints a result on stdout: as JSON where asked, otherwise as text.
///
/// # Errors
/// A stdout that can't be written, except one that was closed by its reader.
pub fn print(global: &Global, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    let text = if global.json { serde_json::to_string_pretty(value)? + "\n" } else { text() };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // `muster doctor | head -1` is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other.context("can't write to stdout")?),
    }
}

/// Lays out rows of cells in columns; the last column wraps at the width of the terminal.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    use comfy_table::{ContentArrangement, Table, presets};

    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(110);
    table.set_header(header);
    table.add_rows(rows);
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}
