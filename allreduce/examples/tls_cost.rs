//! What encryption costs: all-reduce of two ranks over loopback, in the clear (with the key's handshake) and inside mutual
//! TLS, in turns. Prints medians and their ratio for each size.
//!
//!     cargo run --release -p muster-allreduce --example tls_cost

use std::error::Error;
use std::time::{Duration, Instant};

use muster_allreduce::{
    CommOptions, Communicator, CostModel, Key, LinkTls, Listener, Member, Membership, OpOptions, Security,
};
use muster_proto::{Generation, Rank};
use muster_tls::authority::{Request, init, issue};
use muster_tls::{Identity, RankTls, Role, TlsFiles};

const SIZES: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 16 << 20];
const ROUNDS: usize = 15;

fn links() -> Result<LinkTls, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let ca = init(dir.path(), 2)?.cert;
    let identity = Identity { role: Role::Trainer, name: "node".into() };
    let issued = issue(dir.path(), &Request { identity, hosts: Vec::new(), days: 1 })?;
    let tls = RankTls::load(&TlsFiles { ca, cert: issued.cert, key: issued.key })?;
    Ok(LinkTls { client: tls.client, server: tls.server })
}

/// Two ranks of one world.
fn pair(security: &Security) -> Result<[Communicator; 2], Box<dyn Error>> {
    let listeners =
        [Listener::bind(([127, 0, 0, 1], 0).into())?, Listener::bind(([127, 0, 0, 1], 0).into())?];
    let mut members = Vec::new();
    for (i, listener) in listeners.iter().enumerate() {
        members.push(Member { id: i.to_string(), node: i.to_string(), addresses: vec![listener.address()?] });
    }
    let world = Membership::new("cost", Generation(1), members, CostModel::default())?;
    let [first, second] = listeners;
    let join = |rank, listener| {
        Communicator::new(world.clone(), Rank(rank), Some(listener), CommOptions::new(security.clone()))
    };
    Ok([join(0, first)?, join(1, second)?])
}

/// Time of one operation of both ranks.
fn once(pair: &[Communicator; 2], bytes: usize) -> Duration {
    let work = |comm: &Communicator| {
        let repeats = (1 << 20) / bytes.clamp(1 << 13, 1 << 20) + 1;
        let mut values = vec![1.0_f32; bytes / 4];
        let begun = Instant::now();
        for _ in 0..repeats {
            values = comm.all_reduce(values, &OpOptions::sum("x")).wait().expect("both are here").buffers;
        }
        begun.elapsed() / repeats as u32
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(&pair[1]));
        work(&pair[0]).max(other.join().expect("it does not panic"))
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[allow(clippy::print_stdout, reason = "an example prints")]
fn main() -> Result<(), Box<dyn Error>> {
    let key = Key::new(&[7; 32]).ok_or("the key is long enough")?;
    let clear = pair(&Security::PreSharedKey(key.clone()))?;
    let tls = pair(&Security::MutualTls(key, links()?))?;
    println!("{:>10}  {:>10}  {:>10}  {:>6}  {:>9}", "bytes", "clear", "TLS", "ratio", "TLS GB/s");
    for bytes in SIZES {
        let (mut plain, mut encrypted) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain.push(once(&clear, bytes));
            encrypted.push(once(&tls, bytes));
        }
        let (plain, encrypted) = (median(plain), median(encrypted));
        let ratio = encrypted.as_secs_f64() / plain.as_secs_f64();
        let speed = bytes as f64 / encrypted.as_secs_f64() / 1e9;
        println!("{bytes:>10}  {plain:>10.1?}  {encrypted:>10.1?}  {ratio:>6.2}  {speed:>9.2}");
    }
    Ok(())
}
