//! An API server of Kubernetes that a test fills: EndpointSlices and pods to list and watch, and everything else that a
//! coordinator asks for is written down and granted.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest that a watch of the test lasts.
const WATCH: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct State {
    version: u64,
    /// Objects by kind and name.
    objects: BTreeMap<(&'static str, String), Value>,
    /// Every change: version, kind, type of the event and object.
    changes: Vec<(u64, &'static str, &'static str, Value)>,
    /// Requests that changed something: method, path and body.
    written: Vec<(String, String, Value)>,
    replicas: u32,
}

/// The server; it ends with the process of the test.
#[derive(Debug, Clone)]
pub struct FakeKube {
    address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeKube {
    /// Starts it on loopback.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = Self { address, state: Arc::default() };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                // A client that goes away ends its thread.
                std::thread::spawn(move || drop(server.answer(stream)));
            }
        });
        server
    }

    /// Writes a kubeconfig for it; its namespace is `ml`.
    pub fn kubeconfig(&self, dir: &Path) -> PathBuf {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters:\n- name: test\n  cluster:\n    \
             server: http://{}\ncontexts:\n- name: test\n  context:\n    cluster: test\n    namespace: ml\n    \
             user: test\nusers:\n- name: test\n  user: {{}}\n",
            self.address
        );
        let path = dir.join("kubeconfig");
        std::fs::write(&path, text).expect("a kubeconfig");
        path
    }

    /// Lists the agent of a pod, in a slice of its own: on loopback every agent has another port.
    pub fn agent(&self, name: &str, uid: &str, address: &str, conditions: [bool; 2]) {
        let at: SocketAddr = address.parse().expect("an address");
        let [serving, terminating] = conditions;
        self.put("endpointslices", &format!("slice-of-{name}"), json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "ports": [{"name": "grpc", "port": at.port()}],
            "endpoints": [{"addresses": [at.ip().to_string()], "hostname": name, "nodeName": format!("m-{name}"),
                "conditions": {"ready": true, "serving": serving, "terminating": terminating},
                "targetRef": {"kind": "Pod", "name": name, "uid": uid}}]}));
    }

    /// Lists the agent no more.
    pub fn forget(&self, name: &str) {
        self.remove("endpointslices", &format!("slice-of-{name}"));
    }

    /// Puts a pod with a status there.
    pub fn pod(&self, name: &str, uid: &str, status: Value) {
        self.put(
            "pods",
            name,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid},
            "spec": {"subdomain": "trainers", "containers": []}, "status": status}),
        );
    }

    fn put(&self, kind: &'static str, name: &str, mut object: Value) {
        let mut state = lock(&self.state.0);
        state.put(kind, name, &mut object);
        self.state.1.notify_all();
    }

    fn remove(&self, kind: &'static str, name: &str) {
        let mut state = lock(&self.state.0);
        state.version += 1;
        if let Some(object) = state.objects.remove(&(kind, name.into())) {
            let version = state.version;
            state.changes.push((version, kind, "DELETED", object));
        }
        self.state.1.notify_all();
    }

    /// Requests that changed something so far: method, path and body.
    pub fn written(&self) -> Vec<(String, String, Value)> {
        lock(&self.state.0).written.clone()
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line)?;
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? <= 2 {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let kind = ["endpointslices", "pods"].into_iter().find(|kind| path.ends_with(&format!("/{kind}")));
        match (method, kind) {
            ("GET", Some(kind)) if query.contains("watch=true") => self.watch(stream, kind, query),
            ("GET", Some(kind)) => reply(stream, &self.list(kind)),
            ("GET", None) if path.ends_with("/scale") => {
                let replicas = lock(&self.state.0).replicas;
                reply(stream, &scale(replicas))
            }
            _ => {
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let answer = lock(&self.state.0).write(method, path, &body);
                self.state.1.notify_all();
                reply(stream, &answer)
            }
        }
    }

    fn list(&self, kind: &str) -> Value {
        let state = lock(&self.state.0);
        let items: Vec<&Value> =
            state.objects.iter().filter(|((of, _), _)| *of == kind).map(|(_, object)| object).collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()},
            "items": items})
    }

    fn watch(&self, mut stream: TcpStream, kind: &str, query: &str) -> std::io::Result<()> {
        let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let mut told: u64 = from.and_then(|version| version.parse().ok()).unwrap_or(0);
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        )?;
        let end = Instant::now() + WATCH;
        while Instant::now() < end {
            let mut state = lock(&self.state.0);
            if state.version <= told {
                let waited = self.state.1.wait_timeout(state, Duration::from_millis(200));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let news = state.changes.iter().filter(|(version, of, ..)| *version > told && *of == kind);
            let lines: String = news
                .map(|(.., event, object)| format!("{}\n", json!({"type": event, "object": object})))
                .collect();
            told = state.version;
            drop(state);
            if !lines.is_empty() {
                write!(stream, "{:x}\r\n{lines}\r\n", lines.len())?;
            }
        }
        stream.write_all(b"0\r\n\r\n")
    }
}

impl State {
    fn put(&mut self, kind: &'static str, name: &str, object: &mut Value) {
        self.version += 1;
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = "ml".into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let is_new = self.objects.insert((kind, name.into()), object.clone()).is_none();
        let event = if is_new { "ADDED" } else { "MODIFIED" };
        self.changes.push((self.version, kind, event, object.clone()));
    }

    fn write(&mut self, method: &str, path: &str, body: &Value) -> Value {
        self.written.push((method.into(), path.into(), body.clone()));
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        if path.ends_with("/scale") {
            self.replicas = body["spec"]["replicas"].as_u64().unwrap_or(0) as u32;
            return scale(self.replicas);
        }
        if path.contains("/pods/")
            && let Some(mut pod) = self.objects.get(&("pods", name.clone())).cloned()
        {
            for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
                match value.is_null() {
                    true => drop(pod["metadata"]["annotations"].as_object_mut().map(|all| all.remove(key))),
                    false => pod["metadata"]["annotations"][key] = value.clone(),
                }
            }
            self.put("pods", &name, &mut pod);
            return pod;
        }
        // An object with a name is enough of an answer.
        json!({"metadata": {"name": name, "namespace": "ml"}})
    }
}

fn scale(replicas: u32) -> Value {
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "trainer", "namespace": "ml"},
        "spec": {"replicas": replicas}})
}

fn reply(mut stream: TcpStream, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
