//! DeBERTa's relative positions: distances to rows of the relative-embedding table.

/// How distances map to table rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Half the table: rows `0..2 * span`.
    pub span: usize,
    /// Distances up to half of this are exact, longer ones share logarithmic buckets; 0 for exact distances only.
    pub bucket_count: usize,
    /// The distance that falls in the last bucket.
    pub max_distance: usize,
}

/// Bucket of the signed distance `query - key`: exact up to `bucket_count / 2`, logarithmic beyond.
///
/// Computed in f64: in bf16, 146 of the 1,023 distances of a 512-token row would land in a wrong bucket.
/// Source: microsoft/DeBERTa, `make_log_bucket_position`.
pub fn bucket(distance: i64, bucket_count: usize, max_distance: usize) -> i64 {
    let middle = (bucket_count / 2) as i64;
    if distance.abs() <= middle {
        return distance;
    }
    let ratio =
        (distance.abs() as f64 / middle as f64).ln() / ((max_distance - 1) as f64 / middle as f64).ln();
    let log = (ratio * (middle - 1) as f64).ceil() as i64 + middle;
    log * distance.signum()
}

/// Table rows that a batch uses, and the row of each distance among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// First table row in use.
    pub first: usize,
    /// Table rows in use.
    pub count: usize,
    /// Row, counted from `first`, of the distances `-(max_len - 1) ..= max_len - 1`.
    pub of_distance: Vec<u32>,
}

impl Buckets {
    /// Table row of a signed distance `query - key`.
    pub fn row(&self, distance: i64) -> usize {
        let bucket = match self.bucket_count {
            0 => distance,
            count => bucket(distance, count, self.max_distance),
        };
        (bucket + self.span as i64).clamp(0, 2 * self.span as i64 - 1) as usize
    }

    /// The rows that sequences of up to `max_len` tokens use: only these are normalised and projected.
    pub fn slots(&self, max_len: usize) -> Slots {
        let far = max_len.max(1) as i64 - 1;
        let first = self.row(-far);
        let of_distance = (-far..=far).map(|d| (self.row(d) - first) as u32).collect();
        Slots { first, count: self.row(far) - first + 1, of_distance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: Buckets = Buckets { span: 256, bucket_count: 256, max_distance: 512 };

    #[test]
    fn every_distance_has_the_bucket_of_the_published_table() {
        let table = include_str!("bucket_table.tsv");
        let mut rows = 0;
        for line in table.lines().skip(1) {
            let mut fields = line.split('\t').map(|f| f.parse::<i64>().expect("table of integers"));
            let mut next = || fields.next().expect("three columns");
            let (distance, expected, row) = (next(), next(), next());
            assert_eq!(bucket(distance, 256, 512), expected, "distance {distance}");
            assert_eq!(V3.row(distance) as i64, row, "distance {distance}");
            rows += 1;
        }
        assert_eq!(rows, 1023);
    }

    #[test]
    fn anchors_and_symmetry() {
        let anchors =
            [(128, 128), (160, 149), (192, 166), (256, 192), (300, 207), (384, 229), (448, 243), (500, 254)];
        for (distance, expected) in anchors {
            assert_eq!(bucket(distance, 256, 512), expected);
            assert_eq!(bucket(-distance, 256, 512), -expected);
        }
    }

    #[test]
    fn only_the_rows_in_use_are_taken() {
        // facts: active rows by length.
        for (len, active) in [(16, 31), (32, 63), (64, 127), (128, 255), (256, 385), (384, 459), (512, 511)] {
            assert_eq!(V3.slots(len).count, active, "length {len}");
        }
        let slots = V3.slots(512);
        assert_eq!(slots.first, 1, "row 0 is never used up to 512 tokens");
        assert_eq!(slots.of_distance[511], 255, "distance 0 is row 256");
        assert_eq!(V3.slots(1).of_distance, [0]);
    }

    #[test]
    fn without_buckets_the_distance_is_clamped() {
        let plain = Buckets { span: 4, bucket_count: 0, max_distance: 4 };
        assert_eq!([-9, -4, -1, 0, 3, 9].map(|d| plain.row(d)), [0, 0, 3, 4, 7, 7]);
    }
}
