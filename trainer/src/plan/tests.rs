use std::path::Path;

use muster_kernels::DType;
use muster_proto::run_spec::{Init, Precision, Recompute, RunSpec};

use super::*;
use crate::topology::{Core, HostFacts, HugePages, MemoryFacts, NodesFrom};

fn spec(train: &str) -> RunSpec {
    let head =
        "version = 1\n[model]\npath = \"a/b\"\n[task]\ntype = \"single_label\"\n[data]\ntrain = \"t.csv\"\n";
    RunSpec::parse(&format!("{head}[train]\n{train}\n"), Path::new("run.toml")).unwrap()
}

/// microsoft/deberta-v3-large.
fn large() -> ModelDims {
    ModelDims {
        architecture: "deberta-v2".into(),
        hidden: 1024,
        layers: 24,
        heads: 16,
        intermediate: 4096,
        relative_rows: 512,
        conv_kernel: 0,
        max_row: None,
        outputs: 3,
        parameters: 435_060_000,
        embedding_parameters: 131_180_000,
    }
}

/// A model for a demonstration on two cores.
fn tiny() -> ModelDims {
    ModelDims {
        hidden: 64,
        layers: 2,
        heads: 2,
        intermediate: 256,
        parameters: 300_000,
        embedding_parameters: 200_000,
        ..large()
    }
}

fn data() -> DatasetStats {
    DatasetStats {
        rows: 1_001,
        tokens: 40_040,
        longest: 128,
        largest_step: 4096,
        truncated: 0,
        eval_rows: 100,
    }
}

fn host(gigabytes: f64) -> HostFacts {
    let bytes = (gigabytes * 1e9) as u64;
    HostFacts {
        allowed: vec![0, 1],
        cores: (0..2).map(|cpu| Core { package: 0, cpus: vec![cpu] }).collect(),
        quota: None,
        throttling: None,
        memory: MemoryFacts { total: 64_000_000_000, available: bytes, ..MemoryFacts::default() },
        huge_pages: HugePages::Madvise,
        nodes: Vec::new(),
        nodes_from: NodesFrom::Sys,
        l2_bytes: Some(1 << 20),
        l3: Some((32 << 20, 2)),
        warnings: Vec::new(),
    }
}

fn cpu(best: &str, kernels: &str, bf16_is_emulated: bool) -> CpuFacts {
    CpuFacts { best: best.into(), kernels: kernels.into(), bf16_is_emulated }
}

fn plan(spec: &RunSpec, model: &ModelDims, host: &HostFacts) -> DerivedPlan {
    let cpu = cpu("avx2", "avx2", true);
    derive(&PlanInput { spec, model, data: &data(), host, cpu: &cpu })
}

#[test]
fn case_7_auto_takes_bf16_only_where_it_is_native_and_says_why() {
    let table = [
        (
            cpu("avx2", "avx2", true),
            DType::F32,
            "this CPU's avx2 has no bf16 products; bf16 would be emulated",
        ),
        (
            cpu("avx512", "avx512", true),
            DType::F32,
            "this CPU's avx512 has no bf16 products; bf16 would be emulated",
        ),
        (
            cpu("amx", "avx512", true),
            DType::F32,
            "avx512 kernels run (the CPU has amx) and they have no bf16 products; bf16 would be emulated",
        ),
        (
            cpu("avx512-bf16", "avx512-bf16", false),
            DType::Bf16,
            "avx512-bf16 multiplies bf16 natively; sums and the optimizer stay f32",
        ),
        (
            cpu("amx", "amx", false),
            DType::Bf16,
            "amx multiplies bf16 natively; sums and the optimizer stay f32",
        ),
    ];
    for (cpu, dtype, reason) in table {
        let choice = choose_precision(Precision::Auto, &cpu);
        assert_eq!((choice.dtype, choice.reason.as_str(), choice.warning), (dtype, reason, None));
    }
    let forced = choose_precision(Precision::Bf16, &cpu("avx2", "avx2", true));
    assert_eq!(forced.dtype, DType::Bf16);
    assert!(forced.warning.unwrap().contains("slower than precision = \"f32\""));
    assert_eq!(choose_precision(Precision::Bf16, &cpu("amx", "amx", false)).warning, None);
    assert_eq!(choose_precision(Precision::F32, &cpu("amx", "amx", false)).dtype, DType::F32);
}

