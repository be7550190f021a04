//! `Rendezvous`: rank 0 listens on `MASTER_ADDR:MASTER_PORT`; the others connect and send their rank.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TcpError;

/// First bytes of every connection.
const MAGIC: [u8; 4] = *b"BRNT";
/// How often a rank tries to reach rank 0, and rank 0 looks for connections.
const PACE: Duration = Duration::from_millis(20);
/// How long a connection may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(5);

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
}

impl Rendezvous {
    fn place(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    /// One stream per other rank at rank 0, in rank order; one stream, to rank 0, elsewhere.
    pub(super) fn connect(&self) -> Result<Vec<TcpStream>, TcpError> {
        match (self.rank, self.size) {
            (_, 1) => Ok(Vec::new()),
            (0, _) => self.receive(),
            _ => self.go().map(|stream| vec![stream]),
        }
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> TcpError {
        let (rank, address) = (self.rank, self.place());
        move |error| TcpError::Address { rank, action, address: address.clone(), source: Arc::new(error) }
    }

    fn receive(&self) -> Result<Vec<TcpStream>, TcpError> {
        let failed = self.failed("listen on");
        let listener = TcpListener::bind((self.address.as_str(), self.port)).map_err(&failed)?;
        listener.set_nonblocking(true).map_err(&failed)?;
        let began = Instant::now();
        let mut streams: Vec<Option<TcpStream>> = (1..self.size).map(|_| None).collect();
        while streams.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let (rank, stream) = self.introduce(stream)?;
                    let place = &mut streams[rank - 1];
                    if place.is_some() {
                        return Err(self.stranger(format!("it is rank {rank}, which is here already")));
                    }
                    *place = Some(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if began.elapsed() > self.deadline {
                        let absent = |(place, stream): (usize, &Option<TcpStream>)| {
                            stream.is_none().then_some(place + 1)
                        };
                        return Err(TcpError::Missing {
                            address: self.place(),
                            missing: streams.iter().enumerate().filter_map(absent).collect(),
                            size: self.size,
                            seconds: self.deadline.as_secs(),
                        });
                    }
                    std::thread::sleep(PACE);
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let mut streams: Vec<TcpStream> = streams.into_iter().flatten().collect();
        for stream in &mut streams {
            stream.write_all(&MAGIC).map_err(&failed)?;
        }
        Ok(streams)
    }

    fn stranger(&self, got: String) -> TcpError {
        let expected = format!("a rank from 1 to {} of {} that is not here yet", self.size - 1, self.size);
        TcpError::Stranger { address: self.place(), got, expected }
    }

    /// Reads who it is that came.
    fn introduce(&self, mut stream: TcpStream) -> Result<(usize, TcpStream), TcpError> {
        let failed = self.failed("listen on");
        stream.set_nonblocking(false).map_err(&failed)?;
        stream.set_read_timeout(Some(INTRODUCTION)).map_err(&failed)?;
        let mut hello = [0; 12];
        if stream.read_exact(&mut hello).is_err() || hello[..4] != MAGIC {
            return Err(self.stranger("something that is no rank's greeting".to_owned()));
        }
        let number =
            |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]) as usize;
        let (rank, size) = (number(4), number(8));
        if size != self.size || rank == 0 || rank >= self.size {
            return Err(self.stranger(format!("it is rank {rank} of {size}")));
        }
        stream.set_read_timeout(None).map_err(&failed)?;
        stream.set_nodelay(true).map_err(&failed)?;
        Ok((rank, stream))
    }

    fn go(&self) -> Result<TcpStream, TcpError> {
        let failed = self.failed("connect to");
        let began = Instant::now();
        loop {
            match TcpStream::connect((self.address.as_str(), self.port)).and_then(|stream| self.greet(stream))
            {
                Ok(stream) => return Ok(stream),
                // Rank 0 may not be there yet.
                Err(_) if began.elapsed() < self.deadline => std::thread::sleep(PACE),
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Says who this is, and waits until all ranks have come.
    fn greet(&self, mut stream: TcpStream) -> io::Result<TcpStream> {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
        stream.write_all(&[MAGIC, number(self.rank), number(self.size)].concat())?;
        stream.set_read_timeout(Some(self.deadline))?;
        let mut welcome = [0; 4];
        stream.read_exact(&mut welcome)?;
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
