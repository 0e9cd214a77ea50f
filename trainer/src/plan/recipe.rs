//! Published fine-tuning recipes, as bounds for the learning rate.
//!
//! Sources: DeBERTa's own GLUE scripts (v3-large: 5.5e-6 to 1e-5), appendix A of the DeBERTa paper (base: up to
//! 4e-5), appendix A.3 of the BERT paper (base: up to 5e-5), the table of the small BERT models (up to 3e-4).

use muster_proto::run_spec::Init;

use super::ModelDims;

/// The highest learning rate with which fine-tuning of a model of this size was published, and the size's name.
/// The size is that of the backbone: the tables of a multilingual model say nothing about its depth.
pub fn published_peak_rate(model: &ModelDims, init: Init) -> (f64, &'static str) {
    match (init, model.backbone()) {
        // From scratch there is nothing to destroy; rates above this one diverge in practice.
        (Init::Random, _) => (1e-3, "training from scratch"),
        (Init::Pretrained, 200_000_000..) => (1e-5, "large models (over 200 M backbone parameters)"),
        (Init::Pretrained, 60_000_000..) => (5e-5, "base models (over 60 M backbone parameters)"),
        (Init::Pretrained, 5_000_000..) => (3e-4, "small models (over 5 M backbone parameters)"),
        (Init::Pretrained, _) => (1e-3, "tiny models"),
    }
}