#[test]
fn steps_are_rounded_up_so_that_no_row_is_lost() {
    let steps_of = |text: &str| steps(&spec(text).train, 1_001);
    assert_eq!(steps_of("epochs = 3"), Steps { per_epoch: 32, total: 96, warmup: 10 });
    assert_eq!(steps_of("epochs = 0.5\nwarmup_ratio = 0"), Steps { per_epoch: 32, total: 16, warmup: 0 });
    assert_eq!(steps_of("max_steps = 7\nwarmup_steps = 3"), Steps { per_epoch: 32, total: 7, warmup: 3 });
    assert_eq!(steps(&spec("epochs = 1").train, 5), Steps { per_epoch: 1, total: 1, warmup: 1 });
}

#[test]
fn case_28_a_rate_above_the_published_range_is_noticed() {
    let warnings = |model: &ModelDims, rate: &str| {
        plan(&spec(&format!("epochs = 3\nlearning_rate = {rate}")), model, &host(64.0)).warnings
    };
    assert!(warnings(&tiny(), "1e-2")[0].contains("above the published range of tiny models, up to 1e-3"));
    assert!(warnings(&tiny(), "1e-3").is_empty());
    assert!(
        warnings(&large(), "2e-5")[0]
            .contains("learning rate 2e-5 is above the published range of large models")
    );
    assert!(warnings(&large(), "1e-5").is_empty());
    let none = plan(&spec("epochs = 3\nwarmup_steps = 0"), &tiny(), &host(64.0)).warnings;
    assert!(none.len() == 1 && none[0].contains("there is no warm-up"), "{none:?}");
    assert_eq!(published_peak_rate(&large(), Init::Random).0, 1e-3);
}

#[test]
fn case_69_a_limit_of_256_mb_refuses_with_numbers_and_a_suggestion() {
    let mut host = host(8.0);
    host.memory.limit = Some(256_000_000);
    host.memory.limit_place = Some("/sys/fs/cgroup/memory.max".into());
    host.memory.group_free = Some(250_000_000);
    let error = plan(&spec("epochs = 1"), &large(), &host).admit().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("but only 250 MB can be used"), "{text}");
    assert!(text.contains("limit 0.3 GB (/sys/fs/cgroup/memory.max)"), "{text}");
    assert!(text.contains("moments 3.48 GB"), "{text}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("use a smaller model, or give the process at least"), "{hint}");

    let fits = plan(&spec("epochs = 1"), &tiny(), &host);
    fits.admit().unwrap();
}

#[test]
fn case_69_a_smaller_micro_batch_is_suggested_where_it_would_fit() {
    let fixed = plan(&spec("epochs = 1"), &large(), &host(64.0)).memory.fixed() as f64 / 1e9;
    let host = host(fixed + 1.0);
    let asked = plan(&spec("epochs = 1\nmicro_batch_tokens = 4096"), &large(), &host);
    let hint = asked.admit().unwrap_err().hint().unwrap();
    assert!(hint.starts_with("train.micro_batch_tokens = ") && hint.ends_with("so would \"auto\""), "{hint}");
    let auto = plan(&spec("epochs = 1"), &large(), &host);
    auto.admit().unwrap();
    assert!(hint.contains(&auto.micro_batch_tokens.to_string()), "{hint} and {}", auto.micro_batch_tokens);
    let micro = auto.decisions.iter().find(|d| d.name == "micro-batch").unwrap();
    assert!(micro.reason.starts_with("memory: 2048 tokens would be best"), "{}", micro.reason);
}

#[test]
fn case_69_recomputing_and_then_a_shorter_length_are_suggested_where_they_would_fit() {
    let long = DatasetStats { longest: 4096, ..data() };
    let spec = spec("epochs = 1");
    let model = large();
    let fixed = plan(&spec, &model, &host(64.0)).memory.fixed() as f64 / 1e9;
    let cpu = cpu("avx2", "avx2", true);
    let hint = |gb: f64| {
        let host = host(gb);
        let plan = derive(&PlanInput { spec: &spec, model: &model, data: &long, host: &host, cpu: &cpu });
        plan.admit().unwrap_err().hint().unwrap()
    };
    assert!(hint(fixed + 2.0).starts_with("train.recompute = "), "{}", hint(fixed + 2.0));
    assert!(hint(fixed + 0.5).starts_with("data.max_length = "), "{}", hint(fixed + 0.5));
}

