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
    fn join(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        match (left, right) {
            (Some(l), Some(r)) => Some(Self::Sum(Box::new([l, r]))),
            // An absent contribution is the identity: the other side alone.
            (one, other) => one.or(other),
        }
    }

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

/// Combines items in the balanced order.
fn balanced(mut items: Vec<Option<Node>>) -> Option<Node> {
    if items.is_empty() {
        return None;
    }
    let whole = 1 << items.len().ilog2();
    let extra = items.len() - whole;
    let mut rest = items.split_off(2 * extra);
    let mut level = pairs(items);
    level.append(&mut rest);
    while level.len() > 1 {
        level = pairs(level);
    }
    level.pop().flatten()
}

fn pairs(items: Vec<Option<Node>>) -> Vec<Option<Node>> {
    let mut items = items.into_iter();
    std::iter::from_fn(|| Some(Node::join(items.next()?, items.next()?))).collect()
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
        let mut rank = 0;
        let nodes = groups.iter().map(|&count| {
            let ranks = rank..rank + count;
            rank = ranks.end;
            balanced(ranks.map(|r| present(r).then_some(Node::Leaf(r))).collect())
        });
        let root = balanced(nodes.collect());
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
        Self { steps, depth, inputs: rank }
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
