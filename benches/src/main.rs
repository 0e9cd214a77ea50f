//! `muster-bench`: measures what the README claims. Ratios within one run count; absolute times are this machine's.
#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use half::bf16;

mod shapes;
mod step;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "muster-bench", about = "Benchmarks of Muster")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Training steps of MiniLM and DeBERTa shapes with random weights and banking77's row lengths
    Step {
        /// Compute threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Rows of the global batch
        #[arg(long, default_value_t = 32)]
        rows: usize,
        /// Timed steps per shape
        #[arg(long, default_value_t = 12)]
        steps: usize,
        /// Only shapes whose name contains this
        #[arg(long, default_value = "")]
        model: String,
        /// Print one JSON object per line instead of the table
        #[arg(long)]
        json: bool,
    },
}

fn main() -> Result<()> {
    let Command::Step { threads, rows, steps, model, json } = Args::parse().command;
    let settings = step::Settings { threads, rows, steps };
    muster_kernels::isa::select(None);
    let mut results = Vec::new();
    for shape in shapes::SHAPES.iter().filter(|s| s.name.contains(&model)) {
        results.push(step::measure::<f32>(shape, settings, "f32")?);
        results.push(step::measure::<bf16>(shape, settings, "bf16")?);
    }
    report(&results, json)
}

#[allow(clippy::print_stdout, reason = "the report is the program's output")]
fn report(results: &[step::Measured], json: bool) -> Result<()> {
    if json {
        for measured in results {
            println!("{}", serde_json::to_string(measured)?);
        }
        return Ok(());
    }
    println!("| model | precision | samples/s | tokens/s | GFLOP/s | of FMA peak |");
    println!("|---|---|---|---|---|---|");
    for m in results {
        println!(
            "| {} | {} | {:.1} | {:.0} | {:.0} | {:.0} % |",
            m.model, m.precision, m.rows_per_s, m.tokens_per_s, m.gflops, m.peak_percent
        );
    }
    Ok(())
}
