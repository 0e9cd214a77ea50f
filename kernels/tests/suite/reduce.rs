use bytemuck::{bytes_of, cast_slice};
use half::{bf16, f16};
use muster_kernels::isa::{self, Isa};
use muster_kernels::reduce::{Number, ReduceOp, Reduction, Stores, Tree, reduce};
use muster_kernels::{reference, rng};

use crate::common::{LENGTHS, isas};

const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];
/// Ranks per node: every tree of up to nine ranks on one node, and some hierarchies.
const GROUPS: [&[usize]; 15] = [
    &[1],
    &[2],
    &[3],
    &[4],
    &[5],
    &[6],
    &[7],
    &[8],
    &[9],
    &[2, 2],
    &[3, 1, 2],
    &[1; 6],
    &[5, 4, 3, 2, 1],
    &[8, 8],
    &[33],
];

/// Random bytes: for floats that means normal numbers of every size, and some NaN, infinities and subnormals.
fn wild<T: Number>(key: u64, n: usize) -> Vec<T> {
    let odd: [T; 4] = [[0_u8, 0], [0, 0x80], [0x80, 0x7f], [1, 0]].map(|top| {
        let mut bytes = vec![0; size_of::<T>()];
        bytes[size_of::<T>() - 2..].copy_from_slice(&top);
        bytemuck::pod_read_unaligned(&bytes)
    });
    (0..n as u64)
        .map(|i| {
            let r = rng::uniform(key, i);
            let bits = rng::uniform(key + 7777, i).to_bits() ^ rng::uniform(key + 5555, i).to_bits() << 11;
            let number = bytemuck::pod_read_unaligned(&bytes_of(&bits)[..size_of::<T>()]);
            if r < 0.02 { odd[(r * 200.0) as usize] } else { tame(number, r) }
        })
        .collect()
}

/// Most floats near 1, so that sums round instead of only keeping the largest.
fn tame<T: Number>(number: T, r: f64) -> T {
    if r < 0.2 || T::TYPE.is_integer() {
        return number;
    }
    let small = (r as f32 - 0.5) * 8.0;
    match T::TYPE.bytes() {
        2 if T::TYPE.name() == "f16" => bytemuck::pod_read_unaligned(bytes_of(&f16::from_f32(small))),
        2 => bytemuck::pod_read_unaligned(bytes_of(&bf16::from_f32(small))),
        4 => bytemuck::pod_read_unaligned(bytes_of(&small)),
        _ => bytemuck::pod_read_unaligned(bytes_of(&((r - 0.5) * 8.0))),
    }
}

fn divisor(weights: &[f32]) -> Option<f32> {
    Some(weights.iter().sum()).filter(|&sum| sum != 0.0)
}

struct Case<'a> {
    isa: Isa,
    op: ReduceOp,
    groups: &'a [usize],
    weights: &'a [f32],
    divisor: Option<f32>,
}

impl Case<'_> {
    fn check<I: Number, O: Number<Acc = I::Acc>>(&self, n: usize, offset: usize) {
        let k: usize = self.groups.iter().sum();
        let inputs: Vec<Vec<I>> = (0..k).map(|r| wild(100 + r as u64, n + offset)).collect();
        // Every seventh rank is absent.
        let inputs: Vec<Option<&[I]>> =
            inputs.iter().enumerate().map(|(r, x)| (r % 7 != 5).then_some(&x[offset..])).collect();
        let mut out = wild::<O>(1, n + offset);
        reduce(self.isa, self.op, self.groups, &inputs, self.weights, self.divisor, &mut out[offset..]);
        for (i, got) in out[offset..].iter().enumerate() {
            let column: Vec<Option<I>> = inputs.iter().map(|x| x.map(|x| x[i])).collect();
            let want: O = reference::reduce(self.op, self.groups, &column, self.weights, self.divisor);
            let same = bytes_of(got) == bytes_of(&want);
            let Self { isa, op, groups, weights, divisor } = self;
            assert!(
                same,
                "{} to {}, {op:?}, {isa}, {groups:?}, weights {weights:?}, divisor {divisor:?}, element {i} of {n} at \
                 {offset}: {got:?}, want {want:?} from {column:?}",
                I::TYPE,
                O::TYPE
            );
        }
    }
}

fn sweep<I: Number, O: Number<Acc = I::Acc>>() {
    for isa in isas() {
        for (g, groups) in GROUPS.into_iter().enumerate() {
            let k: usize = groups.iter().sum();
            let ones = vec![1.0; k];
            let mixed: Vec<f32> = (0..k).map(|r| [1.0, 0.0, 0.3, 2.5][(r + g) % 4]).collect();
            for op in OPS {
                for (weights, divisor) in [(&ones, None), (&mixed, divisor(&mixed)), (&ones, divisor(&ones))]
                {
                    let case = Case { isa, op, groups, weights, divisor };
                    let length = LENGTHS[(g + op as usize) % 13];
                    case.check::<I, O>(length, g % 3);
                    case.check::<I, O>(if g % 5 == 0 { 1100 } else { 67 }, 0);
                }
            }
        }
        let weights = [1.0, 1.0];
        let case = Case { isa, op: ReduceOp::Sum, groups: &[2], weights: &weights, divisor: None };
        for n in LENGTHS {
            case.check::<I, O>(n, n % 5);
        }
    }
}

