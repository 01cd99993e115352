// Generated from cuda/include/params.h by `tools/regen-bindings.sh`. Do not edit.

#[doc = " Row t sees the keys 0 to `positions[t]` of its sequence. Key s lies in slot `tables[table_starts[t] + s / PAGE_ROWS] * PAGE_ROWS +\n  s % PAGE_ROWS` of a cache. Rows of a sequence are neighbours, by rising position."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ragged_rows {
    #[doc = " `[m]`"]
    pub positions: *const u32,
    #[doc = " `[m]`: where the row's own key lies."]
    pub slots: *const u32,
    #[doc = " `[m]`"]
    pub table_starts: *const u32,
    #[doc = " Numbers of pages, of all sequences."]
    pub tables: *const u32,
    #[doc = " Rows."]
    pub m: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ragged_rows"][::core::mem::size_of::<ragged_rows>() - 40usize];
    ["Alignment of ragged_rows"][::core::mem::align_of::<ragged_rows>() - 8usize];
    ["Offset of field: ragged_rows::positions"][::core::mem::offset_of!(ragged_rows, positions) - 0usize];
    ["Offset of field: ragged_rows::slots"][::core::mem::offset_of!(ragged_rows, slots) - 8usize];
    ["Offset of field: ragged_rows::table_starts"]
        [::core::mem::offset_of!(ragged_rows, table_starts) - 16usize];
    ["Offset of field: ragged_rows::tables"][::core::mem::offset_of!(ragged_rows, tables) - 24usize];
    ["Offset of field: ragged_rows::m"][::core::mem::offset_of!(ragged_rows, m) - 32usize];
};
#[doc = " Rows to slots of a paged cache."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct cache_write_params {
    #[doc = " `[m, width]`, aligned to 16."]
    pub x: *const f32,
    #[doc = " `[m]`, each slot once: where in `cache` a row goes."]
    pub slots: *const u32,
    #[doc = " Rows of the type."]
    pub cache: *mut ::core::ffi::c_void,
    #[doc = " Rows."]
    pub m: u32,
    #[doc = " Values of a row; in fp8 some times 128, and 64; in int8 128."]
    pub width: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of cache_write_params"][::core::mem::size_of::<cache_write_params>() - 32usize];
    ["Alignment of cache_write_params"][::core::mem::align_of::<cache_write_params>() - 8usize];
    ["Offset of field: cache_write_params::x"][::core::mem::offset_of!(cache_write_params, x) - 0usize];
    ["Offset of field: cache_write_params::slots"]
        [::core::mem::offset_of!(cache_write_params, slots) - 8usize];
    ["Offset of field: cache_write_params::cache"]
        [::core::mem::offset_of!(cache_write_params, cache) - 16usize];
    ["Offset of field: cache_write_params::m"][::core::mem::offset_of!(cache_write_params, m) - 24usize];
    ["Offset of field: cache_write_params::width"]
        [::core::mem::offset_of!(cache_write_params, width) - 28usize];
};
#[doc = " Values of a run of blocks."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct dequantize_params {
    #[doc = " `[src_bytes]`, whole blocks, aligned to 16."]
    pub src: *const ::core::ffi::c_void,
    #[doc = " `[n]` f32, f16 or bf16, aligned to 16."]
    pub out: *mut ::core::ffi::c_void,
    #[doc = " Bytes of `src`."]
    pub src_bytes: u64,
    #[doc = " Byte of `src` at which the first block begins."]
    pub first: u64,
    #[doc = " Values; whole blocks, all of them within `src`."]
    pub n: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of dequantize_params"][::core::mem::size_of::<dequantize_params>() - 40usize];
    ["Alignment of dequantize_params"][::core::mem::align_of::<dequantize_params>() - 8usize];
    ["Offset of field: dequantize_params::src"][::core::mem::offset_of!(dequantize_params, src) - 0usize];
    ["Offset of field: dequantize_params::out"][::core::mem::offset_of!(dequantize_params, out) - 8usize];
    ["Offset of field: dequantize_params::src_bytes"]
        [::core::mem::offset_of!(dequantize_params, src_bytes) - 16usize];
    ["Offset of field: dequantize_params::first"]
        [::core::mem::offset_of!(dequantize_params, first) - 24usize];
    ["Offset of field: dequantize_params::n"][::core::mem::offset_of!(dequantize_params, n) - 32usize];
};
#[doc = " Rows of a table by token id."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct embed_params {
    #[doc = " `[vocab, hidden]` blocks, aligned to 16."]
    pub table: *const ::core::ffi::c_void,
    #[doc = " `[n_tokens]`, each below `vocab` or the kernel traps."]
    pub tokens: *const u32,
    #[doc = " `[n_tokens, hidden]` f32 or bf16, aligned to 16."]
    pub out: *mut ::core::ffi::c_void,
    #[doc = " Rows of the table."]
    pub vocab: u32,
    #[doc = " Values per row; whole blocks."]
    pub hidden: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of embed_params"][::core::mem::size_of::<embed_params>() - 32usize];
    ["Alignment of embed_params"][::core::mem::align_of::<embed_params>() - 8usize];
    ["Offset of field: embed_params::table"][::core::mem::offset_of!(embed_params, table) - 0usize];
    ["Offset of field: embed_params::tokens"][::core::mem::offset_of!(embed_params, tokens) - 8usize];
    ["Offset of field: embed_params::out"][::core::mem::offset_of!(embed_params, out) - 16usize];
    ["Offset of field: embed_params::vocab"][::core::mem::offset_of!(embed_params, vocab) - 24usize];
    ["Offset of field: embed_params::hidden"][::core::mem::offset_of!(embed_params, hidden) - 28usize];
};
#[doc = " Scores of the lightning indexer, of rows `first` to `first + m` of a batch."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct dsa_indexer_params {
    #[doc = " `[rows.m, heads, dim]`, aligned to 16"]
    pub q: *const f32,
    #[doc = " `[rows.m, heads]`"]
    pub w: *const f32,
    #[doc = " `[slots, dim]` of the type of the cache, aligned to 16; int8: pages of quants and scales."]
    pub keys: *const ::core::ffi::c_void,
    #[doc = " Of which slots lie in the cache."]
    pub rows: ragged_rows,
    #[doc = " `[m]` rows `stride` apart: the scores of the keys that a row sees, by position, and minus infinity behind them up to `fill`."]
    pub scores: *mut f32,
    #[doc = " Scores from one row to the next, at least as many as a row sees."]
    pub stride: u64,
    #[doc = " Of all scores."]
    pub scale: f32,
    #[doc = " The first row."]
    pub first: u32,
    #[doc = " Rows."]
    pub m: u32,
    #[doc = " Heads of a query; at most INDEXER_HEADS but for dsa_indexer_any."]
    pub heads: u32,
    #[doc = " Values of a key; INDEXER_DIM but for dsa_indexer_any."]
    pub dim: u32,
    #[doc = " Rows that see no more keys than this are not scored."]
    pub least: u32,
    #[doc = " Columns that are written, or 0: those of keys that a row sees."]
    pub fill: u32,
    #[doc = " Blocks of threads for each group of rows."]
    pub workers: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of dsa_indexer_params"][::core::mem::size_of::<dsa_indexer_params>() - 112usize];
    ["Alignment of dsa_indexer_params"][::core::mem::align_of::<dsa_indexer_params>() - 8usize];
    ["Offset of field: dsa_indexer_params::q"][::core::mem::offset_of!(dsa_indexer_params, q) - 0usize];
    ["Offset of field: dsa_indexer_params::w"][::core::mem::offset_of!(dsa_indexer_params, w) - 8usize];
    ["Offset of field: dsa_indexer_params::keys"]
        [::core::mem::offset_of!(dsa_indexer_params, keys) - 16usize];
    ["Offset of field: dsa_indexer_params::rows"]
        [::core::mem::offset_of!(dsa_indexer_params, rows) - 24usize];
    ["Offset of field: dsa_indexer_params::scores"]
        [::core::mem::offset_of!(dsa_indexer_params, scores) - 64usize];
    ["Offset of field: dsa_indexer_params::stride"]
        [::core::mem::offset_of!(dsa_indexer_params, stride) - 72usize];
    ["Offset of field: dsa_indexer_params::scale"]
        [::core::mem::offset_of!(dsa_indexer_params, scale) - 80usize];
    ["Offset of field: dsa_indexer_params::first"]
        [::core::mem::offset_of!(dsa_indexer_params, first) - 84usize];
    ["Offset of field: dsa_indexer_params::m"][::core::mem::offset_of!(dsa_indexer_params, m) - 88usize];
    ["Offset of field: dsa_indexer_params::heads"]
        [::core::mem::offset_of!(dsa_indexer_params, heads) - 92usize];
    ["Offset of field: dsa_indexer_params::dim"][::core::mem::offset_of!(dsa_indexer_params, dim) - 96usize];
    ["Offset of field: dsa_indexer_params::least"]
        [::core::mem::offset_of!(dsa_indexer_params, least) - 100usize];
    ["Offset of field: dsa_indexer_params::fill"]
        [::core::mem::offset_of!(dsa_indexer_params, fill) - 104usize];
    ["Offset of field: dsa_indexer_params::workers"]
        [::core::mem::offset_of!(dsa_indexer_params, workers) - 108usize];
};
#[doc = " What blocks of threads that share a row tell each other. All zeros before the first launch; `bins`, `left`, and `arrived` modulo\n  256, are zeros behind each launch."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct dsa_topk_row {
    #[doc = " Scores by their upper 11 bits; of those in one bin by the next 11; of those in one of these by the last 10."]
    pub bins: [[u32; 2048usize]; 3usize],
    #[doc = " The largest scores of each block, as integers that grow with them and are not 0; zeros behind them."]
    pub keys: [u32; 8192usize],
    #[doc = " Where they stand."]
    pub places: [u32; 8192usize],
    #[doc = " Of each block: the key from which on all its scores are listed, the place up to which scores of just this key are, its largest key."]
    pub ends: [[u32; 4usize]; 128usize],
    #[doc = " Of each block: scores above the cut, scores at the cut."]
    pub counts: [[u32; 2usize]; 128usize],
    #[doc = " Grows by 256 whenever all blocks have come; odd once one has given up waiting for the others."]
    pub arrived: u32,
    #[doc = " Blocks that have left because one gave up."]
    pub left: u32,
    #[doc = " Nothing: rows are aligned to 16."]
    pub unused: [u32; 2usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of dsa_topk_row"][::core::mem::size_of::<dsa_topk_row>() - 93200usize];
    ["Alignment of dsa_topk_row"][::core::mem::align_of::<dsa_topk_row>() - 4usize];
    ["Offset of field: dsa_topk_row::bins"][::core::mem::offset_of!(dsa_topk_row, bins) - 0usize];
    ["Offset of field: dsa_topk_row::keys"][::core::mem::offset_of!(dsa_topk_row, keys) - 24576usize];
    ["Offset of field: dsa_topk_row::places"][::core::mem::offset_of!(dsa_topk_row, places) - 57344usize];
    ["Offset of field: dsa_topk_row::ends"][::core::mem::offset_of!(dsa_topk_row, ends) - 90112usize];
    ["Offset of field: dsa_topk_row::counts"][::core::mem::offset_of!(dsa_topk_row, counts) - 92160usize];
    ["Offset of field: dsa_topk_row::arrived"][::core::mem::offset_of!(dsa_topk_row, arrived) - 93184usize];
    ["Offset of field: dsa_topk_row::left"][::core::mem::offset_of!(dsa_topk_row, left) - 93188usize];
    ["Offset of field: dsa_topk_row::unused"][::core::mem::offset_of!(dsa_topk_row, unused) - 93192usize];
};
#[doc = " How blocks of threads share a row."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct topk_sharing {
    #[doc = " Blocks of threads of a row: 1 to TOPK_PARTS."]
    pub parts: u32,
    #[doc = " Scores that each can list: at most TOPK_LIST / parts."]
    pub room: u32,
    #[doc = " How many each lists at least: more than its share of the k, at most `room`."]
    pub want: u32,
    #[doc = " Looks that a block takes for the others before it gives up, and the row is left to the last of them."]
    pub patience: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of topk_sharing"][::core::mem::size_of::<topk_sharing>() - 16usize];
    ["Alignment of topk_sharing"][::core::mem::align_of::<topk_sharing>() - 4usize];
    ["Offset of field: topk_sharing::parts"][::core::mem::offset_of!(topk_sharing, parts) - 0usize];
    ["Offset of field: topk_sharing::room"][::core::mem::offset_of!(topk_sharing, room) - 4usize];
    ["Offset of field: topk_sharing::want"][::core::mem::offset_of!(topk_sharing, want) - 8usize];
    ["Offset of field: topk_sharing::patience"][::core::mem::offset_of!(topk_sharing, patience) - 12usize];
};
#[doc = " The largest scores of each row."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct dsa_topk_params {
    #[doc = " Row t begins at `t * stride`; aligned to 16."]
    pub scores: *const f32,
    #[doc = " `[m]`: row t sees `min(visible[t] + more, n)` scores."]
    pub visible: *const u32,
    #[doc = " `[m]`, may be null if rows have one block of threads each."]
    pub shared: *mut dsa_topk_row,
    #[doc = " `[m, k]`: positions, ascending; undefined behind the last one."]
    pub indices: *mut u32,
    #[doc = " `[m]`: positions of each row."]
    pub lens: *mut u32,
    #[doc = " Scores from one row to the next."]
    pub stride: u64,
    #[doc = " Scores of a row, below 2^31."]
    pub n: u32,
    #[doc = " At least 1."]
    pub k: u32,
    #[doc = " 0 or 1."]
    pub more: u32,
    #[doc = " How blocks of threads share a row. A kernel that gathers what it finds has one for each."]
    pub sharing: topk_sharing,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of dsa_topk_params"][::core::mem::size_of::<dsa_topk_params>() - 80usize];
    ["Alignment of dsa_topk_params"][::core::mem::align_of::<dsa_topk_params>() - 8usize];
    ["Offset of field: dsa_topk_params::scores"][::core::mem::offset_of!(dsa_topk_params, scores) - 0usize];
    ["Offset of field: dsa_topk_params::visible"][::core::mem::offset_of!(dsa_topk_params, visible) - 8usize];
    ["Offset of field: dsa_topk_params::shared"][::core::mem::offset_of!(dsa_topk_params, shared) - 16usize];
    ["Offset of field: dsa_topk_params::indices"]
        [::core::mem::offset_of!(dsa_topk_params, indices) - 24usize];
    ["Offset of field: dsa_topk_params::lens"][::core::mem::offset_of!(dsa_topk_params, lens) - 32usize];
    ["Offset of field: dsa_topk_params::stride"][::core::mem::offset_of!(dsa_topk_params, stride) - 40usize];
    ["Offset of field: dsa_topk_params::n"][::core::mem::offset_of!(dsa_topk_params, n) - 48usize];
    ["Offset of field: dsa_topk_params::k"][::core::mem::offset_of!(dsa_topk_params, k) - 52usize];
    ["Offset of field: dsa_topk_params::more"][::core::mem::offset_of!(dsa_topk_params, more) - 56usize];
    ["Offset of field: dsa_topk_params::sharing"]
        [::core::mem::offset_of!(dsa_topk_params, sharing) - 60usize];
};
#[doc = " The keys that rows of a batch like best, of those that they see."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct dsa_select_params {
    #[doc = " What is scored, as for dsa_indexer. `scores` is room for what blocks of threads have to tell each other of a row if what they listed is\n  not enough; rows see at most `stride` keys; `least`, `fill` and `workers` mean nothing."]
    pub of: dsa_indexer_params,
    #[doc = " `[m]`"]
    pub shared: *mut dsa_topk_row,
    #[doc = " `[m, k]`: positions, ascending; undefined behind the last one."]
    pub indices: *mut u32,
    #[doc = " `[m]`: positions of each row."]
    pub lens: *mut u32,
    #[doc = " At least 1."]
    pub k: u32,
    #[doc = " How blocks of threads share a row: so many that each can hold its part of the scores."]
    pub sharing: topk_sharing,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of dsa_select_params"][::core::mem::size_of::<dsa_select_params>() - 160usize];
    ["Alignment of dsa_select_params"][::core::mem::align_of::<dsa_select_params>() - 8usize];
    ["Offset of field: dsa_select_params::of"][::core::mem::offset_of!(dsa_select_params, of) - 0usize];
    ["Offset of field: dsa_select_params::shared"]
        [::core::mem::offset_of!(dsa_select_params, shared) - 112usize];
    ["Offset of field: dsa_select_params::indices"]
        [::core::mem::offset_of!(dsa_select_params, indices) - 120usize];
    ["Offset of field: dsa_select_params::lens"][::core::mem::offset_of!(dsa_select_params, lens) - 128usize];
    ["Offset of field: dsa_select_params::k"][::core::mem::offset_of!(dsa_select_params, k) - 136usize];
    ["Offset of field: dsa_select_params::sharing"]
        [::core::mem::offset_of!(dsa_select_params, sharing) - 140usize];
};
#[doc = " Nothing."]
pub const ROUND_NONE: linear_round = 0;
#[doc = " Rounded to int8 with one scale for 32 values, and back."]
pub const ROUND_INT8: linear_round = 1;
#[doc = " Rounded to bf16, and back."]
pub const ROUND_BF16: linear_round = 2;
#[doc = " What is done to the activations of a linear layer before they are multiplied."]
pub type linear_round = ::core::ffi::c_uint;
#[doc = " Linear layer of any weight type, one matrix or one per head."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct linear_params {
    #[doc = " `[slabs, n, k]` blocks, aligned to 16; as many slabs as the grid is high."]
    pub w: *const ::core::ffi::c_void,
    #[doc = " `[m]` rows `x_stride` apart; slab s takes `k` columns from `s * x_head` on."]
    pub x: *const f32,
    #[doc = " `[m]` rows `y_stride` apart; slab s gives `n` columns from `s * y_head` on."]
    pub y: *mut f32,
    #[doc = " Values from row to row of `x`."]
    pub x_stride: u64,
    #[doc = " Values from row to row of `y`."]
    pub y_stride: u64,
    #[doc = " Columns of `x` from slab to slab."]
    pub x_head: u64,
    #[doc = " Columns of `y` from slab to slab."]
    pub y_head: u64,
    #[doc = " Rows of `x` and `y`: tokens."]
    pub m: u32,
    #[doc = " Rows of a slab."]
    pub n: u32,
    #[doc = " Columns of a slab: whole blocks, below 2^31; with `ROUND_INT8` a multiple of 32."]
    pub k: u32,
    #[doc = " Of the activations."]
    pub round: linear_round,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of linear_params"][::core::mem::size_of::<linear_params>() - 72usize];
    ["Alignment of linear_params"][::core::mem::align_of::<linear_params>() - 8usize];
    ["Offset of field: linear_params::w"][::core::mem::offset_of!(linear_params, w) - 0usize];
    ["Offset of field: linear_params::x"][::core::mem::offset_of!(linear_params, x) - 8usize];
    ["Offset of field: linear_params::y"][::core::mem::offset_of!(linear_params, y) - 16usize];
    ["Offset of field: linear_params::x_stride"][::core::mem::offset_of!(linear_params, x_stride) - 24usize];
    ["Offset of field: linear_params::y_stride"][::core::mem::offset_of!(linear_params, y_stride) - 32usize];
    ["Offset of field: linear_params::x_head"][::core::mem::offset_of!(linear_params, x_head) - 40usize];
    ["Offset of field: linear_params::y_head"][::core::mem::offset_of!(linear_params, y_head) - 48usize];
    ["Offset of field: linear_params::m"][::core::mem::offset_of!(linear_params, m) - 56usize];
    ["Offset of field: linear_params::n"][::core::mem::offset_of!(linear_params, n) - 60usize];
    ["Offset of field: linear_params::k"][::core::mem::offset_of!(linear_params, k) - 64usize];
    ["Offset of field: linear_params::round"][::core::mem::offset_of!(linear_params, round) - 68usize];
};
#[doc = " Activations of 8 tokens, 256 columns, as int8 in blocks of 32 (src/quant/activations.rs). Tokens 0 to 3 are g = 0, 2, 4 and 6,\n  tokens 4 to 7 the odd g."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tile_act {
    #[doc = " For each i: columns 64 i and on in words 0 and 1 of a lane, 32 more in words 2 and 3."]
    pub qs: [[[u32; 4usize]; 32usize]; 4usize],
    #[doc = " Of block j and each g: the scale and -3 * 2^22 times the scale."]
    pub scales: [[[f32; 2usize]; 8usize]; 8usize],
    #[doc = " The sums of the blocks, scale times quants, in two bf16 that add up to it: the upper and the lower parts of\n  blocks 2 t and 2 t + 1."]
    pub sums: [[u32; 2usize]; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of tile_act"][::core::mem::size_of::<tile_act>() - 2816usize];
    ["Alignment of tile_act"][::core::mem::align_of::<tile_act>() - 4usize];
    ["Offset of field: tile_act::qs"][::core::mem::offset_of!(tile_act, qs) - 0usize];
    ["Offset of field: tile_act::scales"][::core::mem::offset_of!(tile_act, scales) - 2048usize];
    ["Offset of field: tile_act::sums"][::core::mem::offset_of!(tile_act, sums) - 2560usize];
};
#[doc = " Activations of one token, 256 columns: what it has in a tile_act. Rows like this can be gathered: the experts of a layer take those of\n  any tokens."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct row_act {
    #[doc = " Lane t of a token takes `qs[i][t]` for columns 64 i and on."]
    pub qs: [[[u32; 4usize]; 4usize]; 4usize],
    #[doc = " Of each block."]
    pub scales: [[f32; 2usize]; 8usize],
    #[doc = " Of blocks 2 t and 2 t + 1."]
    pub sums: [[u32; 2usize]; 4usize],
    #[doc = " In shared memory the rows of eight tokens then meet all banks."]
    pub unused: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of row_act"][::core::mem::size_of::<row_act>() - 368usize];
    ["Alignment of row_act"][::core::mem::align_of::<row_act>() - 4usize];
    ["Offset of field: row_act::qs"][::core::mem::offset_of!(row_act, qs) - 0usize];
    ["Offset of field: row_act::scales"][::core::mem::offset_of!(row_act, scales) - 256usize];
    ["Offset of field: row_act::sums"][::core::mem::offset_of!(row_act, sums) - 320usize];
    ["Offset of field: row_act::unused"][::core::mem::offset_of!(row_act, unused) - 352usize];
};
#[doc = " The same as f16, each token times the power of two that takes its largest value to [2^9, 2^10)."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tile_act_f16 {
    #[doc = " For each block of 32 columns: of columns 4 t + (0, 1, 2, 3) the first and the third in word 0, the second and\n  the fourth in word 1; the same 16 columns further in words 2 and 3."]
    pub x: [[[u32; 4usize]; 32usize]; 8usize],
    #[doc = " As in tile_act, two f16."]
    pub sums: [[u32; 2usize]; 32usize],
    #[doc = " Of each g: the inverse of its power of two; NaN if one of its values is not finite."]
    pub scales: [f32; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of tile_act_f16"][::core::mem::size_of::<tile_act_f16>() - 4384usize];
    ["Alignment of tile_act_f16"][::core::mem::align_of::<tile_act_f16>() - 4usize];
    ["Offset of field: tile_act_f16::x"][::core::mem::offset_of!(tile_act_f16, x) - 0usize];
    ["Offset of field: tile_act_f16::sums"][::core::mem::offset_of!(tile_act_f16, sums) - 4096usize];
    ["Offset of field: tile_act_f16::scales"][::core::mem::offset_of!(tile_act_f16, scales) - 4352usize];
};
#[doc = " Outputs that are rotated, in pairs of neighbours, on their way to where they belong: a part of each head."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct linear_rotation {
    #[doc = " `[m, width / 2]` cosines and sines; null: nothing is rotated."]
    pub angles: *const f32,
    #[doc = " Of the first head; may be within `y` of the matrix, and then at the same places."]
    pub y: *mut f32,
    #[doc = " Values from row to row of `y`."]
    pub y_stride: u64,
    #[doc = " Values from head to head of `y`."]
    pub y_head: u32,
    #[doc = " The first output of the first head's part: even."]
    pub first: u32,
    #[doc = " Outputs from head to head: even, at least 1."]
    pub stride: u32,
    #[doc = " Outputs of a part: even."]
    pub width: u32,
    #[doc = " Heads: all within the outputs."]
    pub heads: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of linear_rotation"][::core::mem::size_of::<linear_rotation>() - 48usize];
    ["Alignment of linear_rotation"][::core::mem::align_of::<linear_rotation>() - 8usize];
    ["Offset of field: linear_rotation::angles"][::core::mem::offset_of!(linear_rotation, angles) - 0usize];
    ["Offset of field: linear_rotation::y"][::core::mem::offset_of!(linear_rotation, y) - 8usize];
    ["Offset of field: linear_rotation::y_stride"]
        [::core::mem::offset_of!(linear_rotation, y_stride) - 16usize];
    ["Offset of field: linear_rotation::y_head"][::core::mem::offset_of!(linear_rotation, y_head) - 24usize];
    ["Offset of field: linear_rotation::first"][::core::mem::offset_of!(linear_rotation, first) - 28usize];
    ["Offset of field: linear_rotation::stride"][::core::mem::offset_of!(linear_rotation, stride) - 32usize];
    ["Offset of field: linear_rotation::width"][::core::mem::offset_of!(linear_rotation, width) - 36usize];
    ["Offset of field: linear_rotation::heads"][::core::mem::offset_of!(linear_rotation, heads) - 40usize];
};
#[doc = " One matrix of a launch."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct linear_group {
    #[doc = " `[n / 16, k_tiles]` tiles, the first rounded up; as many times as there are slabs."]
    pub w: *const ::core::ffi::c_void,
    #[doc = " `[m]` rows `y_stride` apart; unused, and may be null, of the second matrix of a pair."]
    pub y: *mut f32,
    #[doc = " Outputs."]
    pub n: u32,
    #[doc = " Values from row to row of `y`."]
    pub y_stride: u32,
    #[doc = " Of the outputs, without SwiGLU, slabs and f32."]
    pub rotation: linear_rotation,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of linear_group"][::core::mem::size_of::<linear_group>() - 72usize];
    ["Alignment of linear_group"][::core::mem::align_of::<linear_group>() - 8usize];
    ["Offset of field: linear_group::w"][::core::mem::offset_of!(linear_group, w) - 0usize];
    ["Offset of field: linear_group::y"][::core::mem::offset_of!(linear_group, y) - 8usize];
    ["Offset of field: linear_group::n"][::core::mem::offset_of!(linear_group, n) - 16usize];
    ["Offset of field: linear_group::y_stride"][::core::mem::offset_of!(linear_group, y_stride) - 20usize];
    ["Offset of field: linear_group::rotation"][::core::mem::offset_of!(linear_group, rotation) - 24usize];
};
#[doc = " Linear layers of one type on the same int8 activations, for few tokens; behind them such of f32 on these activations unrounded."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct linear_decode_params {
    #[doc = " With SwiGLU pairs of gate and up with the same `n`, of which the first has `y`. Of f32 `w` is `[n, k]` f32, aligned to 16."]
    pub groups: [linear_group; 4usize],
    #[doc = " Those of quantized weights. Those of f32 are behind them."]
    pub n_groups: u32,
    #[doc = " Tokens: as many as the kernel multiplies, or fewer by less than a tile."]
    pub m: u32,
    #[doc = " `[k_tiles, m / 8]`, the last rounded up."]
    pub x: *const tile_act,
    #[doc = " `[m, k]`, aligned to 16; unused, and may be null, without groups of f32."]
    pub x_f32: *const f32,
    #[doc = " Tiles along a row."]
    pub k_tiles: u32,
    #[doc = " Columns of a row of f32, a multiple of 4."]
    pub k: u32,
    #[doc = " Blocks of threads for quantized weights, at least one. The grid has as many more as there are tiles of 4 rows by 4 tokens of groups\n  of f32, both rounded up."]
    pub blocks: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of linear_decode_params"][::core::mem::size_of::<linear_decode_params>() - 328usize];
    ["Alignment of linear_decode_params"][::core::mem::align_of::<linear_decode_params>() - 8usize];
    ["Offset of field: linear_decode_params::groups"]
        [::core::mem::offset_of!(linear_decode_params, groups) - 0usize];
    ["Offset of field: linear_decode_params::n_groups"]
        [::core::mem::offset_of!(linear_decode_params, n_groups) - 288usize];
    ["Offset of field: linear_decode_params::m"][::core::mem::offset_of!(linear_decode_params, m) - 292usize];
    ["Offset of field: linear_decode_params::x"][::core::mem::offset_of!(linear_decode_params, x) - 296usize];
    ["Offset of field: linear_decode_params::x_f32"]
        [::core::mem::offset_of!(linear_decode_params, x_f32) - 304usize];
    ["Offset of field: linear_decode_params::k_tiles"]
        [::core::mem::offset_of!(linear_decode_params, k_tiles) - 312usize];
    ["Offset of field: linear_decode_params::k"][::core::mem::offset_of!(linear_decode_params, k) - 316usize];
    ["Offset of field: linear_decode_params::blocks"]
        [::core::mem::offset_of!(linear_decode_params, blocks) - 320usize];
};
#[doc = " Linear layers of one type on the same activations, for any number of tokens."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct linear_gemm_params {
    #[doc = " With SwiGLU pairs of gate and up with the same `n`, of which the first has `y`."]
    pub groups: [linear_group; 4usize],
    #[doc = " Those that there are."]
    pub n_groups: u32,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " `[slabs, k_tiles, m / 8]`, the last rounded up: tile_act_f16, or tile_act."]
    pub x: *const ::core::ffi::c_void,
    #[doc = " `[gridDim.x, 2, rows, tokens]` of what a block of threads holds, for tiles that several share; aligned to 16."]
    pub partial: *mut f32,
    #[doc = " `[gridDim.x]`, zeros before the first launch; the kernel leaves zeros."]
    pub arrived: *mut u32,
    #[doc = " Tiles along a row."]
    pub k_tiles: u32,
    #[doc = " Matrices of each group, each with activations of its own."]
    pub slabs: u32,
    #[doc = " Values of a row of `y` from slab to slab."]
    pub y_slab: u32,
    #[doc = " Whether a tile of `y` may be cut along K, for several blocks of threads."]
    pub cut: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of linear_gemm_params"][::core::mem::size_of::<linear_gemm_params>() - 336usize];
    ["Alignment of linear_gemm_params"][::core::mem::align_of::<linear_gemm_params>() - 8usize];
    ["Offset of field: linear_gemm_params::groups"]
        [::core::mem::offset_of!(linear_gemm_params, groups) - 0usize];
    ["Offset of field: linear_gemm_params::n_groups"]
        [::core::mem::offset_of!(linear_gemm_params, n_groups) - 288usize];
    ["Offset of field: linear_gemm_params::m"][::core::mem::offset_of!(linear_gemm_params, m) - 292usize];
    ["Offset of field: linear_gemm_params::x"][::core::mem::offset_of!(linear_gemm_params, x) - 296usize];
    ["Offset of field: linear_gemm_params::partial"]
        [::core::mem::offset_of!(linear_gemm_params, partial) - 304usize];
    ["Offset of field: linear_gemm_params::arrived"]
        [::core::mem::offset_of!(linear_gemm_params, arrived) - 312usize];
    ["Offset of field: linear_gemm_params::k_tiles"]
        [::core::mem::offset_of!(linear_gemm_params, k_tiles) - 320usize];
    ["Offset of field: linear_gemm_params::slabs"]
        [::core::mem::offset_of!(linear_gemm_params, slabs) - 324usize];
    ["Offset of field: linear_gemm_params::y_slab"]
        [::core::mem::offset_of!(linear_gemm_params, y_slab) - 328usize];
    ["Offset of field: linear_gemm_params::cut"][::core::mem::offset_of!(linear_gemm_params, cut) - 332usize];
};
#[doc = " One matrix for each head, few tokens. The grid is as wide as there are eights of row tiles, rounded up, and as high as there are heads."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct linear_heads_params {
    #[doc = " `[heads, n / 16, k / 256]` tiles, both rounded up."]
    pub w: *const ::core::ffi::c_void,
    #[doc = " `[m]` rows `x_stride` apart; a head takes `k` columns from its number times `x_head` on. Aligned to 16, as are the strides."]
    pub x: *const f32,
    #[doc = " `[m]` rows `y_stride` apart; a head has `n` columns from its number times `y_head` on. May be null."]
    pub y: *mut f32,
    #[doc = " `[heads n / 256, m / 8]`, the last rounded up: the heads side by side, rounded. May be null; else `n` is a multiple of 32. What a tile has\n  behind the last head is not written."]
    pub out: *mut tile_act,
    #[doc = " Values from row to row of `x`."]
    pub x_stride: u64,
    #[doc = " Values from row to row of `y`."]
    pub y_stride: u64,
    #[doc = " Values from head to head of `x`."]
    pub x_head: u32,
    #[doc = " Values from head to head of `y`."]
    pub y_head: u32,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " Outputs."]
    pub n: u32,
    #[doc = " Inputs, a multiple of 32."]
    pub k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of linear_heads_params"][::core::mem::size_of::<linear_heads_params>() - 72usize];
    ["Alignment of linear_heads_params"][::core::mem::align_of::<linear_heads_params>() - 8usize];
    ["Offset of field: linear_heads_params::w"][::core::mem::offset_of!(linear_heads_params, w) - 0usize];
    ["Offset of field: linear_heads_params::x"][::core::mem::offset_of!(linear_heads_params, x) - 8usize];
    ["Offset of field: linear_heads_params::y"][::core::mem::offset_of!(linear_heads_params, y) - 16usize];
    ["Offset of field: linear_heads_params::out"]
        [::core::mem::offset_of!(linear_heads_params, out) - 24usize];
    ["Offset of field: linear_heads_params::x_stride"]
        [::core::mem::offset_of!(linear_heads_params, x_stride) - 32usize];
    ["Offset of field: linear_heads_params::y_stride"]
        [::core::mem::offset_of!(linear_heads_params, y_stride) - 40usize];
    ["Offset of field: linear_heads_params::x_head"]
        [::core::mem::offset_of!(linear_heads_params, x_head) - 48usize];
    ["Offset of field: linear_heads_params::y_head"]
        [::core::mem::offset_of!(linear_heads_params, y_head) - 52usize];
    ["Offset of field: linear_heads_params::m"][::core::mem::offset_of!(linear_heads_params, m) - 56usize];
    ["Offset of field: linear_heads_params::n"][::core::mem::offset_of!(linear_heads_params, n) - 60usize];
    ["Offset of field: linear_heads_params::k"][::core::mem::offset_of!(linear_heads_params, k) - 64usize];
};
#[doc = " A unit whose keys several blocks of threads have; `pieces` is 0 for none."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_cut {
    #[doc = " Of the batch."]
    pub row: u32,
    #[doc = " Of `heads` query heads, the template argument."]
    pub group: u32,
    #[doc = " The block of threads that began it; the next ones have the rest."]
    pub first: u32,
    #[doc = " Blocks of threads that have some of it."]
    pub pieces: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_cut"][::core::mem::size_of::<mla_cut>() - 16usize];
    ["Alignment of mla_cut"][::core::mem::align_of::<mla_cut>() - 4usize];
    ["Offset of field: mla_cut::row"][::core::mem::offset_of!(mla_cut, row) - 0usize];
    ["Offset of field: mla_cut::group"][::core::mem::offset_of!(mla_cut, group) - 4usize];
    ["Offset of field: mla_cut::first"][::core::mem::offset_of!(mla_cut, first) - 8usize];
    ["Offset of field: mla_cut::pieces"][::core::mem::offset_of!(mla_cut, pieces) - 12usize];
};
#[doc = " The keys that a row attends: those that it sees, or of them those that it selected."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_selection {
    #[doc = " `[m, k]` positions, the first `lens[t]` of row t ascending; null: all that it sees. One behind the row's own position is left out."]
    pub indices: *const u32,
    #[doc = " `[m]`; unused, and may be null, without `indices`."]
    pub lens: *const u32,
    #[doc = " Positions of a row, at most."]
    pub k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_selection"][::core::mem::size_of::<mla_selection>() - 24usize];
    ["Alignment of mla_selection"][::core::mem::align_of::<mla_selection>() - 8usize];
    ["Offset of field: mla_selection::indices"][::core::mem::offset_of!(mla_selection, indices) - 0usize];
    ["Offset of field: mla_selection::lens"][::core::mem::offset_of!(mla_selection, lens) - 8usize];
    ["Offset of field: mla_selection::k"][::core::mem::offset_of!(mla_selection, k) - 16usize];
};
#[doc = " Heads of 512 + 64, caches of f16, bf16 or fp8; mla_few, too."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_decode_params {
    #[doc = " `[m, n_heads, MLA_WIDTH]`"]
    pub q: *const f32,
    #[doc = " `[slots, MLA_WIDTH]` of the type, or rows of fp8; aligned to 16."]
    pub cache: *const ::core::ffi::c_void,
    #[doc = " One row at least. Tiles of all rows and groups of heads are fewer than 2^32."]
    pub rows: ragged_rows,
    #[doc = " Of the rows."]
    pub selected: mla_selection,
    #[doc = " `[m, n_heads, MLA_LATENT]`; aligned to 8."]
    pub out: *mut f32,
    #[doc = " `[m, n_heads]`: logarithm of the sum of exponentials of the logits; may be null."]
    pub lse: *mut f32,
    #[doc = " `[gridDim.x, 2, heads, MLA_LATENT]`: sums of pieces, of one that began before the block's tiles and of one that ends behind them; aligned\n  to 16."]
    pub partial: *mut f32,
    #[doc = " `[gridDim.x, 2, heads, 2]`: for each the largest logit, in base 2, and the sum of exponentials."]
    pub sums: *mut f32,
    #[doc = " One for each unit (of a row and a group of heads) if there are no more of them than blocks of threads; else one for each block."]
    pub cuts: *mut mla_cut,
    #[doc = " Query heads."]
    pub n_heads: u32,
    #[doc = " Of the dot products, to logits in base 2."]
    pub scale: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_decode_params"][::core::mem::size_of::<mla_decode_params>() - 128usize];
    ["Alignment of mla_decode_params"][::core::mem::align_of::<mla_decode_params>() - 8usize];
    ["Offset of field: mla_decode_params::q"][::core::mem::offset_of!(mla_decode_params, q) - 0usize];
    ["Offset of field: mla_decode_params::cache"][::core::mem::offset_of!(mla_decode_params, cache) - 8usize];
    ["Offset of field: mla_decode_params::rows"][::core::mem::offset_of!(mla_decode_params, rows) - 16usize];
    ["Offset of field: mla_decode_params::selected"]
        [::core::mem::offset_of!(mla_decode_params, selected) - 56usize];
    ["Offset of field: mla_decode_params::out"][::core::mem::offset_of!(mla_decode_params, out) - 80usize];
    ["Offset of field: mla_decode_params::lse"][::core::mem::offset_of!(mla_decode_params, lse) - 88usize];
    ["Offset of field: mla_decode_params::partial"]
        [::core::mem::offset_of!(mla_decode_params, partial) - 96usize];
    ["Offset of field: mla_decode_params::sums"][::core::mem::offset_of!(mla_decode_params, sums) - 104usize];
    ["Offset of field: mla_decode_params::cuts"][::core::mem::offset_of!(mla_decode_params, cuts) - 112usize];
    ["Offset of field: mla_decode_params::n_heads"]
        [::core::mem::offset_of!(mla_decode_params, n_heads) - 120usize];
    ["Offset of field: mla_decode_params::scale"]
        [::core::mem::offset_of!(mla_decode_params, scale) - 124usize];
};
#[doc = " What mla_decode or mla_few left in pieces; gridDim.x is 2 * heads for each cut, or a quarter of that, by the template argument."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_merge_params {
    #[doc = " As that has it, like all here."]
    pub partial: *const f32,
    #[doc = " See there."]
    pub sums: *const f32,
    #[doc = " See there."]
    pub cuts: *const mla_cut,
    #[doc = " See there."]
    pub out: *mut f32,
    #[doc = " See there."]
    pub lse: *mut f32,
    #[doc = " See there."]
    pub n_heads: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_merge_params"][::core::mem::size_of::<mla_merge_params>() - 48usize];
    ["Alignment of mla_merge_params"][::core::mem::align_of::<mla_merge_params>() - 8usize];
    ["Offset of field: mla_merge_params::partial"]
        [::core::mem::offset_of!(mla_merge_params, partial) - 0usize];
    ["Offset of field: mla_merge_params::sums"][::core::mem::offset_of!(mla_merge_params, sums) - 8usize];
    ["Offset of field: mla_merge_params::cuts"][::core::mem::offset_of!(mla_merge_params, cuts) - 16usize];
    ["Offset of field: mla_merge_params::out"][::core::mem::offset_of!(mla_merge_params, out) - 24usize];
    ["Offset of field: mla_merge_params::lse"][::core::mem::offset_of!(mla_merge_params, lse) - 32usize];
    ["Offset of field: mla_merge_params::n_heads"]
        [::core::mem::offset_of!(mla_merge_params, n_heads) - 40usize];
};
#[doc = " Heads of any widths up to MLA_WIDTH in all, in f32 arithmetic; gridDim.x is m * n_heads."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_float_params {
    #[doc = " `[m, n_heads, width]`"]
    pub q: *const f32,
    #[doc = " `[slots, width]` of the type, or rows of fp8, whose width is some times 128, and 64."]
    pub cache: *const ::core::ffi::c_void,
    #[doc = " Of the batch."]
    pub rows: ragged_rows,
    #[doc = " Of the rows."]
    pub selected: mla_selection,
    #[doc = " `[m, n_heads, latent]`"]
    pub out: *mut f32,
    #[doc = " `[m, n_heads]`; may be null."]
    pub lse: *mut f32,
    #[doc = " Query heads."]
    pub n_heads: u32,
    #[doc = " Values of a row of the cache that are values of the attention."]
    pub latent: u32,
    #[doc = " Values of a row, MLA_WIDTH at most."]
    pub width: u32,
    #[doc = " Of the dot products, to logits."]
    pub scale: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_float_params"][::core::mem::size_of::<mla_float_params>() - 112usize];
    ["Alignment of mla_float_params"][::core::mem::align_of::<mla_float_params>() - 8usize];
    ["Offset of field: mla_float_params::q"][::core::mem::offset_of!(mla_float_params, q) - 0usize];
    ["Offset of field: mla_float_params::cache"][::core::mem::offset_of!(mla_float_params, cache) - 8usize];
    ["Offset of field: mla_float_params::rows"][::core::mem::offset_of!(mla_float_params, rows) - 16usize];
    ["Offset of field: mla_float_params::selected"]
        [::core::mem::offset_of!(mla_float_params, selected) - 56usize];
    ["Offset of field: mla_float_params::out"][::core::mem::offset_of!(mla_float_params, out) - 80usize];
    ["Offset of field: mla_float_params::lse"][::core::mem::offset_of!(mla_float_params, lse) - 88usize];
    ["Offset of field: mla_float_params::n_heads"]
        [::core::mem::offset_of!(mla_float_params, n_heads) - 96usize];
    ["Offset of field: mla_float_params::latent"]
        [::core::mem::offset_of!(mla_float_params, latent) - 100usize];
    ["Offset of field: mla_float_params::width"][::core::mem::offset_of!(mla_float_params, width) - 104usize];
    ["Offset of field: mla_float_params::scale"][::core::mem::offset_of!(mla_float_params, scale) - 108usize];
};
#[doc = " One sequence, and the place of its keys among those of all, which stand one behind the other."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct prefill_sequence {
    #[doc = " Its first row in the batch."]
    pub row: u32,
    #[doc = " Its rows."]
    pub rows: u32,
    #[doc = " The place of its first key; a multiple of PAGE_ROWS."]
    pub first: u32,
    #[doc = " Its keys: the position of its last row, and one."]
    pub keys: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of prefill_sequence"][::core::mem::size_of::<prefill_sequence>() - 16usize];
    ["Alignment of prefill_sequence"][::core::mem::align_of::<prefill_sequence>() - 4usize];
    ["Offset of field: prefill_sequence::row"][::core::mem::offset_of!(prefill_sequence, row) - 0usize];
    ["Offset of field: prefill_sequence::rows"][::core::mem::offset_of!(prefill_sequence, rows) - 4usize];
    ["Offset of field: prefill_sequence::first"][::core::mem::offset_of!(prefill_sequence, first) - 8usize];
    ["Offset of field: prefill_sequence::keys"][::core::mem::offset_of!(prefill_sequence, keys) - 12usize];
};
#[doc = " Some sequences of a batch, in order."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct prefill_sequences {
    #[doc = " The first `n`."]
    pub at: [prefill_sequence; 64usize],
    #[doc = " How many there are."]
    pub n: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of prefill_sequences"][::core::mem::size_of::<prefill_sequences>() - 1028usize];
    ["Alignment of prefill_sequences"][::core::mem::align_of::<prefill_sequences>() - 4usize];
    ["Offset of field: prefill_sequences::at"][::core::mem::offset_of!(prefill_sequences, at) - 0usize];
    ["Offset of field: prefill_sequences::n"][::core::mem::offset_of!(prefill_sequences, n) - 1024usize];
};
#[doc = " Rows of pages of a cache, one behind the other, in bf16."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_gather_params {
    #[doc = " `[slots, PREFILL_WIDTH]` of the type; aligned to 16."]
    pub cache: *const ::core::ffi::c_void,
    #[doc = " `[PAGE_ROWS * gridDim.x, PREFILL_WIDTH]` bf16, of the keys from `begin` on; zeros where there is none; aligned to 16."]
    pub out: *mut u16,
    #[doc = " Of the batch."]
    pub rows: ragged_rows,
    #[doc = " Their sequences."]
    pub sequences: prefill_sequences,
    #[doc = " The place of the first key; a multiple of PAGE_ROWS."]
    pub begin: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_gather_params"][::core::mem::size_of::<mla_gather_params>() - 1088usize];
    ["Alignment of mla_gather_params"][::core::mem::align_of::<mla_gather_params>() - 8usize];
    ["Offset of field: mla_gather_params::cache"][::core::mem::offset_of!(mla_gather_params, cache) - 0usize];
    ["Offset of field: mla_gather_params::out"][::core::mem::offset_of!(mla_gather_params, out) - 8usize];
    ["Offset of field: mla_gather_params::rows"][::core::mem::offset_of!(mla_gather_params, rows) - 16usize];
    ["Offset of field: mla_gather_params::sequences"]
        [::core::mem::offset_of!(mla_gather_params, sequences) - 56usize];
    ["Offset of field: mla_gather_params::begin"]
        [::core::mem::offset_of!(mla_gather_params, begin) - 1084usize];
};
#[doc = " Keys or values of all heads from latent rows; gridDim.x is n_heads * (keys / PREFILL_EXPAND)."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_expand_params {
    #[doc = " `[keys, PREFILL_WIDTH]` bf16; aligned to 16."]
    pub rows: *const u16,
    #[doc = " bf16: for keys `[n_heads, PREFILL_LATENT, PREFILL_NOPE]`, for values `[n_heads, PREFILL_VALUE, PREFILL_LATENT]`; aligned to 16."]
    pub weights: *const u16,
    #[doc = " `[keys / PREFILL_KEYS, n_heads]` tiles, of which the half that is keys, or values, is written; aligned to 16."]
    pub tiles: *mut ::core::ffi::c_void,
    #[doc = " Heads."]
    pub n_heads: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_expand_params"][::core::mem::size_of::<mla_expand_params>() - 32usize];
    ["Alignment of mla_expand_params"][::core::mem::align_of::<mla_expand_params>() - 8usize];
    ["Offset of field: mla_expand_params::rows"][::core::mem::offset_of!(mla_expand_params, rows) - 0usize];
    ["Offset of field: mla_expand_params::weights"]
        [::core::mem::offset_of!(mla_expand_params, weights) - 8usize];
    ["Offset of field: mla_expand_params::tiles"]
        [::core::mem::offset_of!(mla_expand_params, tiles) - 16usize];
    ["Offset of field: mla_expand_params::n_heads"]
        [::core::mem::offset_of!(mla_expand_params, n_heads) - 24usize];
};
#[doc = " Attention of rows to the keys of some tiles; gridDim.x is n_heads * row_tiles."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mla_prefill_params {
    #[doc = " `[m, n_heads, PREFILL_HEAD]`; aligned to 8."]
    pub q: *const f32,
    #[doc = " `[(end - begin) / PREFILL_KEYS, n_heads]` tiles of the keys from `begin` to `end`; aligned to 16."]
    pub tiles: *const ::core::ffi::c_void,
    #[doc = " `[m, n_heads, PREFILL_VALUE]`: sums so far, and in the end the result; aligned to 8."]
    pub out: *mut f32,
    #[doc = " `[m, n_heads, 4, 2]`: of rows that have more keys before or behind these, by lane: the logit that sums are relative to, and a part of the sum of\n  exponentials; aligned to 8."]
    pub state: *mut f32,
    #[doc = " `[m, n_heads]`: logarithm of the sum of exponentials of the logits; may be null."]
    pub lse: *mut f32,
    #[doc = " Of the batch."]
    pub sequences: prefill_sequences,
    #[doc = " Tiles of PREFILL_ROWS rows, of all sequences."]
    pub row_tiles: u32,
    #[doc = " The place of the first key; a multiple of PREFILL_KEYS."]
    pub begin: u32,
    #[doc = " The place behind the last; a multiple of PREFILL_KEYS."]
    pub end: u32,
    #[doc = " Query heads."]
    pub n_heads: u32,
    #[doc = " Of q, so that dot products are logits in base 2."]
    pub scale: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mla_prefill_params"][::core::mem::size_of::<mla_prefill_params>() - 1088usize];
    ["Alignment of mla_prefill_params"][::core::mem::align_of::<mla_prefill_params>() - 8usize];
    ["Offset of field: mla_prefill_params::q"][::core::mem::offset_of!(mla_prefill_params, q) - 0usize];
    ["Offset of field: mla_prefill_params::tiles"]
        [::core::mem::offset_of!(mla_prefill_params, tiles) - 8usize];
    ["Offset of field: mla_prefill_params::out"][::core::mem::offset_of!(mla_prefill_params, out) - 16usize];
    ["Offset of field: mla_prefill_params::state"]
        [::core::mem::offset_of!(mla_prefill_params, state) - 24usize];
    ["Offset of field: mla_prefill_params::lse"][::core::mem::offset_of!(mla_prefill_params, lse) - 32usize];
    ["Offset of field: mla_prefill_params::sequences"]
        [::core::mem::offset_of!(mla_prefill_params, sequences) - 40usize];
    ["Offset of field: mla_prefill_params::row_tiles"]
        [::core::mem::offset_of!(mla_prefill_params, row_tiles) - 1068usize];
    ["Offset of field: mla_prefill_params::begin"]
        [::core::mem::offset_of!(mla_prefill_params, begin) - 1072usize];
    ["Offset of field: mla_prefill_params::end"]
        [::core::mem::offset_of!(mla_prefill_params, end) - 1076usize];
    ["Offset of field: mla_prefill_params::n_heads"]
        [::core::mem::offset_of!(mla_prefill_params, n_heads) - 1080usize];
    ["Offset of field: mla_prefill_params::scale"]
        [::core::mem::offset_of!(mla_prefill_params, scale) - 1084usize];
};
#[doc = " Places of an expert that are multiplied together."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_tile {
    #[doc = " The first place."]
    pub first: u32,
    #[doc = " Of the stack."]
    pub expert: u16,
    #[doc = " Places."]
    pub count: u16,
    #[doc = " The first tile of this expert in the list."]
    pub begin: u32,
    #[doc = " Tiles of this expert, one after the other in the list."]
    pub tiles: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_tile"][::core::mem::size_of::<moe_tile>() - 16usize];
    ["Alignment of moe_tile"][::core::mem::align_of::<moe_tile>() - 4usize];
    ["Offset of field: moe_tile::first"][::core::mem::offset_of!(moe_tile, first) - 0usize];
    ["Offset of field: moe_tile::expert"][::core::mem::offset_of!(moe_tile, expert) - 4usize];
    ["Offset of field: moe_tile::count"][::core::mem::offset_of!(moe_tile, count) - 6usize];
    ["Offset of field: moe_tile::begin"][::core::mem::offset_of!(moe_tile, begin) - 8usize];
    ["Offset of field: moe_tile::tiles"][::core::mem::offset_of!(moe_tile, tiles) - 12usize];
};
#[doc = " Pairs of token and slot, sorted by expert."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_sort_params {
    #[doc = " `[n]` experts, aligned to 16."]
    pub ids: *const u32,
    #[doc = " `[n_experts + 1]`: the first place of each expert; the last is the number of places."]
    pub offsets: *mut u32,
    #[doc = " `[n]`: the pair at each place; undefined behind the last place."]
    pub sorted: *mut u32,
    #[doc = " `[n]`: the place of each pair, or 2^32 - 1."]
    pub places: *mut u32,
    #[doc = " `[n / height + min(n, n_experts)]`, the experts with most places first; aligned to 16."]
    pub tiles: *mut moe_tile,
    #[doc = " `[MOE_COUNTERS]`: the number of tiles, then zeros, in which kernels that take tiles count."]
    pub counters: *mut u32,
    #[doc = " One, zero before the first launch; the kernel leaves zero. Unused, and may be null, by one block of threads."]
    pub arrived: *mut u32,
    #[doc = " Pairs, below 2^23; of one block of threads as many as it has room for."]
    pub n: u32,
    #[doc = " Experts of this stack, as many as the kernel has room for, or fewer."]
    pub n_experts: u32,
    #[doc = " The id of the first one; with `n_experts` below 2^31."]
    pub first_expert: u32,
    #[doc = " Places of a tile, at most; below 2^16."]
    pub height: u32,
    #[doc = " Not 0: an id that is not of this stack traps, unless it is 2^32 - 1."]
    pub strict: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_sort_params"][::core::mem::size_of::<moe_sort_params>() - 80usize];
    ["Alignment of moe_sort_params"][::core::mem::align_of::<moe_sort_params>() - 8usize];
    ["Offset of field: moe_sort_params::ids"][::core::mem::offset_of!(moe_sort_params, ids) - 0usize];
    ["Offset of field: moe_sort_params::offsets"][::core::mem::offset_of!(moe_sort_params, offsets) - 8usize];
    ["Offset of field: moe_sort_params::sorted"][::core::mem::offset_of!(moe_sort_params, sorted) - 16usize];
    ["Offset of field: moe_sort_params::places"][::core::mem::offset_of!(moe_sort_params, places) - 24usize];
    ["Offset of field: moe_sort_params::tiles"][::core::mem::offset_of!(moe_sort_params, tiles) - 32usize];
    ["Offset of field: moe_sort_params::counters"]
        [::core::mem::offset_of!(moe_sort_params, counters) - 40usize];
    ["Offset of field: moe_sort_params::arrived"]
        [::core::mem::offset_of!(moe_sort_params, arrived) - 48usize];
    ["Offset of field: moe_sort_params::n"][::core::mem::offset_of!(moe_sort_params, n) - 56usize];
    ["Offset of field: moe_sort_params::n_experts"]
        [::core::mem::offset_of!(moe_sort_params, n_experts) - 60usize];
    ["Offset of field: moe_sort_params::first_expert"]
        [::core::mem::offset_of!(moe_sort_params, first_expert) - 64usize];
    ["Offset of field: moe_sort_params::height"][::core::mem::offset_of!(moe_sort_params, height) - 68usize];
    ["Offset of field: moe_sort_params::strict"][::core::mem::offset_of!(moe_sort_params, strict) - 72usize];
};
#[doc = " The sum of what the experts of a token gave."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_sum_params {
    #[doc = " `[places, hidden]`; loads of four columns need it, `shared` and `y` aligned to 16, and whole fours."]
    pub rows: *const f32,
    #[doc = " `[m, top_k]`: rows of `rows`, or 2^32 - 1."]
    pub places: *const u32,
    #[doc = " `[m, top_k]`"]
    pub weights: *const f32,
    #[doc = " `[m, hidden]`, may be null, may be `y`."]
    pub shared: *const f32,
    #[doc = " `[m, hidden]`"]
    pub y: *mut f32,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " Slots of a token."]
    pub top_k: u32,
    #[doc = " Columns, below 2^31."]
    pub hidden: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_sum_params"][::core::mem::size_of::<moe_sum_params>() - 56usize];
    ["Alignment of moe_sum_params"][::core::mem::align_of::<moe_sum_params>() - 8usize];
    ["Offset of field: moe_sum_params::rows"][::core::mem::offset_of!(moe_sum_params, rows) - 0usize];
    ["Offset of field: moe_sum_params::places"][::core::mem::offset_of!(moe_sum_params, places) - 8usize];
    ["Offset of field: moe_sum_params::weights"][::core::mem::offset_of!(moe_sum_params, weights) - 16usize];
    ["Offset of field: moe_sum_params::shared"][::core::mem::offset_of!(moe_sum_params, shared) - 24usize];
    ["Offset of field: moe_sum_params::y"][::core::mem::offset_of!(moe_sum_params, y) - 32usize];
    ["Offset of field: moe_sum_params::m"][::core::mem::offset_of!(moe_sum_params, m) - 40usize];
    ["Offset of field: moe_sum_params::top_k"][::core::mem::offset_of!(moe_sum_params, top_k) - 44usize];
    ["Offset of field: moe_sum_params::hidden"][::core::mem::offset_of!(moe_sum_params, hidden) - 48usize];
};
#[doc = " tile_q4_K"]
pub const TILES_Q4_K: tiles_type = 0;
#[doc = " tile_q5_K"]
pub const TILES_Q5_K: tiles_type = 1;
#[doc = " tile_q6_K"]
pub const TILES_Q6_K: tiles_type = 2;
#[doc = " tile_q5_0"]
pub const TILES_Q5_0: tiles_type = 3;
#[doc = " tile_q8_0"]
pub const TILES_Q8_0: tiles_type = 4;
#[doc = " Types that have tiles."]
pub type tiles_type = ::core::ffi::c_uint;
#[doc = " Which experts' rows of a call are which: pairs of a token and one of its slots, sorted by expert. Those of few tokens are sorted by\n  each block of threads for itself; of more tokens moe_sort has sorted them."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_pairs {
    #[doc = " `[m, top_k]`: experts `first` and on are those of the stack, 0xffffffff is none; unused, and may be null, with `offsets`. moe_down\n  reads them before griddep_wait(), as it reads weights: they were there before moe_rows, which waits before it lets moe_down begin."]
    pub ids: *const u32,
    #[doc = " `[n_experts + 1]` the first place of each expert; may be null, for up to MOE_PAIRS pairs."]
    pub offsets: *const u32,
    #[doc = " `[m * top_k]` pairs, by place; unused, and may be null, without `offsets`."]
    pub sorted: *const u32,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " Slots of a token."]
    pub top_k: u32,
    #[doc = " Experts of the stack, MOE_EXPERTS at most."]
    pub n_experts: u32,
    #[doc = " The first one's id."]
    pub first: u32,
    #[doc = " Not 0: the kernel traps at an id of another expert. 0: it is none."]
    pub strict: u32,
    #[doc = " Not 0: moe_rows, too, reads ids before griddep_wait(): they were there before the kernel in front of it, quantize_rows, which waits before it\n  lets moe_rows begin."]
    pub early: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_pairs"][::core::mem::size_of::<moe_pairs>() - 48usize];
    ["Alignment of moe_pairs"][::core::mem::align_of::<moe_pairs>() - 8usize];
    ["Offset of field: moe_pairs::ids"][::core::mem::offset_of!(moe_pairs, ids) - 0usize];
    ["Offset of field: moe_pairs::offsets"][::core::mem::offset_of!(moe_pairs, offsets) - 8usize];
    ["Offset of field: moe_pairs::sorted"][::core::mem::offset_of!(moe_pairs, sorted) - 16usize];
    ["Offset of field: moe_pairs::m"][::core::mem::offset_of!(moe_pairs, m) - 24usize];
    ["Offset of field: moe_pairs::top_k"][::core::mem::offset_of!(moe_pairs, top_k) - 28usize];
    ["Offset of field: moe_pairs::n_experts"][::core::mem::offset_of!(moe_pairs, n_experts) - 32usize];
    ["Offset of field: moe_pairs::first"][::core::mem::offset_of!(moe_pairs, first) - 36usize];
    ["Offset of field: moe_pairs::strict"][::core::mem::offset_of!(moe_pairs, strict) - 40usize];
    ["Offset of field: moe_pairs::early"][::core::mem::offset_of!(moe_pairs, early) - 44usize];
};
#[doc = " A stack of matrices in tiles."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_matrix {
    #[doc = " `[slabs, n / 16, k_tiles]` tiles; may be null where there is no shared expert."]
    pub w: *const ::core::ffi::c_void,
    #[doc = " Of the tiles."]
    pub ty: tiles_type,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_matrix"][::core::mem::size_of::<moe_matrix>() - 16usize];
    ["Alignment of moe_matrix"][::core::mem::align_of::<moe_matrix>() - 8usize];
    ["Offset of field: moe_matrix::w"][::core::mem::offset_of!(moe_matrix, w) - 0usize];
    ["Offset of field: moe_matrix::ty"][::core::mem::offset_of!(moe_matrix, ty) - 8usize];
};
#[doc = " Experts that have at most MOE_ROWS rows, and the shared expert: silu(gate x) * up x, rounded; or y = W x alone."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_rows_params {
    #[doc = " Up to MOE_ROWS tokens, if there is a shared expert."]
    pub pairs: moe_pairs,
    #[doc = " Gate and up, of one type; of one matrix the first."]
    pub experts: [moe_matrix; 2usize],
    #[doc = " The same of the shared expert."]
    pub shared: [moe_matrix; 2usize],
    #[doc = " `[m, k_tiles]` by token, or by place where there is one matrix."]
    pub x: *const row_act,
    #[doc = " `[places, n / 256]`, rounded up; unused where there is one matrix."]
    pub h: *mut row_act,
    #[doc = " `[m, n_shared / 256]`, the same."]
    pub h_shared: *mut row_act,
    #[doc = " `[places, n]` of one matrix."]
    pub y: *mut f32,
    #[doc = " `[gridDim.x, 2, 4, 128]` of units of gate and up that several blocks of threads share; aligned to 16."]
    pub partial: *mut f32,
    #[doc = " `[gridDim.x]`: zeros before the first launch, and left so."]
    pub arrived: *mut u32,
    #[doc = " Rows of a matrix; where they are rounded a multiple of 32."]
    pub n: u32,
    #[doc = " The same of the shared expert."]
    pub n_shared: u32,
    #[doc = " Tiles along a row."]
    pub k_tiles: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_rows_params"][::core::mem::size_of::<moe_rows_params>() - 176usize];
    ["Alignment of moe_rows_params"][::core::mem::align_of::<moe_rows_params>() - 8usize];
    ["Offset of field: moe_rows_params::pairs"][::core::mem::offset_of!(moe_rows_params, pairs) - 0usize];
    ["Offset of field: moe_rows_params::experts"]
        [::core::mem::offset_of!(moe_rows_params, experts) - 48usize];
    ["Offset of field: moe_rows_params::shared"][::core::mem::offset_of!(moe_rows_params, shared) - 80usize];
    ["Offset of field: moe_rows_params::x"][::core::mem::offset_of!(moe_rows_params, x) - 112usize];
    ["Offset of field: moe_rows_params::h"][::core::mem::offset_of!(moe_rows_params, h) - 120usize];
    ["Offset of field: moe_rows_params::h_shared"]
        [::core::mem::offset_of!(moe_rows_params, h_shared) - 128usize];
    ["Offset of field: moe_rows_params::y"][::core::mem::offset_of!(moe_rows_params, y) - 136usize];
    ["Offset of field: moe_rows_params::partial"]
        [::core::mem::offset_of!(moe_rows_params, partial) - 144usize];
    ["Offset of field: moe_rows_params::arrived"]
        [::core::mem::offset_of!(moe_rows_params, arrived) - 152usize];
    ["Offset of field: moe_rows_params::n"][::core::mem::offset_of!(moe_rows_params, n) - 160usize];
    ["Offset of field: moe_rows_params::n_shared"]
        [::core::mem::offset_of!(moe_rows_params, n_shared) - 164usize];
    ["Offset of field: moe_rows_params::k_tiles"]
        [::core::mem::offset_of!(moe_rows_params, k_tiles) - 168usize];
};
#[doc = " Experts that have more than MOE_ROWS rows: silu(gate x) * up x, rounded; or y = W x alone."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_gemm_params {
    #[doc = " Gate and up, of one type; of one matrix the first."]
    pub experts: [moe_matrix; 2usize],
    #[doc = " `[m, k_tiles]` by token, or by place where there is one matrix."]
    pub x: *const row_act,
    #[doc = " Pairs by place; unused, and may be null, where there is one matrix."]
    pub sorted: *const u32,
    #[doc = " `[n_tiles]`, of at most as many places as the kernel takes, experts with most places first. Those with MOE_ROWS or fewer are left out."]
    pub tiles: *const moe_tile,
    #[doc = " One."]
    pub n_tiles: *const u32,
    #[doc = " One, zero before the launch: what was taken."]
    pub queue: *mut u32,
    #[doc = " `[places, n / 256]`, rounded up; unused where there is one matrix."]
    pub h: *mut row_act,
    #[doc = " `[places, n]` of one matrix."]
    pub y: *mut f32,
    #[doc = " Rows of a matrix; where they are rounded a multiple of 32."]
    pub n: u32,
    #[doc = " Tiles along a row."]
    pub k_tiles: u32,
    #[doc = " Slots of a token."]
    pub top_k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_gemm_params"][::core::mem::size_of::<moe_gemm_params>() - 104usize];
    ["Alignment of moe_gemm_params"][::core::mem::align_of::<moe_gemm_params>() - 8usize];
    ["Offset of field: moe_gemm_params::experts"][::core::mem::offset_of!(moe_gemm_params, experts) - 0usize];
    ["Offset of field: moe_gemm_params::x"][::core::mem::offset_of!(moe_gemm_params, x) - 32usize];
    ["Offset of field: moe_gemm_params::sorted"][::core::mem::offset_of!(moe_gemm_params, sorted) - 40usize];
    ["Offset of field: moe_gemm_params::tiles"][::core::mem::offset_of!(moe_gemm_params, tiles) - 48usize];
    ["Offset of field: moe_gemm_params::n_tiles"]
        [::core::mem::offset_of!(moe_gemm_params, n_tiles) - 56usize];
    ["Offset of field: moe_gemm_params::queue"][::core::mem::offset_of!(moe_gemm_params, queue) - 64usize];
    ["Offset of field: moe_gemm_params::h"][::core::mem::offset_of!(moe_gemm_params, h) - 72usize];
    ["Offset of field: moe_gemm_params::y"][::core::mem::offset_of!(moe_gemm_params, y) - 80usize];
    ["Offset of field: moe_gemm_params::n"][::core::mem::offset_of!(moe_gemm_params, n) - 88usize];
    ["Offset of field: moe_gemm_params::k_tiles"]
        [::core::mem::offset_of!(moe_gemm_params, k_tiles) - 92usize];
    ["Offset of field: moe_gemm_params::top_k"][::core::mem::offset_of!(moe_gemm_params, top_k) - 96usize];
};
#[doc = " For up to MOE_ROWS tokens: the weighted sum of what their experts give, and the shared expert."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_down_params {
    #[doc = " Up to MOE_PAIRS."]
    pub pairs: moe_pairs,
    #[doc = " `[m, top_k]`"]
    pub weights: *const f32,
    #[doc = " Down."]
    pub experts: moe_matrix,
    #[doc = " The same of the shared expert."]
    pub shared: moe_matrix,
    #[doc = " `[places, k_tiles]`"]
    pub h: *const row_act,
    #[doc = " `[m, k_shared]`"]
    pub h_shared: *const row_act,
    #[doc = " `[m, n]`"]
    pub y: *mut f32,
    #[doc = " `[gridDim.x, 2, 128]` of units that several blocks of threads share; aligned to 16."]
    pub partial: *mut f32,
    #[doc = " `[gridDim.x]`: zeros before the first launch, and left so."]
    pub arrived: *mut u32,
    #[doc = " Outputs."]
    pub n: u32,
    #[doc = " Tiles along a row of an expert."]
    pub k_tiles: u32,
    #[doc = " The same of the shared expert; 0 without one."]
    pub k_shared: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_down_params"][::core::mem::size_of::<moe_down_params>() - 144usize];
    ["Alignment of moe_down_params"][::core::mem::align_of::<moe_down_params>() - 8usize];
    ["Offset of field: moe_down_params::pairs"][::core::mem::offset_of!(moe_down_params, pairs) - 0usize];
    ["Offset of field: moe_down_params::weights"]
        [::core::mem::offset_of!(moe_down_params, weights) - 48usize];
    ["Offset of field: moe_down_params::experts"]
        [::core::mem::offset_of!(moe_down_params, experts) - 56usize];
    ["Offset of field: moe_down_params::shared"][::core::mem::offset_of!(moe_down_params, shared) - 72usize];
    ["Offset of field: moe_down_params::h"][::core::mem::offset_of!(moe_down_params, h) - 88usize];
    ["Offset of field: moe_down_params::h_shared"]
        [::core::mem::offset_of!(moe_down_params, h_shared) - 96usize];
    ["Offset of field: moe_down_params::y"][::core::mem::offset_of!(moe_down_params, y) - 104usize];
    ["Offset of field: moe_down_params::partial"]
        [::core::mem::offset_of!(moe_down_params, partial) - 112usize];
    ["Offset of field: moe_down_params::arrived"]
        [::core::mem::offset_of!(moe_down_params, arrived) - 120usize];
    ["Offset of field: moe_down_params::n"][::core::mem::offset_of!(moe_down_params, n) - 128usize];
    ["Offset of field: moe_down_params::k_tiles"]
        [::core::mem::offset_of!(moe_down_params, k_tiles) - 132usize];
    ["Offset of field: moe_down_params::k_shared"]
        [::core::mem::offset_of!(moe_down_params, k_shared) - 136usize];
};
#[doc = " Products of experts with the tokens that chose them."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moe_dot_params {
    #[doc = " `[experts, n, k]` blocks, aligned to 16."]
    pub w: *const ::core::ffi::c_void,
    #[doc = " `[m, k]`, or `[places, k]` without `sorted`."]
    pub x: *const f32,
    #[doc = " `[places, n]`"]
    pub y: *mut f32,
    #[doc = " As moe_sort leaves them, with tiles of at most as many places as the kernel multiplies; there are no more of them than the grid\n  has blocks of threads for."]
    pub tiles: *const moe_tile,
    #[doc = " The first is the number of tiles."]
    pub counters: *const u32,
    #[doc = " `[places]`: the pair at each place, whose token is its row of `x`; may be null: places are rows."]
    pub sorted: *const u32,
    #[doc = " Slots of a token."]
    pub top_k: u32,
    #[doc = " Rows of an expert."]
    pub n: u32,
    #[doc = " Columns: whole blocks, below 2^31; with `ROUND_INT8` a multiple of 32."]
    pub k: u32,
    #[doc = " Of the activations."]
    pub round: linear_round,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of moe_dot_params"][::core::mem::size_of::<moe_dot_params>() - 64usize];
    ["Alignment of moe_dot_params"][::core::mem::align_of::<moe_dot_params>() - 8usize];
    ["Offset of field: moe_dot_params::w"][::core::mem::offset_of!(moe_dot_params, w) - 0usize];
    ["Offset of field: moe_dot_params::x"][::core::mem::offset_of!(moe_dot_params, x) - 8usize];
    ["Offset of field: moe_dot_params::y"][::core::mem::offset_of!(moe_dot_params, y) - 16usize];
    ["Offset of field: moe_dot_params::tiles"][::core::mem::offset_of!(moe_dot_params, tiles) - 24usize];
    ["Offset of field: moe_dot_params::counters"]
        [::core::mem::offset_of!(moe_dot_params, counters) - 32usize];
    ["Offset of field: moe_dot_params::sorted"][::core::mem::offset_of!(moe_dot_params, sorted) - 40usize];
    ["Offset of field: moe_dot_params::top_k"][::core::mem::offset_of!(moe_dot_params, top_k) - 48usize];
    ["Offset of field: moe_dot_params::n"][::core::mem::offset_of!(moe_dot_params, n) - 52usize];
    ["Offset of field: moe_dot_params::k"][::core::mem::offset_of!(moe_dot_params, k) - 56usize];
    ["Offset of field: moe_dot_params::round"][::core::mem::offset_of!(moe_dot_params, round) - 60usize];
};
#[doc = " Residual step, RMSNorm, and the int8 activations of the integer linear layers."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct norm_quantize_params {
    #[doc = " `[n_rows, n]` f32, rows `x_stride` apart; with `r` it becomes x + r."]
    pub x: *mut f32,
    #[doc = " `[n_rows, n]` f32, may be null: nothing is added then, and `x` is not written unless `y` is `x`."]
    pub r: *const f32,
    #[doc = " `[n]`"]
    pub w: *const f32,
    #[doc = " `[n_rows, n]` f32 or bf16, rows `y_stride` apart; may be null, may be `x` if f32."]
    pub y: *mut ::core::ffi::c_void,
    #[doc = " `[n_rows, n]`, may be null: then nothing is quantized, and the two that follow are not used."]
    pub qs: *mut i8,
    #[doc = " `[n_rows, n / block]`"]
    pub scales: *mut f32,
    #[doc = " `[n_rows, n / 16]`"]
    pub sums: *mut i16,
    #[doc = " Values from row to row of `x`."]
    pub x_stride: u64,
    #[doc = " Values from row to row of `y`."]
    pub y_stride: u64,
    #[doc = " Values per row; whole blocks if they are quantized."]
    pub n: u32,
    #[doc = " Added to the mean of the squares."]
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of norm_quantize_params"][::core::mem::size_of::<norm_quantize_params>() - 80usize];
    ["Alignment of norm_quantize_params"][::core::mem::align_of::<norm_quantize_params>() - 8usize];
    ["Offset of field: norm_quantize_params::x"][::core::mem::offset_of!(norm_quantize_params, x) - 0usize];
    ["Offset of field: norm_quantize_params::r"][::core::mem::offset_of!(norm_quantize_params, r) - 8usize];
    ["Offset of field: norm_quantize_params::w"][::core::mem::offset_of!(norm_quantize_params, w) - 16usize];
    ["Offset of field: norm_quantize_params::y"][::core::mem::offset_of!(norm_quantize_params, y) - 24usize];
    ["Offset of field: norm_quantize_params::qs"]
        [::core::mem::offset_of!(norm_quantize_params, qs) - 32usize];
    ["Offset of field: norm_quantize_params::scales"]
        [::core::mem::offset_of!(norm_quantize_params, scales) - 40usize];
    ["Offset of field: norm_quantize_params::sums"]
        [::core::mem::offset_of!(norm_quantize_params, sums) - 48usize];
    ["Offset of field: norm_quantize_params::x_stride"]
        [::core::mem::offset_of!(norm_quantize_params, x_stride) - 56usize];
    ["Offset of field: norm_quantize_params::y_stride"]
        [::core::mem::offset_of!(norm_quantize_params, y_stride) - 64usize];
    ["Offset of field: norm_quantize_params::n"][::core::mem::offset_of!(norm_quantize_params, n) - 72usize];
    ["Offset of field: norm_quantize_params::eps"]
        [::core::mem::offset_of!(norm_quantize_params, eps) - 76usize];
};
#[doc = " Residual step, RMSNorm, and the same rounded for linear layers in tiles and for experts. Arrays are aligned to 16."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct norm_tiles_params {
    #[doc = " `[n_rows, n]`; with `r` it becomes x + r."]
    pub x: *mut f32,
    #[doc = " `[n_rows, n]`, may be null: nothing is added then, and `x` is not written."]
    pub r: *const f32,
    #[doc = " `[n]`"]
    pub w: *const f32,
    #[doc = " `[n_rows, n]`; may be null."]
    pub y: *mut f32,
    #[doc = " The same in tiles, as `quantize` or `quantize_f16` makes them, `[n / 256, n_rows / 8]`, both rounded up; may be null. With tiles the grid\n  is as many rows as they have, else `n_rows`."]
    pub tiles: *mut ::core::ffi::c_void,
    #[doc = " The same as rows, as `quantize_rows` makes them, `[n_rows, n / 256]`, the last rounded up; may be null."]
    pub rows: *mut row_act,
    #[doc = " Rows."]
    pub n_rows: u32,
    #[doc = " Values per row, a multiple of 32."]
    pub n: u32,
    #[doc = " Whether tiles are tile_act_f16 (else tile_act)."]
    pub f16_tiles: u32,
    #[doc = " Added to the mean of the squares."]
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of norm_tiles_params"][::core::mem::size_of::<norm_tiles_params>() - 64usize];
    ["Alignment of norm_tiles_params"][::core::mem::align_of::<norm_tiles_params>() - 8usize];
    ["Offset of field: norm_tiles_params::x"][::core::mem::offset_of!(norm_tiles_params, x) - 0usize];
    ["Offset of field: norm_tiles_params::r"][::core::mem::offset_of!(norm_tiles_params, r) - 8usize];
    ["Offset of field: norm_tiles_params::w"][::core::mem::offset_of!(norm_tiles_params, w) - 16usize];
    ["Offset of field: norm_tiles_params::y"][::core::mem::offset_of!(norm_tiles_params, y) - 24usize];
    ["Offset of field: norm_tiles_params::tiles"]
        [::core::mem::offset_of!(norm_tiles_params, tiles) - 32usize];
    ["Offset of field: norm_tiles_params::rows"][::core::mem::offset_of!(norm_tiles_params, rows) - 40usize];
    ["Offset of field: norm_tiles_params::n_rows"]
        [::core::mem::offset_of!(norm_tiles_params, n_rows) - 48usize];
    ["Offset of field: norm_tiles_params::n"][::core::mem::offset_of!(norm_tiles_params, n) - 52usize];
    ["Offset of field: norm_tiles_params::f16_tiles"]
        [::core::mem::offset_of!(norm_tiles_params, f16_tiles) - 56usize];
    ["Offset of field: norm_tiles_params::eps"][::core::mem::offset_of!(norm_tiles_params, eps) - 60usize];
};
#[doc = " LayerNorm in place."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct layer_norm_params {
    #[doc = " `[n_rows, n]` f32"]
    pub x: *mut f32,
    #[doc = " `[n]`"]
    pub w: *const f32,
    #[doc = " `[n]`"]
    pub b: *const f32,
    #[doc = " Values per row."]
    pub n: u32,
    #[doc = " Added to the variance."]
    pub eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of layer_norm_params"][::core::mem::size_of::<layer_norm_params>() - 32usize];
    ["Alignment of layer_norm_params"][::core::mem::align_of::<layer_norm_params>() - 8usize];
    ["Offset of field: layer_norm_params::x"][::core::mem::offset_of!(layer_norm_params, x) - 0usize];
    ["Offset of field: layer_norm_params::w"][::core::mem::offset_of!(layer_norm_params, w) - 8usize];
    ["Offset of field: layer_norm_params::b"][::core::mem::offset_of!(layer_norm_params, b) - 16usize];
    ["Offset of field: layer_norm_params::n"][::core::mem::offset_of!(layer_norm_params, n) - 24usize];
    ["Offset of field: layer_norm_params::eps"][::core::mem::offset_of!(layer_norm_params, eps) - 28usize];
};
#[doc = " What stands between the first projections of attention and what takes their results. Widths are multiples of 4, arrays aligned to 16."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct post_a_params {
    #[doc = " `[m, q_cols]`"]
    pub q: *const f32,
    #[doc = " `[q_cols]`"]
    pub q_norm: *const f32,
    #[doc = " `[m, q_cols]`: `q` normed; may be null."]
    pub y: *mut f32,
    #[doc = " The same in tiles, as `quantize` or `quantize_f16` makes them, `[q_cols / 256, m / 8]`, both rounded up; may be null."]
    pub tiles: *mut ::core::ffi::c_void,
    #[doc = " `[m, latent + rope]`"]
    pub kv: *const f32,
    #[doc = " `[latent]`"]
    pub kv_norm: *const f32,
    #[doc = " `[m, key_cols]`, may be null: then the next three are not used."]
    pub key: *const f32,
    #[doc = " `[key_cols]`"]
    pub key_norm: *const f32,
    #[doc = " `[key_cols]`"]
    pub key_bias: *const f32,
    #[doc = " Rows of `key_cols` values."]
    pub key_cache: *mut ::core::ffi::c_void,
    #[doc = " Rows of `latent + rope` values."]
    pub latent_cache: *mut ::core::ffi::c_void,
    #[doc = " `[m, rope / 2]` cosines and sines."]
    pub angles: *const f32,
    #[doc = " `[m]`, each slot once: where in the caches a row goes."]
    pub slots: *const u32,
    #[doc = " Rows."]
    pub m: u32,
    #[doc = " Rows of `q` that blocks of threads are there for: `m`, with tiles rounded up to whole ones."]
    pub q_rows: u32,
    #[doc = " At most 2048; with tiles a multiple of 32."]
    pub q_cols: u32,
    #[doc = " At most 512."]
    pub latent: u32,
    #[doc = " Rotated values of a latent row and of a key, at most 128."]
    pub rope: u32,
    #[doc = " At most 128, at least `rope`."]
    pub key_cols: u32,
    #[doc = " Whether tiles are tile_act_f16 (else tile_act)."]
    pub f16_tiles: u32,
    #[doc = " CACHE_F32 and so on. In fp8 `latent` is a multiple of 128 and `rope` 64."]
    pub latent_type: u32,
    #[doc = " The same of the keys. In int8 they have 128 values."]
    pub key_type: u32,
    #[doc = " Added to the mean of the squares."]
    pub eps: f32,
    #[doc = " Added to the variance of a key."]
    pub key_eps: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of post_a_params"][::core::mem::size_of::<post_a_params>() - 152usize];
    ["Alignment of post_a_params"][::core::mem::align_of::<post_a_params>() - 8usize];
    ["Offset of field: post_a_params::q"][::core::mem::offset_of!(post_a_params, q) - 0usize];
    ["Offset of field: post_a_params::q_norm"][::core::mem::offset_of!(post_a_params, q_norm) - 8usize];
    ["Offset of field: post_a_params::y"][::core::mem::offset_of!(post_a_params, y) - 16usize];
    ["Offset of field: post_a_params::tiles"][::core::mem::offset_of!(post_a_params, tiles) - 24usize];
    ["Offset of field: post_a_params::kv"][::core::mem::offset_of!(post_a_params, kv) - 32usize];
    ["Offset of field: post_a_params::kv_norm"][::core::mem::offset_of!(post_a_params, kv_norm) - 40usize];
    ["Offset of field: post_a_params::key"][::core::mem::offset_of!(post_a_params, key) - 48usize];
    ["Offset of field: post_a_params::key_norm"][::core::mem::offset_of!(post_a_params, key_norm) - 56usize];
    ["Offset of field: post_a_params::key_bias"][::core::mem::offset_of!(post_a_params, key_bias) - 64usize];
    ["Offset of field: post_a_params::key_cache"]
        [::core::mem::offset_of!(post_a_params, key_cache) - 72usize];
    ["Offset of field: post_a_params::latent_cache"]
        [::core::mem::offset_of!(post_a_params, latent_cache) - 80usize];
    ["Offset of field: post_a_params::angles"][::core::mem::offset_of!(post_a_params, angles) - 88usize];
    ["Offset of field: post_a_params::slots"][::core::mem::offset_of!(post_a_params, slots) - 96usize];
    ["Offset of field: post_a_params::m"][::core::mem::offset_of!(post_a_params, m) - 104usize];
    ["Offset of field: post_a_params::q_rows"][::core::mem::offset_of!(post_a_params, q_rows) - 108usize];
    ["Offset of field: post_a_params::q_cols"][::core::mem::offset_of!(post_a_params, q_cols) - 112usize];
    ["Offset of field: post_a_params::latent"][::core::mem::offset_of!(post_a_params, latent) - 116usize];
    ["Offset of field: post_a_params::rope"][::core::mem::offset_of!(post_a_params, rope) - 120usize];
    ["Offset of field: post_a_params::key_cols"][::core::mem::offset_of!(post_a_params, key_cols) - 124usize];
    ["Offset of field: post_a_params::f16_tiles"]
        [::core::mem::offset_of!(post_a_params, f16_tiles) - 128usize];
    ["Offset of field: post_a_params::latent_type"]
        [::core::mem::offset_of!(post_a_params, latent_type) - 132usize];
    ["Offset of field: post_a_params::key_type"][::core::mem::offset_of!(post_a_params, key_type) - 136usize];
    ["Offset of field: post_a_params::eps"][::core::mem::offset_of!(post_a_params, eps) - 140usize];
    ["Offset of field: post_a_params::key_eps"][::core::mem::offset_of!(post_a_params, key_eps) - 144usize];
};
#[doc = " Rows to int8 tiles."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct quantize_params {
    #[doc = " `[m, k]`"]
    pub x: *const f32,
    #[doc = " `[k / 256, m / 8]`, both rounded up: what is behind the end is zeros."]
    pub out: *mut tile_act,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " Columns, a multiple of 32."]
    pub k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of quantize_params"][::core::mem::size_of::<quantize_params>() - 24usize];
    ["Alignment of quantize_params"][::core::mem::align_of::<quantize_params>() - 8usize];
    ["Offset of field: quantize_params::x"][::core::mem::offset_of!(quantize_params, x) - 0usize];
    ["Offset of field: quantize_params::out"][::core::mem::offset_of!(quantize_params, out) - 8usize];
    ["Offset of field: quantize_params::m"][::core::mem::offset_of!(quantize_params, m) - 16usize];
    ["Offset of field: quantize_params::k"][::core::mem::offset_of!(quantize_params, k) - 20usize];
};
#[doc = " Rows to int8 rows."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct quantize_rows_params {
    #[doc = " `[m, k]`, aligned to 16; with `sorted` as many rows as there are tokens."]
    pub x: *const f32,
    #[doc = " `[m, k / 256]`, rounded up: what is behind the end is zeros."]
    pub out: *mut row_act,
    #[doc = " `[m]` pairs by place, whose token is the row of `x`; may be null: rows are those of `x`."]
    pub sorted: *const u32,
    #[doc = " One: how many rows there are, `m` or fewer; may be null: `m`."]
    pub places: *const u32,
    #[doc = " Rows."]
    pub m: u32,
    #[doc = " Columns, a multiple of 32."]
    pub k: u32,
    #[doc = " Slots of a token; unused without `sorted`."]
    pub top_k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of quantize_rows_params"][::core::mem::size_of::<quantize_rows_params>() - 48usize];
    ["Alignment of quantize_rows_params"][::core::mem::align_of::<quantize_rows_params>() - 8usize];
    ["Offset of field: quantize_rows_params::x"][::core::mem::offset_of!(quantize_rows_params, x) - 0usize];
    ["Offset of field: quantize_rows_params::out"]
        [::core::mem::offset_of!(quantize_rows_params, out) - 8usize];
    ["Offset of field: quantize_rows_params::sorted"]
        [::core::mem::offset_of!(quantize_rows_params, sorted) - 16usize];
    ["Offset of field: quantize_rows_params::places"]
        [::core::mem::offset_of!(quantize_rows_params, places) - 24usize];
    ["Offset of field: quantize_rows_params::m"][::core::mem::offset_of!(quantize_rows_params, m) - 32usize];
    ["Offset of field: quantize_rows_params::k"][::core::mem::offset_of!(quantize_rows_params, k) - 36usize];
    ["Offset of field: quantize_rows_params::top_k"]
        [::core::mem::offset_of!(quantize_rows_params, top_k) - 40usize];
};
#[doc = " Rows to f16 tiles. One matrix, or a part of each row for each of several."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct quantize_f16_params {
    #[doc = " `[m]` rows `x_stride` apart; slab s takes `k` columns from `s * x_slab` on. Aligned to 16, as are the strides."]
    pub x: *const f32,
    #[doc = " `[slabs, k / 256, m / 8]`, rounded up: what is behind the end is zeros. As many slabs as the grid is high."]
    pub out: *mut tile_act_f16,
    #[doc = " Values from row to row."]
    pub x_stride: u64,
    #[doc = " Values from slab to slab."]
    pub x_slab: u64,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " Columns, a multiple of 32."]
    pub k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of quantize_f16_params"][::core::mem::size_of::<quantize_f16_params>() - 40usize];
    ["Alignment of quantize_f16_params"][::core::mem::align_of::<quantize_f16_params>() - 8usize];
    ["Offset of field: quantize_f16_params::x"][::core::mem::offset_of!(quantize_f16_params, x) - 0usize];
    ["Offset of field: quantize_f16_params::out"][::core::mem::offset_of!(quantize_f16_params, out) - 8usize];
    ["Offset of field: quantize_f16_params::x_stride"]
        [::core::mem::offset_of!(quantize_f16_params, x_stride) - 16usize];
    ["Offset of field: quantize_f16_params::x_slab"]
        [::core::mem::offset_of!(quantize_f16_params, x_slab) - 24usize];
    ["Offset of field: quantize_f16_params::m"][::core::mem::offset_of!(quantize_f16_params, m) - 32usize];
    ["Offset of field: quantize_f16_params::k"][::core::mem::offset_of!(quantize_f16_params, k) - 36usize];
};
#[doc = " Blocks to tiles."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct repack_params {
    #[doc = " `[slabs, n, k]` blocks, aligned to 16."]
    pub src: *const ::core::ffi::c_void,
    #[doc = " `[slabs, n / 16, k / 256]` tiles, both rounded up: what is behind the end of the matrix is zeros."]
    pub out: *mut ::core::ffi::c_void,
    #[doc = " Rows of a slab."]
    pub n: u32,
    #[doc = " Columns, whole blocks."]
    pub k: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of repack_params"][::core::mem::size_of::<repack_params>() - 24usize];
    ["Alignment of repack_params"][::core::mem::align_of::<repack_params>() - 8usize];
    ["Offset of field: repack_params::src"][::core::mem::offset_of!(repack_params, src) - 0usize];
    ["Offset of field: repack_params::out"][::core::mem::offset_of!(repack_params, out) - 8usize];
    ["Offset of field: repack_params::n"][::core::mem::offset_of!(repack_params, n) - 16usize];
    ["Offset of field: repack_params::k"][::core::mem::offset_of!(repack_params, k) - 20usize];
};
#[doc = " dst = src."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct copy_params {
    #[doc = " `[n_vecs]` of 16 bytes, aligned to 16."]
    pub src: *const ::core::ffi::c_void,
    #[doc = " `[n_vecs]` of 16 bytes, aligned to 16; does not overlap `src`."]
    pub dst: *mut ::core::ffi::c_void,
    #[doc = " Vectors of 16 bytes."]
    pub n_vecs: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of copy_params"][::core::mem::size_of::<copy_params>() - 24usize];
    ["Alignment of copy_params"][::core::mem::align_of::<copy_params>() - 8usize];
    ["Offset of field: copy_params::src"][::core::mem::offset_of!(copy_params, src) - 0usize];
    ["Offset of field: copy_params::dst"][::core::mem::offset_of!(copy_params, dst) - 8usize];
    ["Offset of field: copy_params::n_vecs"][::core::mem::offset_of!(copy_params, n_vecs) - 16usize];
};
#[doc = " One wrapping sum of 64-bit words per block of the grid."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct reduce_params {
    #[doc = " `[n_vecs]` of 16 bytes, aligned to 16."]
    pub src: *const ::core::ffi::c_void,
    #[doc = " `[gridDim.x]`"]
    pub partial: *mut u64,
    #[doc = " Vectors of 16 bytes."]
    pub n_vecs: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of reduce_params"][::core::mem::size_of::<reduce_params>() - 24usize];
    ["Alignment of reduce_params"][::core::mem::align_of::<reduce_params>() - 8usize];
    ["Offset of field: reduce_params::src"][::core::mem::offset_of!(reduce_params, src) - 0usize];
    ["Offset of field: reduce_params::partial"][::core::mem::offset_of!(reduce_params, partial) - 8usize];
    ["Offset of field: reduce_params::n_vecs"][::core::mem::offset_of!(reduce_params, n_vecs) - 16usize];
};
#[doc = " A matrix instruction, `steps` times for each of `tiles` accumulators of each warp."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct mma_params {
    #[doc = " `[4, 32]` registers of fragment A."]
    pub a: *const u32,
    #[doc = " `[tiles, 2, 32]` registers of fragments B."]
    pub b: *const u32,
    #[doc = " `[gridDim.x, warps, tiles, 4, 32]` f32 or s32 registers of fragments D."]
    pub d: *mut ::core::ffi::c_void,
    #[doc = " Repetitions."]
    pub steps: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of mma_params"][::core::mem::size_of::<mma_params>() - 32usize];
    ["Alignment of mma_params"][::core::mem::align_of::<mma_params>() - 8usize];
    ["Offset of field: mma_params::a"][::core::mem::offset_of!(mma_params, a) - 0usize];
    ["Offset of field: mma_params::b"][::core::mem::offset_of!(mma_params, b) - 8usize];
    ["Offset of field: mma_params::d"][::core::mem::offset_of!(mma_params, d) - 16usize];
    ["Offset of field: mma_params::steps"][::core::mem::offset_of!(mma_params, steps) - 24usize];
};
#[doc = " Cosine and sine of the angle of each pair at each position."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct rope_angles_params {
    #[doc = " `[m]`"]
    pub positions: *const u32,
    #[doc = " `[m, pairs]` cosines and sines."]
    pub angles: *mut f32,
    #[doc = " What each pair turns from one position to the next, in quarters of a turn, at most 1."]
    pub quarters: [f64; 64usize],
    #[doc = " Rows."]
    pub m: u32,
    #[doc = " Pairs of a row."]
    pub pairs: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rope_angles_params"][::core::mem::size_of::<rope_angles_params>() - 536usize];
    ["Alignment of rope_angles_params"][::core::mem::align_of::<rope_angles_params>() - 8usize];
    ["Offset of field: rope_angles_params::positions"]
        [::core::mem::offset_of!(rope_angles_params, positions) - 0usize];
    ["Offset of field: rope_angles_params::angles"]
        [::core::mem::offset_of!(rope_angles_params, angles) - 8usize];
    ["Offset of field: rope_angles_params::quarters"]
        [::core::mem::offset_of!(rope_angles_params, quarters) - 16usize];
    ["Offset of field: rope_angles_params::m"][::core::mem::offset_of!(rope_angles_params, m) - 528usize];
    ["Offset of field: rope_angles_params::pairs"]
        [::core::mem::offset_of!(rope_angles_params, pairs) - 532usize];
};
#[doc = " Rotates pairs of neighbouring values of all heads. Of `x` and `y` what is given is the first rotated value of the first head. Where four\n  values are loaded at once everything is a multiple of 4."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct rope_params {
    #[doc = " `[m, pairs]` cosines and sines."]
    pub angles: *const f32,
    #[doc = " f32"]
    pub x: *const f32,
    #[doc = " f32, may be `x` if the strides are the same."]
    pub y: *mut f32,
    #[doc = " Values from row to row of `x`."]
    pub x_stride: u64,
    #[doc = " Values from row to row of `y`."]
    pub y_stride: u64,
    #[doc = " Values from head to head of `x`."]
    pub x_head: u32,
    #[doc = " Values from head to head of `y`."]
    pub y_head: u32,
    #[doc = " Heads."]
    pub heads: u32,
    #[doc = " Rows."]
    pub m: u32,
    #[doc = " Pairs of a head."]
    pub pairs: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of rope_params"][::core::mem::size_of::<rope_params>() - 64usize];
    ["Alignment of rope_params"][::core::mem::align_of::<rope_params>() - 8usize];
    ["Offset of field: rope_params::angles"][::core::mem::offset_of!(rope_params, angles) - 0usize];
    ["Offset of field: rope_params::x"][::core::mem::offset_of!(rope_params, x) - 8usize];
    ["Offset of field: rope_params::y"][::core::mem::offset_of!(rope_params, y) - 16usize];
    ["Offset of field: rope_params::x_stride"][::core::mem::offset_of!(rope_params, x_stride) - 24usize];
    ["Offset of field: rope_params::y_stride"][::core::mem::offset_of!(rope_params, y_stride) - 32usize];
    ["Offset of field: rope_params::x_head"][::core::mem::offset_of!(rope_params, x_head) - 40usize];
    ["Offset of field: rope_params::y_head"][::core::mem::offset_of!(rope_params, y_head) - 44usize];
    ["Offset of field: rope_params::heads"][::core::mem::offset_of!(rope_params, heads) - 48usize];
    ["Offset of field: rope_params::m"][::core::mem::offset_of!(rope_params, m) - 52usize];
    ["Offset of field: rope_params::pairs"][::core::mem::offset_of!(rope_params, pairs) - 56usize];
};
#[doc = " Of all experts together."]
pub const GATING_SOFTMAX: router_gating = 0;
#[doc = " Of each on its own."]
pub const GATING_SIGMOID: router_gating = 1;
#[doc = " How logits of experts become scores."]
pub type router_gating = ::core::ffi::c_uint;
#[doc = " Which experts a token goes to."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct router_params {
    #[doc = " `[n, k]`, aligned to 16; unused, and may be null, where logits are given."]
    pub w: *const f32,
    #[doc = " `[m, k]`, aligned to 16; unused, and may be null, where logits are given."]
    pub x: *const f32,
    #[doc = " `[n]`"]
    pub bias: *const f32,
    #[doc = " `[m, n]`, read where they are given."]
    pub logits: *mut f32,
    #[doc = " `[m, top_k]`"]
    pub ids: *mut u32,
    #[doc = " `[m, top_k]`"]
    pub weights: *mut f32,
    #[doc = " `[m / ROUTER_TOKENS]`, rounded up, zeros before the first launch; the kernel leaves zeros. Unused, and may be null, where logits\n  are given."]
    pub arrived: *mut u32,
    #[doc = " Tokens."]
    pub m: u32,
    #[doc = " Experts, as many as the kernel has room for, or fewer."]
    pub n: u32,
    #[doc = " Columns, a multiple of 4."]
    pub k: u32,
    #[doc = " Experts of a token: 1 to n, 32 at most."]
    pub top_k: u32,
    #[doc = " Of the scores."]
    pub gating: router_gating,
    #[doc = " Not 0: weights are divided by their sum."]
    pub normalize: u32,
    #[doc = " Factor on the weights."]
    pub scale: f32,
    #[doc = " Experts of a group, a divisor of `n`; 0: all experts can be chosen."]
    pub group_size: u32,
    #[doc = " Groups that are used, which have `top_k` experts or more. Unused without groups."]
    pub groups_used: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of router_params"][::core::mem::size_of::<router_params>() - 96usize];
    ["Alignment of router_params"][::core::mem::align_of::<router_params>() - 8usize];
    ["Offset of field: router_params::w"][::core::mem::offset_of!(router_params, w) - 0usize];
    ["Offset of field: router_params::x"][::core::mem::offset_of!(router_params, x) - 8usize];
    ["Offset of field: router_params::bias"][::core::mem::offset_of!(router_params, bias) - 16usize];
    ["Offset of field: router_params::logits"][::core::mem::offset_of!(router_params, logits) - 24usize];
    ["Offset of field: router_params::ids"][::core::mem::offset_of!(router_params, ids) - 32usize];
    ["Offset of field: router_params::weights"][::core::mem::offset_of!(router_params, weights) - 40usize];
    ["Offset of field: router_params::arrived"][::core::mem::offset_of!(router_params, arrived) - 48usize];
    ["Offset of field: router_params::m"][::core::mem::offset_of!(router_params, m) - 56usize];
    ["Offset of field: router_params::n"][::core::mem::offset_of!(router_params, n) - 60usize];
    ["Offset of field: router_params::k"][::core::mem::offset_of!(router_params, k) - 64usize];
    ["Offset of field: router_params::top_k"][::core::mem::offset_of!(router_params, top_k) - 68usize];
    ["Offset of field: router_params::gating"][::core::mem::offset_of!(router_params, gating) - 72usize];
    ["Offset of field: router_params::normalize"]
        [::core::mem::offset_of!(router_params, normalize) - 76usize];
    ["Offset of field: router_params::scale"][::core::mem::offset_of!(router_params, scale) - 80usize];
    ["Offset of field: router_params::group_size"]
        [::core::mem::offset_of!(router_params, group_size) - 84usize];
    ["Offset of field: router_params::groups_used"]
        [::core::mem::offset_of!(router_params, groups_used) - 88usize];
};
#[doc = " The activation of a feed-forward layer."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct swiglu_params {
    #[doc = " `[n]`, aligned to 16."]
    pub gate: *const f32,
    #[doc = " `[n]`, aligned to 16."]
    pub up: *const f32,
    #[doc = " `[n]`, aligned to 16; may be `gate` or `up`."]
    pub y: *mut f32,
    #[doc = " Values."]
    pub n: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of swiglu_params"][::core::mem::size_of::<swiglu_params>() - 32usize];
    ["Alignment of swiglu_params"][::core::mem::align_of::<swiglu_params>() - 8usize];
    ["Offset of field: swiglu_params::gate"][::core::mem::offset_of!(swiglu_params, gate) - 0usize];
    ["Offset of field: swiglu_params::up"][::core::mem::offset_of!(swiglu_params, up) - 8usize];
    ["Offset of field: swiglu_params::y"][::core::mem::offset_of!(swiglu_params, y) - 16usize];
    ["Offset of field: swiglu_params::n"][::core::mem::offset_of!(swiglu_params, n) - 24usize];
};
