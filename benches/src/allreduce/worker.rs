//! One rank of the benchmark.

use std::hint::black_box;
use std::time::Instant;

use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use muster_allreduce::shm::{Reduce, ShmGroup, ShmOptions};
use muster_allreduce::{Communicator, Listener, OpOptions, Operation};
use muster_kernels::reduce::Number;

use super::report::{self, Line};
use super::{Case, Options, Path, network, world};
use crate::schema::Point;

/// Measures every case and writes a line for each.
pub fn run(options: &Options, run: &str) -> Result<()> {
    let me = options.rank.unwrap_or(0);
    // A communicator has a thread of its own, which the system places better.
    let threads = [Path::Tcp, Path::TcpInPlace, Path::World, Path::WorldGather];
    if !options.paths.iter().any(|p| threads.contains(p)) {
        pin(options, me);
    }
    let half = largest(options).next_multiple_of(4096);
    let base = ShmOptions::new(run, 1, me, options.ranks);
    let mut group = ShmGroup::join(ShmOptions { arena_bytes: 2 * half, ..base })?;
    let wants = |paths: &[Path]| options.paths.iter().any(|p| paths.contains(p));
    let tcp = wants(&[Path::Tcp, Path::TcpInPlace]);
    let tcp = tcp.then(|| network::local(&mut group, run, &options.key)).transpose()?;
    let world = wants(&[Path::World, Path::WorldGather]);
    ensure!(!world || options.dtype == "f32", "the paths of World are for f32");
    let world = world.then(|| world::Bench::join(&mut group, run, options)).transpose()?;
    let plain = wants(&[Path::Loopback]).then(|| network::plain(&mut group)).transpose()?;
    match options.dtype.as_str() {
        "f32" => {
            let bench = Bench::<f32>::new(options, (me, options.ranks), group, tcp, plain, |x| x as f32);
            Bench { world, ..bench }.run(options)
        }
        "bf16" => {
            let number = |x| bf16::from_f32(x as f32);
            Bench::<bf16>::new(options, (me, options.ranks), group, tcp, plain, number).run(options)
        }
        other => bail!("unknown dtype {other:?}; use f32 or bf16"),
    }
}

/// Measures TCP among ranks that were started one by one; rank 0 has the points.
pub fn across_machines(options: &Options) -> Result<Vec<Point>> {
    let (me, ranks) = (options.rank.unwrap_or(0), options.addresses.len());
    ensure!(me < ranks, "--rank {me} has no address; --addresses has {ranks}");
    ensure!(options.dtype == "f32", "across machines only f32 is timed");
    let listener = Listener::bind(options.addresses[me])?;
    let tcp = network::communicator("bench", options.addresses.clone(), me, listener, &options.key)?;
    let alone = ShmGroup::join(ShmOptions::new(&format!("bench-{}", std::process::id()), 1, 0, 1))?;
    let mut bench = Bench::<f32>::new(options, (me, ranks), alone, Some(tcp), None, |x| x as f32);
    let options = Options { ranks, paths: vec![Path::Tcp], ..options.clone() };
    let mut points = Vec::new();
    for &case in &options.sizes {
        let line = bench.case(Path::Tcp, case)?;
        let mut slowest = Line::slowest(&bench.everybody(&line)?);
        // Samples stay where they were taken; those of this rank are as good as any: operations are collective.
        slowest.samples_us = line.samples_us;
        points.push(report::point(&options, Path::Tcp, case, &[slowest]));
    }
    Ok(if me == 0 { points } else { Vec::new() })
}

fn largest(options: &Options) -> usize {
    options.sizes.iter().map(|c| c.bytes).max().unwrap_or(0)
}

