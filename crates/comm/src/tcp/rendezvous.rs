//! `Rendezvous`: where and as whom a rank meets the others. Rank 0 listens ([`Reception`]), the others come to it
//! ([`arrive`]).

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use super::arrival::arrive;
use super::hello::Session;
use super::reception::Reception;
use super::{Secret, TcpError};

/// How long one side may leave the other without the next word of a hello.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Where and as whom a rank meets the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// Rank 0's host.
    pub address: String,
    /// Rank 0's port.
    pub port: u16,
    /// This rank.
    pub rank: usize,
    /// Ranks of the world.
    pub size: usize,
    /// How long to wait for the others.
    pub deadline: Duration,
    /// What the ranks know each other by. Without one they meet on the loopback only, and rank 0 makes one that processes of
    /// the same user find.
    pub secret: Option<Secret>,
    /// Whether what the ranks say to each other is hidden (ChaCha20) from who reads the network; the same on all of them.
    pub encrypt: bool,
}

/// A connection to a rank that has proven who it is.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) session: Session,
}

impl Connection {
    /// As it is used once all have met.
    pub(super) fn settled(self, encrypt: bool) -> io::Result<Self> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        self.stream.set_nodelay(true)?;
        Ok(Self { stream: self.stream, session: self.session.settled(encrypt) })
    }
}

impl Rendezvous {
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    /// One connection per other rank at rank 0, in rank order; one, to rank 0, elsewhere.
    pub(super) fn connect(&self) -> Result<Vec<Connection>, TcpError> {
        match (self.rank, self.size) {
            (_, 1) => Ok(Vec::new()),
            (0, _) => Reception::open(self)?.receive(),
            _ => arrive(self).map(|connection| vec![connection]),
        }
    }

    /// The addresses that the host's name stands for.
    pub(super) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        Ok((self.address.as_str(), self.port).to_socket_addrs()?.collect())
    }

    /// That these addresses may be used: without a secret only this machine's own.
    pub(super) fn check_reach(&self, addresses: &[SocketAddr]) -> Result<(), TcpError> {
        if self.secret.is_some() || addresses.iter().all(|address| is_loopback(address.ip())) {
            return Ok(());
        }
        Err(TcpError::NoSecret { rank: self.rank, address: self.place() })
    }

    pub(super) fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> TcpError {
        let (rank, address) = (self.rank, self.place());
        move |error| TcpError::Address { rank, action, address: address.clone(), source: Arc::new(error) }
    }

    pub(super) fn secret_failed(&self, error: io::Error) -> TcpError {
        TcpError::LocalSecret { rank: self.rank, source: Arc::new(error) }
    }

    pub(super) fn missing(&self, missing: Vec<usize>, strangers: u64) -> TcpError {
        TcpError::Missing {
            rank: self.rank,
            address: self.place(),
            missing,
            size: self.size,
            waited: self.deadline,
            strangers,
        }
    }

    pub(super) fn ended(&self, ended: usize, missing: Vec<usize>) -> TcpError {
        TcpError::Ended { rank: self.rank, ended, address: self.place(), missing }
    }
}

fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|mapped| mapped.is_loopback())
        }
    }
}
