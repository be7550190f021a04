#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::hello::{ANSWER, CHALLENGE, Claim, answer};
use super::{Rendezvous, Secret, Tcp, TcpError};
use crate::transport::conformance;
use crate::{Bucket, CommError, Reduction, World, local};

/// A meeting place of its own for every test.
fn meeting(size: usize) -> Rendezvous {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let deadline = Duration::from_secs(20);
    Rendezvous {
        address: "127.0.0.1".to_owned(),
        port,
        rank: 0,
        size,
        deadline,
        secret: None,
        encrypt: false,
    }
}

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.as_bytes()).unwrap())
}

fn worlds_at(meeting: &Rendezvous) -> Vec<World> {
    let joining: Vec<_> = (0..meeting.size)
        .map(|rank| {
            let meeting = Rendezvous { rank, ..meeting.clone() };
            thread::spawn(move || World::over(Box::new(Tcp::join(&meeting).unwrap())))
        })
        .collect();
    joining.into_iter().map(|one| one.join().unwrap().with_deadline(Duration::from_secs(60))).collect()
}

/// Ends all ranks at once, as each waits for the others.
fn end(worlds: Vec<World>) {
    local::run_worlds(worlds, drop).into_iter().for_each(Result::unwrap);
}

/// How each rank of a meeting that fails fares: its error, by rank; `None` for those that do not come.
fn failing(meetings: Vec<Rendezvous>) -> Vec<TcpError> {
    let joining: Vec<_> = meetings
        .into_iter()
        .map(|meeting| thread::spawn(move || Tcp::join(&meeting).map(drop).unwrap_err()))
        .collect();
    joining.into_iter().map(|one| one.join().unwrap()).collect()
}

