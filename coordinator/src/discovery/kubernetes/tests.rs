//! Discovery against an API server that follows a script.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::channel::{Channel, Sender};
use http_body_util::{Either, Full};
use kube::Client;
use kube::client::Body;
use muster_proto::limits::WATCH_SILENCE;
use prost::bytes::Bytes;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;
use crate::discovery::ListedPod;

type Answer = Either<Full<Bytes>, Channel<Bytes, std::io::Error>>;
type Handle = mock::Handle<Request<Body>, Response<Answer>>;

/// The API server's side.
struct Script(Handle);

/// An open watch.
struct Feed(Sender<Bytes, std::io::Error>);

fn start() -> (Kubernetes, Script) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Answer>>();
    let service_of_pods = Service::parse("trainers.ml", None).unwrap();
    (Kubernetes::start(&service_of_pods, Ok(Client::new(service, "ml")), None), Script(handle))
}

fn reply(code: u16, body: Answer) -> Response<Answer> {
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

fn whole(body: &Value) -> Answer {
    Either::Left(Full::new(Bytes::from(body.to_string())))
}

impl Script {
    /// Answers a request for the list.
    async fn list(&mut self, slices: &[Value], version: &str) {
        let (request, send) = self.0.next_request().await.unwrap();
        let query = request.uri().query().unwrap_or_default();
        assert!(request.uri().path().ends_with("/namespaces/ml/endpointslices"), "{}", request.uri());
        assert!(query.contains("service-name%3Dtrainers") && !query.contains("watch=true"), "{query}");
        let list = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
            "metadata": {"resourceVersion": version}, "items": slices});
        send.send_response(reply(200, whole(&list)));
    }

    /// Accepts a watch from a version on.
    async fn watch(&mut self, version: &str) -> Feed {
        let (request, send) = self.0.next_request().await.unwrap();
        let query = request.uri().query().unwrap_or_default();
        assert!(query.contains("watch=true") && query.contains("timeoutSeconds=30"), "{query}");
        assert!(query.contains("allowWatchBookmarks=true"), "{query}");
        assert!(query.contains(&format!("resourceVersion={version}")), "{query} from {version}");
        let (sender, body) = Channel::new(64);
        send.send_response(reply(200, Either::Right(body)));
        Feed(sender)
    }

    /// Refuses the next request, whatever it is.
    async fn refuse(&mut self, code: u16, reason: &str) {
        let (_, send) = self.0.next_request().await.unwrap();
        send.send_response(reply(code, whole(&status(code, reason))));
    }

    /// Lets the next request fail as one to a server that is away.
    async fn away(&mut self) {
        let (_, send) = self.0.next_request().await.unwrap();
        send.send_error(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
    }
}

impl Feed {
    async fn event(&mut self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        self.0.send_data(Bytes::from(line)).await.unwrap();
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": format!("{reason} says the script")})
}

/// An endpoint of the pod with an ordinal.
fn endpoint(ordinal: u32, uid: &str, address: &str) -> Value {
    json!({"addresses": [address], "hostname": format!("trainer-{ordinal}"), "nodeName": "m1", "zone": "z",
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"kind": "Pod", "name": format!("trainer-{ordinal}"), "namespace": "ml", "uid": uid}})
}

fn slice(name: &str, family: &str, version: u32, endpoints: &[Value]) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {"name": name, "namespace": "ml", "resourceVersion": version.to_string()},
        "ports": [{"name": "health", "port": 7072}, {"name": "grpc", "port": 7071}], "endpoints": endpoints})
}

fn pod<'a>(found: &'a Found, address: &str) -> &'a ListedPod {
    found[address].as_ref().unwrap()
}

