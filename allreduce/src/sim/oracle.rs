//! What the results must be, one element at a time.

use half::{bf16, f16};
use muster_kernels::reference;

use crate::element::{DataType, Element, Operation};
use crate::order;

/// The reduction of everybody's bytes.
pub(super) fn reduce(
    types: (DataType, DataType),
    operation: Operation,
    nodes: &[usize],
    inputs: &[Vec<u8>],
    weights: &[f32],
) -> Vec<u8> {
    match types {
        (DataType::F32, DataType::Bf16) => {
            let rounded: Vec<Vec<u8>> = inputs.iter().map(|x| to_bf16(x)).collect();
            to_f32(&typed::<bf16>(operation, nodes, &rounded, weights))
        }
        (DataType::F32, _) => typed::<f32>(operation, nodes, inputs, weights),
        (DataType::F64, _) => typed::<f64>(operation, nodes, inputs, weights),
        (DataType::Bf16, _) => typed::<bf16>(operation, nodes, inputs, weights),
        (DataType::F16, _) => typed::<f16>(operation, nodes, inputs, weights),
        (DataType::I32, _) => typed::<i32>(operation, nodes, inputs, weights),
        (DataType::I64, _) => typed::<i64>(operation, nodes, inputs, weights),
    }
}

fn typed<T: Element>(operation: Operation, nodes: &[usize], inputs: &[Vec<u8>], weights: &[f32]) -> Vec<u8> {
    let inputs: Vec<Vec<T>> = inputs.iter().map(|x| bytemuck::pod_collect_to_vec(x)).collect();
    let total = order::total_weight(nodes, weights);
    if total == 0.0 {
        return vec![0; size_of::<T>() * inputs[0].len()];
    }
    let divisor = (operation == Operation::Mean).then_some(total);
    let at = |i: usize| -> T {
        let parts: Vec<Option<T>> = inputs.iter().map(|x| Some(x[i])).collect();
        reference::reduce::<T, T>(operation.reduction(), nodes, &parts, weights, divisor)
    };
    let out: Vec<T> = (0..inputs[0].len()).map(at).collect();
    bytemuck::cast_slice(&out).to_vec()
}

fn to_bf16(bytes: &[u8]) -> Vec<u8> {
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
    let rounded: Vec<bf16> = values.into_iter().map(<bf16 as Element>::narrow).collect();
    bytemuck::cast_slice(&rounded).to_vec()
}

fn to_f32(bytes: &[u8]) -> Vec<u8> {
    let values: Vec<bf16> = bytemuck::pod_collect_to_vec(bytes);
    let wide: Vec<f32> = values.into_iter().map(Element::widen).collect();
    bytemuck::cast_slice(&wide).to_vec()
}
