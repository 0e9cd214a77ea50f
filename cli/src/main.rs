//! The `muster` command.
//!
//! The environment enters here: arguments, variables, the terminal, signals and the clock are read by this crate and
//! passed on. It holds no training logic.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

mod args;
mod bench;
mod cluster;
mod commands;
mod doctor;
mod eval;
mod exit;
mod gang_run;
mod host;
mod logging;
mod place;
mod plan;
mod predict;
mod progress;
mod rank;
mod report;
mod run_page;
mod scores;
mod stop;
mod survey;
mod train;
mod train_ranks;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    muster_trainer::topology::keep_freed_memory();
    let cli = args::Cli::parse();
    let format = cli.global.log_format;
    let outcome = logging::init(&cli.global).and_then(|()| commands::run(cli));
    match outcome {
        Ok(exit) => exit.into(),
        Err(error) => report::fail(&error, format).into(),
    }
}
