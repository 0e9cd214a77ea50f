//! Real processes that are killed or stopped at a random moment.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_allreduce::{
    CommOptions, Communicator, CostModel, Key, Listener, Member, Membership, OpOptions, Security, Timeouts, digest,
};
use muster_proto::{Generation, Rank};

const RANKS: usize = 4;
const BUDGET: Duration = Duration::from_secs(2);

/// What each rank does until something fails: reduces, and prints a digest per operation, then the error.
#[test]
#[ignore = "a rank of the tests below"]
fn rank() {
    let Ok(ports) = std::env::var("MUSTER_TEST_PORTS") else { return };
    let me: u32 = std::env::var("MUSTER_TEST_RANK").unwrap().parse().unwrap();
    let ports: Vec<u16> = ports.split(',').map(|p| p.parse().unwrap()).collect();
    let member = |(i, port): (usize, &u16)| Member {
        id: i.to_string(),
        node: "here".into(),
        addresses: vec![([127, 0, 0, 1], *port).into()],
    };
    let members = ports.iter().enumerate().map(member).collect();
    let membership = Membership::new("chaos", Generation(1), members, CostModel::default()).unwrap();
    let listener = Listener::bind(([127, 0, 0, 1], ports[me as usize]).into()).unwrap();
    let key = Key::new(b"only for this test").unwrap();
    let timeouts = Timeouts::new(Duration::from_secs(1), BUDGET).unwrap();
    let options = CommOptions { timeouts, ..CommOptions::new(Security::PreSharedKey(key)) };
    let c = Communicator::new(membership, Rank(me), Some(listener), options).unwrap();
    let (mut input, mut output) = (vec![0.0_f32; 200_000], vec![0.0_f32; 200_000]);
    for step in 0.. {
        input.iter_mut().enumerate().for_each(|(i, x)| *x = (i as f32).sin() * (me + step) as f32);
        let before = digest(&input);
        match c.all_reduce_into(input, output, &OpOptions::mean("gradients")).wait() {
            Ok(done) => {
                (input, output) = done.buffers;
                println!("\nstep {step} {:x}", digest(&output));
            }
            Err(failed) => {
                println!("\nfailed {:?} intact {}", failed.error.culprit(), digest(&failed.buffers.0) == before);
                return;
            }
        }
    }
}

fn free_ports() -> String {
    let sockets: Vec<_> = (0..RANKS).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    sockets.iter().map(|s| s.local_addr().unwrap().port().to_string()).collect::<Vec<_>>().join(",")
}

fn start(ports: &str, rank: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank", "--ignored", "--nocapture"])
        .env("MUSTER_TEST_PORTS", ports)
        .env("MUSTER_TEST_RANK", rank.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Starts ranks, lets one have the signal after a while, and checks what the others say within a time.
fn lose_one(seed: u64, name: &str, within: Duration) {
    let ports = free_ports();
    let mut children: Vec<Child> = (0..RANKS).map(|r| start(&ports, r)).collect();
    let readers: Vec<_> = children
        .iter_mut()
        .map(|c| {
            let out = c.stdout.take().unwrap();
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            std::thread::spawn(move || {
                let ours = |l: &String| l.starts_with("step ") || l.starts_with("failed ");
                (lines.filter(ours).collect::<Vec<String>>(), Instant::now())
            })
        })
        .collect();
    let victim = (seed % RANKS as u64) as usize;
    // Long enough for the connections, then any moment.
    std::thread::sleep(Duration::from_millis(500 + seed * 7919 % 300));
    signal(&children[victim], name);
    let lost = Instant::now();
    let mut results = Vec::new();
    for (rank, reader) in readers.into_iter().enumerate() {
        if rank != victim {
            results.push((rank, reader.join().unwrap()));
        }
    }
    for child in &mut children {
        // The one that was only stopped.
        let _ = child.kill();
        child.wait().unwrap();
    }
    let mut steps = std::collections::BTreeMap::new();
    for (rank, (lines, ended)) in results {
        assert!(lines.len() > 1, "{name} {seed}: rank {rank} did nothing: {lines:?}");
        let last = lines.last().unwrap();
        let expected = format!("failed Some(Rank({victim})) intact true");
        assert_eq!(*last, expected, "{name} {seed}: rank {rank}");
        let took = ended.saturating_duration_since(lost);
        assert!(took < within, "{name} {seed}: rank {rank} took {took:?}");
        for line in &lines[..lines.len() - 1] {
            let (step, digest) = line[5..].split_once(' ').unwrap();
            let other = steps.entry(step.to_owned()).or_insert_with(|| digest.to_owned());
            assert_eq!(other, digest, "{name} {seed}: ranks differ in step {step}");
        }
    }
}

fn rounds() -> u64 {
    std::env::var("MUSTER_CHAOS_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

#[test]
fn a_killed_rank_is_named_within_a_second() {
    (0..rounds()).for_each(|seed| lose_one(seed, "-KILL", Duration::from_secs(1)));
}

#[test]
fn a_stopped_rank_is_named_within_the_budget() {
    (0..rounds().div_ceil(2)).for_each(|seed| lose_one(seed + 1, "-STOP", BUDGET * 2));
}
