//! Generates messages and services from `muster/v1/*.proto`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=muster");
    #[cfg(feature = "rpc")]
    generate()?;
    Ok(())
}

#[cfg(feature = "rpc")]
fn generate() -> Result<(), Box<dyn std::error::Error>> {
    use prost::Message;

    let files = ["rank", "agent", "coordinator"].map(|name| format!("muster/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["."])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("muster.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
