//! Kernels written by hand, on memory of the test's own.

#![allow(clippy::unwrap_used, reason = "tests")]

mod device;

use device::{Device, kernel};
use ptx::{Module, Space, Wrong};

const HEAD: &str = ".version 8.8\n.target sm_90a\n.address_size 64\n";

/// `y[i] = a x[i] + y[i]`, and no more than `n` of them.
const SCALED_SUM: &str = r"
.visible .entry scaled_sum(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
.maxntid 64, 1, 1
{
    .reg .pred %p<2>;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    .loc 1 2 3
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra $L__end;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.nc.f32 %f2, [%rd6];
    ld.global.f32 %f3, [%rd7];
    fma.rn.f32 %f4, %f1, %f2, %f3; // a x + y
    st.global.f32 [%rd7], %f4;
$L__end:
    ret;
}
";

#[test]
fn blocks_cover_a_vector_and_stop_at_its_end() {
    let device = Device::default();
    let x = device.put(&(0..100).map(|i| i as f32 * 0.25).collect::<Vec<_>>());
    let y = device.put(&vec![1.0_f32; 100]);
    let module = kernel(&format!("{HEAD}{SCALED_SUM}"));
    let arguments = [x.to_le_bytes().to_vec(), y.to_le_bytes().to_vec(), 3.0_f32.to_le_bytes().to_vec()];
    let run = |n: u32| {
        let arguments: Vec<Vec<u8>> = arguments.iter().cloned().chain([n.to_le_bytes().to_vec()]).collect();
        device.run(&module, "scaled_sum", [2, 1, 1], [64, 1, 1], &arguments)
    };
    let done = run(100).unwrap();
    assert_eq!((done.read, done.written), (800, 400));
    let got = device.get::<f32>(y, 100);
    assert!(got.iter().enumerate().all(|(i, &y)| y == 1.0 + 0.75 * i as f32), "{got:?}");
    // 28 threads of the second block would read and write beyond the end.
    let fault = run(128).unwrap_err();
    assert_eq!((fault.block, fault.thread), ([1, 0, 0], [36, 0, 0]));
    assert!(matches!(fault.what, Wrong::Address { space: Space::Global, bytes: 4, .. }), "{fault}");
    assert!(fault.is_of_memory() && fault.to_string().contains("scaled_sum, line 26"), "{fault}");
}

/// The sum of a block's numbers: in warps by shuffles, over warps through shared memory.
fn block_sum(before: &str, barrier: &str) -> String {
    format!(
        r"{HEAD}
.visible .entry block_sum(.param .u64 out)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 part[16];
    .shared .align 8 .b8 door[8];
    mov.u32 %r1, %tid.x;
    mov.u32 %r10, door;
    {before}
    mov.b32 %r2, %r1;
    mov.b32 %r3, 16;
$again:
    shfl.sync.bfly.b32 %r4|%p1, %r2, %r3, 31, -1;
    add.s32 %r2, %r2, %r4;
    shr.u32 %r3, %r3, 1;
    setp.ne.s32 %p1, %r3, 0;
    @%p1 bra $again;
    and.b32 %r5, %r1, 31;
    setp.ne.s32 %p2, %r5, 0;
    shr.u32 %r6, %r1, 5;
    shl.b32 %r7, %r6, 2;
    mov.u32 %r8, part;
    add.s32 %r9, %r8, %r7;
    @!%p2 st.shared.u32 [%r9], %r2;
    {barrier}
    setp.ne.s32 %p2, %r1, 0;
    @%p2 bra $end;
    ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [part];
    add.s32 %r2, %r2, %r3;
    add.s32 %r4, %r4, %r5;
    add.s32 %r2, %r2, %r4;
    ld.param.u64 %rd1, [out];
    red.global.add.u32 [%rd1], %r2;
$end:
    ret;
}}
"
    )
}

#[test]
fn a_block_sums_through_shared_memory_and_a_missing_barrier_is_a_race() {
    let device = Device::default();
    let out = device.put(&[5_u32]);
    let run = |before: &str, barrier: &str| {
        let module = kernel(&block_sum(before, barrier));
        device.run(&module, "block_sum", [1, 1, 1], [128, 1, 1], &[out.to_le_bytes().to_vec()])
    };
    let races = |before: &str, barrier: &str| {
        let fault = run(before, barrier).unwrap_err();
        assert!(matches!(fault.what, Wrong::Race { .. } | Wrong::Address { .. }), "{fault}");
    };
    run("", "bar.sync 0;").unwrap();
    assert_eq!(device.get::<u32>(out, 1), [5 + 127 * 128 / 2]);
    races("", "");
    let sum = device.get::<u32>(out, 1)[0];
    // The same over a barrier in memory, at which all threads arrive and wait.
    let begin = "setp.ne.s32 %p2, %r1, 0; mov.u32 %r11, 128;
                 @!%p2 mbarrier.init.shared.b64 [%r10], %r11; bar.sync 0;";
    let arrive = "mbarrier.arrive.shared::cta.b64 %rd2, [%r10];";
    let wait = "mov.b32 %r11, 0;
                $wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], %r11; @!%p1 bra $wait;";
    run(begin, &format!("{arrive} {wait}")).unwrap();
    assert_eq!(device.get::<u32>(out, 1), [sum.wrapping_add(127 * 128 / 2)]);
    races(begin, arrive);
}

