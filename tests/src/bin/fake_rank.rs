//! A rank that trains nothing: see `muster_tests::fake_rank`.

fn main() -> anyhow::Result<()> {
    muster_tests::fake_rank::main()
}
