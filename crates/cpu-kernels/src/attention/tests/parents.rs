//! Documents that continue another: equal to the same documents laid out whole.

use std::ops::Range;

use super::case::{Case, Problem};
use super::{assert_close, for_each_path, pool, reference, widen};
use crate::attention::{AttentionGrad, AttentionOut, attention_backward, attention_forward};

/// Prompts with the lengths of what continues each.
type Tree<'a> = &'a [(usize, &'a [usize])];

/// All prompts and continuations, with the rows of the whole layout that each row stands for, and where each whole
/// document lies. Continuations lie behind all prompts, in turns.
fn shared(case: Case, tree: Tree<'_>, seed: u64) -> (Problem, Problem, Vec<Vec<usize>>) {
    let whole: Vec<usize> = tree.iter().flat_map(|(p, own)| own.iter().map(move |n| p + n)).collect();
    let mut apart = Case::new(case.heads, case.kv_heads, case.head_dim, &whole);
    (apart.window, apart.softcap, apart.slopes) = (case.window, case.softcap, case.slopes.clone());
    (apart.rotary_dim, apart.norm) = (case.rotary_dim, case.norm);
    let mut once = apart.clone();
    (once.documents, once.parents) = (vec![], vec![]);
    let mut stands: Vec<Vec<usize>> = vec![];
    let push =
        |once: &mut Case, rows: Vec<Vec<usize>>, parent: Option<usize>, stands: &mut Vec<Vec<usize>>| {
            once.documents.push(stands.len()..stands.len() + rows.len());
            once.parents.push(parent);
            stands.extend(rows);
        };
    let mut starts: Vec<Range<usize>> = apart.documents.clone();
    starts.reverse();
    let mut later = vec![];
    for (prompt, own) in tree {
        let copies: Vec<Range<usize>> = own.iter().filter_map(|_| starts.pop()).collect();
        let rows = (0..*prompt).map(|i| copies.iter().map(|c| c.start + i).collect()).collect();
        let parent = once.documents.len();
        push(&mut once, rows, None, &mut stands);
        for (turn, copy) in copies.into_iter().enumerate() {
            later.push((turn, parent, copy.start + prompt..copy.end));
        }
    }
    later.sort_by_key(|(turn, ..)| *turn);
    for (_, parent, rows) in later {
        push(&mut once, rows.map(|r| vec![r]).collect(), Some(parent), &mut stands);
    }
    once.rows = stands.len();
    let (mut apart, mut once) = (apart.problem(seed), once.problem(seed));
    let (width, out) = (apart.qkv.len() / apart.case.rows, apart.d_out.len() / apart.case.rows);
    for (row, copies) in stands.iter().enumerate() {
        let own = once.qkv[row * width..][..width].to_vec();
        copies.iter().for_each(|&c| apart.qkv[c * width..][..width].copy_from_slice(&own));
        // What flows into a prompt's output flows into one of its copies.
        let own = once.d_out[row * out..][..out].to_vec();
        for (i, &c) in copies.iter().enumerate() {
            apart.d_out[c * out..][..out].copy_from_slice(&own);
            if i > 0 {
                apart.d_out[c * out..][..out].fill(0.0);
            }
        }
        once.positions[row] = apart.positions[copies[0]];
    }
    once.table.clone_from(&apart.table);
    (once, apart, stands)
}

fn run(p: &Problem) -> (AttentionOut, AttentionGrad) {
    let (rotary, norm) = (p.rotary(), p.norm());
    let f = attention_forward(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref());
    let g = attention_backward(&p.qkv, &p.shape(), rotary.as_ref(), norm.as_ref(), &f.out, &f.lse, &p.d_out);
    (f, g)
}

fn check(case: Case, tree: Tree<'_>, seed: u64) {
    let (p, apart, stands) = shared(case, tree, seed);
    let (rotary, norm, qkv) = (apart.rotary(), apart.norm(), widen(&apart.qkv));
    let want = reference::forward(&qkv, &apart.shape(), rotary.as_ref(), norm.as_ref());
    let slopes =
        reference::backward(&qkv, &apart.shape(), rotary.as_ref(), norm.as_ref(), &widen(&apart.d_out));
    let of = |all: &[f64], sums: bool| -> Vec<f64> {
        let width = all.len() / apart.case.rows;
        let copies = |copies: &Vec<usize>| if sums { copies.clone() } else { vec![copies[0]] };
        let row = |c: &Vec<usize>| -> Vec<f64> {
            (0..width).map(|i| copies(c).iter().map(|r| all[r * width + i]).sum()).collect()
        };
        stands.iter().flat_map(row).collect()
    };
    let label = |what: &str| format!("{what} of {:?}", p.case);
    for_each_path(|| {
        let (f, g) = run(&p);
        assert_close(&label("out"), &f.out, &of(&want.out, false), 2e-6);
        assert_close(&label("lse"), &f.lse, &of(&want.lse, false), 2e-6);
        assert_close(&label("dqkv"), &g.dqkv, &of(&slopes.dqkv, true), 6e-6);
        if let (Some(q), Some(k)) = (&g.dq_norm, &g.dk_norm) {
            assert_close(&label("dq_norm"), q, &slopes.dq_norm, 6e-6);
            assert_close(&label("dk_norm"), k, &slopes.dk_norm, 6e-6);
        }
    });
}

fn cases() -> Vec<(Case, Tree<'static>)> {
    vec![
        (Case::new(2, 1, 6, &[]).rotary(6), &[(5, &[3, 1])]),
        (Case::new(4, 2, 32, &[]).rotary(32).norm(), &[(70, &[9, 40, 0, 33]), (1, &[5, 4]), (12, &[100])]),
        (Case::new(3, 3, 18, &[]).rotary(10).softcap(1.0), &[(40, &[64, 64]), (0, &[7, 8])]),
        // Windows that end in the prompt, at its end, and before.
        (Case::new(4, 2, 64, &[]).rotary(64).window(16), &[(50, &[40, 3]), (9, &[30, 8])]),
        (Case::new(2, 1, 16, &[]).rotary(16).window(1), &[(5, &[3, 4])]),
        // Prompts of several runs of keys.
        (Case::new(2, 1, 16, &[]).rotary(16).norm(), &[(1400, &[90, 1100])]),
        (Case::new(1, 1, 8, &[]).window(1100).softcap(3.0), &[(1024, &[600, 20])]),
        (Case::new(4, 2, 8, &[]).slopes(), &[(40, &[64, 9]), (1030, &[20])]),
    ]
}

#[test]
fn continued_documents_equal_whole_ones() {
    for (i, (case, tree)) in cases().into_iter().enumerate() {
        check(case, tree, 31 * i as u64 + 1);
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    for (case, tree) in cases() {
        let (p, ..) = shared(case, tree, 3);
        let of = |threads| {
            pool(threads).install(|| {
                let (f, g) = run(&p);
                (f.out, f.lse, g.dqkv, g.dq_norm, g.dk_norm)
            })
        };
        let one = of(1);
        for threads in [2, 16, 64] {
            assert!(of(threads) == one, "{threads} threads differ from one on {:?}", p.case);
        }
    }
}

#[test]
#[should_panic(expected = "expected one of 3 that continues none")]
fn a_document_that_continues_one_that_continues_another_is_refused() {
    let mut case = Case::new(1, 1, 4, &[4, 4, 4]);
    case.parents = vec![None, Some(0), Some(1)];
    run(&case.problem(1));
}