#[test]
fn lanes_that_part_meet_again() {
    let text = format!(
        r"{HEAD}
.visible .entry parted(.param .u64 out)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x;
    mov.b32 %r2, 0;
    // As many turns as the thread's number.
$turn:
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $out;
    add.s32 %r2, %r2, 1;
    bra.uni $turn;
$out:
    activemask.b32 %r3;
    and.b32 %r4, %r1, 3;
    brx.idx %r4, $table;
$table: .branchtargets $zero, $one, $other, $other;
$zero:
    mov.b32 %r5, 100;
    bra $meet;
$one:
    mov.b32 %r5, 200;
    bra $meet;
$other:
    {{ .reg .b32 %r5x; mov.b32 %r5x, 300; mov.b32 %r5, %r5x; }}
$meet:
    vote.sync.ballot.b32 %r6, %p1, -1;
    add.s32 %r5, %r5, %r2;
    setp.ne.s32 %p2, %r3, -1;
    @%p2 mov.b32 %r5, 0;
    setp.ne.s32 %p2, %r6, -1;
    @%p2 mov.b32 %r5, 1;
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;
    ret;
}}
"
    );
    let device = Device::default();
    let out = device.put(&[7_u32; 32]);
    let module = kernel(&text);
    device.run(&module, "parted", [1, 1, 1], [32, 1, 1], &[out.to_le_bytes().to_vec()]).unwrap();
    let want: Vec<u32> = (0..32).map(|i| [100, 200, 300, 300][i as usize % 4] + i).collect();
    assert_eq!(device.get::<u32>(out, 32), want);
}

#[test]
fn a_product_of_bf16_matrices_is_the_product() {
    let text = format!(
        r"{HEAD}
.visible .entry product(.param .u64 a, .param .u64 b, .param .u64 c)
{{
    .reg .b32 %r<12>;
    .reg .f32 %f<20>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    mov.b32 %r1, 16;
    mov.f32 %f1, 0f3F800000;
    wmma.load.a.sync.aligned.row.m16n16k16.bf16 {{%r2, %r3, %r4, %r5}}, [%rd1], %r1;
    wmma.load.b.sync.aligned.col.m16n16k16.bf16 {{%r6, %r7, %r8, %r9}}, [%rd2], %r1;
    wmma.mma.sync.aligned.row.col.m16n16k16.f32.bf16.bf16.f32 {{%f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9}}, {{%r2, %r3, %r4, %r5}}, {{%r6, %r7, %r8, %r9}}, {{%f1, %f1, %f1, %f1, %f1, %f1, %f1, %f1}};
    wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd3], {{%f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9}}, %r1;
    ret;
}}
"
    );
    let device = Device::default();
    let of = |seed: usize| -> Vec<f32> { (0..256).map(|i| ((i * seed + 3) % 17) as f32 - 8.0).collect() };
    let (a, b) = (of(5), of(11));
    let narrow = |values: &[f32]| values.iter().map(|v| (v.to_bits() >> 16) as u16).collect::<Vec<_>>();
    let places = [device.put(&narrow(&a)), device.put(&narrow(&b)), device.put(&[0.0_f32; 256])];
    let module = kernel(&text);
    let arguments = places.map(|place| place.to_le_bytes().to_vec());
    let done = device.run(&module, "product", [1, 1, 1], [32, 1, 1], &arguments).unwrap();
    assert_eq!(done.products, 1);
    let got = device.get::<f32>(places[2], 256);
    for row in 0..16 {
        for column in 0..16 {
            let want: f32 = 1.0 + (0..16).map(|k| a[row * 16 + k] * b[column * 16 + k]).sum::<f32>();
            assert_eq!(got[row * 16 + column], want, "{row} {column}");
        }
    }
}

