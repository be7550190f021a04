//! Connections: bounded in number and in the time that a request may take to arrive, until the server is told to stop.

use std::net::{Shutdown, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::{App, ServeError};

/// Bounds of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Connections at once; more wait to be taken.
    pub most: usize,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// How long what is being served may take to end when the server is told to stop.
    pub shutdown_timeout: Duration,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            most: 1024,
            header_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

/// How long, and how far, a client may go on sending what has been answered already.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 64 << 20;

/// A connection, and a second handle that keeps it open when the first is closed.
fn twice(stream: TcpStream) -> std::io::Result<(TcpStream, std::net::TcpStream)> {
    let stream = stream.into_std()?;
    let second = stream.try_clone()?;
    Ok((TcpStream::from_std(stream)?, second))
}

/// Reads what a client still sends after its answer, until it closes: an answer to the head of a request, as 413 is, would be
/// lost with a connection that is closed while bytes arrive (nginx's `lingering_close`).
async fn discard(stream: std::net::TcpStream) -> std::io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let stream = TcpStream::from_std(stream)?;
    let mut buffer = vec![0; 1 << 16];
    let mut left = LINGER_BYTES;
    while left > 0 {
        stream.readable().await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => left = left.saturating_sub(read),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Serves `app` on `listener` until `stop`, which is asked every `look`, says so; then nobody is let in, and those that are
/// served are waited for. Whether all of them were served in time.
///
/// # Errors
/// If the listener fails.
pub fn serve(
    listener: TcpListener,
    app: App,
    connections: Connections,
    look: Duration,
    stop: impl Fn() -> bool,
) -> Result<bool, ServeError> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let served = runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let router = app.router();
        let places = Arc::new(Semaphore::new(connections.most));
        let graceful = GracefulShutdown::new();
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(connections.header_timeout);
        let stopped = async {
            while !stop() {
                tokio::time::sleep(look).await;
            }
        };
        tokio::pin!(stopped);
        loop {
            let place = tokio::select! {
                Ok(place) = places.clone().acquire_owned() => place,
                () = &mut stopped => break,
            };
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    // Too many files are open, or the peer has gone already: the next one may do better.
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                },
                () = &mut stopped => break,
            };
            let _ = stream.set_nodelay(true);
            let Ok((stream, rest)) = twice(stream) else { continue };
            let service = TowerToHyperService::new(router.clone());
            let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(async move {
                // A client that breaks off is no fault of the server's.
                let _ = connection.await;
                let _ = tokio::time::timeout(LINGER, discard(rest)).await;
                drop(place);
            });
        }
        drop(listener);
        let waited = tokio::time::timeout(connections.shutdown_timeout, graceful.shutdown()).await;
        Ok::<_, std::io::Error>(waited.is_ok())
    })?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(served)
}
