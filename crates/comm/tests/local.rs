//! Threads as ranks: what is shared, what comes back, who is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burnish_comm::{Bucket, CommError, Group, Mesh, Reduction, World, local};

#[test]
fn a_gather_reads_what_the_peers_hold() {
    let addresses = local::run(3, |world| {
        let group = world.group();
        let mine: Arc<Vec<f32>> = Arc::new(vec![group.rank() as f32; 1000]);
        let part = Bucket::shared(Arc::clone(&mine) as Arc<dyn AsRef<[f32]> + Send + Sync>);
        let all = group.all_gather_v(part, &[1000; 3], "weights").wait().unwrap();
        let seen: Vec<usize> = all.iter().map(|part| part.as_ptr() as usize).collect();
        // nobody lets go before all have looked
        group.barrier("looked").unwrap();
        (mine.as_ptr() as usize, seen)
    });
    let addresses: Vec<_> = addresses.into_iter().map(Result::unwrap).collect();
    let own: Vec<usize> = addresses.iter().map(|(own, _)| *own).collect();
    for (_, seen) in addresses {
        assert_eq!(seen, own);
    }
}

#[test]
fn an_all_reduce_comes_back_in_its_own_memory() {
    for result in local::run(2, |world| {
        let mine = vec![1.0_f32; 3_000_000];
        let address = mine.as_ptr() as usize;
        let sum = world.group().all_reduce(Bucket::new(mine), Reduction::Sum, "gradients").wait().unwrap();
        assert_eq!(sum.as_slice()[2_999_999], 2.0);
        let sum = sum.into_vec();
        sum.as_ptr() as usize == address
    }) {
        assert!(result.unwrap());
    }
}

#[test]
fn a_panic_is_told_with_its_message() {
    let start = Instant::now();
    let results = local::run(4, |world| {
        assert_eq!(std::thread::current().name(), Some(format!("rank {}", world.rank()).as_str()));
        assert_ne!(world.rank(), 2, "no such file");
        world.group().barrier("model.norm.weight")
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Err(CommError::Panicked { rank: named, message }) => {
                assert_eq!((rank, named), (2, 2));
                assert!(message.contains("no such file"));
            }
            Err(other) => panic!("{other}"),
            Ok(outcome) => {
                let text = outcome.unwrap_err().to_string();
                assert!(text.starts_with("rank 2 failed") && text.contains("no such file"), "{text}");
                assert!(text.contains("barrier(`model.norm.weight`)"), "{text}");
            }
        }
    }
}

#[test]
fn worlds_dropped_by_a_panic_say_goodbye_too() {
    let mut worlds = World::local(2);
    let (second, first) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    let thread = std::thread::spawn(move || {
        let _held = second;
        panic!("without a launcher");
    });
    let error = first.group().barrier("start").unwrap_err();
    assert!(error.to_string().starts_with("rank 1 failed"), "{error}");
    assert!(thread.join().is_err());
}

#[test]
fn a_call_of_one_group_may_outlive_its_world() {
    let pendings: Vec<_> = World::local(2)
        .into_iter()
        .map(|world| world.group().all_reduce(Bucket::new(vec![1.0_f32; 9]), Reduction::Sum, "late"))
        .collect();
    std::thread::scope(|scope| {
        for pending in pendings {
            scope.spawn(move || assert_eq!(pending.wait().unwrap().into_vec(), [2.0; 9]));
        }
    });
}

#[test]
fn a_deadline_is_the_groups_own() {
    let results = local::run(2, |world| {
        if world.rank() == 0 {
            let start = Instant::now();
            let group = world.group().with_deadline(Duration::from_millis(50));
            let error = group.recv::<f32>(1, 3, "scores").wait().unwrap_err();
            assert!(start.elapsed() >= Duration::from_millis(50));
            error.to_string()
        } else {
            // on another channel, so that nothing is out of step: this rank merely waits elsewhere
            let elsewhere = world.group().channel("elsewhere").with_deadline(Duration::from_secs(20));
            elsewhere.barrier("other").unwrap_err().to_string()
        }
    });
    let texts: Vec<String> = results.into_iter().map(Result::unwrap).collect();
    assert!(texts[0].contains("rank 1") && texts[0].contains("recv(`scores`, 3 x float32"), "{}", texts[0]);
    assert!(texts[1].contains("rank 0"), "{}", texts[1]);
    // the silent rank was elsewhere, and where is told
    assert!(texts[0].contains("while rank 1 calls barrier(`other`"), "{}", texts[0]);
}

#[test]
fn alone_everything_comes_back() {
    let group = Group::alone();
    let sum = group.all_reduce(Bucket::new(vec![1.5_f32]), Reduction::Mean, "x").wait().unwrap();
    assert_eq!(sum.into_vec(), [1.5]);
    assert_eq!(group.sum_f64(&[2.0, 3.0], "y").unwrap(), [2.0, 3.0]);
    assert_eq!((group.rank(), group.size(), group.axis(), group.global_rank(0)), (0, 1, "world", Some(0)));
    assert_eq!(group.global_rank(1), None);
}

#[test]
fn a_mesh_says_what_is_wrong_with_it() {
    let world = &World::local(6)[4];
    let mesh = Mesh::new(world, &[("dp", 3), ("tp", 2)]).unwrap();
    assert_eq!((mesh.index("dp").unwrap(), mesh.index("tp").unwrap()), (2, 0));
    assert_eq!(mesh.group("dp").unwrap().global_ranks(), [0, 2, 4]);
    assert_eq!(mesh.group("tp").unwrap().global_ranks(), [4, 5]);
    assert_eq!(mesh.axes().collect::<Vec<_>>(), [("dp", 3), ("tp", 2)]);
    let error = mesh.group("pp").unwrap_err().to_string();
    assert!(error.contains("`pp`") && error.contains("dp = 3, tp = 2"), "{error}");
    for (axes, part) in [
        (&[("dp", 4), ("tp", 2)][..], "take 8 ranks, the world has 6"),
        (&[("dp", 0)][..], "take 0 ranks"),
        (&[][..], "take 1 ranks"),
        (&[("dp", 3), ("dp", 2)][..], "named twice"),
    ] {
        let error = Mesh::new(world, axes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
