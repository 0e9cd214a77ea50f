//! Links inside mutual TLS: the same results, and nobody without a certificate of the cluster gets in.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of them")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_allreduce::{
    CommOptions, Communicator, CostModel, Error, Key, LinkTls, Listener, Membership, OpOptions, Security,
    Timeouts,
};
use muster_proto::{Generation, Rank};
use muster_tls::authority::{Request, init, issue};
use muster_tls::{Identity, RankTls, Role, TlsFiles};

const KEY: &[u8] = b"the key of this run";

/// Certificates of a trainer of a CA of its own.
fn certificates(dir: &Path) -> LinkTls {
    let ca = init(dir, 30).unwrap().cert;
    let identity = Identity { role: Role::Trainer, name: "node".into() };
    let issued = issue(dir, &Request { identity, hosts: Vec::new(), days: 2 }).unwrap();
    let tls = RankTls::load(&TlsFiles { ca, cert: issued.cert, key: issued.key }).unwrap();
    LinkTls { client: tls.client, server: tls.server }
}

fn options(tls: &LinkTls, key: &[u8]) -> CommOptions {
    let timeouts = Timeouts::new(Duration::from_secs(2), Duration::from_secs(20)).unwrap();
    let security = Security::MutualTls(Key::new(key).unwrap(), tls.clone());
    CommOptions { timeouts, ..CommOptions::new(security) }
}

fn world(ranks: usize) -> (Vec<Listener>, Membership) {
    let listeners: Vec<Listener> =
        (0..ranks).map(|_| Listener::bind(([127, 0, 0, 1], 0).into()).unwrap()).collect();
    let members = common::members(listeners.iter().map(|l| l.address().unwrap()));
    (listeners, Membership::new("run", Generation(4), members, CostModel::default()).unwrap())
}

/// Runs something on every rank of a world; each has its options.
fn run<T: Send>(options: &[CommOptions], work: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let (listeners, membership) = world(options.len());
    std::thread::scope(|scope| {
        let start = |(rank, (listener, options)): (usize, (Listener, &CommOptions))| {
            let (membership, options, work) = (membership.clone(), options.clone(), &work);
            scope.spawn(move || {
                work(Communicator::new(membership, Rank(rank as u32), Some(listener), options).unwrap())
            })
        };
        let threads: Vec<_> = listeners.into_iter().zip(options).enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sums_of_every_size_are_those_of_plain_links() {
    let dir = tempfile::tempdir().unwrap();
    let tls = certificates(dir.path());
    for (ranks, streams) in [(2, 1), (3, 2)] {
        let options = CommOptions { streams, ..options(&tls, KEY) };
        let sums = run(&vec![options; ranks], |comm| {
            let mut digests = Vec::new();
            for (round, len) in [0, 1, 7, 4_095, 70_001, 3_000_001].into_iter().enumerate() {
                let mine = comm.rank().0 as usize + 1;
                let values: Vec<f32> = (0..len).map(|i| ((i * mine) % 1000) as f32).collect();
                let done =
                    comm.all_reduce(values, &OpOptions::sum(&format!("round {round}"))).wait().unwrap();
                let total: usize = (1..=ranks).sum::<usize>();
                let expected = |i: usize| (1..=ranks).map(|k| ((i * k) % 1000) as f32).sum::<f32>();
                let wrong = (0..len).find(|&i| done.buffers[i] != expected(i));
                assert_eq!(wrong, None, "{len} elements of {ranks} ranks, {total}");
                digests.push(done.buffers.len());
            }
            digests
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }
}

#[test]
fn both_directions_at_once_and_many_small_ones_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tls = certificates(dir.path());
    run(&vec![options(&tls, KEY); 2], |comm| {
        let big = |name: &str| comm.all_reduce(vec![1.0_f32; 2_000_000], &OpOptions::sum(name));
        let handles: Vec<_> = (0..4).map(|i| big(&format!("big {i}"))).collect();
        for i in 0..500 {
            let done = comm.all_reduce(vec![i; 3], &OpOptions::sum("small")).wait().unwrap();
            assert_eq!(done.buffers, [2 * i; 3]);
        }
        for handle in handles {
            assert!(handle.wait().unwrap().buffers.iter().all(|&x| x == 2.0));
        }
    });
}

#[test]
fn another_ca_or_key_or_none_of_it_never_gets_in() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (tls, other) = (certificates(dirs[0].path()), certificates(dirs[1].path()));
    let mut plain = options(&tls, KEY);
    plain.security = Security::PreSharedKey(Key::new(KEY).unwrap());
    for (what, stranger) in [
        ("another CA", options(&other, KEY)),
        ("another key", options(&tls, b"the key of another run")),
        ("no TLS", plain),
    ] {
        let mut pair = [options(&tls, KEY), stranger];
        for options in &mut pair {
            options.timeouts = Timeouts::new(Duration::from_millis(400), Duration::from_millis(900)).unwrap();
        }
        let begun = Instant::now();
        for error in run(&pair, |comm| comm.barrier("meet").wait().unwrap_err().error) {
            assert!(matches!(error, Error::PeerLost { .. } | Error::Stalled { .. }), "{what}: {error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}: {:?}", begun.elapsed());
    }
}

#[test]
fn garbage_and_silence_cost_a_connection_each() {
    let dir = tempfile::tempdir().unwrap();
    let tls = certificates(dir.path());
    let (mut listeners, membership) = world(2);
    let address = listeners[1].address().unwrap();
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let mut options = options(&tls, KEY);
    options.timeouts = Timeouts::new(Duration::from_millis(800), Duration::from_secs(20)).unwrap();
    let until = Instant::now() + Duration::from_millis(1500);
    let work = |me: u32, listener: Listener| {
        let comm = Communicator::new(membership.clone(), Rank(me), Some(listener), options.clone()).unwrap();
        let mut count = 0;
        loop {
            let late = i32::from(Instant::now() >= until);
            let done = comm.all_reduce(vec![late; 100], &OpOptions::sum("x")).wait().unwrap();
            count += 1;
            if done.buffers[0] > 0 {
                return count;
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0, first));
        let ranks = scope.spawn(|| work(1, second));
        let strangers: [&[u8]; 4] =
            [b"GET / HTTP/1.1\r\n\r\n", b"MUSTER\x00\x01", b"\x16\x03\x01\xff\xff", b""];
        let sockets = strangers.map(|bytes| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(bytes).unwrap();
            socket
        });
        for mut socket in sockets {
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            // Perhaps an alert, then the end.
            while socket.read(&mut [0; 64]).expect("the end, and not silence") > 0 {}
        }
        assert!(ranks.join().unwrap() > 50, "strangers held up the ranks");
    });
}
