//! Serves the page over HTTP.
//!
//! Each connection has one request, because a scrape comes only every few seconds. The number of connections is
//! limited. At the limit, a new connection replaces the oldest one without a request, or else the oldest one that does
//! not read its answer, or else the oldest. So idle connections cannot block a scrape.

use super::collect::Exporter;
use super::error::MetricsError;
use super::listen::Socket;
use super::text::CONTENT_TYPE;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE as TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};

/// Limits for a client.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// How long a request's head may take.
    pub head: Duration,
    /// How long a connection may live.
    pub life: Duration,
    /// How long answers in progress may take after the stop signal.
    pub shutdown: Duration,
    /// The largest head of a request, in bytes.
    pub head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 32,
            head: Duration::from_secs(5),
            life: Duration::from_secs(20),
            shutdown: Duration::from_secs(3),
            head_bytes: 8192,
        }
    }
}

const LANDING: &str = "<!DOCTYPE html><html lang=\"en\"><head><title>MPU</title></head><body><h1>MPU</h1>\
    <p>GPU processes by container, and what MPU translates: <a href=\"/metrics\">metrics</a>. \
    <a href=\"/healthz\">Health</a>.</p></body></html>\n";

/// Serves until `stop` completes, then finishes the answers in progress.
pub async fn serve(
    sockets: Vec<Socket>,
    exporter: Arc<Exporter>,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> Result<(), MetricsError> {
    let connections = Arc::new(Connections { limits, exporter, open: Mutex::default() });
    let mut accept_tasks = JoinSet::new();
    let mut socket_paths = Vec::new();
    for socket in sockets {
        let setup = |source| MetricsError::Setup { source };
        match socket {
            Socket::Tcp(listener) => {
                let listener = tokio::net::TcpListener::from_std(listener).map_err(setup)?;
                let connections = connections.clone();
                accept_tasks.spawn(async move {
                    loop {
                        connections.accept(listener.accept().await.map(|(stream, _)| stream)).await;
                    }
                });
            }
            Socket::Unix(listener, path) => {
                let listener = tokio::net::UnixListener::from_std(listener).map_err(setup)?;
                let connections = connections.clone();
                socket_paths.push(path);
                accept_tasks.spawn(async move {
                    loop {
                        connections.accept(listener.accept().await.map(|(stream, _)| stream)).await;
                    }
                });
            }
        }
    }
    stop.await;
    accept_tasks.shutdown().await;
    drop(socket_paths);
    connections.shut_down().await;
    Ok(())
}

struct Connections {
    limits: Limits,
    exporter: Arc<Exporter>,
    open: Mutex<Vec<Connection>>,
}

struct Connection {
    stage: Arc<AtomicU8>,
    task: AbortHandle,
}

/// The progress of a connection, in the order of replacement.
const SILENT: u8 = 0;
const ANSWERED: u8 = 1;
/// A complete request has arrived.
const REQUESTED: u8 = 2;

impl Connections {
    async fn accept<S>(&self, accepted: io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = match accepted {
            Ok(stream) => stream,
            // The client has gone, or there are no file descriptors.
            Err(_) => return tokio::time::sleep(Duration::from_millis(50)).await,
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.task.is_finished());
        if open.len() >= self.limits.connections {
            let stages = open.iter().map(|connection| connection.stage.load(Ordering::Relaxed)).enumerate();
            if let Some((least, _)) = stages.min_by_key(|(_, stage)| *stage) {
                open.remove(least).task.abort();
            }
        }
        let stage = Arc::new(AtomicU8::new(SILENT));
        let task = tokio::spawn(answer(stream, self.exporter.clone(), self.limits, stage.clone())).abort_handle();
        open.push(Connection { stage, task });
    }

    /// Closes connections without a request, and lets the others finish.
    async fn shut_down(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        let deadline = tokio::time::Instant::now() + self.limits.shutdown;
        for connection in open {
            while connection.stage.load(Ordering::Relaxed) != SILENT
                && !connection.task.is_finished()
                && tokio::time::Instant::now() < deadline
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            connection.task.abort();
        }
    }
}

async fn answer<S>(stream: S, exporter: Arc<Exporter>, limits: Limits, stage: Arc<AtomicU8>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        stage.store(REQUESTED, Ordering::Relaxed);
        let (stage, exporter) = (stage.clone(), exporter.clone());
        async move {
            let answer = respond(request, exporter).await;
            stage.store(ANSWERED, Ordering::Relaxed);
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_header_size(limits.head_bytes)
        .max_buf_size(limits.head_bytes.max(8192))
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A failed connection concerns only its client.
    let _ = tokio::time::timeout(limits.life, connection).await;
}

async fn respond<B>(request: Request<B>, exporter: Arc<Exporter>) -> Result<Response<Full<Bytes>>, Infallible> {
    let read = [Method::GET, Method::HEAD].contains(request.method());
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match request.uri().path() {
        _ if !read => (StatusCode::METHOD_NOT_ALLOWED, plain, Bytes::from_static(b"GET only\n")),
        "/metrics" => (StatusCode::OK, CONTENT_TYPE, exporter.page().await),
        "/healthz" => (StatusCode::OK, plain, Bytes::from_static(b"ok\n")),
        "/" => (StatusCode::OK, "text/html; charset=utf-8", Bytes::from_static(LANDING.as_bytes())),
        _ => (StatusCode::NOT_FOUND, plain, Bytes::from_static(b"not here; try /metrics\n")),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(TYPE, hyper::header::HeaderValue::from_static(kind));
    if !read {
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
    }
    Ok(response)
}