#[tokio::test(start_paused = true)]
async fn pods_in_several_slices_are_one_agent_each() {
    let (mut discovery, mut server) = start();
    let mut leaving = endpoint(1, "u1", "10.0.0.2");
    leaving["conditions"] = json!({"ready": true, "serving": false, "terminating": true});
    let slices = [
        slice("a", "IPv4", 1, &[endpoint(0, "u0", "10.0.0.1"), endpoint(1, "u1", "10.0.0.2")]),
        slice("b", "IPv4", 2, &[leaving]),
        slice("six", "IPv6", 3, &[endpoint(0, "u0", "fd00::1"), endpoint(2, "u2", "fd00::3")]),
        slice("names", "FQDN", 4, &[endpoint(3, "u3", "trainer-3.example")]),
    ];
    server.list(&slices, "9").await;
    let found = discovery.changed().await;
    let addresses: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(addresses, ["10.0.0.1:7071", "10.0.0.2:7071", "[fd00::3]:7071"]);
    assert!(pod(&found, "10.0.0.2:7071").terminating && !pod(&found, "10.0.0.2:7071").ready);
    let first = pod(&found, "10.0.0.1:7071");
    assert_eq!((first.ordinal(), first.machine.as_str(), first.zone.as_str()), (Some(0), "m1", "z"));
    assert_eq!(discovery.standing().mode(), "endpointslice");
    assert!(discovery.standing().age().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_made_again_is_another_one() {
    let (mut discovery, mut server) = start();
    server.list(&[slice("a", "IPv4", 1, &[endpoint(0, "old", "10.0.0.1")])], "5").await;
    let mut feed = server.watch("5").await;
    assert_eq!(pod(&discovery.changed().await, "10.0.0.1:7071").uid, "old");
    feed.event("MODIFIED", &slice("a", "IPv4", 6, &[])).await;
    assert!(discovery.changed().await.is_empty());
    // With another address or the same one: it is the identity that counts.
    feed.event("MODIFIED", &slice("a", "IPv4", 7, &[endpoint(0, "new", "10.0.0.1")])).await;
    let found = discovery.changed().await;
    assert_eq!((pod(&found, "10.0.0.1:7071").uid.as_str(), found.len()), ("new", 1));
    feed.event(
        "BOOKMARK",
        &json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": "20"}}),
    )
    .await;
    drop(feed);
    let mut feed = server.watch("20").await;
    feed.event("DELETED", &slice("a", "IPv4", 21, &[])).await;
    assert!(discovery.changed().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_is_listed_again() {
    let (mut discovery, mut server) = start();
    server.list(&[slice("a", "IPv4", 1, &[endpoint(0, "u0", "10.0.0.1")])], "5").await;
    let mut feed = server.watch("5").await;
    assert_eq!(discovery.changed().await.len(), 1);
    feed.event("ERROR", &status(410, "Expired")).await;
    server.list(&[slice("a", "IPv4", 8, &[endpoint(1, "u1", "10.0.0.2")])], "8").await;
    assert_eq!(pod(&discovery.changed().await, "10.0.0.2:7071").uid, "u1", "what went meanwhile is gone");
    // The same as an answer to the watch itself.
    server.refuse(410, "Gone").await;
    server.list(&[], "9").await;
    assert!(discovery.changed().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_given_up() {
    let (mut discovery, mut server) = start();
    let before = tokio::time::Instant::now();
    server.list(&[slice("a", "IPv4", 1, &[endpoint(0, "u0", "10.0.0.1")])], "5").await;
    let _silent = server.watch("5").await;
    assert_eq!(discovery.changed().await.len(), 1);
    server.list(&[], "6").await;
    assert!(discovery.changed().await.is_empty());
    let took = before.elapsed();
    assert!(took >= WATCH_SILENCE && took < WATCH_SILENCE + Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_starts_again_takes_nothing_away() {
    let (mut discovery, mut server) = start();
    server.list(&[slice("a", "IPv4", 1, &[endpoint(0, "u0", "10.0.0.1")])], "5").await;
    let feed = server.watch("5").await;
    assert_eq!(discovery.changed().await.len(), 1);
    drop(feed);
    let before = tokio::time::Instant::now();
    for _ in 0..8 {
        server.away().await;
    }
    assert!(discovery.standing().reason().contains("refused"), "{}", discovery.standing().describe());
    server.refuse(503, "ServiceUnavailable").await;
    server.list(&[slice("a", "IPv4", 1, &[endpoint(1, "u1", "10.0.0.2")])], "1").await;
    let found = discovery.changed().await;
    assert!(found.contains_key("10.0.0.2:7071"), "nothing was told in between: {found:?}");
    assert!(
        before.elapsed() < Duration::from_secs(8 * 7),
        "{:?}: no pause is longer than 5 s",
        before.elapsed()
    );
    assert_eq!(discovery.standing().reason(), "");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_and_asked_again_later() {
    let (mut discovery, mut server) = start();
    server.refuse(403, "Forbidden").await;
    let before = tokio::time::Instant::now();
    server.list(&[slice("a", "IPv4", 1, &[endpoint(0, "u0", "10.0.0.1")])], "5").await;
    assert!(before.elapsed() >= Duration::from_secs(59), "{:?}", before.elapsed());
    assert_eq!(discovery.changed().await.len(), 1);
    assert_eq!(discovery.standing().mode(), "endpointslice");
}

#[tokio::test]
async fn without_access_dns_is_asked() {
    let (_demand, demanded) = tokio::sync::watch::channel(crate::discovery::Demand::default());
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let servers = super::super::dns::NameServers::at(closed.local_addr().unwrap(), &[]).unwrap();
    let service = Service::parse("trainers.ml", None).unwrap();
    let srv = Srv::new(&service.srv_name(), servers, demanded).unwrap();
    let discovery = Kubernetes::start(&service, Err("no token is mounted".into()), Some(srv));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while discovery.standing().mode() != "dns" {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(discovery.standing().describe().contains("because no token is mounted"));
}

#[tokio::test(start_paused = true)]
async fn five_hundred_pods_in_ten_slices_are_found_and_one_more() {
    let (mut discovery, mut server) = start();
    let of = |part: u32, count: u32| {
        let endpoints: Vec<Value> = (0..count)
            .map(|n| part * 50 + n)
            .map(|n| endpoint(n, &format!("u{n}"), &format!("10.0.{}.{}", n / 250, n % 250 + 1)))
            .collect();
        slice(&format!("s{part}"), "IPv4", part + 1, &endpoints)
    };
    let slices: Vec<Value> = (0..10).map(|part| of(part, 50)).collect();
    server.list(&slices, "50").await;
    let mut feed = server.watch("50").await;
    assert_eq!(discovery.changed().await.len(), 500);
    feed.event("ADDED", &of(10, 1)).await;
    assert_eq!(discovery.changed().await.len(), 501);
}
