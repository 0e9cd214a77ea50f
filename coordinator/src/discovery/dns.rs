//! Agents by SRV records of a headless Service.
//!
//! Names are asked for as absolute ones, made with the search list of `resolv.conf`: nobody knows the cluster's domain
//! otherwise. Answers that are too long for UDP are asked for again over TCP. That a name does not exist says little (it
//! appears some 30 s after its pod, and may be missing for moments later): an agent is forgotten once answers have not
//! had it for [`DNS_UNKNOWN`], and never because there was no answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use muster_proto::limits::{DNS_POLL, DNS_TIMEOUT, DNS_UNKNOWN, MAX_NODES};
use muster_proto::with_causes;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Demand, Discovery, Found, ListedPod, Standing};
use crate::secret::random_bytes;

/// Names that are looked up at once.
const PARALLEL: usize = 32;
/// Longest search list that is used.
const MAX_SEARCH: usize = 32;

/// Why there is nobody to ask.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The configuration can't be read.
    #[error("can't use the resolver's configuration: {0}")]
    Config(String),
    /// No name can be like this.
    #[error("{name:?} is no DNS name: {reason}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// Who is asked, and what is appended to names that are not complete.
#[derive(Debug, Clone)]
pub struct NameServers {
    servers: Vec<NameServerConfig>,
    search: Vec<Name>,
}

impl NameServers {
    /// As the text of a `resolv.conf` says.
    ///
    /// # Errors
    /// A text without name servers.
    pub fn from_resolv_conf(text: &str) -> Result<Self, DnsError> {
        let parsed = hickory_resolver::system_conf::parse_resolv_conf(text);
        let (config, _) = parsed.map_err(|error| DnsError::Config(with_causes(&error)))?;
        let (_, search, servers) = config.into_parts();
        Ok(Self { servers, search: search.into_iter().take(MAX_SEARCH).collect() })
    }

    /// One server at any port.
    ///
    /// # Errors
    /// A search list that has no names.
    pub fn at(server: SocketAddr, search: &[&str]) -> Result<Self, DnsError> {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        config.connections.iter_mut().for_each(|connection| connection.port = server.port());
        let search = search.iter().map(|name| absolute(name)).collect::<Result<_, _>>()?;
        Ok(Self { servers: vec![config], search })
    }
}

fn absolute(name: &str) -> Result<Name, DnsError> {
    let wrong = |reason: String| DnsError::Name { name: name.into(), reason };
    let mut parsed = Name::from_utf8(name).map_err(|error| wrong(error.to_string()))?;
    parsed.set_fqdn(true);
    Ok(parsed)
}

/// Agents by the SRV records of a name.
pub struct Srv {
    name: String,
    /// Names to ask for, the one that answered last first.
    candidates: Vec<Name>,
    resolver: TokioResolver,
    known: BTreeMap<String, Known>,
    told: Option<Found>,
    standing: Standing,
    demand: watch::Receiver<Demand>,
}

/// An agent, and since when answers lack it.
#[derive(Debug)]
struct Known {
    pod: ListedPod,
    missing: Option<Instant>,
}

