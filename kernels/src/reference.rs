//! Scalar definitions of every operation in f64: the specification that the tests compare with.
