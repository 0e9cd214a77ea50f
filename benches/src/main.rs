//! `muster-bench`: measures what the README claims. Ratios within one run count; absolute times are this machine's.
#![forbid(unsafe_code)]

use anyhow::Result;
use clap::{Parser, Subcommand};
use half::bf16;
use muster_kernels::isa::{self, Isa};
use muster_trainer::data::Sampler;

mod allreduce;
mod kernels;
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
    /// The rows of each training step, a line of JSON per step (for benches/peers/train_torch.py --order)
    Order {
        /// Rows of the training data
        #[arg(long)]
        rows: u64,
        /// Rows of the global batch
        #[arg(long, default_value_t = 32)]
        batch: u64,
        /// Epochs
        #[arg(long, default_value_t = 3)]
        epochs: u64,
        /// Seed of the run
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// All-reduce among processes of this machine: latency, bandwidth, share of memcpy
    Allreduce(allreduce::Options),
    /// Single kernels: products, attention, AdamW, LayerNorm
    Kernels {
        /// Compute threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Only cases whose name contains this
        #[arg(long, default_value = "")]
        only: String,
        /// Print the names of the cases and end
        #[arg(long)]
        list: bool,
        /// Read cases from standard input and answer each with a line of JSON (benches/peers/kernels_torch.py)
        #[arg(long, conflicts_with = "list")]
        serve: bool,
    },
}

fn main() -> Result<()> {
    muster_kernels::isa::select(cap_from_environment()?);
    match Args::parse().command {
        Command::Step { threads, rows, steps, model, json } => {
            steps_of_models(step::Settings { threads, rows, steps }, &model, json)
        }
        Command::Order { rows, batch, epochs, seed } => order(Sampler::new(seed, rows, batch), epochs),
        Command::Allreduce(options) => allreduce::run(&options),
        Command::Kernels { only, list: true, .. } => kernels::list(&only),
        Command::Kernels { threads, serve: true, .. } => kernels::serve(threads),
        Command::Kernels { threads, only, .. } => kernels::table(threads, &only),
    }
}

#[allow(clippy::print_stdout, reason = "the rows are the program's output")]
fn order(sampler: Sampler, epochs: u64) -> Result<()> {
    for epoch in 0..epochs {
        let order = sampler.epoch_order(epoch);
        let steps = sampler.steps_per_epoch();
        for step in epoch * steps..(epoch + 1) * steps {
            println!("{}", serde_json::to_string(&order.rows_of_step(step).collect::<Vec<_>>())?);
        }
    }
    Ok(())
}

/// `MUSTER_MAX_ISA`, as the program itself reads it.
fn cap_from_environment() -> Result<Option<Isa>> {
    let Ok(text) = std::env::var("MUSTER_MAX_ISA") else { return Ok(None) };
    Ok(Some(isa::parse_cap(&text)?))
}

fn steps_of_models(settings: step::Settings, model: &str, json: bool) -> Result<()> {
    let mut results = Vec::new();
    for shape in shapes::SHAPES.iter().filter(|s| s.name.contains(model)) {
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
