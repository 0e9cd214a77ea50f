use muster_kernels::{Pool, isa};

/// tests/isa/test.sh runs this on emulated CPUs and says what each is.
#[test]
fn the_instruction_set_is_the_one_of_the_emulated_cpu() {
    let Ok(expected) = std::env::var("MUSTER_TEST_EXPECT_ISA") else {
        eprintln!("skipped: only the emulator of tests/isa knows what this CPU should be");
        return;
    };
    let report = isa::detect();
    println!("{report}");
    assert_eq!(report.best.name(), expected);
    assert_eq!(report.chosen, report.best, "{report}");
    assert_eq!(Pool::new(1).unwrap().isa(), report.chosen);
}
