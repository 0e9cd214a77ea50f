//! Whoever knocks at the port without the key costs a log line, and never holds up the ranks.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of them")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use muster_allreduce::{
    CommOptions, Communicator, CostModel, Error, Listener, Membership, OpOptions, Timeouts,
};
use muster_proto::{Generation, Rank};

fn options(key: &[u8]) -> CommOptions {
    common::options(key, Duration::from_millis(400), Duration::from_secs(10))
}

const KEY: &[u8] = b"the key of this run";

fn pair() -> (Vec<Listener>, Membership) {
    let listeners: Vec<Listener> =
        (0..2).map(|_| Listener::bind(([127, 0, 0, 1], 0).into()).unwrap()).collect();
    let members = common::members(listeners.iter().map(|l| l.address().unwrap()));
    (listeners, Membership::new("run", Generation(4), members, CostModel::default()).unwrap())
}

/// Reads until the other end closes; panics after ten seconds.
fn assert_closed(mut socket: TcpStream, what: &str) {
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = [0; 64];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{what}: still open: {error}"),
        }
    }
}

#[test]
fn strangers_are_refused_while_ranks_go_on() {
    let (mut listeners, membership) = pair();
    let address: SocketAddr = listeners[1].address().unwrap();
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let (a, b) = (membership.clone(), membership.clone());
    let rank = |membership, me, listener| {
        Communicator::new(membership, Rank(me), Some(listener), options(KEY)).unwrap()
    };
    let work = |c: Communicator, until: Instant| {
        let mut count = 0;
        loop {
            let late = i32::from(Instant::now() >= until);
            let done = c.all_reduce(vec![late; 100], &OpOptions::sum("x")).wait().unwrap();
            count += 1;
            if done.buffers[0] > 0 {
                return count;
            }
        }
    };
    let until = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        scope.spawn(move || work(rank(a, 0, first), until));
        let ranks = scope.spawn(move || work(rank(b, 1, second), until));
        let mut garbage = TcpStream::connect(address).unwrap();
        garbage.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        assert_closed(garbage, "another protocol");
        // A byte now and then, of a protocol that could be ours: the deadline ends it.
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"MUSTER").unwrap();
        assert_closed(slow, "a slow one");
        let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        for socket in silent {
            assert_closed(socket, "a silent one");
        }
        assert!(ranks.join().unwrap() > 100, "strangers held up the ranks");
    });
}

#[test]
fn another_key_or_run_never_gets_in() {
    for (key, run) in [(&b"a key of another run"[..], "run"), (KEY, "another run")] {
        let (mut listeners, membership) = pair();
        let other =
            Membership::new(run, Generation(4), membership.members().to_vec(), CostModel::default()).unwrap();
        let second = listeners.pop().unwrap();
        let first = listeners.pop().unwrap();
        let mut impatient = options(KEY);
        impatient.timeouts = Timeouts::new(Duration::from_millis(200), Duration::from_millis(600)).unwrap();
        let mut stranger = impatient.clone();
        stranger.security = options(key).security;
        let errors = std::thread::scope(|scope| {
            let join = |membership, me, listener, options: CommOptions| {
                scope.spawn(move || {
                    let c = Communicator::new(membership, Rank(me), Some(listener), options).unwrap();
                    c.barrier("meet").wait().unwrap_err().error
                })
            };
            let threads = [join(membership, 0, first, impatient), join(other, 1, second, stranger)];
            threads.map(|t| t.join().unwrap())
        });
        for error in errors {
            assert!(matches!(error, Error::PeerLost { .. } | Error::Stalled { .. }), "{error}");
        }
    }
}