/// One core per rank, where there are enough.
fn pin(options: &Options, me: usize) {
    let Ok(all) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
    if options.ranks <= cpus.len() {
        let mut own = rustix::thread::CpuSet::new();
        own.set(cpus[me]);
        // Without it the numbers are only noisier.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}

/// The first elements of a buffer.
struct Part<T> {
    whole: Vec<T>,
    count: usize,
}

impl<T> AsRef<[T]> for Part<T> {
    fn as_ref(&self) -> &[T] {
        &self.whole[..self.count]
    }
}

impl<T> AsMut<[T]> for Part<T> {
    fn as_mut(&mut self) -> &mut [T] {
        &mut self.whole[..self.count]
    }
}

/// Buffers of one rank, and its connections.
struct Bench<T> {
    /// This rank and how many there are.
    place: (usize, usize),
    group: ShmGroup,
    tcp: Option<Communicator>,
    plain: Option<TcpStream>,
    world: Option<world::Bench>,
    scratch: Vec<u8>,
    input: Vec<T>,
    output: Vec<T>,
    /// Bytes of one half of the arena.
    half: usize,
    /// Whether inputs are written before each operation.
    fresh: bool,
    number: fn(usize) -> T,
}

impl<T: Number> Bench<T> {
    fn new(
        options: &Options,
        place: (usize, usize),
        group: ShmGroup,
        tcp: Option<Communicator>,
        plain: Option<TcpStream>,
        number: fn(usize) -> T,
    ) -> Self {
        let count = largest(options) / size_of::<T>();
        // Small integers: sums are exact in every type, so the check allows no difference.
        let input = (0..count).map(|i| number(place.0 + i % 5)).collect();
        let half = group.arena_bytes() / 2;
        let (output, scratch, fresh) = (vec![number(0); count], Vec::new(), options.fresh);
        Self { place, group, tcp, plain, world: None, scratch, input, output, half, fresh, number }
    }

    #[allow(clippy::print_stdout, reason = "the parent reads it")]
    fn run(&mut self, options: &Options) -> Result<()> {
        for &path in &options.paths {
            for &case in &options.sizes {
                let line = self.case(path, case)?;
                println!("{}", serde_json::to_string(&line)?);
            }
        }
        Ok(())
    }

    /// Waits for all ranks.
    fn barrier(&mut self) -> Result<()> {
        match &self.tcp {
            Some(tcp) if self.group.local_ranks() < self.place.1 => {
                tcp.barrier("bench").wait().map_err(|f| f.error)?;
            }
            _ => self.group.barrier()?,
        }
        Ok(())
    }

    /// What every rank measured.
    fn everybody(&self, line: &Line) -> Result<Vec<Line>> {
        let tcp = self.tcp.as_ref().context("across machines there is TCP")?;
        let (mine, all) = (line.numbers().to_vec(), vec![0.0_f64; 5 * self.place.1]);
        let counts = vec![5; self.place.1];
        let done =
            tcp.all_gather(mine, all, &counts, &OpOptions::sum("report")).wait().map_err(|f| f.error)?;
        Ok(done.buffers.1.chunks(5).map(Line::of).collect())
    }

    fn case(&mut self, path: Path, case: Case) -> Result<Line> {
        let count = case.bytes / size_of::<T>();
        if matches!(path, Path::Arena | Path::ArenaInPlace | Path::World) {
            self.write(path, count)?;
        }
        self.output.fill((self.number)(0));
        self.once(path, count)?;
        self.check(path, count)?;
        let batch = |bench: &mut Self, path: Path| -> Result<f64> {
            if !bench.fresh {
                let start = Instant::now();
                (0..case.batch).try_for_each(|_| bench.once(path, count))?;
                return Ok(start.elapsed().as_secs_f64() * 1e6 / case.batch as f64);
            }
            bench.write(path, count)?;
            bench.barrier()?;
            let start = Instant::now();
            bench.once(path, count)?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        let mut copies = Vec::new();
        for _ in 0..case.samples.min(20) {
            copies.push(batch(self, Path::Memcpy)?);
        }
        self.barrier()?;
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
        self.barrier()?;
        let samples_us = samples.clone();
        samples.sort_by(f64::total_cmp);
        copies.sort_by(f64::total_cmp);
        Ok(Line {
            min_us: samples[0],
            median_us: samples[samples.len() / 2],
            p99_us: samples[(samples.len() * 99).div_ceil(100) - 1],
            memcpy_us: copies[copies.len() / 2],
            cpu,
            samples_us,
        })
    }

    fn once(&mut self, path: Path, count: usize) -> Result<()> {
        let sum = Reduce::new(Operation::Sum);
        match path {
            Path::Arena => self.group.all_reduce_arena::<T>(sum, 0, self.half, count)?,
            Path::ArenaInPlace => self.group.all_reduce_arena::<T>(sum, 0, 0, count)?,
            Path::Foreign => self.group.all_reduce(sum, &self.input[..count], &mut self.output[..count])?,
            Path::Tcp | Path::TcpInPlace => self.over_tcp(path, count)?,
            Path::World => self.world()?.sum(count * size_of::<T>())?,
            Path::WorldGather => self.world()?.gather(count * size_of::<T>())?,
            Path::Loopback => {
                let stream = self.plain.as_mut().context("the path loopback has a connection")?;
                network::exchange(stream, &mut self.scratch, count * size_of::<T>())?;
            }
            Path::Memcpy => {
                black_box(&mut self.output[..count]).copy_from_slice(black_box(&self.input[..count]))
            }
        }
        Ok(())
    }

    fn world(&mut self) -> Result<&mut world::Bench> {
        self.world.as_mut().context("the paths of World have one")
    }

    /// Lends the first part of the buffers to the communicator.
    fn over_tcp(&mut self, path: Path, count: usize) -> Result<()> {
        let tcp = self.tcp.as_ref().context("the path tcp has a communicator")?;
        let lend = |buffer: &mut Vec<T>| Part { whole: std::mem::take(buffer), count };
        let (output, options) = (lend(&mut self.output), OpOptions::sum("bench"));
        if path == Path::TcpInPlace {
            self.output = tcp.all_reduce(output, &options).wait().map_err(|f| f.error)?.buffers.whole;
            return Ok(());
        }
        let input = lend(&mut self.input);
        let (input, output) =
            tcp.all_reduce_into(input, output, &options).wait().map_err(|f| f.error)?.buffers;
        (self.input, self.output) = (input.whole, output.whole);
        Ok(())
    }

    /// Writes the input.
    fn write(&mut self, path: Path, count: usize) -> Result<()> {
        match path {
            Path::Arena | Path::ArenaInPlace => {
                self.group.arena_mut(0, count)?.copy_from_slice(&self.input[..count]);
            }
            Path::World => {
                let Self { world, input, .. } = self;
                let world = world.as_mut().context("the path world has one")?;
                world.write(bytemuck::cast_slice(&input[..count]))?;
            }
            _ => self.input[..count].iter_mut().for_each(|x| *x = black_box(*x)),
        }
        Ok(())
    }

    fn check(&self, path: Path, count: usize) -> Result<()> {
        let (ranks, number) = (self.place.1, self.number);
        let got = match path {
            Path::Arena => self.group.arena::<T>(self.half, count)?,
            Path::ArenaInPlace => self.group.arena::<T>(0, count)?,
            Path::Foreign | Path::Tcp => &self.output[..count],
            Path::World => {
                let world = self.world.as_ref().context("the path world has one")?;
                bytemuck::cast_slice(world.values(count * size_of::<T>())?)
            }
            Path::TcpInPlace | Path::WorldGather | Path::Loopback | Path::Memcpy => return Ok(()),
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
