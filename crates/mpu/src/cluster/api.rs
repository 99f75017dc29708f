//! Sends requests to the API server, with the cluster's CA, the pod's token, and one connection per request.
//!
//! Responses are bounded in time and size. The token is read for each request, because the kubelet replaces it before
//! it expires.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use mpu_host::explain::chain;
use mpu_host::time;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Cluster, Event};

/// How long one request may take, including the connection. The agent's round waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest answer that is read. A node's labels take a few kilobytes.
const RESPONSE_LIMIT: usize = 1 << 20;
/// Requests the metadata only: a whole Node has its list of images.
const ACCEPT_METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for a list: a whole Pod has its environment.
const ACCEPT_METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The annotation of a mirror pod: the uid of the static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Creates or updates an object.
const APPLY: &str = "application/apply-patch+yaml";
/// Changes the fields that it names.
const MERGE: &str = "application/merge-patch+json";

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The pod has no address of an API server.
    #[error("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name no API server")]
    NoAddress,
    /// This cannot be a node's name.
    #[error("{0:?} is not a node's name")]
    BadNode(String),
    /// A credential is missing or invalid.
    #[error("cannot use {}", .0.display())]
    Credential(PathBuf, #[source] io::Error),
    /// No connection, or none that can be trusted.
    #[error("cannot reach the API server at {0}")]
    Connection(String, #[source] io::Error),
    /// The response is not HTTP, is too large, or is not the expected JSON.
    #[error("the API server's answer cannot be read: {0}")]
    Answer(String),
    #[error("the API server did not answer in {} seconds", REQUEST_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the API server refused {action}: {status}{}", if .message.is_empty() { String::new() } else { format!(": {message}") })]
    Refused { action: &'static str, status: u16, message: String },
}

/// The API server of the cluster that this pod is in.
#[derive(Debug, Clone)]
pub struct ApiServer {
    host: String,
    port: u16,
    credentials: PathBuf,
    node: String,
}

impl ApiServer {
    /// The API server that the kubelet names in a pod's environment. The folder has `token` and `ca.crt`.
    ///
    /// # Errors
    /// If the environment names none, or if the name cannot be a node's.
    pub fn of_pod(
        credentials: &Path,
        node: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<ApiServer, ClusterError> {
        let host = variable("KUBERNETES_SERVICE_HOST").filter(|host| !host.is_empty());
        let port = variable("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok());
        let (Some(host), Some(port)) = (host, port) else { return Err(ClusterError::NoAddress) };
        // The name becomes part of paths and object names.
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if node.is_empty() || node.len() > 253 || !node.chars().all(fits) || node.starts_with('.') {
            return Err(ClusterError::BadNode(node.to_string()));
        }
        Ok(ApiServer { host, port, credentials: credentials.to_path_buf(), node: node.to_string() })
    }

    fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    fn tls_config(&self) -> Result<ClientConfig, ClusterError> {
        let path = self.credentials.join("ca.crt");
        let invalid = |error: &dyn ToString| {
            ClusterError::Credential(path.clone(), io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
        };
        let bytes = fs::read(&path).map_err(|error| ClusterError::Credential(path.clone(), error))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            roots.add(certificate.map_err(|error| invalid(&error))?).map_err(|error| invalid(&error))?;
        }
        if roots.is_empty() {
            return Err(invalid(&"there is no certificate in it"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Ok(versions.map_err(|error| invalid(&error))?.with_root_certificates(roots).with_no_client_auth())
    }

    fn token(&self) -> Result<String, ClusterError> {
        let path = self.credentials.join("token");
        let token = fs::read_to_string(&path).map_err(|error| ClusterError::Credential(path, error))?;
        Ok(token.trim().to_string())
    }

    /// Sends one request. Returns the answer's body.
    fn send(&self, action: &'static str, request: ApiRequest<'_>) -> Result<Bytes, ClusterError> {
        let answered = with_timeout(REQUEST_TIMEOUT, self.exchange(request));
        let answered = answered.map_err(|error| ClusterError::Connection(self.address(), error))?;
        let (status, body) = answered.ok_or(ClusterError::TimedOut)??;
        match status {
            200..=299 => Ok(body),
            _ => Err(ClusterError::Refused { action, status, message: status_message(&body) }),
        }
    }

    async fn exchange(&self, request: ApiRequest<'_>) -> Result<(u16, Bytes), ClusterError> {
        let lost = |error: io::Error| ClusterError::Connection(self.address(), error);
        let unreadable = |error: &(dyn std::error::Error + 'static)| ClusterError::Answer(chain(error));
        let (tls_config, token) = (self.tls_config()?, self.token()?);
        let name = ServerName::try_from(self.host.clone()).map_err(|error| lost(io::Error::other(error)))?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(lost)?;
        let stream = TlsConnector::from(Arc::new(tls_config)).connect(name, stream).await.map_err(lost)?;
        let begun = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = begun.map_err(|error| unreadable(&error))?;
        // Ends with the runtime.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(request.method)
            .uri(request.path)
            .header(HOST, self.address())
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .header(ACCEPT, request.accept)
            .header(CONTENT_TYPE, request.content)
            .body(Full::new(request.body))
            // Fails if the token has a line break.
            .map_err(|error| ClusterError::Credential(self.credentials.join("token"), io::Error::other(error)))?;
        let answer = sender.send_request(request).await.map_err(|error| unreadable(&error))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), RESPONSE_LIMIT).collect().await;
        Ok((status, body.map_err(|error| unreadable(error.as_ref()))?.to_bytes()))
    }
}

/// Runs the work. None if it takes longer than the timeout.
fn with_timeout<T>(timeout: Duration, work: impl Future<Output = T>) -> io::Result<Option<T>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async { tokio::time::timeout(timeout, work).await });
    // Dropping the runtime would wait for its threads, and name resolution may hang in one.
    runtime.shutdown_background();
    Ok(done.ok())
}

struct ApiRequest<'a> {
    method: Method,
    path: String,
    accept: &'a str,
    content: &'a str,
    body: Bytes,
}

impl Cluster for ApiServer {
    fn labels(&self) -> Result<BTreeMap<String, String>, ClusterError> {
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(default)]
            labels: BTreeMap<String, String>,
        }
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        // "0" is answered from the API server's cache, not from etcd.
        let path = format!("/api/v1/nodes/{}?resourceVersion=0", self.node);
        let request =
            ApiRequest { method: Method::GET, path, accept: ACCEPT_METADATA, content: APPLY, body: Bytes::new() };
        let body = self.send("to show this node", request)?;
        let object: Object =
            serde_json::from_slice(&body).map_err(|error| ClusterError::Answer(format!("no Node: {error}")))?;
        Ok(object.metadata.labels)
    }

    fn pods(&self, namespace: &str, label: &str) -> Result<Vec<String>, ClusterError> {
        #[derive(Deserialize)]
        struct Metadata {
            uid: String,
            #[serde(default)]
            annotations: BTreeMap<String, String>,
        }
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct List {
            /// Kubernetes 1.20 answers `null` if there are none; without the field it is no list.
            #[serde(deserialize_with = "Option::deserialize")]
            items: Option<Vec<Object>>,
        }
        let label = label.replace('=', "%3D").replace(',', "%2C").replace('/', "%2F");
        // The API server's cache has an index of pods by node.
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods?resourceVersion=0&fieldSelector=spec.nodeName%3D{}&labelSelector={label}",
            self.node
        );
        let request =
            ApiRequest { method: Method::GET, path, accept: ACCEPT_METADATA_LIST, content: APPLY, body: Bytes::new() };
        let body = self.send("to list pods", request)?;
        let list: List =
            serde_json::from_slice(&body).map_err(|error| ClusterError::Answer(format!("no list of pods: {error}")))?;
        // The API server has a mirror of a static pod. The uid in cgroups is the static pod's (kubelet/pod/mirror_client.go).
        let uid = |mut pod: Object| pod.metadata.annotations.remove(MIRROR).unwrap_or(pod.metadata.uid);
        Ok(list.items.unwrap_or_default().into_iter().map(uid).collect())
    }

    fn find_event(&self, reason: &str) -> Result<Option<(u64, u64)>, ClusterError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Object {
            count: u64,
            first_timestamp: String,
        }
        let path = format!("/api/v1/namespaces/default/events/{}", Event::name(reason, &self.node));
        // A patch that changes nothing returns the object: the role needs no right to read Events.
        let body = "{}".into();
        let request = ApiRequest { method: Method::PATCH, path, accept: "application/json", content: MERGE, body };
        let body = match self.send("to show an Event", request) {
            Err(ClusterError::Refused { status: 404, .. }) => return Ok(None),
            other => other?,
        };
        let object = serde_json::from_slice(&body).ok();
        Ok(object.and_then(|object: Object| Some((object.count, time::of_stamp(&object.first_timestamp)?))))
    }

    fn apply_event(&self, event: &Event) -> Result<(), ClusterError> {
        let name = Event::name(event.reason, &self.node);
        let path = format!("/api/v1/namespaces/default/events/{name}?fieldManager=mpu&force=true");
        let body = event.object(&self.node).to_string().into();
        let request = ApiRequest { method: Method::PATCH, path, accept: "application/json", content: APPLY, body };
        self.send("an Event on this node", request).map(drop)
    }
}

/// The message of a `Status`, on one line.
fn status_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    let message = serde_json::from_slice(body).map(|status: Status| status.message).unwrap_or_default();
    message.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests;
