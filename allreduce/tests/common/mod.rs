//! Memberships and options that the tests over sockets share.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use muster_allreduce::{CommOptions, Key, Member, Security, Timeouts};

/// Ranks of one node, at these addresses.
pub fn members(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<Member> {
    let member = |(i, address): (usize, SocketAddr)| Member {
        id: i.to_string(),
        node: "here".into(),
        addresses: vec![address],
    };
    addresses.into_iter().enumerate().map(member).collect()
}

/// Options with a key, two deadlines, and nothing else.
pub fn options(key: &[u8], lease: Duration, budget: Duration) -> CommOptions {
    let timeouts = Timeouts::new(lease, budget).unwrap();
    CommOptions { timeouts, ..CommOptions::new(Security::PreSharedKey(Key::new(key).unwrap())) }
}
