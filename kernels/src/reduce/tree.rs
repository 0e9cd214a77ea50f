//! The canonical order: which contributions are combined with which.
//!
//! A balanced binary tree over node-major ranks: the ranks of each node first, then the nodes. For a count n
//! that is no power of two, the first 2r items are combined in pairs, r = n - 2^floor(log2 n), and balanced
//! halves follow. Recursive doubling and the hierarchical plan sum in this order by themselves, so it is the
//! one order in which all algorithms agree bit by bit; its error grows with log n.

/// One step of an evaluation over a stack of blocks. Numbers are indices of contributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Pushes x.
    One(usize),
    /// Pushes x + y.
    Two(usize, usize),
    /// Pushes (x + y) + z.
    Three(usize, usize, usize),
    /// Pushes (x + y) + (z + w).
    Four([usize; 4]),
    /// Replaces the top t by t + x.
    Right(usize),
    /// Replaces the top t by x + t.
    Left(usize),
    /// Replaces the two uppermost, t on top of s, by s + t.
    Fold,
}

enum Node {
    Leaf(usize),
    Sum(Box<[Node; 2]>),
}

impl Node {
    fn leaf(&self) -> Option<usize> {
        if let Self::Leaf(i) = self { Some(*i) } else { None }
    }

    fn pair(&self) -> Option<[usize; 2]> {
        if let Self::Sum(s) = self { Some([s[0].leaf()?, s[1].leaf()?]) } else { None }
    }

    /// Appends the steps that push this node.
    fn compile(&self, steps: &mut Vec<Step>) {
        let Self::Sum(sides) = self else {
            return steps.extend(self.leaf().map(Step::One));
        };
        let [left, right] = &**sides;
        match (left.leaf(), left.pair(), right.leaf(), right.pair()) {
            (Some(x), _, Some(y), _) => steps.push(Step::Two(x, y)),
            (_, Some([x, y]), Some(z), _) => steps.push(Step::Three(x, y, z)),
            (_, Some([x, y]), _, Some([z, w])) => steps.push(Step::Four([x, y, z, w])),
            (_, _, Some(x), _) => {
                left.compile(steps);
                steps.push(Step::Right(x));
            }
            (Some(x), _, _, _) => {
                right.compile(steps);
                steps.push(Step::Left(x));
            }
            _ => {
                left.compile(steps);
                right.compile(steps);
                steps.push(Step::Fold);
            }
        }
    }
}

/// Combines the values of all ranks, `groups[i]` of them in the i-th node, in the canonical order.
///
/// `leaf` gives a rank's value, or none if the rank does not take part: its partner's value goes up alone. The result is
/// none if nobody does.
pub fn fold<T>(
    groups: &[usize],
    mut leaf: impl FnMut(usize) -> Option<T>,
    mut combine: impl FnMut(T, T) -> T,
) -> Option<T> {
    let mut next = 0;
    let mut nodes = Vec::with_capacity(groups.len());
    for &len in groups {
        nodes.push(balanced((next..next + len).map(&mut leaf).collect(), &mut combine));
        next += len;
    }
    balanced(nodes, &mut combine)
}

fn balanced<T>(mut items: Vec<Option<T>>, combine: &mut impl FnMut(T, T) -> T) -> Option<T> {
    if items.is_empty() {
        return None;
    }
    let whole = 1 << items.len().ilog2();
    let extra = items.len() - whole;
    let mut rest = items.split_off(2 * extra);
    let mut level = pairs(items, combine);
    level.append(&mut rest);
    while level.len() > 1 {
        level = pairs(level, combine);
    }
    level.pop().flatten()
}

fn pairs<T>(items: Vec<Option<T>>, combine: &mut impl FnMut(T, T) -> T) -> Vec<Option<T>> {
    let mut items = items.into_iter();
    let both = || match (items.next()?, items.next()?) {
        (Some(a), Some(b)) => Some(Some(combine(a, b))),
        (one, other) => Some(one.or(other)),
    };
    std::iter::from_fn(both).collect()
}

