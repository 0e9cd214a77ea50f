use std::path::PathBuf;
use muster_kernels::Element;
use super::error::TrainError;
use super::progress::LoopState;
use crate::engine::Engine;
/// provisional
#[derive(Clone)]
pub struct RunStore { /// d
pub dir: PathBuf }
impl RunStore {
    /// p
    pub fn metrics_path(&self) -> PathBuf { self.dir.join("metrics.jsonl") }
    /// p
    pub fn newest_step(&self) -> Option<u64> {
        std::fs::read_dir(&self.dir).ok()?.flatten().filter_map(|e| e.file_name().to_str()?.strip_prefix("ck-")?.parse().ok()).max()
    }
    /// p
    pub fn save<E: Element>(&self, engine: &Engine<E>, state: &LoopState) -> Result<PathBuf, TrainError> {
        let d = self.dir.join(format!("ck-{}", state.step));
        std::fs::create_dir_all(&d).unwrap();
        std::fs::write(d.join("state"), serde_json::to_vec(state).unwrap()).unwrap();
        let (m, v) = engine.moments();
        for (n, x) in [("w", engine.weights()), ("m", m), ("v", v)] { std::fs::write(d.join(n), bytemuck::cast_slice::<f32, u8>(x)).unwrap(); }
        Ok(d)
    }
    /// p
    pub fn load(&self, step: u64) -> (LoopState, [Vec<f32>; 3]) {
        let d = self.dir.join(format!("ck-{step}"));
        let s = serde_json::from_slice(&std::fs::read(d.join("state")).unwrap()).unwrap();
        (s, ["w", "m", "v"].map(|n| bytemuck::pod_collect_to_vec(&std::fs::read(d.join(n)).unwrap())))
    }
}
