//! Attention's output and log-sum-exp by tiles of 64 queries and 64 keys.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::score::{Form, HIDDEN, Numbers, Rows, score, sees, sight, slope_of};
use super::tile::{self, Four, PITCH, SIDE, SLAB, TILE};

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend<E: Float>(
    q: &[E],
    k: &[E],
    v: &[E],
    plan: &[u32],
    slopes: &[f32],
    sinks: &[f32],
    out: &mut [E],
    sums: &mut [f32],
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[define(E)] _operands: ElemType,
) {
    let head_dim = comptime!(form.head_dim);
    let blocks = comptime!(head_dim.div_ceil(TILE));
    let heads = CUBE_COUNT_Y as usize;
    let head = CUBE_POS_Y as usize;
    // The last tiles see most: they begin first.
    let tile = numbers.tiles - 1 - CUBE_POS_X as usize;
    let tokens = numbers.tokens;
    let row = tile * TILE;
    let (x, y) = (UNIT_POS as usize % SIDE, UNIT_POS as usize / SIDE);

    let mut left = Shared::<[Four]>::new_slice(comptime!(SLAB * PITCH));
    let mut right = Shared::<[Four]>::new_slice(comptime!(tile::right(head_dim)));
    let mut shares = Shared::<[Four]>::new_slice(comptime!(TILE * PITCH));
    let mut scores = Array::<Four>::new(4usize);
    let mut held = Array::<Four>::new(comptime!(4 * blocks));
    #[unroll]
    for i in 0..comptime!(4 * blocks) {
        held[i] = Four::new(0.0);
    }
    let slope = slope_of(slopes, head, form);
    // Of this unit's 4 rows: the largest score so far; the sum of the shares that this unit has seen.
    let mut top = Four::new(HIDDEN);
    let mut sum = Four::new(0.0);
    if comptime!(form.sinks) {
        top = Four::new(sinks[head]);
        if x == 0 {
            sum = Four::new(1.0);
        }
    }
    let kv = head / form.group;
    let q_first = of_q.first + head * of_q.head;
    let k_first = of_k.first + kv * of_k.head;
    let v_first = of_v.first + kv * of_v.head;

    for range in plan[numbers.ranges + tile] as usize..plan[numbers.ranges + tile + 1] as usize {
        let pair = numbers.ranges + numbers.tiles + 1 + 2 * range;
        let end = plan[pair + 1] as usize;
        for key in range_stepped(plan[pair] as usize, end, TILE) {
            tile::product::<E>(
                q,
                q_first,
                of_q.stride,
                row,
                tokens,
                k,
                k_first,
                of_k.stride,
                key,
                end,
                &mut left,
                &mut right,
                &mut scores,
                head_dim,
            );
            let mut largest = top;
            #[unroll]
            for i in 0..4usize {
                let query = row + y * 4 + i;
                let sight = sight(plan, tokens, query, form);
                let mut four = scores[i];
                #[unroll]
                for j in 0..4usize {
                    let key = key + x * 4 + j;
                    let mut one = score(four.extract(j), &numbers, slope, query, key, form);
                    if key >= end || !sees(&sight, query, key, form) {
                        one = f32::new(HIDDEN);
                    }
                    four.insert(j, one);
                    largest.insert(i, max(largest.extract(i), one));
                }
                scores[i] = four;
            }
            // The largest of each row, of all units that have some of it.
            sync_cube();
            left[x * SIDE + y] = largest;
            sync_cube();
            for i in 0..SIDE {
                largest = max(largest, left[i * SIDE + y]);
            }
            let less = (top - largest).exp();
            top = largest;
            sum *= less;
            #[unroll]
            for i in 0..4usize {
                let mut four = scores[i];
                #[unroll]
                for j in 0..4usize {
                    let one = four.extract(j);
                    let share = select(one <= HIDDEN, 0.0, (one - top.extract(i)).exp());
                    four.insert(j, share);
                    sum.insert(i, sum.extract(i) + share);
                }
                scores[i] = four;
                #[unroll]
                for block in 0..blocks {
                    held[block * 4 + i] *= Four::new(less.extract(i));
                }
            }
            tile::put_columns(&mut shares, &scores);
            tile::add_rows::<E>(
                &shares,
                v,
                v_first,
                of_v.stride,
                key,
                end,
                &mut right,
                &mut held,
                head_dim,
                comptime!(tile::depth(head_dim)),
            );
        }
    }
    sync_cube();
    left[x * SIDE + y] = sum;
    sync_cube();
    sum = Four::new(0.0);
    for i in 0..SIDE {
        sum += left[i * SIDE + y];
    }
    #[unroll]
    for i in 0..4usize {
        let query = row + y * 4 + i;
        let of_row = sum.extract(i);
        if query < tokens {
            if x == 0 {
                sums[head * tokens + query] = top.extract(i) + of_row.ln();
            }
            #[unroll]
            for block in 0..blocks {
                #[unroll]
                for j in 0..4usize {
                    let column = block * TILE + x * 4 + j;
                    if column < head_dim {
                        let one = select(of_row == 0.0, 0.0, held[block * 4 + i].extract(j) / of_row);
                        out[(query * heads + head) * head_dim + column] = E::cast_from(one);
                    }
                }
            }
        }
    }
}
