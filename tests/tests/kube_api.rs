//! The rendered manifests and discovery against a real API server: etcd and kube-apiserver out of `KUBEBUILDER_ASSETS`
//! (as `setup-envtest` lays them out, with kubectl). Without that variable the tests are skipped.
//!
//! No controllers run: the test makes EndpointSlices itself.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use base64::Engine;
use muster_tests::cluster::{Cluster, wait};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

/// Where all of it lives in the manifests.
const NAMESPACE: &str = "muster";
const ACCOUNT: &str = "system:serviceaccount:muster:muster-coordinator";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct ControlPlane {
    assets: PathBuf,
    server: String,
    _apiserver: Killed,
    _etcd: Killed,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(mut command: Command, log: &Path) -> Killed {
    let out = File::create(log).unwrap();
    let err = out.try_clone().unwrap();
    Killed(command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap())
}

/// A key for tokens of service accounts, as PEM.
fn key_pem() -> String {
    let random = ring::rand::SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(key.as_ref());
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}

impl ControlPlane {
    fn start(dir: &Path, assets: PathBuf) -> Self {
        let (clients, peers, secure) = (free_port(), free_port(), free_port());
        let mut etcd = Command::new(assets.join("etcd"));
        etcd.arg("--data-dir").arg(dir.join("etcd"));
        etcd.args(["--unsafe-no-fsync", "--log-level=error"]);
        for (flag, port) in
            [("listen-client-urls", clients), ("advertise-client-urls", clients), ("listen-peer-urls", peers)]
        {
            etcd.arg(format!("--{flag}=http://127.0.0.1:{port}"));
        }
        let etcd = start(etcd, &dir.join("etcd.log"));
        let (tokens, key) = (dir.join("tokens.csv"), dir.join("accounts.pem"));
        std::fs::write(&tokens, "admin-token,admin,1,\"system:masters\"\n").unwrap();
        std::fs::write(&key, key_pem()).unwrap();
        let mut apiserver = Command::new(assets.join("kube-apiserver"));
        apiserver
            .arg(format!("--etcd-servers=http://127.0.0.1:{clients}"))
            .arg(format!("--secure-port={secure}"))
            .arg(format!("--cert-dir={}", dir.join("certs").display()))
            .arg(format!("--token-auth-file={}", tokens.display()))
            .arg(format!("--service-account-key-file={}", key.display()))
            .arg(format!("--service-account-signing-key-file={}", key.display()))
            .args([
                "--bind-address=127.0.0.1",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--authorization-mode=RBAC",
            ])
            .args([
                "--service-account-issuer=https://localhost",
                "--disable-admission-plugins=ServiceAccount",
            ]);
        let apiserver = start(apiserver, &dir.join("apiserver.log"));
        let server = format!("https://127.0.0.1:{secure}");
        let plane = Self { assets, server, _apiserver: apiserver, _etcd: etcd };
        wait("an API server that is ready", || {
            plane.run(&["get", "--raw", "/readyz"]).status.success().then_some(())
        });
        plane
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.assets.join("kubectl"));
        command.args(["--server", &self.server, "--token", "admin-token", "--insecure-skip-tls-verify=true"]);
        command.env("KUBECONFIG", "/dev/null").args(args).output().unwrap()
    }

    fn kubectl(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn apply(&self, dir: &Path, object: &Value) {
        let path = dir.join("object.json");
        std::fs::write(&path, object.to_string()).unwrap();
        self.kubectl(&["apply", "-f", &path.to_string_lossy()]);
    }

    /// Whether the coordinator's account may do something.
    fn may(&self, verb: &str, resource: &str, namespace: &str) -> bool {
        let args = ["auth", "can-i", verb, resource, "--as", ACCOUNT, "--namespace", namespace];
        self.run(&args).status.success()
    }
}

fn slice(uid: &str, address: &str) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "muster-trainers-x", "namespace": NAMESPACE,
            "labels": {"kubernetes.io/service-name": "muster-trainers"}},
        "ports": [{"name": "grpc", "port": 7071, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "hostname": "muster-trainer-0", "nodeName": "m0",
            "conditions": {"ready": true, "serving": false, "terminating": false},
            "targetRef": {"kind": "Pod", "name": "muster-trainer-0", "namespace": NAMESPACE, "uid": uid}}]})
}

#[test]
fn manifests_apply_the_role_is_exactly_enough_and_slices_are_followed() {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
        println!("skipped: KUBEBUILDER_ASSETS names no directory with etcd, kube-apiserver and kubectl");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(dir.path(), assets);
    plane.kubectl(&["create", "namespace", NAMESPACE]);
    plane.kubectl(&["create", "namespace", "other"]);
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests");
    // Every shape is accepted; objects of add-ons that this server does not know are not for it.
    for shape in ["small", "node", "socket", "elastic", "announce"] {
        let file = manifests.join(format!("{shape}.yaml"));
        plane.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", &file.to_string_lossy()]);
    }
    let small = manifests.join("small.yaml");
    plane.kubectl(&["apply", "-f", &small.to_string_lossy()]);

    for verb in ["list", "watch"] {
        assert!(plane.may(verb, "endpointslices.discovery.k8s.io", NAMESPACE), "{verb}");
        assert!(!plane.may(verb, "endpointslices.discovery.k8s.io", "other"), "{verb} elsewhere");
    }
    for (verb, resource) in [
        ("create", "endpointslices.discovery.k8s.io"),
        ("delete", "endpointslices.discovery.k8s.io"),
        ("list", "pods"),
        ("delete", "pods"),
        ("get", "secrets"),
        ("list", "configmaps"),
        ("patch", "statefulsets.apps/scale"),
        ("create", "events"),
        ("list", "nodes"),
    ] {
        assert!(!plane.may(verb, resource, NAMESPACE), "{verb} {resource}");
    }

    // The coordinator as that account.
    let token = plane.kubectl(&["create", "token", "muster-coordinator", "--namespace", NAMESPACE]);
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": plane.server, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {"token": token.trim()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}]});
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    plane.apply(dir.path(), &slice("u1", "10.0.0.9"));
    let (cluster, _coordinator) = Cluster::start_with(
        dir.path(),
        Path::new(""),
        &["--discover", "kubernetes:muster-trainers", "--explain-pods"],
        &[("KUBECONFIG", &path.to_string_lossy())],
    );
    let listed = |uid: &str, address: &str| {
        wait(&format!("{uid} at {address}"), || {
            let nodes = cluster.ask(&["nodes"]);
            let is = |node: &Value| node["pod_uid"] == uid && node["address"] == format!("{address}:7071");
            nodes.as_array()?.iter().any(is).then_some(())
        });
    };
    listed("u1", "10.0.0.9");
    plane.apply(dir.path(), &slice("u2", "10.0.0.10"));
    listed("u2", "10.0.0.10");
    plane.kubectl(&["delete", "endpointslice", "muster-trainers-x", "--namespace", NAMESPACE]);
    wait("an empty list", || cluster.ask(&["nodes"]).as_array()?.is_empty().then_some(()));
}
