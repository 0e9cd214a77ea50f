//! `muster plan`: every derived value of a run with its reason.

use anyhow::Context;
use muster_coordinator::{NodeFacts, RanksWanted, place};
use muster_kernels::isa;
use muster_proto::RunSpec;
use muster_trainer::plan::{CpuFacts, DatasetStats, Decision, DerivedPlan, ModelDims, PlanInput, derive};
use muster_trainer::topology::HostFacts;
use serde::Serialize;

use crate::args::{Global, PlanArgs};
use crate::commands::{print, table};
use crate::exit::Exit;
use crate::survey::survey;
use crate::{host, stop};
use forecast::Carried;

mod forecast;

/// What `muster plan --json` prints.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    run: &'a str,
    decisions: &'a [Decision],
    warnings: &'a [String],
    threads: usize,
    precision: &'a str,
    micro_batch_tokens: usize,
    steps_per_epoch: u64,
    steps: u64,
    warmup_steps: u64,
    peak_memory_bytes: u64,
    usable_memory_bytes: u64,
    gradient_bytes: u64,
    embedding_bytes: u64,
    embedding_row_bytes: u64,
    traffic_bytes: u64,
    flops: f64,
    tokens_per_step: f64,
    refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forecast: Option<Carried>,
}

/// Prints the plan of a run; ends with the refusal if the run can't start.
///
/// # Errors
/// A bad run file, data or model, or a run that does not fit this machine.
pub fn run(args: &PlanArgs, global: &Global) -> anyhow::Result<Exit> {
    let spec = RunSpec::load_with(&args.run.run, &args.run.overrides)?;
    let host = host::detect();
    let stop = stop::on_signals()?;
    let run = survey(&spec, &host, &stop, global).context("can't plan the run")?;
    let plan = plan(&spec, &run.dims, &run.stats, &host)?;
    let mut printed = printed(&spec, &plan, (&run.dims, &run.stats), &host);
    printed.forecast =
        args.measured.as_ref().map(|path| forecast::carried(path, &spec, &printed)).transpose()?;
    let further = printed.forecast.as_ref().map_or_else(String::new, Carried::text);
    print(global, &printed, || render(&spec, &plan) + &further)?;
    plan.admit()?;
    Ok(Exit::Success)
}

/// Derives the plan of a run on this machine, its place included.
///
/// # Errors
/// A machine that can't take the run's rank.
pub fn plan(
    spec: &RunSpec,
    model: &ModelDims,
    data: &DatasetStats,
    host: &HostFacts,
) -> anyhow::Result<DerivedPlan> {
    let cpu = cpu_facts(&isa::detect());
    let mut plan = derive(&PlanInput { spec, model, data, host, cpu: &cpu });
    let domains = host.nodes.iter().map(|node| node.cpus.len()).collect();
    let local = NodeFacts { name: "this machine".into(), domain_threads: domains };
    let placement = place(&[local], &RanksWanted::Exactly(1))?;
    let value = format!("{} rank", placement.ranks.len());
    plan.decisions.insert(0, Decision { name: "placement", value, reason: placement.reason });
    Ok(plan)
}

/// The instruction sets as the plan needs them.
fn cpu_facts(report: &isa::Report) -> CpuFacts {
    CpuFacts {
        best: report.best.name().into(),
        kernels: report.chosen.name().into(),
        bf16_is_emulated: report.bf16_is_emulated,
    }
}

fn printed<'a>(
    spec: &'a RunSpec,
    plan: &'a DerivedPlan,
    (model, data): (&ModelDims, &DatasetStats),
    host: &HostFacts,
) -> Printed<'a> {
    let rows = spec.train.global_batch.min(data.rows.max(1) as usize);
    Printed {
        run: &spec.name,
        decisions: &plan.decisions,
        warnings: &plan.warnings,
        threads: plan.cpus.threads,
        precision: plan.precision(),
        micro_batch_tokens: plan.micro_batch_tokens,
        steps_per_epoch: plan.steps.per_epoch,
        steps: plan.steps.total,
        warmup_steps: plan.steps.warmup,
        peak_memory_bytes: plan.memory.total(),
        usable_memory_bytes: host.memory.usable(),
        gradient_bytes: plan.gradient_bytes,
        embedding_bytes: 4 * model.embedding_parameters,
        embedding_row_bytes: 4 * model.hidden as u64,
        traffic_bytes: plan.traffic_bytes,
        flops: plan.flops,
        tokens_per_step: data.mean_tokens() * rows as f64,
        forecast: None,
        refusal: plan.refusal.as_ref().map(ToString::to_string),
    }
}

fn render(spec: &RunSpec, plan: &DerivedPlan) -> String {
    let rows: Vec<_> =
        plan.decisions.iter().map(|d| vec![d.name.into(), d.value.clone(), d.reason.clone()]).collect();
    let mut text = format!("plan of {}\n\n{}", spec.name, table(&["decision", "value", "reason"], &rows));
    for warning in &plan.warnings {
        text.push_str(&format!("\nwarning: {warning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn example() -> (RunSpec, DerivedPlan, (ModelDims, DatasetStats), HostFacts) {
        let text = "version = 1\n[model]\npath = \"a/b\"\n[task]\ntype = \"single_label\"\n[data]\ntrain = \"t.csv\"\n\
            [train]\nepochs = 2\nthreads = 1\nwarmup_steps = 0\n";
        let spec = RunSpec::parse(text, Path::new("headlines.toml")).expect("a valid run file");
        let model = ModelDims {
            architecture: "bert".into(),
            hidden: 384,
            layers: 6,
            heads: 12,
            intermediate: 1536,
            relative_rows: 0,
            conv_kernel: 0,
            max_row: Some(512),
            outputs: 77,
            parameters: 22_743_000,
            embedding_parameters: 11_920_000,
        };
        let data = DatasetStats {
            rows: 100,
            tokens: 1_500,
            longest: 40,
            largest_step: 600,
            truncated: 0,
            eval_rows: 0,
        };
        let mut host = HostFacts::detect();
        host.memory.available = 1 << 40;
        host.memory.group_free = None;
        let plan = plan(&spec, &model, &data, &host).expect("one rank fits any machine");
        (spec, plan, (model, data), host)
    }

    #[test]
    fn every_decision_is_printed_with_its_reason_and_warnings_follow() {
        let (spec, plan, ..) = example();
        let text = render(&spec, &plan);
        assert!(text.starts_with("plan of headlines\n\n decision"), "{text}");
        for decision in &plan.decisions {
            assert!(
                text.contains(decision.name) && text.contains(&decision.value),
                "{decision:?} in\n{text}"
            );
        }
        assert!(text.contains("1 rank") && text.contains("train.threads"), "{text}");
        assert!(text.contains("\nwarning: there is no warm-up"), "{text}");
    }

    #[test]
    fn programs_read_numbers_instead_of_words() {
        let (spec, plan, (model, data), host) = example();
        let json = serde_json::to_value(printed(&spec, &plan, (&model, &data), &host)).expect("plain values");
        assert_eq!((json["steps_per_epoch"].as_u64(), json["steps"].as_u64()), (Some(4), Some(8)));
        assert_eq!(json["gradient_bytes"], 4 * 22_743_000u64);
        assert_eq!(
            (&json["embedding_bytes"], &json["tokens_per_step"]),
            (&(4 * 11_920_000).into(), &480.0.into())
        );
        assert!(json["peak_memory_bytes"].as_u64() > Some(16 * 22_743_000));
        assert_eq!(json["refusal"], serde_json::Value::Null);
    }
}