#[test]
fn the_micro_batch_follows_cache_row_and_run_file() {
    let tokens = |text: &str, model: &ModelDims| plan(&spec(text), model, &host(64.0)).micro_batch_tokens;
    // 32 MiB / (4096 * 4 B) = 2048 tokens for the large model.
    assert_eq!(tokens("epochs = 1", &large()), 2048);
    // A virtual machine of 2 CPUs that shows the 300 MiB of its host: 2 * 16 MiB count.
    let mut guest = host(64.0);
    guest.l3 = Some((300 << 20, 2));
    assert_eq!(plan(&spec("epochs = 1"), &large(), &guest).micro_batch_tokens, 2048);
    // The tiny model could take more, but no step of the run has more tokens.
    assert_eq!(tokens("epochs = 1", &tiny()), 4096);
    assert_eq!(tokens("epochs = 1\nmicro_batch_tokens = 1000", &tiny()), 1000);
    assert_eq!(tokens("epochs = 1\nmicro_batch_tokens = 10", &tiny()), 128, "rows are never split");
}

#[test]
fn the_estimate_grows_with_tokens_and_holds_every_arena() {
    let storage = |dtype, tokens| Storage {
        dtype,
        tokens,
        longest: 128,
        rows: 32,
        threads: 2,
        packed_bytes: 4,
        recompute: Recompute::Never,
    };
    let of = |dtype, tokens| estimate(&large(), &storage(dtype, tokens));
    let part =
        |estimate: &MemoryEstimate, name: &str| estimate.parts.iter().find(|p| p.name == name).unwrap().bytes;
    let (f32s, bf16s) = (of(DType::F32, 2048), of(DType::Bf16, 2048));
    let parameters = large().parameters;
    assert_eq!(part(&f32s, "weights") + part(&f32s, "master weights"), 4 * parameters);
    assert_eq!(part(&bf16s, "weights") + part(&bf16s, "master weights"), 6 * parameters);
    assert_eq!(part(&f32s, "moments") + part(&f32s, "gradients"), 12 * parameters);
    // 24 layers * 2048 tokens * (8 * 1024 + 2 * 4096) numbers of 4 bytes, and a little more.
    let core = 24 * 2048 * 16_384 * 4;
    let activations = part(&f32s, "activations");
    assert!(activations > core && activations < core * 11 / 10, "{activations} beside {core}");
    assert!(part(&bf16s, "activations") < activations * 6 / 10);
    let mut last = 0;
    for tokens in [64, 65, 512, 4096] {
        let total = of(DType::F32, tokens).total();
        assert!(total > last);
        last = total;
    }
}

#[test]
fn every_decision_has_a_value_and_a_reason() {
    let plan = plan(&spec("epochs = 3"), &large(), &host(64.0));
    let names: Vec<_> = plan.decisions.iter().map(|d| d.name).collect();
    let expected = [
        "threads",
        "pinning",
        "precision",
        "micro-batch",
        "training data",
        "steps per epoch",
        "steps",
        "warm-up",
        "learning rate",
        "micro-batches per step",
        "work per step",
        "memory traffic per step",
        "gradients per step",
        "peak memory",
    ];
    assert_eq!(names, expected);
    assert!(
        plan.decisions.iter().all(|d| !d.value.is_empty() && d.reason.len() > 10),
        "{:?}",
        plan.decisions
    );
    assert_eq!(plan.gradient_bytes, 1_740_240_000);
    // 0.6 GFLOP forward per token for the linear layers (facts of DeBERTa-v3 large), three times that in all.
    let per_token = plan.flops / (32.0 * 40.0);
    assert!((per_token / 1.82e9 - 1.0).abs() < 0.03, "{per_token}");
}

#[test]
fn truncated_rows_are_counted_in_a_warning() {
    let data = DatasetStats { truncated: 100, ..data() };
    let (spec, model, host, cpu) = (spec("epochs = 1"), tiny(), host(64.0), cpu("avx2", "avx2", true));
    let plan = derive(&PlanInput { spec: &spec, model: &model, data: &data, host: &host, cpu: &cpu });
    assert!(plan.warnings[0].contains("100 rows (10.0 %) are longer than 256 tokens"), "{:?}", plan.warnings);
}
