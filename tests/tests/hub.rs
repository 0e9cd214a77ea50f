//! The hub client against a local server that answers as the hub does: lists, redirects, ranges, refusals.

use std::collections::HashMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_trainer::hub::{HubError, HubEvent, HubOptions, resolve_model};
use tempfile::TempDir;
use tiny_http::{Header, Request, Response, Server};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_test";

type Models = HashMap<&'static str, Vec<(&'static str, Vec<u8>)>>;

/// One request as seen by the server: path and whether a token came with it.
type Log = Arc<Mutex<Vec<(String, bool)>>>;

struct Hub {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
    log: Log,
}

impl Hub {
    fn start() -> Self {
        let server = Arc::new(Server::http("127.0.0.1:0").unwrap());
        let log = Log::default();
        let (own, requests) = (Arc::clone(&server), Arc::clone(&log));
        let models = models();
        let thread = std::thread::spawn(move || {
            for request in own.incoming_requests() {
                let token =
                    header(&request, "authorization").is_some_and(|value| value == format!("Bearer {TOKEN}"));
                requests.lock().unwrap().push((request.url().to_owned(), token));
                answer(&models, request, token);
            }
        });
        Self { server, thread: Some(thread), log }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.server.server_addr())
    }

    fn requests(&self) -> Vec<String> {
        self.log.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.server.unblock();
        self.thread.take().map(JoinHandle::join).transpose().unwrap();
    }
}

fn models() -> Models {
    let big: Vec<u8> = (0..3_000_000_u32).map(|k| (k % 251) as u8).collect();
    let index = br#"{"weight_map":{"a":"s-1.safetensors","b":"s-2.safetensors"}}"#.to_vec();
    let small = |names: &[&'static str]| {
        names.iter().map(|&name| (name, name.as_bytes().to_vec())).collect::<Vec<_>>()
    };
    let both = [
        small(&[
            "config.json",
            "spm.model",
            "tokenizer_config.json",
            "tf_model.h5",
            "onnx/model.onnx",
            "README.md",
            "pytorch_model.bin",
        ]),
        vec![("model.safetensors", big)],
    ]
    .concat();
    let sharded = [
        small(&["config.json", "vocab.txt", "s-1.safetensors", "s-2.safetensors"]),
        vec![("model.safetensors.index.json", index)],
    ]
    .concat();
    Models::from([
        ("org/both", both),
        ("org/bin", small(&["config.json", "tokenizer.json", "pytorch_model.bin"])),
        ("org/sharded", sharded),
        ("org/gated", small(&["config.json", "tokenizer.json", "model.safetensors"])),
        ("org/tf", small(&["config.json", "tokenizer.json", "tf_model.h5"])),
        ("org/notok", small(&["config.json", "model.safetensors"])),
    ])
}

fn header(request: &Request, name: &'static str) -> Option<String> {
    request.headers().iter().find(|h| h.field.equiv(name)).map(|h| h.value.to_string())
}

fn with(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).unwrap()
}

fn refuse(request: Request, status: u16, code: &str) {
    let response = Response::from_string("").with_status_code(status).with_header(with("X-Error-Code", code));
    request.respond(response.with_header(with("X-Error-Message", "as the hub says"))).unwrap();
}

/// `/api/models/ORG/NAME/revision/REV`, `/ORG/NAME/resolve/REV/FILE` and, for weights, the storage server `/cdn/...`.
fn answer(models: &Models, request: Request, token: bool) {
    let url = request.url().to_owned();
    let parts: Vec<&str> = url.trim_start_matches('/').split('/').collect();
    match parts.as_slice() {
        ["api", "models", "org", "stuck", ..] => std::thread::sleep(Duration::from_millis(1500)),
        ["api", "models", "org", "down", ..] => refuse(request, 503, "Busy"),
        ["api", "models", org, name, "revision", revision] => {
            let Some(files) = models.get(format!("{org}/{name}").as_str()) else {
                return refuse(request, 401, "RepoNotFound");
            };
            if *revision != "main" {
                return refuse(request, 404, "RevisionNotFound");
            }
            let siblings: Vec<_> =
                files.iter().map(|(file, _)| serde_json::json!({ "rfilename": file })).collect();
            request
                .respond(Response::from_string(
                    serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string(),
                ))
                .unwrap();
        }
        [_, "gated", "resolve", ..] if !token => refuse(request, 401, "GatedRepo"),
        [org, name, "resolve", _, file] | ["cdn", org, name, file] => {
            let data = models
                .get(format!("{org}/{name}").as_str())
                .and_then(|files| files.iter().find(|(own, _)| own == file));
            let Some((_, data)) = data else { return refuse(request, 404, "EntryNotFound") };
            let etag = format!("\"{name}-{file}\"");
            if file.ends_with(".safetensors") && parts[0] != "cdn" {
                let host = header(&request, "host").unwrap();
                let response = Response::from_string("")
                    .with_status_code(302)
                    .with_header(with("Location", &format!("http://{host}/cdn/{org}/{name}/{file}")))
                    .with_header(with("X-Repo-Commit", COMMIT))
                    .with_header(with("X-Linked-Etag", &etag))
                    .with_header(with("ETag", &etag));
                return request.respond(response).unwrap();
            }
            send_range(request, data, &etag);
        }
        _ => refuse(request, 404, "Unknown"),
    }
}

