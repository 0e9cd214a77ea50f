//! `muster bench` and `muster tune`: the benchmarks of `benches/`, with this program as their ranks.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use muster_bench::{BenchCommand, Env, Said, tune};

use crate::args::Global;
use crate::commands::print;
use crate::exit::Exit;
use crate::stop;

/// Runs a benchmark, or works on the files of some.
///
/// # Errors
/// Whatever keeps it from measuring.
pub fn run(command: &BenchCommand, global: &Global) -> anyhow::Result<Exit> {
    // Namespaces and processes of a scaling curve must be taken away; the others end at once.
    let stop = match command {
        BenchCommand::Scaling(_) => stop::on_signals()?,
        _ => AtomicBool::new(false).into(),
    };
    let program = program()?;
    let env = Env { program: &program, stop: &stop, say: &|text| tracing::info!("{text}") };
    match muster_bench::run(command, &env)? {
        Said::Nothing => Ok(Exit::Success),
        Said::Result { json, text, worse } => {
            print(global, &json, || text)?;
            Ok(if worse { Exit::Worse } else { Exit::Success })
        }
    }
}

/// Tunes a run.
///
/// # Errors
/// A run that can't start, or a file that can't be written.
pub fn tune(options: &tune::Options, global: &Global) -> anyhow::Result<Exit> {
    let (stop, program) = (stop::on_signals()?, program()?);
    let env = Env { program: &program, stop: &stop, say: &|text| tracing::info!("{text}") };
    let outcome = tune::run(options, &env)?;
    print(global, &outcome, || tune::text(&outcome, &options.run))?;
    Ok(Exit::Success)
}

fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("can't find this program")
}
