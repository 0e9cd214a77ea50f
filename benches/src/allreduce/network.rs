//! Ranks over TCP, and the plain sockets that they are compared with.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use muster_allreduce::shm::ShmGroup;
use muster_allreduce::{CommOptions, Communicator, CostModel, Key, Listener, Member, Membership, Security};
use muster_proto::{Generation, Rank};

/// Bytes of a read or write of the plain sockets.
const CHUNK: usize = 256 << 10;

/// Joins the ranks of this machine over its loopback; the group tells everybody's port.
pub fn local(group: &mut ShmGroup, run: &str, key: &str) -> Result<Communicator> {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into())?;
    let (ranks, me) = (group.local_ranks(), group.local_rank());
    let mut ports = vec![0_i32; ranks];
    group.all_gather(&[i32::from(listener.address()?.port())], &vec![1; ranks], &mut ports)?;
    let address = |&port: &i32| ([127, 0, 0, 1], port as u16).into();
    communicator(run, ports.iter().map(address).collect(), me, listener, key)
}

/// Joins ranks at known addresses.
pub fn communicator(
    run: &str,
    addresses: Vec<SocketAddr>,
    me: usize,
    listener: Listener,
    key: &str,
) -> Result<Communicator> {
    let member = |(rank, address): (usize, SocketAddr)| Member {
        id: rank.to_string(),
        node: address.ip().to_string(),
        addresses: vec![address],
    };
    let members = addresses.into_iter().enumerate().map(member).collect();
    let world = Membership::new(run, Generation(1), Membership::node_major(members), CostModel::default())?;
    let key =
        Key::new(key.as_bytes()).with_context(|| format!("--key needs at least {} bytes", Key::MIN_BYTES))?;
    let options = CommOptions::new(Security::PreSharedKey(key));
    // Node-major order may have moved this rank.
    let rank =
        world.members().iter().position(|m| m.id == me.to_string()).context("this rank is a member")?;
    Ok(Communicator::new(world, Rank(rank as u32), Some(listener), options)?)
}

/// A plain connection between ranks 0 and 1 of this machine.
pub fn plain(group: &mut ShmGroup) -> Result<TcpStream> {
    let (ranks, me) = (group.local_ranks(), group.local_rank());
    ensure!(ranks == 2, "the path loopback is for two ranks");
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut ports = vec![0_i32; ranks];
    group.all_gather(&[i32::from(listener.local_addr()?.port())], &[1, 1], &mut ports)?;
    let stream = match me {
        0 => listener.accept()?.0,
        _ => TcpStream::connect_timeout(&([127, 0, 0, 1], ports[0] as u16).into(), Duration::from_secs(10))?,
    };
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    // As the transport chooses it; where it can't be had, the default is what there is to compare with.
    let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "cubic");
    Ok(stream)
}

/// Sends and receives so many bytes, at the same time.
pub fn exchange(stream: &mut TcpStream, buffer: &mut Vec<u8>, bytes: usize) -> Result<()> {
    buffer.resize(2 * CHUNK, 0);
    let (from, to) = buffer.split_at_mut(CHUNK);
    let (mut sent, mut received) = (0, 0);
    let moved = |result: std::io::Result<usize>| match result {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        result => result,
    };
    while sent < bytes || received < bytes {
        if sent < bytes {
            sent += moved(stream.write(&from[..CHUNK.min(bytes - sent)]))?;
        }
        if received < bytes {
            received += moved(stream.read(&mut to[..CHUNK.min(bytes - received)]))?;
        }
    }
    Ok(())
}
