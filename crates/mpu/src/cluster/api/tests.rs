//! Requests to a TLS server with a self-signed certificate.

use super::*;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use std::convert::Infallible;
use std::sync::Mutex;
use tokio_rustls::TlsAcceptor;

/// Method, path, `Authorization`, `Accept`, body.
type ReceivedRequest = (String, String, String, String, String);

struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    credentials: tempfile::TempDir,
}

/// Starts a server with a certificate for this name, which answers every request alike.
fn server(name: &str, status: u16, answer: &'static str) -> Server {
    let own = rcgen::generate_simple_self_signed([name.to_string()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let server_requests = requests.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(listener, TlsAcceptor::from(Arc::new(config)), server_requests, status, answer));
    });
    let credentials = tempfile::tempdir().unwrap();
    fs::write(credentials.path().join("ca.crt"), own.cert.pem()).unwrap();
    fs::write(credentials.path().join("token"), "first\n").unwrap();
    Server { port, requests, credentials }
}

async fn serve(
    listener: std::net::TcpListener,
    tls: TlsAcceptor,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    status: u16,
    answer: &'static str,
) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(stream) = tls.accept(stream).await else { continue };
        let requests = requests.clone();
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let requests = requests.clone();
            async move {
                let header = |name| request.headers()[name].to_str().unwrap().to_string();
                let (method, path) = (request.method().to_string(), request.uri().to_string());
                let (token, accept) = (header("authorization"), header("accept"));
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let body = String::from_utf8(body.to_vec()).unwrap();
                requests.lock().unwrap().push((method, path, token, accept, body));
                let status = StatusCode::from_u16(status).unwrap();
                Ok::<_, Infallible>(Response::builder().status(status).body(Full::new(Bytes::from(answer))).unwrap())
            }
        });
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }
}

impl Server {
    fn pod(&self, host: &str) -> ApiServer {
        let port = self.port.to_string();
        let variable = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some(host.to_string()),
            _ => Some(port.clone()),
        };
        ApiServer::of_pod(self.credentials.path(), "gpu-1", variable).unwrap()
    }
}

fn event() -> Event {
    Event { reason: "MpuNotRight", is_warning: true, message: "why".into(), count: 2, first: 1, last: 2 }
}

#[test]
fn each_request_reads_token_again() {
    let server = server("127.0.0.1", 200, r#"{"kind":"PartialObjectMetadata","metadata":{"labels":{"a/b":"c"}}}"#);
    let pod = server.pod("127.0.0.1");
    assert_eq!(pod.labels().unwrap(), BTreeMap::from([("a/b".to_string(), "c".to_string())]));
    fs::write(server.credentials.path().join("token"), "second").unwrap();
    pod.labels().unwrap();
    let requests = server.requests.lock().unwrap();
    assert_eq!((requests[0].0.as_str(), requests[0].1.as_str()), ("GET", "/api/v1/nodes/gpu-1?resourceVersion=0"));
    assert!(requests[0].3.contains("PartialObjectMetadata"), "a whole Node lists its images: {}", requests[0].3);
    assert_eq!([&requests[0].2, &requests[1].2], ["Bearer first", "Bearer second"]);
}

#[test]
fn pods_are_those_of_node_and_label() {
    // The last is the mirror of a static pod, as the kubelet makes it.
    let list = r#"{"items":[{"metadata":{"uid":"u1","name":"a"}},{"metadata":{"uid":"u2","annotations":{"x":"y"}}},
        {"metadata":{"uid":"u3","annotations":{"kubernetes.io/config.hash":"h3","kubernetes.io/config.mirror":"h3",
        "kubernetes.io/config.seen":"2026-11-26T09:00:00Z","kubernetes.io/config.source":"file"}}}]}"#;
    // As Kubernetes 1.20.2 answers if no pod has the label.
    let none = self::server("127.0.0.1", 200, r#"{"kind":"PartialObjectMetadataList","metadata":{},"items":null}"#);
    assert_eq!(none.pod("127.0.0.1").pods("monitoring", "a.io/b=c").unwrap(), [""; 0]);
    let server = server("127.0.0.1", 200, list);
    assert_eq!(server.pod("127.0.0.1").pods("monitoring", "a.io/b=c,d=e").unwrap(), ["u1", "u2", "h3"]);
    let requests = server.requests.lock().unwrap();
    let path = "/api/v1/namespaces/monitoring/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Dgpu-1\
                &labelSelector=a.io%2Fb%3Dc%2Cd%3De";
    assert_eq!((requests[0].0.as_str(), requests[0].1.as_str()), ("GET", path));
    assert!(requests[0].3.contains("PartialObjectMetadataList"), "a whole Pod has its environment: {}", requests[0].3);
}

#[test]
fn sent_event_is_found_without_right_to_read() {
    let answer = r#"{"count":7,"firstTimestamp":"1970-01-01T00:01:40Z","message":"why"}"#;
    for (status, answer, found) in [(200, answer, Some((7, 100))), (404, "{}", None), (200, "{}", None)] {
        let server = server("localhost", status, answer);
        assert_eq!(server.pod("localhost").find_event("MpuNotRight").unwrap(), found);
        let (method, path, _, _, body) = &server.requests.lock().unwrap()[0];
        assert_eq!((method.as_str(), body.as_str()), ("PATCH", "{}"));
        assert_eq!(path, "/api/v1/namespaces/default/events/gpu-1.mpunotright");
    }
}

