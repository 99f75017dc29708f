//! A container engine as a kubelet drives it: by CRI, which is gRPC over the engine's socket.
//!
//! Debian has no crictl in any of its archives, so this file makes the calls: HTTP/2 by hyper, messages by their fields. It has only a
//! kubelet's calls for one pod: sandbox, container, start, state, log, end.
//!
//! Source: `staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto` of Kubernetes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;

/// Time limit of an engine's call, and of a container's run.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Values of `NamespaceMode`.
const OF_POD: i32 = 0;
const OF_CONTAINER: i32 = 1;
const OF_NODE: i32 = 2;
/// `CONTAINER_EXITED`.
const EXITED: i32 = 2;

/// Messages of `runtime.v1`, by their fields.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident { $($field:ident: $type:ty = $kind:tt,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Message)]
        struct $name {
            $(#[prost $kind] $field: $type,)*
        }
    )*};
}

messages! {
    Metadata {
        name: String = (string, tag = "1"),
        uid: String = (string, tag = "2"),
        namespace: String = (string, tag = "3"),
    }
    ContainerMetadata {
        name: String = (string, tag = "1"),
    }
    Namespaces {
        network: i32 = (int32, tag = "1"),
        pid: i32 = (int32, tag = "2"),
    }
    SandboxSecurity {
        namespaces: Option<Namespaces> = (message, optional, tag = "1"),
    }
    LinuxSandbox {
        cgroup_parent: String = (string, tag = "1"),
        security: Option<SandboxSecurity> = (message, optional, tag = "2"),
    }
    SandboxConfig {
        metadata: Option<Metadata> = (message, optional, tag = "1"),
        log_directory: String = (string, tag = "3"),
        linux: Option<LinuxSandbox> = (message, optional, tag = "8"),
    }
    RunSandbox {
        config: Option<SandboxConfig> = (message, optional, tag = "1"),
        runtime_handler: String = (string, tag = "2"),
    }
    /// A request that names one object, or an answer that does.
    Id {
        id: String = (string, tag = "1"),
    }
    Image {
        image: String = (string, tag = "1"),
    }
    Variable {
        key: String = (string, tag = "1"),
        value: String = (string, tag = "2"),
    }
    Mount {
        container_path: String = (string, tag = "1"),
        host_path: String = (string, tag = "2"),
        readonly: bool = (bool, tag = "3"),
    }
    /// `SecurityProfile`: 0 is the engine's default.
    Profile {
        kind: i32 = (int32, tag = "1"),
    }
    ContainerSecurity {
        namespaces: Option<Namespaces> = (message, optional, tag = "3"),
        seccomp: Option<Profile> = (message, optional, tag = "15"),
    }
    LinuxContainer {
        security: Option<ContainerSecurity> = (message, optional, tag = "2"),
    }
    ContainerConfig {
        metadata: Option<ContainerMetadata> = (message, optional, tag = "1"),
        image: Option<Image> = (message, optional, tag = "2"),
        command: Vec<String> = (string, repeated, tag = "3"),
        env: Vec<Variable> = (message, repeated, tag = "6"),
        mounts: Vec<Mount> = (message, repeated, tag = "7"),
        log_path: String = (string, tag = "11"),
        linux: Option<LinuxContainer> = (message, optional, tag = "15"),
        cdi: Vec<Id> = (message, repeated, tag = "17"),
    }
    CreateContainer {
        sandbox: String = (string, tag = "1"),
        config: Option<ContainerConfig> = (message, optional, tag = "2"),
        sandbox_config: Option<SandboxConfig> = (message, optional, tag = "3"),
    }
    Status {
        state: i32 = (int32, tag = "3"),
        exit_code: i32 = (int32, tag = "7"),
    }
    ContainerStatus {
        status: Option<Status> = (message, optional, tag = "1"),
    }
    Nothing {}
}

/// A pod with one container.
#[derive(Clone, Default)]
pub struct Pod<'a> {
    /// Its name, unique on the node.
    pub name: &'a str,
    /// The pod's RuntimeClass; "" is none.
    pub runtime_class: &'a str,
    /// The devices of a device plugin.
    pub cdi: &'a [&'a str],
    pub env: &'a [(&'a str, &'a str)],
    /// `shareProcessNamespace: true`.
    pub shares_pids: bool,
    /// `seccompProfile: {type: RuntimeDefault}`.
    pub confined: bool,
    pub command: &'a [&'a str],
    /// Files of the node, mounted at the same paths.
    pub mounts: &'a [&'a str],
}