/// The order in which the contributions that exist are combined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    pub(super) steps: Vec<Step>,
    /// Blocks that the stack holds at most.
    pub(super) depth: usize,
    /// Contributions, present or not.
    pub(super) inputs: usize,
}

impl Tree {
    /// The order over nodes of so many ranks each, in which only the ranks that `present` names take part.
    ///
    /// # Examples
    /// ```
    /// # use muster_kernels::reduce::Tree;
    /// let all = Tree::new(&[2, 2], |_| true);
    /// assert_eq!(all.inputs(), 4);
    /// ```
    pub fn new(groups: &[usize], present: impl Fn(usize) -> bool) -> Self {
        let leaf = |rank| present(rank).then_some(Node::Leaf(rank));
        let root = fold(groups, leaf, |left, right| Node::Sum(Box::new([left, right])));
        let mut steps = Vec::new();
        if let Some(root) = root {
            root.compile(&mut steps);
        }
        let (mut now, mut depth) = (0_usize, 0);
        for step in &steps {
            match step {
                Step::Right(_) | Step::Left(_) => {}
                Step::Fold => now -= 1,
                _ => now += 1,
            }
            depth = depth.max(now);
        }
        Self { steps, depth, inputs: groups.iter().sum() }
    }

    /// Contributions it was made for, present or not.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The contributions that take part.
    pub(super) fn leaves(&self) -> impl Iterator<Item = usize> {
        self.steps.iter().flat_map(|step| match *step {
            Step::One(i) | Step::Right(i) | Step::Left(i) => vec![i],
            Step::Two(i, j) => vec![i, j],
            Step::Three(i, j, k) => vec![i, j, k],
            Step::Four(all) => all.to_vec(),
            Step::Fold => vec![],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(groups: &[usize], absent: &[usize]) -> String {
        let mut stack: Vec<String> = Vec::new();
        let tree = Tree::new(groups, |r| !absent.contains(&r));
        for step in &tree.steps {
            let next = match *step {
                Step::One(x) => format!("{x}"),
                Step::Two(x, y) => format!("({x}{y})"),
                Step::Three(x, y, z) => format!("(({x}{y}){z})"),
                Step::Four([x, y, z, w]) => format!("(({x}{y})({z}{w}))"),
                Step::Right(x) => format!("({}{x})", stack.pop().unwrap()),
                Step::Left(x) => format!("({x}{})", stack.pop().unwrap()),
                Step::Fold => {
                    let top = stack.pop().unwrap();
                    format!("({}{top})", stack.pop().unwrap())
                }
            };
            stack.push(next);
            assert!(stack.len() <= tree.depth);
        }
        stack.concat()
    }

    #[test]
    fn the_order_is_the_one_worked_out_by_hand() {
        assert_eq!(text(&[1], &[]), "0");
        assert_eq!(text(&[2], &[]), "(01)");
        assert_eq!(text(&[3], &[]), "((01)2)");
        assert_eq!(text(&[4], &[]), "((01)(23))");
        assert_eq!(text(&[5], &[]), "(((01)2)(34))");
        assert_eq!(text(&[6], &[]), "(((01)(23))(45))");
        assert_eq!(text(&[7], &[]), "(((01)(23))((45)6))");
        assert_eq!(text(&[8], &[]), "(((01)(23))((45)(67)))");
        assert_eq!(text(&[9], &[]), "((((01)2)(34))((56)(78)))");
        assert_eq!(text(&[1; 5], &[]), text(&[5], &[]));
        assert_eq!(text(&[3, 1, 2], &[]), "((((01)2)3)(45))");
        assert_eq!(text(&[4, 4], &[]), text(&[8], &[]));
    }

    #[test]
    fn an_absent_contribution_leaves_the_others_where_they_are() {
        assert_eq!(text(&[4], &[0]), "(1(23))");
        assert_eq!(text(&[8], &[3, 5]), "(((01)2)(4(67)))");
        assert_eq!(text(&[2, 2], &[0, 1]), "(23)");
        assert_eq!(text(&[2], &[0, 1]), "");
        assert_eq!(text(&[], &[]), "");
        assert_eq!(text(&[0, 2, 0], &[]), "(01)");
    }
}
