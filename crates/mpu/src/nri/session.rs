//! One connection to a container engine: registers the plugin, and answers the engine's request for each new container.
//!
//! No container ever fails: if a request is unreadable, or the container is not to change, the answer has no change.
//!
//! Source: `pkg/stub/stub.go` and `pkg/adaptation/plugin.go` of containerd/nri 0.12.

use std::time::Duration;

use mpu_host::explain::chain;
use mpu_seccomp::Notify;
use prost::Message as _;

use super::NAME;
use super::container::add_listener;
use super::engines::Engine;
use super::error::SessionError;
use super::mux::{Incoming, Message, Mux, PLUGIN, REQUEST, RESPONSE, RUNTIME};
use super::presence::{Presence, Standing};
use super::proto::{
    Configure, Configured, CreateContainer, Created, RegisterPlugin, Request, Response, Status, Synchronize,
    Synchronized,
};

const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// `CREATE_CONTAINER` is event 4.
const EVENTS: i32 = 1 << (4 - 1);
/// The first call of a client, and our only one.
const REGISTRATION: u32 = 1;
const INVALID_ARGUMENT: i32 = 3;
const UNIMPLEMENTED: i32 = 12;
/// How long an engine may take for registration and configuration. Engines wait 5 seconds, then 2.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Session<'a> {
    pub mux: Mux<'a>,
    /// The plugin's index.
    pub index: &'a str,
    /// Which containers get the listener, and its socket.
    pub notify: &'a Notify,
    /// Writes a line to the log.
    pub log: &'a dyn Fn(&str),
    /// Where the plugin's state is published.
    pub presence: &'a mut Presence,
    /// The engine, known once it has configured the plugin.
    pub engine: Option<Engine>,
}

impl Session<'_> {
    /// Serves until the stop signal.
    pub fn serve(&mut self) -> Result<(), SessionError> {
        let register = RegisterPlugin { name: NAME.into(), index: self.index.into() };
        let request = Request {
            service: RUNTIME_SERVICE.into(),
            method: "RegisterPlugin".into(),
            payload: register.encode_to_vec(),
        };
        self.send(RUNTIME, REGISTRATION, REQUEST, request.encode_to_vec())?;
        let mut registered = false;
        loop {
            let is_ready = registered && self.engine.is_some();
            let message = match self.mux.next((!is_ready).then_some(REGISTRATION_TIMEOUT))? {
                Incoming::Stop => return Ok(()),
                Incoming::Message(message) => message,
            };
            match (message.stream, message.kind) {
                (RUNTIME, RESPONSE) if message.call == REGISTRATION => {
                    let response = Response::decode(&*message.payload)?;
                    if let Some(status) = response.status.filter(|status| status.code != 0) {
                        return Err(SessionError::Refused(status.message.escape_debug().to_string()));
                    }
                    registered = true;
                }
                (PLUGIN, REQUEST) => {
                    let answer = self.answer(&Request::decode(&*message.payload)?);
                    self.send(PLUGIN, message.call, RESPONSE, answer.encode_to_vec())?;
                }
                // Ignore unknown answers, and message kinds of a later protocol.
                _ => {}
            }
        }
    }

    fn send(&mut self, stream: u32, call: u32, kind: u8, payload: Vec<u8>) -> Result<(), SessionError> {
        Ok(self.mux.send(&Message { stream, call, kind, payload })?)
    }

    fn answer(&mut self, request: &Request) -> Response {
        let failed = |code, message: String| Response { status: Some(Status { code, message }), payload: Vec::new() };
        let done = |payload| Response { status: None, payload };
        if request.service != PLUGIN_SERVICE {
            return failed(UNIMPLEMENTED, "there is no such service".into());
        }
        let payload = &*request.payload;
        match request.method.as_str() {
            "Configure" => match Configure::decode(payload) {
                Ok(configure) => done(self.configure(&configure).encode_to_vec()),
                Err(error) => failed(INVALID_ARGUMENT, error.to_string()),
            },
            // Running containers do not change, because a filter cannot be added.
            "Synchronize" => match Synchronize::decode(payload) {
                Ok(Synchronize { more }) => done(Synchronized { more }.encode_to_vec()),
                Err(error) => failed(INVALID_ARGUMENT, error.to_string()),
            },
            "CreateContainer" => done(self.create(payload).encode_to_vec()),
            "Shutdown" | "StateChange" => done(Vec::new()),
            _ => failed(UNIMPLEMENTED, "the plugin has not subscribed to it".into()),
        }
    }

    fn configure(&mut self, configure: &Configure) -> Configured {
        let engine = Engine::of(&configure.runtime_name, &configure.runtime_version);
        let registered = format!("registered with {} as {}-{NAME}", engine.name_and_version, self.index);
        (self.log)(&registered);
        let standing = match (engine.sets_profile, engine.sends_rules) {
            (false, _) => Standing::Useless,
            (true, false) => Standing::Partly,
            (true, true) => Standing::Serves,
        };
        self.presence.publish(standing, &registered);
        if !engine.sets_profile {
            (self.log)(&format!(
                "{} lets no plugin set a seccomp profile, so no container gets the listener here; fix: containerd 2.3 or \
                 later, or nvidia-container-runtime as the engine's default runtime",
                engine.name_and_version
            ));
        } else if !engine.sends_rules {
            (self.log)(&format!(
                "{} does not say which rules a container's seccomp profile has, so only containers that it marks as without a \
                 profile get the listener here; fix: containerd 2.3 or later, or nvidia-container-runtime as the engine's \
                 default runtime",
                engine.name_and_version
            ));
        }
        self.engine = Some(engine);
        Configured { events: EVENTS }
    }

    fn create(&mut self, payload: &[u8]) -> Created {
        let request = match CreateContainer::decode(payload) {
            Ok(request) => request,
            Err(error) => {
                (self.log)(&format!(
                    "a container starts without the notify engine: its description cannot be read: {error}"
                ));
                return Created::default();
            }
        };
        let (Some(container), Some(engine)) = (&request.container, &self.engine) else { return Created::default() };
        let pod = request.pod.unwrap_or_default();
        let name = format!("container {} of pod {}/{} ({:.12})", container.name, pod.namespace, pod.name, container.id);
        let name = name.escape_debug();
        match add_listener(container, engine, self.notify) {
            Ok(created) => {
                (self.log)(&format!("{name}: the notify engine gets its calls"));
                created
            }
            // Do not log containers that would get no listener anyway.
            Err(why) if why.is_ordinary() && !why.lacks_notify_engine() => Created::default(),
            Err(why) => {
                (self.log)(&format!("{name} starts without the notify engine: {}", chain(&why)));
                Created::default()
            }
        }
    }
}