/// Matrices of 8 x 8 go through registers, straight and transposed, and come out as the ISA places them.
#[test]
fn matrices_of_halves_go_to_registers_and_back() {
    let text = format!(
        r"{HEAD}
.visible .entry turned(.param .u64 from, .param .u64 out)
{{
    .reg .b32 %r<12>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 tile[256];
    .shared .align 16 .b8 back[256];
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [out];
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.v2.b32 {{%r2, %r3}}, [%rd4];
    shl.b32 %r4, %r1, 3;
    mov.u32 %r5, tile;
    add.s32 %r6, %r5, %r4;
    st.shared.v2.b32 [%r6], {{%r2, %r3}};
    bar.sync 0;
    and.b32 %r7, %r1, 15;
    shl.b32 %r7, %r7, 4;
    add.s32 %r8, %r5, %r7;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {{%r9, %r10}}, [%r8];
    mov.u32 %r5, back;
    add.s32 %r8, %r5, %r7;
    stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r8], {{%r9, %r10}};
    bar.sync 0;
    add.s32 %r6, %r5, %r4;
    ld.shared.v2.b32 {{%r2, %r3}}, [%r6];
    add.s64 %rd4, %rd2, %rd3;
    st.global.v2.b32 [%rd4], {{%r2, %r3}};
    ret;
}}
"
    );
    let device = Device::default();
    let from = device.put(&(0..128).map(|i| i as u16).collect::<Vec<_>>());
    let out = device.put(&[0_u16; 128]);
    let arguments = [from, out].map(|place| place.to_le_bytes().to_vec());
    device.run(&kernel(&text), "turned", [1, 1, 1], [32, 1, 1], &arguments).unwrap();
    let got = device.get::<u16>(out, 128);
    for (at, &value) in got.iter().enumerate() {
        let (matrix, row, column) = (at / 64, at / 8 % 8, at % 8);
        assert_eq!(value as usize, 64 * matrix + 8 * column + row, "{at}");
    }
}

