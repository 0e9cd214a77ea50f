//! One rank of the benchmark.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use half::bf16;
use muster_allreduce::Operation;
use muster_allreduce::shm::{Reduce, ShmGroup, ShmOptions};
use muster_kernels::reduce::Number;

use super::report::Line;
use super::{Case, Options, Path};

/// Measures every case and writes a line for each.
pub fn run(options: &Options, run: &str) -> Result<()> {
    pin(options);
    match options.dtype.as_str() {
        "f32" => measure::<f32>(options, run, |x| x as f32),
        "bf16" => measure::<bf16>(options, run, |x| bf16::from_f32(x as f32)),
        other => bail!("unknown dtype {other:?}; use f32 or bf16"),
    }
}

/// One core per rank, where there are enough.
fn pin(options: &Options) {
    let Ok(all) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
    if options.ranks <= cpus.len() {
        let mut own = rustix::thread::CpuSet::new();
        own.set(cpus[options.rank]);
        // Without it the numbers are only noisier.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}

/// Buffers of one rank.
struct Bench<T> {
    group: ShmGroup,
    input: Vec<T>,
    output: Vec<T>,
    /// Bytes of one half of the arena.
    half: usize,
    /// Whether inputs are written before each operation.
    fresh: bool,
}

#[allow(clippy::print_stdout, reason = "the parent reads it")]
fn measure<T: Number>(options: &Options, run: &str, number: fn(usize) -> T) -> Result<()> {
    let largest = options.sizes.iter().map(|c| c.bytes).max().unwrap_or(0);
    let half = largest.next_multiple_of(4096);
    let base = ShmOptions::new(run, 1, options.rank, options.ranks);
    let group = ShmGroup::join(ShmOptions { arena_bytes: 2 * half, ..base })?;
    let count = largest / size_of::<T>();
    // Small integers: sums are exact in every type, so the check allows no difference.
    let input = (0..count).map(|i| number(options.rank + i % 5)).collect();
    let output = vec![number(0); count];
    let mut bench = Bench { group, input, output, half, fresh: options.fresh };
    for &path in &options.paths {
        for &case in &options.sizes {
            let line = bench.case(path, case, number)?;
            println!("{}", serde_json::to_string(&line)?);
        }
    }
    Ok(())
}

impl<T: Number> Bench<T> {
    fn case(&mut self, path: Path, case: Case, number: fn(usize) -> T) -> Result<Line> {
        let count = case.bytes / size_of::<T>();
        self.group.arena_mut(0, count)?.copy_from_slice(&self.input[..count]);
        self.once(path, count)?;
        self.check(path, count, number)?;
        let batch = |bench: &mut Self, path: Path| -> Result<f64> {
            if !bench.fresh {
                let start = Instant::now();
                (0..case.batch).try_for_each(|_| bench.once(path, count))?;
                return Ok(start.elapsed().as_secs_f64() * 1e6 / case.batch as f64);
            }
            bench.write(path, count)?;
            bench.group.barrier()?;
            let start = Instant::now();
            bench.once(path, count)?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let mut copies = Vec::new();
        for _ in 0..case.samples.min(20) {
            copies.push(batch(self, Path::Memcpy)?);
        }
        self.group.barrier()?;
        // The first tenth warms caches and clocks.
        for _ in 0..case.samples / 10 {
            batch(self, path)?;
        }
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut samples = Vec::new();
        for _ in 0..case.samples {
            samples.push(batch(self, path)?);
        }
        let cpu = (cpu_seconds() - cpu) / start.elapsed().as_secs_f64();
        self.group.barrier()?;
        samples.sort_by(f64::total_cmp);
        copies.sort_by(f64::total_cmp);
        Ok(Line {
            min_us: samples[0],
            median_us: samples[samples.len() / 2],
            p99_us: samples[(samples.len() * 99).div_ceil(100) - 1],
            memcpy_us: copies[copies.len() / 2],
            cpu,
        })
    }

    fn once(&mut self, path: Path, count: usize) -> Result<()> {
        let sum = Reduce::new(Operation::Sum);
        match path {
            Path::Arena => self.group.all_reduce_arena::<T>(sum, 0, self.half, count)?,
            Path::ArenaInPlace => self.group.all_reduce_arena::<T>(sum, 0, 0, count)?,
            Path::Foreign => self.group.all_reduce(sum, &self.input[..count], &mut self.output[..count])?,
            Path::Memcpy => {
                black_box(&mut self.output[..count]).copy_from_slice(black_box(&self.input[..count]))
            }
        }
        Ok(())
    }

    /// Writes the input.
    fn write(&mut self, path: Path, count: usize) -> Result<()> {
        match path {
            Path::Arena | Path::ArenaInPlace => {
                self.group.arena_mut(0, count)?.copy_from_slice(&self.input[..count]);
            }
            Path::Foreign | Path::Memcpy => self.input[..count].iter_mut().for_each(|x| *x = black_box(*x)),
        }
        Ok(())
    }

    fn check(&self, path: Path, count: usize, number: fn(usize) -> T) -> Result<()> {
        let ranks = self.group.local_ranks();
        let got = match path {
            Path::Arena => self.group.arena::<T>(self.half, count)?,
            Path::ArenaInPlace => self.group.arena::<T>(0, count)?,
            Path::Foreign => &self.output[..count],
            Path::Memcpy => return Ok(()),
        };
        let want = |i: usize| number(ranks * (ranks - 1) / 2 + ranks * (i % 5));
        let wrong = (0..count).find(|&i| got[i] != want(i));
        ensure!(wrong.is_none(), "{path}: element {wrong:?} of {count} is wrong");
        Ok(())
    }
}

fn cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
