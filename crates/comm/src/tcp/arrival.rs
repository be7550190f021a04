//! Another rank's way to rank 0: again and again until rank 0 is there, with proofs, and then until all are.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::hello::{CHALLENGE, Claim, NO, PROOF, YES, answer, may_be};
use super::notice::Notice;
use super::rendezvous::{Connection, PATIENCE, Rendezvous};
use super::secret::{LocalSecret, random};
use super::{Secret, TcpError};

/// How long a rank waits between attempts to reach rank 0: at first, and at most.
const PACE: Duration = Duration::from_millis(20);
const LONGEST_PACE: Duration = Duration::from_millis(250);

/// Nobody waits longer.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why there is no connection.
enum Failed {
    /// Rank 0 may not be there yet.
    Again(String),
    /// Trying again would not help.
    Over(TcpError),
}

impl From<TcpError> for Failed {
    fn from(error: TcpError) -> Self {
        Self::Over(error)
    }
}

/// The connection to rank 0, once all ranks have met.
pub(super) fn arrive(meeting: &Rendezvous) -> Result<Connection, TcpError> {
    let began = Instant::now();
    let until = began + meeting.deadline.min(YEAR);
    let mut pace = PACE;
    let mut before: Option<String> = None;
    loop {
        let why = match knock(meeting, until) {
            Ok(connection) => return wait(meeting, connection, until),
            Err(Failed::Over(error)) => return Err(error),
            // An attempt that the deadline cut short says less than the one before.
            Err(Failed::Again(why)) => match before {
                Some(before) if Instant::now() >= until => before,
                _ => why,
            },
        };
        if Instant::now() + pace >= until {
            return Err(TcpError::Unreached {
                rank: meeting.rank,
                address: meeting.place(),
                waited: meeting.deadline,
                why,
            });
        }
        before = Some(why);
        std::thread::sleep(pace);
        pace = (pace * 2).min(LONGEST_PACE);
    }
}

/// A connection whose two sides know who they are.
fn knock(meeting: &Rendezvous, until: Instant) -> Result<Connection, Failed> {
    let again = |error: io::Error| Failed::Again(error.to_string());
    let addresses = meeting.addresses().map_err(again)?;
    meeting.check_reach(&addresses)?;
    let secret = secret(meeting)?;
    let mut why = io::Error::other("its name stands for no address");
    let mut found = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, left(until).min(PATIENCE)) {
            Ok(stream) => {
                found = Some(stream);
                break;
            }
            Err(error) => why = error,
        }
    }
    let mut stream =
        Timed { stream: found.ok_or(why).map_err(again)?, until: until.min(Instant::now() + PATIENCE) };
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).map_err(|error| silent("nothing that burnish says", &error))?;
    if !may_be(&challenge) {
        return Err(Failed::Again(format!("another program listens there: it says {}", shown(&challenge))));
    }
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let claim = Claim { rank: number(meeting.rank), size: number(meeting.size), encrypts: meeting.encrypt };
    let (said, kept) = answer(&secret, claim, &challenge, &random().map_err(again)?);
    stream.stream.write_all(&said).map_err(again)?;
    let mut verdict = [0; 4];
    stream.read_exact(&mut verdict).map_err(|error| silent("no answer to the hello", &error))?;
    let other = || TcpError::OtherSecret { rank: meeting.rank, address: meeting.place() };
    match verdict {
        YES => {
            let mut proof = [0; PROOF];
            stream.read_exact(&mut proof).map_err(|error| silent("no proof", &error))?;
            let session = kept.at_rank(proof).ok_or_else(|| {
                Failed::Again("what listens there does not prove to have the job's secret".to_owned())
            })?;
            Ok(Connection { stream: stream.stream, session })
        }
        NO if meeting.secret.is_some() => Err(Failed::Over(other())),
        // One that an earlier job at this port has left: rank 0 is about to make another.
        NO => Err(Failed::Again(other().to_string())),
        _ => Err(Failed::Again(format!("another program listens there: it says {}", shown(&verdict)))),
    }
}

/// What was given, or what rank 0 has made.
fn secret(meeting: &Rendezvous) -> Result<Secret, Failed> {
    if let Some(secret) = &meeting.secret {
        return Ok(secret.clone());
    }
    match LocalSecret::read(meeting.port) {
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => Err(Failed::Again("no rank 0 of this user listens there".to_owned())),
        Err(error) => Err(Failed::Over(meeting.secret_failed(error))),
    }
}

fn silent(what: &str, error: &io::Error) -> Failed {
    Failed::Again(match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            format!("what listens there said {what} and closed the connection")
        }
        _ => format!("what listens there said {what}: {error}"),
    })
}

fn shown(bytes: &[u8]) -> String {
    format!("`{}`", bytes.escape_ascii())
}

/// Waits until all have met.
fn wait(meeting: &Rendezvous, connection: Connection, until: Instant) -> Result<Connection, TcpError> {
    let Connection { stream, mut session } = connection;
    let mut stream = Timed { stream, until };
    let mut missing = Vec::new();
    loop {
        match Notice::read(&mut stream, &mut session.hears) {
            Ok(Notice::Welcome) => {
                let connection = Connection { stream: stream.stream, session };
                return connection.settled(meeting.encrypt).map_err(meeting.failed("keep a connection to"));
            }
            Ok(Notice::Waiting(ranks)) => missing = ranks,
            Ok(Notice::Missing(ranks)) => return Err(meeting.missing(ranks, 0)),
            Ok(Notice::Ended(ranks)) => {
                let (ended, missing) = ranks.split_first().map_or((0, &[][..]), |(ended, all)| (*ended, all));
                return Err(meeting.ended(ended, missing.to_vec()));
            }
            Ok(Notice::Contradiction(got, expected)) => {
                return Err(TcpError::Contradiction { address: meeting.place(), got, expected });
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(meeting.missing(missing, 0)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(meeting.failed("hear rank 0 at")(error));
            }
            Err(_) => return Err(meeting.ended(0, missing)),
        }
    }
}

fn left(until: Instant) -> Duration {
    // A timeout of zero is none at all.
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// A stream that is read until a certain time.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        if Instant::now() >= self.until {
            return Err(late());
        }
        self.stream.set_read_timeout(Some(left(self.until)))?;
        self.stream.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => late(),
            _ => error,
        })
    }
}
