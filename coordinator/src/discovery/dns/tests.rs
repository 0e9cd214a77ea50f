//! A real name server of the test, over UDP and TCP.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::Record;
use hickory_resolver::proto::rr::rdata::{A, SRV};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use super::*;

const NAME: &str = "_grpc._tcp.trainers.ml.svc";
const DOMAIN: &str = "cluster.example";

/// What the server knows, and how it was asked.
#[derive(Debug, Default)]
struct Zone {
    /// Host numbers of the pods.
    pods: Vec<u8>,
    /// Whether addresses come along with SRV records.
    along: bool,
    broken: bool,
    udp: u32,
    tcp: u32,
    names: Vec<String>,
}

impl Zone {
    fn answer(&mut self, query: &[u8], is_tcp: bool) -> Vec<u8> {
        *if is_tcp { &mut self.tcp } else { &mut self.udp } += 1;
        let query = Message::from_vec(query).unwrap();
        let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
        let question = query.queries[0].clone();
        let name = question.name().to_lowercase().to_utf8();
        self.names.push(name.clone());
        let own = format!("{NAME}.{DOMAIN}.");
        let host = |pod: u8| absolute(&format!("trainer-{pod}.trainers.ml.svc.{DOMAIN}")).unwrap();
        let address = |pod: u8| {
            let ip = A(Ipv4Addr::new(10, 0, 0, pod));
            Record::from_rdata(host(pod), 30, RData::A(ip))
        };
        if self.broken {
            answer.metadata.response_code = ResponseCode::ServFail;
        } else if name == own && !self.pods.is_empty() && question.query_type() == RecordType::SRV {
            for &pod in &self.pods {
                let srv = RData::SRV(SRV::new(0, 1, 7071, host(pod)));
                answer.add_answer(Record::from_rdata(question.name().clone(), 30, srv));
                if self.along {
                    answer.add_additional(address(pod));
                }
            }
        } else if let Some(&pod) = self.pods.iter().find(|pod| host(**pod).to_utf8() == name) {
            if question.query_type() == RecordType::A {
                answer.add_answer(address(pod));
            }
        } else {
            answer.metadata.response_code = ResponseCode::NXDomain;
        }
        answer.add_query(question);
        let full = answer.to_vec().unwrap();
        match is_tcp || full.len() <= 512 {
            true => full,
            false => answer.truncate().to_vec().unwrap(),
        }
    }
}

async fn server() -> (SocketAddr, Arc<Mutex<Zone>>) {
    let zone = Arc::new(Mutex::new(Zone { along: true, ..Zone::default() }));
    // One port for both, as name servers have it.
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            break (tcp, udp);
        }
    };
    let at = tcp.local_addr().unwrap();
    let over_udp = Arc::clone(&zone);
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
            let answer = over_udp.lock().unwrap().answer(&buffer[..length], false);
            udp.send_to(&answer, from).await.unwrap();
        }
    });
    let over_tcp = Arc::clone(&zone);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let zone = Arc::clone(&over_tcp);
            tokio::spawn(async move {
                while let Ok(length) = stream.read_u16().await {
                    let mut query = vec![0; length.into()];
                    stream.read_exact(&mut query).await.unwrap();
                    let answer = zone.lock().unwrap().answer(&query, true);
                    stream.write_u16(answer.len() as u16).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            });
        }
    });
    (at, zone)
}

fn srv(at: SocketAddr) -> (Srv, watch::Sender<Demand>) {
    let (demand, demanded) = watch::channel(Demand { wanted: 1, ..Demand::default() });
    let servers = NameServers::at(at, &["ml.svc.cluster.example", "svc.cluster.example", DOMAIN]).unwrap();
    (Srv::new(NAME, servers, demanded).unwrap(), demand)
}

fn names(found: &Found) -> Vec<(String, String)> {
    let pod = |(address, pod): (&String, &Option<ListedPod>)| (pod.clone().unwrap().name, address.clone());
    found.iter().map(pod).collect()
}

#[tokio::test]
async fn the_search_list_finds_the_domain_and_absolute_names_are_asked_for() {
    let (at, zone) = server().await;
    zone.lock().unwrap().pods = vec![1, 2];
    let (mut srv, _demand) = srv(at);
    let found = srv.changed().await;
    let wanted = [("trainer-1", "10.0.0.1:7071"), ("trainer-2", "10.0.0.2:7071")];
    assert_eq!(names(&found), wanted.map(|(name, at)| (name.to_owned(), at.to_owned())));
    assert_eq!(srv.standing().mode(), "dns");
    assert!(srv.standing().age().is_some());
    let asked = std::mem::take(&mut zone.lock().unwrap().names);
    assert_eq!(asked.len(), 3, "the third domain has it: {asked:?}");
    zone.lock().unwrap().pods.push(3);
    assert_eq!(srv.changed().await.len(), 3, "a new pod is found while a run waits");
    let asked = zone.lock().unwrap().names.clone();
    assert!(asked.iter().all(|name| *name == format!("{NAME}.{DOMAIN}.")), "the right name first: {asked:?}");
}

#[tokio::test]
async fn long_answers_come_over_tcp_and_targets_without_address_are_looked_up() {
    let (at, zone) = server().await;
    *zone.lock().unwrap() = Zone { pods: (1..=60).collect(), ..Zone::default() };
    let (mut srv, _demand) = srv(at);
    let found = srv.changed().await;
    assert_eq!(found.len(), 60);
    assert!(found.contains_key("10.0.0.60:7071"));
    let zone = zone.lock().unwrap();
    assert!(zone.tcp >= 1 && zone.udp >= 60, "{} over TCP, {} over UDP", zone.tcp, zone.udp);
}

#[tokio::test]
async fn a_name_that_does_not_exist_and_a_server_that_fails_forget_nobody() {
    let (at, zone) = server().await;
    zone.lock().unwrap().pods = vec![1];
    let (mut srv, _demand) = srv(at);
    assert_eq!(srv.changed().await.len(), 1);
    let start = Instant::now();
    srv.take(BTreeMap::new(), start);
    srv.take(BTreeMap::new(), start + DNS_UNKNOWN - Duration::from_secs(1));
    assert_eq!(srv.known.len(), 1, "it may be late");
    srv.take(BTreeMap::from([("10.0.0.1:7071".to_owned(), ListedPod::default())]), start + DNS_UNKNOWN);
    srv.take(BTreeMap::new(), start + DNS_UNKNOWN * 2);
    assert_eq!(srv.known.len(), 1, "it was there in between");
    zone.lock().unwrap().broken = true;
    tokio::time::sleep(Duration::from_millis(600)).await;
    srv.ask().await;
    assert_eq!(srv.known.len(), 1);
    assert!(!srv.standing().reason().is_empty(), "the trouble is told");
    srv.take(BTreeMap::new(), start + DNS_UNKNOWN * 3);
    assert!(srv.known.is_empty(), "absent from answers for long enough");
}

#[test]
fn resolv_conf_says_whom_to_ask() {
    let text = "search ml.svc.c.local svc.c.local c.local\nnameserver 10.96.0.10\noptions ndots:5\n";
    let servers = NameServers::from_resolv_conf(text).unwrap();
    assert_eq!((servers.servers.len(), servers.search.len()), (1, 3));
    assert!(matches!(NameServers::from_resolv_conf("search x\n"), Err(DnsError::Config(_))));
}