fn send_range(request: Request, data: &[u8], etag: &str) {
    let range = header(&request, "range").expect("the client asks for ranges");
    let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().unwrap_or(data.len() - 1).min(data.len() - 1);
    let response = Response::new(
        206.into(),
        vec![],
        Cursor::new(data[start..=end].to_vec()),
        Some(end + 1 - start),
        None,
    )
    .with_header(with("Content-Range", &format!("bytes {start}-{end}/{}", data.len())))
    .with_header(with("X-Repo-Commit", COMMIT))
    .with_header(with("ETag", etag));
    request.respond(response).unwrap();
}

fn options(endpoint: &str, cache: &Path) -> HubOptions {
    let cache = cache.display().to_string();
    let env = |name: &str| match name {
        "HF_ENDPOINT" => Some(format!("{endpoint}/")),
        "HF_HUB_CACHE" => Some(cache.clone()),
        _ => None,
    };
    HubOptions::from_env(env).unwrap()
}

fn resolve(name: &str, options: &HubOptions) -> Result<std::path::PathBuf, HubError> {
    resolve_model(name, None, options, &mut |_| {})
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_needed_files_are_fetched_and_the_second_time_needs_no_server() {
    let cache = TempDir::new().unwrap();
    let hub = Hub::start();
    let options = options(&hub.endpoint(), cache.path());
    let mut events = Vec::new();
    let dir = resolve_model("org/both", None, &options, &mut |event| events.push(event)).unwrap();
    assert_eq!(names(&dir), ["config.json", "model.safetensors", "spm.model", "tokenizer_config.json"]);
    assert_eq!(fs::read(dir.join("model.safetensors")).unwrap(), models()["org/both"].last().unwrap().1);
    let bytes = |events: &[HubEvent]| {
        events.iter().map(|event| if let HubEvent::Bytes(bytes) = event { *bytes } else { 0 }).sum::<u64>()
    };
    assert!(bytes(&events) >= 3_000_000 && events.last() == Some(&HubEvent::Done), "{events:?}");
    let sharded = resolve("org/sharded", &options).unwrap();
    assert_eq!(
        names(&sharded),
        ["config.json", "model.safetensors.index.json", "s-1.safetensors", "s-2.safetensors", "vocab.txt"]
    );
    assert_eq!(
        names(&resolve("org/bin", &options).unwrap()),
        ["config.json", "pytorch_model.bin", "tokenizer.json"]
    );
    drop(hub);
    assert_eq!(resolve("org/both", &options).unwrap(), dir);
    assert_eq!(resolve_model("org/both", Some(COMMIT), &options, &mut |_| {}).unwrap(), dir);
    let offline = HubOptions { offline: true, ..options.clone() };
    assert_eq!(resolve("org/sharded", &offline).unwrap(), sharded);
    // An interrupted download is not taken for a model.
    fs::remove_file(sharded.join("s-2.safetensors")).unwrap();
    assert!(matches!(resolve("org/sharded", &offline).unwrap_err(), HubError::Offline { .. }));
    let error = resolve("org/sharded", &options).unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    assert!(error.hint().unwrap().contains("HF_ENDPOINT"));
}

#[test]
fn a_half_fetched_model_is_completed() {
    let cache = TempDir::new().unwrap();
    let hub = Hub::start();
    let options = options(&hub.endpoint(), cache.path());
    let dir = resolve("org/both", &options).unwrap();
    let link = dir.join("model.safetensors");
    let blob = fs::canonicalize(&link).unwrap();
    // As an interrupted download leaves it: a part file and no link.
    let part = blob.with_extension("part");
    fs::rename(&blob, &part).unwrap();
    fs::OpenOptions::new().write(true).open(&part).unwrap().set_len(1_000_000).unwrap();
    fs::remove_file(&link).unwrap();
    let before = hub.requests().len();
    resolve("org/both", &options).unwrap();
    assert_eq!(fs::read(&link).unwrap(), models()["org/both"].last().unwrap().1);
    assert!(
        hub.requests()[before..].iter().all(|path| !path.ends_with("spm.model")),
        "only what is missing is fetched"
    );
}

#[test]
fn gated_models_get_the_token_and_public_ones_never_do() {
    let cache = TempDir::new().unwrap();
    let hub = Hub::start();
    let anonymous = options(&hub.endpoint(), cache.path());
    let error = resolve("org/gated", &anonymous).unwrap_err();
    assert!(matches!(error, HubError::Denied { status: 401, had_token: false, .. }), "{error}");
    assert!(error.hint().unwrap().contains("HF_TOKEN"));
    let wrong = HubOptions { token: Some("hf_wrong".into()), ..anonymous.clone() };
    let error = resolve("org/gated", &wrong).unwrap_err();
    assert!(matches!(error, HubError::Denied { had_token: true, .. }), "{error}");
    let right = HubOptions { token: Some(TOKEN.into()), ..anonymous };
    assert!(resolve("org/gated", &right).is_ok());
    resolve("org/bin", &right).unwrap();
    let log = hub.log.lock().unwrap();
    assert!(log.iter().filter(|(path, _)| path.contains("/bin/")).all(|(_, token)| !token));
    assert!(!format!("{right:?}").contains(TOKEN), "tokens stay out of logs");
}

#[test]
fn each_refusal_says_what_to_do() {
    let cache = TempDir::new().unwrap();
    let hub = Hub::start();
    let options = options(&hub.endpoint(), cache.path());
    let error = resolve("org/none", &options).unwrap_err();
    assert!(
        matches!(error, HubError::NotFound { .. }) && error.to_string().contains("as the hub says"),
        "{error}"
    );
    let error = resolve_model("org/bin", Some("v9"), &options, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("revision `v9`"), "{error}");
    let error = resolve("org/tf", &options).unwrap_err();
    assert!(error.to_string().contains("found only tf_model.h5"), "{error}");
    assert!(matches!(resolve("org/notok", &options).unwrap_err(), HubError::Lacks { what: "tokenizer", .. }));
    assert!(matches!(resolve("org/down", &options).unwrap_err(), HubError::Status { status: 503, .. }));
    let hasty = HubOptions { stall_timeout: Duration::from_millis(300), ..options };
    assert!(matches!(resolve("org/stuck", &hasty).unwrap_err(), HubError::Stalled { .. }));
}

#[test]
fn folders_are_taken_as_they_are_and_nonsense_is_refused_without_asking_the_hub() {
    let dir = TempDir::new().unwrap();
    let hub = Hub::start();
    let options = options(&hub.endpoint(), dir.path());
    assert_eq!(resolve(&dir.path().display().to_string(), &options).unwrap(), dir.path());
    let file = dir.path().join("f");
    fs::write(&file, "").unwrap();
    assert!(matches!(resolve(&file.display().to_string(), &options).unwrap_err(), HubError::IsFile { .. }));
    for name in [
        "/no/such/folder",
        "./models/bert",
        "../x",
        "a/b/c",
        "~/model",
        "",
        "org/",
        "org/na me",
        "org/..",
        "a--b/c",
        "org/x\n",
    ] {
        assert!(matches!(resolve(name, &options).unwrap_err(), HubError::NotAModel { .. }), "{name:?}");
    }
    for revision in ["../../x", "", "a b", "/abs", "refs/../x"] {
        let error = resolve_model("org/bin", Some(revision), &options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, HubError::Revision { .. }), "{revision:?}");
    }
    assert_eq!(hub.requests(), [""; 0]);
}

