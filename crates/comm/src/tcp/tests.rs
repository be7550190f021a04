#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{Rendezvous, Tcp, TcpError};
use crate::transport::conformance;
use crate::{World, local};

/// A meeting place of its own for every test.
fn meeting(size: usize) -> Rendezvous {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    Rendezvous { address: "127.0.0.1".to_owned(), port, rank: 0, size, deadline: Duration::from_secs(20) }
}

fn worlds(size: usize) -> Vec<World> {
    let meeting = meeting(size);
    let joining: Vec<_> = (0..size)
        .map(|rank| {
            let meeting = Rendezvous { rank, ..meeting.clone() };
            thread::spawn(move || World::over(Box::new(Tcp::join(&meeting).unwrap())))
        })
        .collect();
    joining.into_iter().map(|one| one.join().unwrap().with_deadline(Duration::from_secs(60))).collect()
}

#[test]
fn the_suite_holds_over_tcp() {
    for ranks in [1, 2, 4] {
        let mut failures = Vec::new();
        for check in conformance::checks() {
            for result in local::run_worlds(worlds(ranks), |world| check.run(world)) {
                failures.extend(result.unwrap().err().map(|failure| failure.to_string()));
            }
        }
        assert!(failures.is_empty(), "{ranks} ranks:\n{}", failures.join("\n"));
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let meeting = Rendezvous { deadline: Duration::from_millis(300), ..meeting(3) };
    let came = Rendezvous { rank: 2, ..meeting.clone() };
    let other = thread::spawn(move || Tcp::join(&came).map(drop));
    let error = Tcp::join(&meeting).map(drop).unwrap_err();
    assert!(matches!(&error, TcpError::Missing { missing, size: 3, .. } if missing == &[1]), "{error}");
    assert!(matches!(other.join().unwrap().unwrap_err(), TcpError::Address { rank: 2, .. }));
}

#[test]
fn strangers_and_doubles_are_refused() {
    let place = meeting(2);
    let address = (place.address.clone(), place.port);
    let stranger = thread::spawn(move || {
        loop {
            if let Ok(mut stream) = TcpStream::connect((address.0.as_str(), address.1)) {
                return stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            }
        }
    });
    let error = Tcp::join(&place).map(drop).unwrap_err().to_string();
    stranger.join().unwrap();
    assert!(error.contains("no rank's greeting"), "{error}");

    let place = Rendezvous { deadline: Duration::from_secs(2), ..meeting(3) };
    let doubles: Vec<_> = (0..2)
        .map(|_| {
            let place = Rendezvous { rank: 1, deadline: Duration::from_millis(500), ..place.clone() };
            thread::spawn(move || Tcp::join(&place).is_err())
        })
        .collect();
    let error = Tcp::join(&place).map(drop).unwrap_err().to_string();
    assert!(error.contains("it is rank 1, which is here already"), "{error}");
    for double in doubles {
        assert!(double.join().unwrap());
    }
}