#[test]
fn every_type_matches_the_reference_bit_by_bit() {
    sweep::<f32, f32>();
    sweep::<f64, f64>();
    sweep::<bf16, bf16>();
    sweep::<f16, f16>();
    sweep::<i32, i32>();
    sweep::<i64, i64>();
}

#[test]
fn small_floats_go_in_and_out_of_f32() {
    sweep::<bf16, f32>();
    sweep::<f32, bf16>();
    sweep::<f16, f32>();
}

#[test]
fn values_worked_out_by_hand() {
    let isa = isa::selected();
    let run = |op, inputs: &[Option<&[f32]>], weights: &[f32], divisor| {
        let mut out = [9.0_f32; 2];
        reduce(isa, op, &[inputs.len()], inputs, weights, divisor, &mut out);
        out
    };
    let (a, b, c) = ([1.0, f32::NAN], [2.5, 1.0], [-4.0, f32::INFINITY]);
    let all = [Some(&a[..]), Some(&b[..]), Some(&c[..])];
    assert_eq!(run(ReduceOp::Sum, &all, &[1.0, 2.0, 0.0], Some(3.0))[0], 2.0);
    assert_eq!(run(ReduceOp::Min, &all, &[1.0; 3], None)[0], -4.0);
    assert!(run(ReduceOp::Max, &all, &[1.0; 3], None)[1].is_nan());
    assert_eq!(run(ReduceOp::Max, &all, &[0.0, 1.0, 1.0], None), [2.5, f32::INFINITY]);
    assert_eq!(run(ReduceOp::Sum, &[None, None], &[1.0; 2], Some(2.0)), [0.0; 2]);
    assert_eq!(run(ReduceOp::Min, &[None], &[1.0], None), [f32::INFINITY; 2]);
    let mut wrapped = [0_i32];
    reduce(isa, ReduceOp::Sum, &[2], &[Some(&[i32::MAX][..]), Some(&[1][..])], &[1.0; 2], None, &mut wrapped);
    assert_eq!(wrapped, [i32::MIN]);
    // 1 + 2^-8 + 2^-8 is representable in bf16 only if nothing was rounded in between.
    let small = [bf16::from_f32(1.0), bf16::from_f32(1.0 / 256.0), bf16::from_f32(1.0 / 256.0)];
    let mut sum = [bf16::ZERO];
    reduce(
        isa,
        ReduceOp::Sum,
        &[3],
        &small.each_ref().map(|x| Some(std::slice::from_ref(x))),
        &[1.0; 3],
        None,
        &mut sum,
    );
    assert_eq!(sum[0].to_f32(), 1.0 + 1.0 / 128.0);
}

/// Outputs may be the inputs themselves, several at once, at any alignment, and past the caches.
#[test]
fn in_place_to_all_equals_out_of_place() {
    for isa in isas() {
        for n in [0, 1, 15, 512, 1777] {
            for offset in [0, 3] {
                for stores in [Stores::Cached, Stores::Streaming] {
                    let mut buffers: Vec<Vec<f32>> = (0..3).map(|r| wild(r, n + offset)).collect();
                    let copies = buffers.clone();
                    let inputs: Vec<_> = copies.iter().map(|x| Some(&x[offset..])).collect();
                    let mut want = vec![0.0_f32; n];
                    reduce(isa, ReduceOp::Sum, &[3], &inputs, &[1.0; 3], Some(3.0), &mut want);
                    let outs: Vec<_> = buffers.iter_mut().map(|x| x[offset..].as_mut_ptr()).collect();
                    let ins: Vec<_> = outs.iter().map(|p| p.cast_const()).collect();
                    let tree = Tree::new(&[3], |_| true);
                    let r = Reduction {
                        isa,
                        op: ReduceOp::Sum,
                        tree: &tree,
                        weights: &[1.0; 3],
                        divisor: Some(3.0),
                        stores,
                    };
                    // SAFETY: three separate vectors of n elements behind the offset, used by nobody else.
                    unsafe { r.run_raw(&ins, &outs, n) };
                    for (buffer, copy) in buffers.iter().zip(&copies) {
                        assert_eq!(cast_slice::<_, u8>(&buffer[offset..]), cast_slice::<_, u8>(&want));
                        assert_eq!(
                            cast_slice::<_, u8>(&buffer[..offset]),
                            cast_slice::<_, u8>(&copy[..offset])
                        );
                    }
                }
            }
        }
    }
}