#[test]
fn options_follow_the_variables_of_the_python_tools() {
    let home = TempDir::new().unwrap();
    fs::write(home.path().join("token"), "hf_file\n").unwrap();
    let path = home.path().display().to_string();
    let from = |list: &[(&str, &str)]| {
        let map: HashMap<String, String> =
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        HubOptions::from_env(move |name| map.get(name).cloned())
    };
    let options = from(&[("HF_HOME", &path)]).unwrap();
    assert_eq!((options.token.as_deref(), options.cache_dir), (Some("hf_file"), home.path().join("hub")));
    assert_eq!((options.endpoint.as_str(), options.offline), ("https://huggingface.co", false));
    let options = from(&[
        ("HOME", "/h"),
        ("HF_TOKEN", " hf_env "),
        ("HF_HUB_OFFLINE", "1"),
        ("HF_ENDPOINT", "http://m/"),
    ])
    .unwrap();
    assert_eq!(
        (options.token.as_deref(), options.offline, options.endpoint.as_str()),
        (Some("hf_env"), true, "http://m")
    );
    assert_eq!(options.cache_dir, Path::new("/h/.cache/huggingface/hub"));
    assert_eq!(from(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", &path)]).unwrap().cache_dir, Path::new("/c"));
    assert!(matches!(from(&[]), Err(HubError::NoCacheDir)));
}
