//! Ranks in network namespaces of their own, joined by a link that is cut, flaps, or loses and delays packets.
//!
//! Needs root, `ip` and (for loss and delay) the netem queue of `tc`; what is missing is said and skipped.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests stand outside of them"
)]

mod common;
mod process;

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use muster_allreduce::{Communicator, CostModel, Error, Listener, Member, Membership, OpOptions};
use muster_proto::{Generation, Rank as Number};
use process::{Rank, role};
use xxhash_rust::xxh3::xxh3_64;

/// A port that nobody else has in a fresh namespace.
const PORT: u16 = 7000;
const BUDGET: Duration = Duration::from_secs(4);

/// Two namespaces and the link between them; gone when this is dropped.
struct Net(String);

impl Net {
    /// None where this machine or user can't.
    fn new(name: &str) -> Option<Self> {
        let net = Self(format!("mstr{}{name}", std::process::id() % 100_000));
        let (a, b) = (net.space(0), net.space(1));
        let made = ip(&["netns", "add", &a])
            && ip(&["netns", "add", &b])
            && ip(&["-n", &a, "link", "add", "left", "type", "veth", "peer", "name", "right", "netns", &b])
            && ip(&["-n", &a, "addr", "add", "10.77.0.1/24", "dev", "left"])
            && ip(&["-n", &b, "addr", "add", "10.77.0.2/24", "dev", "right"])
            && [&a, &b].iter().all(|space| ip(&["-n", space, "link", "set", "lo", "up"]))
            && ip(&["-n", &b, "link", "set", "right", "up"])
            && net.link("up");
        if !made {
            eprintln!("skipped: this user can't make network namespaces");
        }
        made.then_some(net)
    }

    fn space(&self, rank: usize) -> String {
        format!("{}{rank}", self.0)
    }

    fn link(&self, state: &str) -> bool {
        ip(&["-n", &self.space(0), "link", "set", "left", state])
    }

    /// Both ranks, each in its namespace.
    fn ranks(&self, operations: u64) -> [Rank; 2] {
        [0, 1].map(|rank| Rank::start_in(&self.space(rank), &format!("{} {rank} {operations}", self.0)))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for rank in [0, 1] {
            ip(&["netns", "del", &self.space(rank)]);
        }
    }
}

fn ip(args: &[&str]) -> bool {
    run("ip", args)
}

fn run(program: &str, args: &[&str]) -> bool {
    let status = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

#[test]
#[ignore = "a rank of the tests below, which start it"]
fn rank_process() {
    let Some(role) = role() else { return };
    let (me, operations): (u32, u64) = (role[1].parse().unwrap(), role[2].parse().unwrap());
    let address = |rank: u32| (Ipv4Addr::new(10, 77, 0, rank as u8 + 1), PORT).into();
    let member =
        |rank: u32| Member { id: rank.to_string(), node: rank.to_string(), addresses: vec![address(rank)] };
    let world =
        Membership::new(&role[0], Generation(1), [0, 1].map(member).to_vec(), CostModel::default()).unwrap();
    let options = common::options(b"sixteen bytes or more", Duration::from_secs(3), BUDGET);
    let listener = Listener::bind(address(me)).unwrap();
    let world = Communicator::new(world, Number(me), Some(listener), options).unwrap();
    let mut digest = 0_u64;
    for operation in 0..operations {
        let count = [100_000, 10, 3_000][operation as usize % 3];
        let input: Vec<f32> = (0..count).map(|i| (i % 1001) as f32 * 0.1 + me as f32).collect();
        match world.all_reduce(input, &OpOptions::mean("gradients")).wait() {
            Ok(done) => digest = digest.rotate_left(5) ^ xxh3_64(bytemuck::cast_slice(&done.buffers)),
            Err(failed) => {
                let error: Error = failed.error;
                println!("\nEND lost {:?} {error}", error.culprit().map(|rank| rank.0));
                return;
            }
        }
        if operation == 2 {
            println!("\nREADY");
        }
    }
    println!("\nEND done {digest:x}");
    // Until the other has it too, or has had it and is gone.
    let _ = world.barrier("end").wait();
}

#[test]
fn a_cut_link_is_an_error_that_names_the_peer() {
    let Some(net) = Net::new("cut") else { return };
    let mut ranks = net.ranks(u64::MAX);
    ranks.iter_mut().for_each(|rank| drop(rank.expect("READY")));
    assert!(net.link("down"));
    let begun = Instant::now();
    for (me, rank) in ranks.iter_mut().enumerate() {
        let end = rank.expect("END");
        assert!(end.starts_with(&format!("lost Some({})", 1 - me)), "rank {me}: {end}");
    }
    let took = begun.elapsed();
    assert!(took < BUDGET + Duration::from_secs(2), "noticed after {took:?}");
}

#[test]
fn a_link_that_comes_back_costs_time_and_no_bits() {
    let Some(net) = Net::new("flap") else { return };
    let mut ranks = net.ranks(3_000);
    ranks.iter_mut().for_each(|rank| drop(rank.expect("READY")));
    assert!(net.link("down"));
    // Shorter than any deadline: what is tried is that nothing else notices.
    std::thread::sleep(Duration::from_millis(300));
    assert!(net.link("up"));
    let ends = ranks.map(|mut rank| rank.expect("END"));
    assert!(ends[0].starts_with("done") && ends[0] == ends[1], "{ends:?}");
}

#[test]
fn loss_and_delay_cost_time_and_no_bits() {
    let Some(net) = Net::new("slow") else { return };
    let space = net.space(0);
    let args = ["-n", &space, "qdisc", "add", "dev", "left", "root", "netem", "loss", "1%", "delay", "50ms"];
    if !run("tc", &args) {
        eprintln!("skipped: this kernel has no netem");
        return;
    }
    let ends = net.ranks(40).map(|mut rank| rank.expect("END"));
    assert!(ends[0].starts_with("done") && ends[0] == ends[1], "{ends:?}");
}
