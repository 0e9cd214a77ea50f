//! What goes wrong: arguments, operations that differ, ranks that leave, stand still or don't come.

use std::time::{Duration, Instant};

use super::*;

/// Ranks that begin different operations all learn of it, and can go on.
#[test]
fn a_mismatch_is_an_error_on_every_rank() {
    let errors = with_ranks(3, options(0), |group| {
        let me = group.local_rank();
        let sum = Reduce::new(Operation::Sum);
        let mut texts = Vec::new();
        // Another count, a path with other flags, other counts, another type.
        let mut a = vec![1.0_f32; if me == 1 { 20_000 } else { 5 }];
        texts.push(group.all_reduce_in_place(sum, &mut a).unwrap_err());
        let counts = if me == 2 { [1, 2, 3] } else { [2, 2, 2] };
        texts.push(group.all_gather(&vec![0_i64; counts[me]], &counts, &mut [0; 6]).unwrap_err());
        texts.push(if me == 0 {
            group.barrier().unwrap_err()
        } else {
            group.all_reduce_in_place(sum, &mut vec![0_i32; 50_000]).unwrap_err()
        });
        let mut x = vec![me as f32; 100_000];
        group.all_reduce_in_place(sum, &mut x).unwrap();
        assert!(x.iter().all(|&x| x == 3.0));
        texts
    });
    for errors in &errors {
        for (i, error) in errors.iter().enumerate() {
            assert!(
                matches!(error, ShmError::Mismatch { operation, .. } if *operation == i as u64 + 1),
                "{error}"
            );
        }
    }
    let text = errors[0][0].to_string();
    assert_eq!(
        text,
        "operation 1 differs: local rank 0 has all-reduce(sum) of 5 f32 from 0, local rank 1 has all-reduce(sum) of \
         20000 f32 from 0"
    );
}

#[test]
fn wrong_arguments_are_errors_before_anybody_is_told() {
    with_ranks(2, options(4096), |group| {
        let error = |r: Result<(), ShmError>| r.unwrap_err().to_string();
        let sum = Reduce::new(Operation::Sum);
        let mean = Reduce::new(Operation::Mean);
        assert!(error(group.all_reduce_in_place(mean, &mut [1_i32])).contains("i32"));
        let odd = Reduce { operation: Operation::Sum, weight: 0.5 };
        assert!(error(group.all_reduce_in_place(odd, &mut [1_i64])).contains("weight"));
        let bad = Reduce { operation: Operation::Sum, weight: f32::NAN };
        assert!(error(group.all_reduce_in_place(bad, &mut [1.0_f32])).contains("finite"));
        assert!(error(group.all_reduce(sum, &[1.0_f32], &mut [])).contains("expected 1"));
        assert!(error(group.all_gather(&[1.0_f32], &[1], &mut [0.0])).contains("counts"));
        assert!(error(group.broadcast(2, &mut [1.0_f32])).contains("root"));
        assert!(error(group.all_reduce_arena::<f32>(sum, 1, 0, 1)).contains("multiple of 64"));
        assert!(error(group.all_reduce_arena::<f32>(sum, 0, 64, 17)).contains("overlaps"));
        assert!(error(group.all_reduce_arena::<f32>(sum, 0, 0, 1025)).contains("4096"));
        assert!(group.arena::<f64>(4096, 1).is_err() && group.arena::<f64>(0, usize::MAX).is_err());
        group.barrier().unwrap();
    });
}

/// A weight of 0 on every rank: nobody has data, and the mean is defined nevertheless.
#[test]
fn nobody_has_data() {
    for count in [3, 50_000] {
        with_ranks(2, options(0), |group| {
            let none = Reduce { operation: Operation::Mean, weight: 0.0 };
            let mut x = vec![f32::NAN; count];
            group.all_reduce_in_place(none, &mut x).unwrap();
            assert!(x.iter().all(|&x| x == 0.0), "absent contributions are never read");
        });
    }
}

#[test]
fn a_rank_that_leaves_is_lost_to_those_that_go_on() {
    let start = Instant::now();
    let errors = with_ranks(3, options(0), |group| {
        group.barrier().unwrap();
        if group.local_rank() == 1 {
            return None;
        }
        let error = group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut [1.0_f32]).unwrap_err();
        let again = group.barrier().unwrap_err();
        assert_eq!(error.to_string(), again.to_string(), "a group that has failed stays failed");
        Some(error)
    });
    for error in [&errors[0], &errors[2]].map(|e| e.as_ref().unwrap()) {
        assert!(matches!(error, ShmError::PeerLost { peer: 1, operation: 2, .. }), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "noticed, not waited for");
}