/// An engine's socket, and the parent of its pods' cgroups.
pub struct Engine {
    socket: PathBuf,
    cgroup: String,
}

impl Engine {
    pub fn at(socket: PathBuf, cgroup: String) -> Engine {
        Engine { socket, cgroup }
    }

    /// Runs a pod to its end, as a kubelet would. Returns its exit code, and its log's path on the node.
    pub fn run(&self, image: &str, pod: &Pod<'_>) -> Result<(i32, String), String> {
        let logs = format!("/tmp/logs/{}", pod.name);
        let pid = if pod.shares_pids { OF_POD } else { OF_CONTAINER };
        let namespaces = Some(Namespaces { network: OF_NODE, pid });
        let config = SandboxConfig {
            metadata: Some(Metadata {
                name: pod.name.into(),
                uid: format!("uid-{}", pod.name),
                namespace: "rig".into(),
            }),
            log_directory: logs.clone(),
            linux: Some(LinuxSandbox {
                cgroup_parent: self.cgroup.clone(),
                security: Some(SandboxSecurity { namespaces: namespaces.clone() }),
            }),
        };
        let begin = RunSandbox { config: Some(config.clone()), runtime_handler: pod.runtime_class.into() };
        let sandbox: Id = self.call("RunPodSandbox", &begin)?;
        let ended = self.container(&sandbox, config, image, pod, namespaces);
        let _: Nothing = self.call("StopPodSandbox", &sandbox)?;
        let _: Nothing = self.call("RemovePodSandbox", &sandbox)?;
        ended.map(|code| (code, format!("{logs}/worker.log")))
    }

    fn container(
        &self,
        sandbox: &Id,
        sandbox_config: SandboxConfig,
        image: &str,
        pod: &Pod<'_>,
        namespaces: Option<Namespaces>,
    ) -> Result<i32, String> {
        let mount =
            |path: &&str| Mount { container_path: path.to_string(), host_path: path.to_string(), readonly: true };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "worker".into() }),
            image: Some(Image { image: image.into() }),
            command: pod.command.iter().map(ToString::to_string).collect(),
            env: pod
                .env
                .iter()
                .map(|(key, value)| Variable { key: key.to_string(), value: value.to_string() })
                .collect(),
            mounts: pod.mounts.iter().map(mount).collect(),
            log_path: "worker.log".into(),
            linux: Some(LinuxContainer {
                security: Some(ContainerSecurity { namespaces, seccomp: pod.confined.then_some(Profile { kind: 0 }) }),
            }),
            cdi: pod.cdi.iter().map(|name| Id { id: name.to_string() }).collect(),
        };
        let create =
            CreateContainer { sandbox: sandbox.id.clone(), config: Some(config), sandbox_config: Some(sandbox_config) };
        let container: Id = self.call("CreateContainer", &create)?;
        let _: Nothing = self.call("StartContainer", &container)?;
        let began = Instant::now();
        loop {
            let now: ContainerStatus = self.call("ContainerStatus", &container)?;
            match now.status {
                Some(status) if status.state == EXITED => return Ok(status.exit_code),
                _ if began.elapsed() > TIMEOUT => return Err("the container does not end".into()),
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// One call of the runtime service.
    fn call<A: Message + Default>(&self, method: &str, request: &impl Message) -> Result<A, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let call = async { tokio::time::timeout(TIMEOUT, exchange(&self.socket, method, request)).await };
        let bytes = runtime.block_on(call).map_err(|_| format!("{method}: no answer"))?;
        A::decode(&*bytes.map_err(|error| format!("{method}: {error}"))?).map_err(|error| format!("{method}: {error}"))
    }
}

async fn exchange(socket: &Path, method: &str, request: &impl Message) -> Result<Bytes, String> {
    let words = |error: &dyn std::error::Error| format!("{error} {:?}", error.source());
    let stream = tokio::net::UnixStream::connect(socket).await.map_err(|error| words(&error))?;
    let begun = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = begun.map_err(|error| words(&error))?;
    tokio::spawn(connection);
    // A message has a prefix: the compression flag and the length.
    let message = request.encode_to_vec();
    let body = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let request = Request::post(format!("http://localhost/runtime.v1.RuntimeService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| words(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| words(&error))?;
    let head = answer.headers().clone();
    let body = answer.into_body().collect().await.map_err(|error| words(&error))?;
    // An error without a message has its status in the head.
    let trailers = body.trailers().cloned().unwrap_or(head);
    let of = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    match of("grpc-status").as_str() {
        "0" => Ok(body.to_bytes().slice(5..)),
        status => Err(format!("gRPC status {status}: {}", of("grpc-message"))),
    }
}
