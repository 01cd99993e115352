//! Loops in machine code: which instructions can come back to themselves.
//!
//! By the graph of branches, not by the ranges between a branch and a target before it: compilers put rare paths behind the
//! end, from where they branch back into the middle of straight code.

/// What decides where an instruction goes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its address.
    pub(crate) address: u64,
    /// Where it may branch to.
    pub(crate) target: Option<u64>,
    /// Whether the instruction after it never follows.
    pub(crate) ends: bool,
}

impl Step {
    /// Of an instruction as cuobjdump writes it. Calls count as steps to the next instruction, and a branch to an address
    /// that is computed as an end: its targets are not known, so that loops with one count for nothing.
    pub(crate) fn new(address: u64, predicated: bool, opcode: &str, operands: &str) -> Step {
        let operands = operands.trim();
        let last = operands.rsplit(',').next().unwrap_or("").trim();
        let target = last.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        match opcode.split('.').next().unwrap_or("") {
            // Those with a predicate among the operands, and those that ask whether lanes differ, may go on as well.
            "BRA" => Step { address, target, ends: !predicated && !operands.contains(',') },
            "EXIT" | "RET" | "BRX" | "BRXU" | "JMP" | "JMX" | "JMXU" => {
                Step { address, target: None, ends: !predicated }
            }
            _ => Step { address, target: None, ends: false },
        }
    }
}

/// The loops of a function, outermost ones: places of their instructions in `steps`, which are in order of address.
///
/// They are the strongly connected components of more than one instruction (Tarjan 1972, without recursion).
pub(crate) fn loops(steps: &[Step]) -> Vec<Vec<usize>> {
    const NEW: usize = usize::MAX;
    let next = |i: usize| {
        let target = steps[i].target.and_then(|at| steps.binary_search_by_key(&at, |s| s.address).ok());
        let after = Some(i + 1).filter(|after| !steps[i].ends && *after < steps.len());
        [target, after]
    };
    let (mut order, mut low) = (vec![NEW; steps.len()], vec![NEW; steps.len()]);
    let (mut path, mut open, mut is_open) = (Vec::new(), Vec::new(), vec![false; steps.len()]);
    let (mut count, mut found) = (0, Vec::new());
    for start in 0..steps.len() {
        if order[start] == NEW {
            path.push((start, 0));
        }
        while let Some((at, edge)) = path.pop() {
            if edge == 0 {
                (order[at], low[at]) = (count, count);
                count += 1;
                open.push(at);
                is_open[at] = true;
            }
            if let Some(to) = next(at).get(edge) {
                path.push((at, edge + 1));
                match *to {
                    Some(to) if order[to] == NEW => path.push((to, 0)),
                    Some(to) if is_open[to] => low[at] = low[at].min(order[to]),
                    _ => {}
                }
                continue;
            }
            if let Some((before, _)) = path.last() {
                low[*before] = low[*before].min(low[at]);
            }
            if low[at] == order[at] {
                let first = open.iter().rposition(|i| *i == at).unwrap_or(0);
                let mut component = open.split_off(first);
                component.iter().for_each(|i| is_open[*i] = false);
                component.sort_unstable();
                if component.len() > 1 {
                    found.push(component);
                }
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines such as `@P0 BRA 3`; addresses are places.
    fn of(code: &[&str]) -> Vec<Vec<usize>> {
        let step = |(i, line): (usize, &&str)| {
            let predicated = line.starts_with('@');
            let line = if predicated { line.split_once(' ').unwrap().1 } else { line };
            let (opcode, operands) = line.split_once(' ').unwrap_or((line, ""));
            Step::new(i as u64, predicated, opcode, operands)
        };
        loops(&code.iter().enumerate().map(step).collect::<Vec<_>>())
    }

    #[test]
    fn loops_are_what_comes_back() {
        assert_eq!(of(&["LDG R1, 0x1", "FADD R1", "@P0 BRA 0x1", "STG", "EXIT", "BRA 0x5"]), [vec![1, 2]]);
        // A main loop and a loop for the rest.
        let two = ["IADD", "@!P0 BRA 0x0", "@P0 EXIT", "LDG", "BRA P1, 0x3", "EXIT"];
        assert_eq!(of(&two), [vec![0, 1], vec![3, 4]]);
        // One within another is one.
        assert_eq!(of(&["A", "B", "@P0 BRA 0x1", "@P1 BRA 0x0", "EXIT"]), [vec![0, 1, 2, 3]]);
        // A rare path behind the end: no loop, though it branches back over most of the code.
        assert_eq!(of(&["@P0 BRA 0x4", "LDG", "STG", "EXIT", "MUFU", "BRA 0x1"]), [[0; 0]; 0]);
        // The same within a loop belongs to it.
        assert_eq!(
            of(&["BRA.DIV UR4, 0x4", "LDG", "@P0 BRA 0x0", "EXIT", "MUFU", "BRA 0x1"]),
            [vec![0, 1, 2, 4, 5]]
        );
        assert_eq!(of(&["BRX R2 -0x10", "A", "RET.REL.NODEC R2 0x0"]), [[0; 0]; 0]);
    }
}
