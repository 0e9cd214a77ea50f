//! All-reduce over loopback: `bench_tcp <ranks> <bytes>..`, one process per rank.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use muster_allreduce::{
    CommOptions, Communicator, CostModel, Key, Listener, Member, Membership, OpOptions, Security,
};
use muster_proto::{Generation, Rank};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    if args[1] == "rank" {
        return rank(args[2].parse()?, &args[3], &args[4..]);
    }
    let n: usize = args[1].parse()?;
    let ports: Vec<String> = (0..n)
        .map(|_| Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string()))
        .collect::<std::io::Result<_>>()?;
    let spawn = |r: usize| {
        let mut command = std::process::Command::new(&args[0]);
        command.args(["rank", &r.to_string(), &ports.join(",")]).args(&args[2..]).spawn()
    };
    let children: Vec<_> = (0..n).map(spawn).collect::<std::io::Result<_>>()?;
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

fn rank(me: u32, ports: &str, sizes: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let ports: Vec<u16> = ports.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let member = |(i, port): (usize, &u16)| Member {
        id: i.to_string(),
        node: "here".into(),
        addresses: vec![([127, 0, 0, 1], *port).into()],
    };
    let members = ports.iter().enumerate().map(member).collect();
    let membership = Membership::new("bench", Generation(1), members, CostModel::default())?;
    let listener = Listener::bind(([127, 0, 0, 1], ports[me as usize]).into())?;
    let key = Key::new(b"only for this machine").ok_or("key")?;
    let c = Communicator::new(
        membership,
        Rank(me),
        Some(listener),
        CommOptions::new(Security::PreSharedKey(key)),
    )?;
    for size in sizes {
        let bytes: usize = size.parse()?;
        let mut buffer = vec![1.0_f32; bytes / 4];
        let options = OpOptions::sum("bench");
        let mut times = Vec::new();
        let start = Instant::now();
        for i in 0.. {
            buffer.fill(1.0);
            c.barrier("before").wait().map_err(|f| f.error)?;
            let t = Instant::now();
            let done = c.all_reduce(buffer, &options).wait().map_err(|f| f.error)?;
            times.push(t.elapsed());
            buffer = done.buffers;
            // Everybody stops after the same number of operations.
            let late = start.elapsed() > Duration::from_millis(1500) || i > 20_000;
            if i % 8 == 7 {
                let stop = c
                    .all_reduce(vec![i32::from(late)], &OpOptions::sum("stop"))
                    .wait()
                    .map_err(|f| f.error)?;
                if stop.buffers[0] > 0 {
                    break;
                }
            }
        }
        times.sort();
        if me == 0 {
            assert!(buffer.iter().all(|x| *x == ports.len() as f32));
            let (min, median) = (times[0], times[times.len() / 2]);
            println!(
                "{bytes:>10} B  min {:>10.1} us  median {:>10.1} us  algbw {:.3} GB/s  ({} runs; {})",
                min.as_secs_f64() * 1e6,
                median.as_secs_f64() * 1e6,
                bytes as f64 / median.as_secs_f64() / 1e9,
                times.len(),
                c.explain::<f32>(bytes as u64 / 4, &options),
            );
        }
    }
    Ok(())
}