#[test]
fn event_is_applied_to_one_object() {
    let server = server("localhost", 201, "{}");
    server.pod("localhost").apply_event(&event()).unwrap();
    let requests = server.requests.lock().unwrap();
    let (method, path, _, _, body) = &requests[0];
    assert_eq!(method, "PATCH");
    assert_eq!(path, "/api/v1/namespaces/default/events/gpu-1.mpunotright?fieldManager=mpu&force=true");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body, event().object("gpu-1"));
}

#[test]
fn refusal_has_server_message_without_escapes() {
    let answer = "{\"kind\":\"Status\",\"message\":\"nodes is \\u001b[2Jforbidden\"}";
    let server = server("127.0.0.1", 403, answer);
    let error = server.pod("127.0.0.1").labels().unwrap_err().to_string();
    assert_eq!(error, "the API server refused to show this node: 403: nodes is [2Jforbidden");
    let error = server.pod("127.0.0.1").apply_event(&event()).unwrap_err().to_string();
    assert!(error.contains("an Event on this node: 403"), "{error}");
}

#[test]
fn untrusted_server_never_gets_token() {
    let (server_of_cluster, other) = (server("127.0.0.1", 200, "{}"), server("127.0.0.1", 200, "{}"));
    let impostor =
        Server { port: other.port, requests: other.requests.clone(), credentials: server_of_cluster.credentials };
    let error = impostor.pod("127.0.0.1").labels().unwrap_err();
    assert!(
        matches!(error, ClusterError::Connection(..)) && chain(&error).contains("certificate"),
        "{}",
        chain(&error)
    );
    let named = server("kubernetes.default.svc", 200, "{}");
    let error = named.pod("127.0.0.1").labels().unwrap_err();
    assert!(matches!(error, ClusterError::Connection(..)), "{error}");
    assert!(impostor.requests.lock().unwrap().is_empty() && named.requests.lock().unwrap().is_empty());
}

#[test]
fn malformed_api_answer_is_error() {
    for answer in ["", "{", "[]", "{\"metadata\":{\"labels\":{\"a\":1}}}", "<html>"] {
        let error = server("127.0.0.1", 200, answer).pod("127.0.0.1").labels().unwrap_err();
        assert!(matches!(error, ClusterError::Answer(_)), "{answer:?}: {error}");
    }
    let server = server("127.0.0.1", 200, r#"{"metadata":{}}"#);
    assert_eq!(server.pod("127.0.0.1").labels().unwrap(), BTreeMap::new(), "a node without labels");
    let error = server.pod("127.0.0.1").pods("a", "b=c").unwrap_err();
    assert!(matches!(error, ClusterError::Answer(_)), "{error}");
    let long: &'static str = Box::leak(format!("\"{}\"", "x".repeat(RESPONSE_LIMIT)).into_boxed_str());
    let error = self::server("127.0.0.1", 200, long).pod("127.0.0.1").labels().unwrap_err();
    assert!(matches!(error, ClusterError::Answer(_)), "{error}");
}

#[test]
fn silent_api_server_times_out() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server { port: listener.local_addr().unwrap().port(), ..server("127.0.0.1", 200, "{}") };
    let began = std::time::Instant::now();
    let error = server.pod("127.0.0.1").labels().unwrap_err();
    assert!(matches!(error, ClusterError::TimedOut), "{error}");
    assert!(began.elapsed() < 2 * REQUEST_TIMEOUT, "{:?}", began.elapsed());
}

#[test]
fn endless_name_resolution_times_out() {
    let began = std::time::Instant::now();
    // As tokio asks getaddrinfo: on a thread of its own, which nothing can interrupt.
    let hangs = async { tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_secs(20))).await };
    assert!(with_timeout(Duration::from_millis(50), hangs).unwrap().is_none());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn unusable_credential_files_are_named() {
    let server = server("127.0.0.1", 200, "{}");
    let pod = server.pod("127.0.0.1");
    let error_with = |name: &str, text: &str| {
        fs::write(server.credentials.path().join(name), text).unwrap();
        chain(&pod.labels().unwrap_err())
    };
    assert!(error_with("token", "two\nlines").contains("token"));
    let error = error_with("ca.crt", "no certificate");
    assert!(error.contains("ca.crt") && error.contains("no certificate in it"), "{error}");
    assert!(error_with("ca.crt", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").contains("ca.crt"));
    fs::remove_file(server.credentials.path().join("ca.crt")).unwrap();
    assert!(chain(&pod.labels().unwrap_err()).contains("ca.crt"));
}

#[test]
fn invalid_node_name_or_environment_is_rejected() {
    let in_cluster = |_: &str| Some("443".to_string());
    let of = |node: &str| ApiServer::of_pod(Path::new("/x"), node, in_cluster);
    assert!(matches!(ApiServer::of_pod(Path::new("/x"), "a", |_| None), Err(ClusterError::NoAddress)));
    for node in ["", "../pods", "a/b", "a?b", "A", ".", "a b", &"x".repeat(254)] {
        assert!(matches!(of(node), Err(ClusterError::BadNode(_))), "{node:?}");
    }
    assert!(of("gpu-1.example.com").is_ok());
    let six = ApiServer::of_pod(Path::new("/x"), "a", |name| {
        Some(if name.ends_with("HOST") { "fd00::1" } else { "6443" }.to_string())
    });
    assert_eq!(six.unwrap().address(), "[fd00::1]:6443");
}