impl std::fmt::Debug for Srv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srv").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Srv {
    /// Agents by `name`; with a dot at its end it is complete. While a run waits for nodes, it is asked more often.
    ///
    /// # Errors
    /// A name that can't be one.
    pub fn new(name: &str, servers: NameServers, demand: watch::Receiver<Demand>) -> Result<Self, DnsError> {
        let own = absolute(name)?;
        let mut candidates = Vec::new();
        if !name.ends_with('.') {
            let append = |domain: &Name| own.clone().append_domain(domain).ok();
            // A name that grows too long with a domain can't be that one.
            candidates.extend(servers.search.iter().filter_map(append));
        }
        candidates.push(own);
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options();
        let resolver = builder.build().map_err(|error| DnsError::Config(with_causes(&error)))?;
        let standing = Standing::asking("dns", format!("SRV records of {name}"));
        Ok(Self {
            name: name.into(),
            candidates,
            resolver,
            known: BTreeMap::new(),
            told: None,
            standing,
            demand,
        })
    }

    /// Notes from now on in another place how things stand: DNS is asked instead of something else, for this reason.
    pub(super) fn stand_as(&mut self, standing: &Standing, why: &str) {
        standing.switch("dns", format!("SRV records of {}, because {why}", self.name));
        self.standing = standing.clone();
        self.told = None;
    }

    /// Asks once and takes the answer in.
    async fn ask(&mut self) {
        match self.answer().await {
            Ok(found) => {
                self.standing.synced();
                self.take(found, Instant::now());
            }
            Err(reason) => {
                if self.standing.trouble(&reason) {
                    tracing::warn!("can't look up {}: {reason}; what is known stays", self.name);
                }
            }
        }
    }

    fn take(&mut self, found: BTreeMap<String, ListedPod>, now: Instant) {
        for (address, known) in &mut self.known {
            match found.contains_key(address) {
                true => known.missing = None,
                false => known.missing = known.missing.or(Some(now)),
            }
        }
        for (address, pod) in found.into_iter().take(MAX_NODES) {
            self.known.entry(address).or_insert(Known { pod, missing: None });
        }
        self.known.retain(|_, known| known.missing.is_none_or(|since| now - since < DNS_UNKNOWN));
    }

    /// The agents of the first name that has any; none if no name has.
    async fn answer(&mut self) -> Result<BTreeMap<String, ListedPod>, String> {
        for index in 0..self.candidates.len() {
            let lookup = self.resolver.lookup(self.candidates[index].clone(), RecordType::SRV).await;
            match lookup {
                Ok(lookup) => {
                    let found = self.addresses(&lookup).await?;
                    self.candidates[..=index].rotate_right(1);
                    return Ok(found);
                }
                Err(error) if error.is_no_records_found() => {}
                Err(error) => return Err(with_causes(&error)),
            }
        }
        Ok(BTreeMap::new())
    }

    /// Addresses of the targets: those that came along, and for the rest those that are asked for.
    async fn addresses(&self, lookup: &Lookup) -> Result<BTreeMap<String, ListedPod>, String> {
        let mut along: BTreeMap<Name, Vec<IpAddr>> = BTreeMap::new();
        for record in lookup.additionals() {
            let ip = match &record.data {
                RData::A(a) => IpAddr::V4(a.0),
                RData::AAAA(a) => IpAddr::V6(a.0),
                _ => continue,
            };
            along.entry(record.name.to_lowercase()).or_default().push(ip);
        }
        let targets = lookup.answers().iter().filter_map(|record| match &record.data {
            RData::SRV(srv) if srv.port != 0 => Some((srv.target.to_lowercase(), srv.port)),
            _ => None,
        });
        let mut found = BTreeMap::new();
        let mut asked = JoinSet::new();
        for (target, port) in targets.take(MAX_NODES) {
            if let Some(ips) = along.get(&target) {
                note(&mut found, &target, port, ips);
                continue;
            }
            if asked.len() >= PARALLEL {
                settle(&mut asked, &mut found).await?;
            }
            let resolver = self.resolver.clone();
            asked.spawn(async move {
                let ips = resolver.lookup_ip(target.clone()).await;
                (target, port, ips.map(|ips| ips.iter().collect::<Vec<_>>()))
            });
        }
        while !asked.is_empty() {
            settle(&mut asked, &mut found).await?;
        }
        Ok(found)
    }
}

type Asked = (Name, u16, Result<Vec<IpAddr>, hickory_resolver::net::NetError>);

async fn settle(asked: &mut JoinSet<Asked>, found: &mut BTreeMap<String, ListedPod>) -> Result<(), String> {
    match asked.join_next().await {
        Some(Ok((target, port, Ok(ips)))) => note(found, &target, port, &ips),
        // A target that has no address yet has no agent yet.
        Some(Ok((.., Err(error)))) if error.is_no_records_found() => {}
        Some(Ok((target, _, Err(error)))) => return Err(format!("{target}: {}", with_causes(&error))),
        Some(Err(_)) | None => {}
    }
    Ok(())
}

/// One address for each target: several lead to the same agent.
fn note(found: &mut BTreeMap<String, ListedPod>, target: &Name, port: u16, ips: &[IpAddr]) {
    let Some(ip) = ips.iter().min_by_key(|ip| (ip.is_ipv6(), **ip)) else { return };
    let name = target.iter().next().map(|label| String::from_utf8_lossy(label).into_owned());
    let pod = ListedPod { name: name.unwrap_or_default(), ready: true, ..ListedPod::default() };
    found.insert(SocketAddr::new(*ip, port).to_string(), pod);
}

fn options() -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.timeout = DNS_TIMEOUT;
    options.attempts = 2;
    // What a name server keeps is its business; here nothing grows old.
    options.positive_max_ttl = Some(Duration::from_millis(500));
    options.negative_max_ttl = Some(Duration::from_millis(500));
    options.use_hosts_file = ResolveHosts::Never;
    options.try_tcp_on_error = true;
    options.num_concurrent_reqs = 1;
    options
}

impl Discovery for Srv {
    fn standing(&self) -> Standing {
        self.standing.clone()
    }

    async fn changed(&mut self) -> Found {
        loop {
            if self.told.is_some() {
                let (fast, slow) = DNS_POLL;
                let pause = if self.demand.borrow_and_update().waits() { fast } else { slow };
                let [chance] = random_bytes::<1>();
                let pause = pause.mul_f64(0.9 + f64::from(chance) / 1280.0);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    Ok(()) = self.demand.changed() => {}
                }
            }
            self.ask().await;
            let found: Found = self
                .known
                .iter()
                .map(|(address, known)| (address.clone(), Some(known.pod.clone())))
                .collect();
            if self.told.as_ref() != Some(&found) {
                self.told = Some(found.clone());
                return found;
            }
        }
    }
}

#[cfg(test)]
mod tests;
