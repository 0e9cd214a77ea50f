//! Options of sockets.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::net::sockopt;

use crate::timeouts::Timeouts;

/// For epoll, which counts in milliseconds: everything but zero is rounded up by the system.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// Sets what a data connection needs. Only what the system lacks is left out: none of it changes results.
pub(super) fn set(socket: &TcpStream, peer: Option<SocketAddr>, timeouts: &Timeouts) {
    let mut refused = Vec::new();
    let mut note = |name: &'static str, result: rustix::io::Result<()>| {
        if let Err(errno) = result {
            refused.push(format!("{name}: {errno}"));
        }
    };
    note("TCP_NODELAY", sockopt::set_tcp_nodelay(socket, true));
    note("SO_KEEPALIVE", sockopt::set_socket_keepalive(socket, true));
    note("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(socket, Duration::from_secs(1)));
    note("TCP_KEEPINTVL", sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1)));
    note("TCP_KEEPCNT", sockopt::set_tcp_keepcnt(socket, 3));
    let unacknowledged = timeouts.unacknowledged().as_millis() as u32;
    note("TCP_USER_TIMEOUT", sockopt::set_tcp_user_timeout(socket, unacknowledged));
    if peer.is_some_and(|a| a.ip().is_loopback()) {
        // Rate-based congestion control halves the speed of a loopback.
        note("TCP_CONGESTION", sockopt::set_tcp_congestion(socket, "cubic"));
    }
    if !refused.is_empty() {
        tracing::debug!(?peer, options = refused.join(", "), "socket options were refused");
    }
}