#[test]
fn a_rank_that_stands_still_is_lost_at_the_deadline() {
    let patient = ShmOptions { progress_deadline: Duration::from_millis(300), ..options(0) };
    let errors = with_ranks(3, patient, |group| {
        group.barrier().unwrap();
        if group.local_rank() == 2 {
            std::thread::sleep(Duration::from_millis(900));
        }
        group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut vec![1.0_f32; 100_000]).unwrap_err()
    });
    assert_eq!(errors[0].culprit(), Some(2), "{}", errors[0]);
    assert_eq!(errors[1].culprit(), Some(2), "{}", errors[1]);
    assert!(matches!(errors[2], ShmError::Evicted { me: 2, .. }), "{}", errors[2]);
    assert!(errors[0].hint().unwrap().contains("local rank 2"));
}

#[test]
fn an_abort_waits_for_nobody_and_reaches_everybody() {
    let errors = with_ranks(2, options(0), |group| {
        if group.local_rank() == 0 {
            let handle = group.abort_handle();
            let abort = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                handle.abort();
            });
            let error = group.barrier().unwrap_err();
            abort.join().unwrap();
            // The other one still waits for this.
            std::thread::sleep(Duration::from_millis(100));
            return error;
        }
        std::thread::sleep(Duration::from_millis(100));
        group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut vec![1.0_f32; 100_000]).unwrap_err()
    });
    assert!(
        errors.iter().all(|e| matches!(e, ShmError::Aborted { by: 0, .. } | ShmError::Mismatch { .. })),
        "{errors:?}"
    );
}

#[test]
fn whoever_does_not_come_is_named() {
    let id = run_id();
    let join = |rank, generation| {
        let base = ShmOptions::new(&id, generation, rank, 2);
        ShmGroup::join(ShmOptions { start_deadline: Duration::from_millis(200), ..base })
    };
    let alone = join(1, 1).unwrap_err();
    assert!(matches!(alone, ShmError::Missing { me: 1, missing: 0, .. }), "{alone}");
    std::thread::scope(|s| {
        let first = s.spawn(|| join(0, 1).unwrap_err());
        assert!(matches!(join(1, 2).unwrap_err(), ShmError::Missing { .. }), "another generation");
        let error = first.join().unwrap();
        assert!(matches!(error, ShmError::Missing { me: 0, missing: 1, .. }), "{error}");
    });
    assert!(matches!(ShmGroup::join(ShmOptions::new(&id, 1, 2, 2)), Err(ShmError::Config { .. })));
    assert!(matches!(ShmGroup::join(ShmOptions::new(&id, 1, 0, 0)), Err(ShmError::Config { .. })));
}

#[test]
fn arenas_of_different_sizes_do_not_join() {
    let id = run_id();
    let join = |rank: usize| {
        let base = ShmOptions::new(&id, 1, rank, 2);
        ShmGroup::join(ShmOptions { arena_bytes: 4096 * (rank + 1), ..base }).unwrap_err().to_string()
    };
    std::thread::scope(|s| {
        let first = s.spawn(|| join(0));
        assert!(join(1).contains("arena of 4096 bytes, expected rank 0 of 2 with an arena of 8192"));
        assert!(first.join().unwrap().contains("arena of 8192"));
    });
}

/// Garbage at the socket of a rank costs nothing but the connection.
#[test]
fn strangers_and_garbage_do_not_disturb_the_start() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let id = run_id();
    let hash = xxhash_rust::xxh3::xxh3_64(id.as_bytes());
    let join = |rank| ShmGroup::join(ShmOptions::new(&id, 1, rank, 2)).unwrap().barrier().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| join(0));
        let address = SocketAddr::from_abstract_name(format!("muster-shm/{hash:016x}/1/0")).unwrap();
        // A stream socket can't even connect to one of packets.
        assert!(UnixStream::connect_addr(&address).is_err());
        let garbage = |packet: &[u8]| {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                flags,
                None,
            )
            .unwrap();
            let name = format!("muster-shm/{hash:016x}/1/0");
            let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            while rustix::net::connect(&socket, &address).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            rustix::net::send(&socket, packet, rustix::net::SendFlags::empty()).unwrap();
        };
        garbage(&[0; 5]);
        garbage(&[0xff; 4096]);
        join(1);
    });
}