/// A product of four warps, of factors that lie in swizzled lines of 128 bytes: along the depth, and across it.
#[test]
fn a_product_of_four_warps_is_the_product_once_it_is_waited_for() {
    let text = |across: u32, add: u32, wait: &str| {
        format!(
            r"{HEAD}
.visible .entry product(.param .u64 from, .param .u64 out, .param .u64 a, .param .u64 b)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<12>;
    .shared .align 1024 .b8 tile[9216];
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [out];
    ld.param.u64 %rd3, [a];
    ld.param.u64 %rd4, [b];
    mov.b32 %r2, 0;
    mov.u32 %r3, tile;
$again:
    mad.lo.u32 %r4, %r2, 512, 0;
    shl.b32 %r5, %r1, 2;
    add.s32 %r4, %r4, %r5;
    cvt.u64.u32 %rd5, %r4;
    add.s64 %rd6, %rd1, %rd5;
    ld.global.u32 %r6, [%rd6];
    add.s32 %r7, %r3, %r4;
    st.shared.u32 [%r7], %r6;
    add.s32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 18;
    @%p1 bra $again;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mov.f32 %f0, 0f3F800000;
    mov.f32 %f1, %f0;
    mov.f32 %f2, %f0;
    mov.f32 %f3, %f0;
    setp.ne.u32 %p2, {add}, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %rd3, %rd4, %p2, 1, 1, {across}, 0;
    wgmma.commit_group.sync.aligned;
    {wait}
    mul.wide.u32 %rd5, %r1, 16;
    add.s64 %rd6, %rd2, %rd5;
    st.global.v4.f32 [%rd6], {{%f0, %f1, %f2, %f3}};
    ret;
}}
"
        )
    };
    let device = Device::default();
    let of =
        |n: usize, seed: usize| -> Vec<f32> { (0..n).map(|i| ((i * seed + 3) % 17) as f32 - 8.0).collect() };
    let (a, b) = (of(64 * 16, 5), of(8 * 16, 11));
    // Where in the tile an element of a line lies, in pairs of bytes.
    let place = |line: usize, element: usize| line * 64 + ((element / 8) ^ (line % 8)) * 8 + element % 8;
    let field = |bytes: u64, at: u32| bytes >> 4 << at;
    let descriptor = |start: u64| field(start, 0) | field(1024, 32) | 1 << 62;
    for across in [false, true] {
        let mut tile = vec![0_u16; 9216 / 2];
        let narrow = |value: f32| (value.to_bits() >> 16) as u16;
        for row in 0..64 {
            for k in 0..16 {
                let at = if across { place(k, row) } else { place(row, k + 16) };
                tile[at] = narrow(a[row * 16 + k]);
            }
        }
        for column in 0..8 {
            for k in 0..16 {
                tile[4096 + place(column, k + 48)] = narrow(b[column * 16 + k]);
            }
        }
        // The second and the fourth sixteen factors of their lines.
        let (at_a, at_b) = (descriptor(if across { 0 } else { 32 }), descriptor(8192 + 96));
        let places = [device.put(&tile), device.put(&[0.0_f32; 512])];
        let run = |add: u32, wait: &str, at_a: u64| {
            let arguments = [places[0], places[1], at_a, at_b].map(|place| place.to_le_bytes().to_vec());
            let module = kernel(&text(u32::from(across), add, wait));
            device.run(&module, "product", [1, 1, 1], [128, 1, 1], &arguments)
        };
        let expect = |add: f32, of_products: f32| {
            for (at, &got) in device.get::<f32>(places[1], 512).iter().enumerate() {
                let (thread, i) = (at / 4, at % 4);
                let row = thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8;
                let column = thread % 4 * 2 + i % 2;
                let sum: f32 = (0..16).map(|k| a[row * 16 + k] * b[column * 16 + k]).sum();
                assert_eq!(got, add + of_products * sum, "{across} {row} {column}");
            }
        };
        run(1, "wgmma.wait_group.sync.aligned 0;", at_a).unwrap();
        expect(1.0, 1.0);
        run(0, "wgmma.wait_group.sync.aligned 0;", at_a).unwrap();
        expect(0.0, 1.0);
        // Nothing has come yet while a group may be under way.
        run(1, "wgmma.wait_group.sync.aligned 1;", at_a).unwrap();
        expect(1.0, 0.0);
        if !across {
            // The left factors in registers, of which each lane reads its own.
            let a0 = "shr.u32 %r6, %r1, 5; and.b32 %r7, %r1, 31; shr.u32 %r8, %r7, 2; and.b32 %r9, %r7, 3;
    mad.lo.u32 %r8, %r6, 16, %r8; mul.lo.u32 %r8, %r8, 16; mad.lo.u32 %r8, %r9, 2, %r8; mul.lo.u32 %r8, %r8, 2;
    cvt.u64.u32 %rd5, %r8; add.s64 %rd6, %rd3, %rd5; ld.global.u32 %r6, [%rd6]; ld.global.u32 %r7, [%rd6+256];
    ld.global.u32 %r8, [%rd6+16]; ld.global.u32 %r9, [%rd6+272];\n    wgmma.fence";
            let shared = text(0, 1, "wgmma.wait_group.sync.aligned 0;");
            let held = shared
                .replace("wgmma.fence", a0)
                .replace("%rd3, %rd4, %p2, 1, 1, 0, 0;", "{%r6, %r7, %r8, %r9}, %rd4, %p2, 1, 1, 0;");
            let rows: Vec<u16> = a.iter().map(|&value| narrow(value)).collect();
            let arguments = [places[0], places[1], device.put(&rows), at_b];
            let arguments = arguments.map(|place| place.to_le_bytes().to_vec());
            device.run(&kernel(&held), "product", [1, 1, 1], [128, 1, 1], &arguments).unwrap();
            expect(1.0, 1.0);
        }
        // No swizzle, and half a line's.
        for layout in [0, 2] {
            let fault =
                run(1, "wgmma.wait_group.sync.aligned 0;", at_a & !(3 << 62) | layout << 62).unwrap_err();
            assert!(fault.to_string().contains("wgmma"), "{fault}");
        }
    }
}

#[test]
fn what_is_no_module_is_said_with_its_line() {
    let read = |text: &str| Module::read(text, &mut |_| 0);
    assert!(read(HEAD).unwrap().kernels().next().is_none());
    for (text, line, what) in [
        ("nonsense", 4, "begins nothing"),
        (".visible .entry k(.param .u64 a)\n{\n ret;\n", 7, "`}` is missing"),
        (".visible .entry k()\n{\n bra $nowhere;\n}\n", 6, "no label `$nowhere`"),
    ] {
        let error = read(&format!("{HEAD}{text}")).unwrap_err();
        assert!(error.what.contains(what) && error.line == line, "{text}: {error}");
    }
    // What is not known is said when a thread comes to it.
    let module =
        kernel(&format!("{HEAD}.visible .entry k()\n{{\n ret;\n tcgen05.wait::ld.sync.aligned;\n}}\n"));
    assert_eq!(module.kernel("k").unwrap().unknown().collect::<Vec<_>>(), ["tcgen05.wait::ld.sync.aligned"]);
    Device::default().run(&module, "k", [1, 1, 1], [1, 1, 1], &[]).unwrap();
    let module = kernel(&format!("{HEAD}.visible .entry k()\n{{\n tcgen05.wait::ld.sync.aligned;\n}}\n"));
    let fault = Device::default().run(&module, "k", [1, 1, 1], [1, 1, 1], &[]).unwrap_err();
    assert!(fault.to_string().contains("tcgen05.wait"), "{fault}");
}