#[test]
fn the_suite_holds_over_tcp() {
    for (ranks, encrypt) in [(1, false), (2, false), (4, false), (3, true)] {
        let mut failures = Vec::new();
        for check in conformance::checks() {
            let worlds = worlds_at(&Rendezvous { encrypt, ..meeting(ranks) });
            for result in local::run_worlds(worlds, |world| check.run(world)) {
                failures.extend(result.unwrap().err().map(|failure| failure.to_string()));
            }
        }
        assert!(failures.is_empty(), "{ranks} ranks, encrypted: {encrypt}:\n{}", failures.join("\n"));
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_on_all_ranks() {
    let place = Rendezvous { deadline: Duration::from_millis(300), ..meeting(3) };
    let began = Instant::now();
    // The other rank has more patience, and hears of it all the same.
    let other = Rendezvous { rank: 2, deadline: Duration::from_secs(20), ..place.clone() };
    for (rank, error) in [0, 2].into_iter().zip(failing(vec![place, other])) {
        let expected = matches!(&error, TcpError::Missing { rank: here, missing, size: 3, .. }
            if missing == &[1] && *here == rank);
        assert!(expected, "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn without_rank_0_the_others_end_at_the_deadline() {
    let place = Rendezvous { deadline: Duration::from_millis(400), ..meeting(3) };
    let others = [1, 2].map(|rank| Rendezvous { rank, ..place.clone() });
    let began = Instant::now();
    for error in failing(others.to_vec()) {
        assert!(matches!(error, TcpError::Unreached { .. }), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(3));
    // With a secret they knock, and say what the system says.
    let secret = secret("a secret of sixteen");
    let error = failing(vec![Rendezvous { rank: 1, secret, ..place }]).remove(0).to_string();
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_rank_that_ends_before_all_have_met_ends_the_others() {
    let place =
        Rendezvous { deadline: Duration::from_secs(20), secret: secret("a secret of sixteen"), ..meeting(4) };
    let began = Instant::now();
    let puppet = Rendezvous { rank: 3, ..place.clone() };
    let dies = thread::spawn(move || {
        let stream = proven(&puppet);
        // Long enough for rank 2 to have come.
        thread::sleep(Duration::from_millis(700));
        drop(stream);
    });
    let errors = failing(vec![place.clone(), Rendezvous { rank: 2, ..place }]);
    dies.join().unwrap();
    for error in errors {
        assert!(
            matches!(&error, TcpError::Ended { ended: 3, missing, .. } if missing.contains(&1)),
            "{error}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// A connection that has proven to have the secret, and says no more.
fn proven(meeting: &Rendezvous) -> TcpStream {
    let mut stream = knock(meeting);
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).unwrap();
    let claim = Claim { rank: meeting.rank as u32, size: meeting.size as u32, encrypts: false };
    let (said, _) = answer(meeting.secret.as_ref().unwrap(), claim, &challenge, &[4; 32]);
    stream.write_all(&said).unwrap();
    let mut verdict = [0; 36];
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(&verdict[..4], b"yes!");
    stream
}

fn knock(meeting: &Rendezvous) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect((meeting.address.as_str(), meeting.port)) {
            return stream;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_contradicts_the_others_is_an_error_on_all() {
    // A second rank 1.
    let place = meeting(3);
    let first = Rendezvous { rank: 1, ..place.clone() };
    for error in failing(vec![place, first.clone(), first]) {
        assert!(error.to_string().contains("it is rank 1, which is here already"), "{error}");
    }
    // Another WORLD_SIZE.
    let place = meeting(3);
    let other = Rendezvous { rank: 1, size: 4, ..place.clone() };
    for error in failing(vec![place, other]) {
        assert!(error.to_string().contains("it is rank 1 of 4"), "{error}");
    }
}

#[test]
fn another_secret_is_told_to_who_has_it() {
    let place = Rendezvous {
        deadline: Duration::from_secs(2),
        secret: secret("the secret of this job"),
        ..meeting(2)
    };
    let other = Rendezvous { rank: 1, secret: secret("the secret of another"), ..place.clone() };
    let errors = failing(vec![place, other]);
    assert!(
        matches!(&errors[0], TcpError::Missing { missing, strangers: 1.., .. } if missing == &[1]),
        "{}",
        errors[0]
    );
    assert!(matches!(errors[1], TcpError::OtherSecret { rank: 1, .. }), "{}", errors[1]);
}

#[test]
fn ranks_that_encrypt_meet_ranks_that_encrypt() {
    end(worlds_at(&Rendezvous { encrypt: true, ..meeting(3) }));
    let plain = Rendezvous { rank: 1, encrypt: false, ..meeting(2) };
    let errors = failing(vec![Rendezvous { rank: 0, encrypt: true, ..plain.clone() }, plain]);
    for error in errors {
        let said = error.to_string();
        assert!(said.contains("rank 1, which encrypts nothing; rank 0 encrypts what it says"), "{said}");
        assert!(said.contains("BURNISH_DDP_ENCRYPTION"), "{said}");
    }
}

#[test]
fn without_a_secret_only_the_loopback_is_used() {
    for address in ["0.0.0.0", "192.0.2.1"] {
        for rank in [0, 1] {
            let place = Rendezvous { address: address.to_owned(), rank, ..meeting(2) };
            let error = failing(vec![place]).remove(0);
            assert!(matches!(error, TcpError::NoSecret { .. }), "{error}");
            assert!(error.to_string().contains("BURNISH_DDP_SECRET"), "{error}");
        }
    }
    let everywhere =
        Rendezvous { address: "0.0.0.0".to_owned(), secret: secret("a secret of sixteen"), ..meeting(2) };
    end(worlds_at(&everywhere));
}

/// What those say that are no ranks, and how long they stay.
fn strangers(meeting: &Rendezvous) -> Vec<TcpStream> {
    let huge = [&[0_u8; 8][..], b"BRN1", &[0xff; 252]].concat();
    let says: [&[u8]; 8] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"BRNT\x01\0\0\0\x02\0\0\0",
        b"BRN3",
        &[b"BRN3".as_slice(), &[1; ANSWER - 4]].concat(),
        &huge,
        &[0x16, 3, 1, 2, 0, 1],
        &[0xff; 100_000],
    ];
    let mut staying = Vec::new();
    for bytes in says {
        for stays in [false, true] {
            let mut stream = knock(meeting);
            let _ = stream.write_all(bytes);
            if stays {
                staying.push(stream);
            }
        }
    }
    staying
}

/// A rank that comes to the meeting.
fn joining(place: &Rendezvous, rank: usize) -> thread::JoinHandle<World> {
    let place = Rendezvous { rank, ..place.clone() };
    thread::spawn(move || World::over(Box::new(Tcp::join(&place).unwrap())))
}

/// All ranks, once those beside rank 0 have come too.
fn others_join(place: &Rendezvous, zero: thread::JoinHandle<World>) -> Vec<World> {
    let others: Vec<_> = (1..place.size).map(|rank| joining(place, rank)).collect();
    std::iter::once(zero).chain(others).map(|one| one.join().unwrap()).collect()
}

#[test]
fn strangers_of_all_kinds_hold_nobody_up() {
    for ranks in [2, 3] {
        let place = meeting(ranks);
        let zero = joining(&place, 0);
        let staying = strangers(&place);
        let began = Instant::now();
        let worlds = others_join(&place, zero);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        let sums = local::run_worlds(worlds, |world| world.group().sum_f64(&[1.0], "ones"));
        for sum in sums {
            assert_eq!(sum.unwrap().unwrap(), [ranks as f64]);
        }
        drop(staying);
    }
}

/// Connections per second of strangers, of which each says something for a moment.
const FLOOD: u32 = 1000;

/// Strangers that come until told to stop; how many could connect, and how many were turned away at the door.
fn flood(port: u16, stop: &Arc<AtomicBool>, let_in: &Arc<AtomicU64>) -> Vec<thread::JoinHandle<()>> {
    (0..4)
        .map(|thread| {
            let (stop, let_in) = (Arc::clone(stop), Arc::clone(let_in));
            thread::spawn(move || {
                let began = Instant::now();
                let mut staying = std::collections::VecDeque::new();
                for number in 0_u32.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                        let_in.fetch_add(1, Ordering::Relaxed);
                        let _ = match (number + thread) % 4 {
                            0 => Ok(()),
                            1 => stream.write_all(b"GET / HTTP/1.1\r\n\r\n"),
                            2 => stream.write_all(&[b"BRN3".as_slice(), &[1; ANSWER - 4]].concat()),
                            _ => stream.write_all(b"BRN3"),
                        };
                        // Some stay for a while without a word.
                        staying.push_back(stream);
                        if staying.len() > 50 {
                            staying.pop_front();
                        }
                    }
                    let due = Duration::from_secs(1) * (number + 1) / (FLOOD / 4);
                    thread::sleep(due.saturating_sub(began.elapsed()));
                }
            })
        })
        .collect()
}

#[test]
fn a_thousand_strangers_a_second_cost_a_job_nothing() {
    let place = meeting(3);
    let (stop, let_in) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let zero = joining(&place, 0);
    let flooding = flood(place.port, &stop, &let_in);
    // They are at it before the other ranks come.
    thread::sleep(Duration::from_millis(700));
    let began = Instant::now();
    let worlds = others_join(&place, zero);
    let met = began.elapsed();
    let came = let_in.load(Ordering::Relaxed);
    assert!(came > 200, "{came} strangers");
    assert!(met < Duration::from_secs(4), "{met:?}");
    // Once all have met nobody listens; collectives go on as ever.
    let step = |worlds: Vec<World>| -> (Vec<World>, Duration) {
        let began = Instant::now();
        let done = local::run_worlds(worlds, |world| {
            for _ in 0..50 {
                let mine = Bucket::new(vec![1.0_f32; 50_000]);
                world.group().all_reduce(mine, Reduction::Sum, "gradients").wait().unwrap();
            }
            world
        });
        (done.into_iter().map(Result::unwrap).collect(), began.elapsed() / 50)
    };
    let (worlds, with) = step(worlds);
    let refused = let_in.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(let_in.load(Ordering::Relaxed), refused, "somebody listens still");
    stop.store(true, Ordering::Relaxed);
    for thread in flooding {
        thread.join().unwrap();
    }
    let (worlds, without) = step(worlds);
    println!(
        "{came} strangers let in before all had met; met in {met:?}; all_reduce of 200 kB on 3 ranks: {with:?} with strangers, {without:?} without"
    );
    end(worlds);
}

/// What stands between a rank and rank 0 and may change what passes: it gets each piece that goes to rank 0.
fn between(to: Rendezvous, mut change: impl FnMut(Vec<u8>) -> Vec<u8> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut rank, _) = listener.accept().unwrap();
        let mut zero = knock(&to);
        let (mut down, mut back) = (zero.try_clone().unwrap(), rank.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut down, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; 1 << 16];
        while let Ok(got @ 1..) = rank.read(&mut buffer) {
            if zero.write_all(&change(buffer[..got].to_vec())).is_err() {
                break;
            }
        }
        let _ = zero.shutdown(Shutdown::Both);
    });
    port
}

/// Two ranks, of which the second speaks by way of somebody who changes what it says from its second sum on.
fn tampered(change: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) -> Vec<CommError> {
    let place = Rendezvous { secret: secret("a secret of sixteen"), ..meeting(2) };
    let armed = Arc::new(AtomicBool::new(false));
    let at = Arc::clone(&armed);
    let seen = move |bytes: Vec<u8>| if at.load(Ordering::SeqCst) { change(bytes) } else { bytes };
    let port = between(place.clone(), seen);
    let there = Rendezvous { rank: 1, port, ..place.clone() };
    let one = thread::spawn(move || World::over(Box::new(Tcp::join(&there).unwrap())));
    let worlds = vec![World::over(Box::new(Tcp::join(&place).unwrap())), one.join().unwrap()];
    let began = Instant::now();
    let errors = local::run_worlds(worlds, |world| {
        let sum = |what| world.group().sum_f64(&[1.0; 100], what);
        sum("as it was said").unwrap();
        // Rank 0 has all of it then; rank 1's last piece may still be on the way when rank 1 is done.
        if world.rank() == 0 {
            armed.store(true, Ordering::SeqCst);
        }
        // What is said again is right the first time; and who is lied to hears of it from who notices.
        (0..100).find_map(|_| sum("changed on the way").err()).unwrap()
    });
    assert!(began.elapsed() < Duration::from_secs(10));
    errors.into_iter().map(Result::unwrap).collect()
}

#[test]
fn what_is_changed_or_said_again_ends_the_job() {
    let flipped = tampered(|mut bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    });
    let kept = Mutex::new(Vec::new());
    let again = tampered(move |bytes| {
        let mut kept = kept.lock().unwrap();
        kept.extend(bytes);
        kept.repeat(2)
    });
    let injected = tampered(|bytes| [&[0; 40][..], &bytes].concat());
    for errors in [flipped, again, injected] {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(texts[0].contains("rank 1 failed") && texts[0].contains("seal does not fit"), "{texts:?}");
        assert!(texts[1].contains("its connection ended"), "{texts:?}");
    }
}

#[test]
fn a_puppet_without_the_secret_hears_nothing_but_no() {
    let place = Rendezvous { secret: secret("a secret of sixteen"), ..meeting(2) };
    let zero = {
        let place = place.clone();
        thread::spawn(move || Tcp::join(&place).map(drop))
    };
    let began = Instant::now();
    for guess in 0..50 {
        let mut stream = knock(&place);
        let mut challenge = [0; CHALLENGE];
        stream.read_exact(&mut challenge).unwrap();
        let guessed = Secret::new(format!("a guess of sixteen {guess}").as_bytes()).unwrap();
        let (said, _) = answer(&guessed, Claim { rank: 1, size: 2, encrypts: false }, &challenge, &[9; 32]);
        stream.write_all(&said).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"no!!");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    Tcp::join(&Rendezvous { rank: 1, ..place }).unwrap();
    zero.join().unwrap().unwrap();
}

/// Listens in rank 0's place and says `says`.
#[track_caller]
fn false_rank_0(says: Vec<u8>, expected: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Rendezvous {
        port: listener.local_addr().unwrap().port(),
        deadline: Duration::from_secs(1),
        rank: 1,
        secret: secret("a secret of sixteen"),
        ..meeting(2)
    };
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&says);
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let began = Instant::now();
    let error = failing(vec![place]).remove(0).to_string();
    assert!(error.contains(expected), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn who_is_not_rank_0_is_not_believed() {
    false_rank_0(
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec(),
        "another program listens there",
    );
    false_rank_0(Vec::new(), "nothing that burnish says");
    false_rank_0([b"BRN3".as_slice(), &[7; 32], b"yes!", &[1; 32]].concat(), "does not prove");
    false_rank_0([b"BRN3".as_slice(), &[7; 32], b"what"].concat(), "another program listens there");
}

/// A connection that is proven and then silent, as of a process that is stopped.
fn frozen_rank_1(place: &Rendezvous) -> thread::JoinHandle<TcpStream> {
    let puppet = Rendezvous { rank: 1, ..place.clone() };
    thread::spawn(move || proven(&puppet))
}

#[test]
fn a_rank_with_an_error_of_its_own_ends_beside_one_that_is_stopped() {
    let place = Rendezvous { secret: secret("a secret of sixteen"), ..meeting(3) };
    let frozen = frozen_rank_1(&place);
    let began = Instant::now();
    let worlds: Vec<_> = [0, 2]
        .map(|rank| {
            let place = Rendezvous { rank, ..place.clone() };
            thread::spawn(move || World::over(Box::new(Tcp::join(&place).unwrap())))
        })
        .map(|one| one.join().unwrap())
        .into();
    let stream = frozen.join().unwrap();
    let ended = local::run_worlds(worlds, |world| {
        let group = world.group();
        if world.rank() == 0 {
            // More than any buffer between the two takes.
            drop(group.send(Bucket::new(vec![1.0_f32; 8 << 20]), 1, "much"));
            thread::sleep(Duration::from_millis(200));
            world.fail("a full disk");
            return "a full disk".to_owned();
        }
        group.barrier("never").unwrap_err().to_string()
    });
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let texts: Vec<String> = ended.into_iter().map(Result::unwrap).collect();
    assert!(texts[1].contains("rank 0 failed") && texts[1].contains("a full disk"), "{texts:?}");
    drop(stream);
}

#[test]
fn a_rank_that_gives_no_sign_of_life_is_blamed_and_no_other() {
    // Longer than signs of life take to be missed.
    let deadline = Duration::from_secs(4);
    let place = Rendezvous { secret: secret("a secret of sixteen"), ..meeting(3) };
    let frozen = frozen_rank_1(&place);
    let worlds: Vec<_> = [0, 2]
        .map(|rank| {
            let place = Rendezvous { rank, ..place.clone() };
            thread::spawn(move || World::over(Box::new(Tcp::join(&place).unwrap())).with_deadline(deadline))
        })
        .map(|one| one.join().unwrap())
        .into();
    let stream = frozen.join().unwrap();
    let began = Instant::now();
    let errors = local::run_worlds(worlds, |world| {
        let group = world.group();
        // Rank 2 waits for rank 0 alone, which waits for rank 1.
        let waits = if world.rank() == 0 { 1 } else { 0 };
        group.recv::<f32>(waits, 1, "something").wait().unwrap_err()
    });
    assert!(began.elapsed() < deadline * 2 + Duration::from_secs(3), "{:?}", began.elapsed());
    for error in errors {
        let text = error.unwrap().to_string();
        assert!(text.contains("rank 1 does not answer any more") && !text.contains("silent"), "{text}");
    }
    drop(stream);
}
