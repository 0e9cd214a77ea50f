#![allow(missing_docs)]
#[path = "../../benches/src/allreduce/mod.rs"]
mod allreduce;
use clap::Parser;
#[derive(Parser)]
struct A {
    #[command(subcommand)]
    c: C,
}
#[derive(clap::Subcommand)]
enum C {
    Allreduce(allreduce::Options),
}
fn main() -> anyhow::Result<()> {
    let C::Allreduce(o) = A::parse().c;
    allreduce::run(&o)
}
