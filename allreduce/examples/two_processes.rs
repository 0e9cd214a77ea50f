//! Two processes average their gradients over loopback.
//!
//! `cargo run --release -p muster-allreduce --example two_processes` starts the second process by itself.
#![allow(clippy::print_stdout)]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use muster_allreduce::{
    CommOptions, Communicator, CostModel, Key, Listener, Member, Membership, OpOptions, Security,
};
use muster_proto::{Generation, Rank};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into())?;
    if std::env::args().nth(1).as_deref() == Some("second") {
        // The coordinator's job, in one line each way: tell my address, hear all of them.
        println!("{}", listener.address()?);
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
        return train(1, listener, &addresses(&line)?);
    }
    let mut second = Command::new(std::env::current_exe()?)
        .arg("second")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(second.stdout.take().ok_or("no output")?).lines();
    let theirs = lines.next().ok_or("the second process said nothing")??;
    let all = format!("{} {theirs}\n", listener.address()?);
    second.stdin.take().ok_or("no input")?.write_all(all.as_bytes())?;
    train(0, listener, &addresses(&all)?)?;
    for line in lines {
        println!("{}", line?);
    }
    second.wait()?;
    Ok(())
}

fn addresses(line: &str) -> Result<Vec<SocketAddr>, Failure> {
    Ok(line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

fn train(rank: u32, listener: Listener, addresses: &[SocketAddr]) -> Result<(), Failure> {
    let member = |(i, address): (usize, &SocketAddr)| Member {
        id: format!("process {i}"),
        node: "here".into(),
        addresses: vec![*address],
    };
    let members = addresses.iter().enumerate().map(member).collect();
    let world = Membership::new("two-processes", Generation(1), members, CostModel::default())?;
    let key = Key::new(b"a secret of both processes").ok_or("the key is too short")?;
    let options = CommOptions::new(Security::PreSharedKey(key));
    let communicator = Communicator::new(world, Rank(rank), Some(listener), options)?;

    // Two buckets: the second one is computed while the first one travels.
    let first = communicator.all_reduce(vec![rank as f32; 1 << 20], &OpOptions::mean("bucket 0"));
    let second = communicator.all_reduce(vec![1.0 + rank as f32; 1 << 18], &OpOptions::mean("bucket 1"));
    for handle in [first, second] {
        let done = handle.wait().map_err(|failed| failed.error)?;
        println!("rank {rank}: mean {}, {:.2} GB/s", done.buffers[0], done.statistics.busbw);
    }
    Ok(())
}
