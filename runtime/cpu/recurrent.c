/* cpu/recurrent.c - a layer of recurrent cells over a sequence, forward and backward.
 *
 * weight is packed once for all steps. A step is one run of chunks, each some rows of the batch by some units: the
 * products of the state with these units' columns of weight, and at once, while they are in the cache, the gates, the
 * new state and what backward keeps. Backward goes the same way from the last step: a chunk adds the products of the
 * later step's gradients to its part of dh, and turns the gates of its own step into gradients. What meets weight, the
 * states and the gradients of sums, has y's type where that is of 16 bits, so units for bfloat16 operands take it; sums
 * and gates are float32 (float64 for float64). Work of a step: 2 batch gates size^2 operations, and 5 exponentials for
 * each element of h; memory: weight from a cache, gates, units and y once. */
#include "cpu/gemm.h"
#include "cpu/scratch.h"

#include "base/gates.h"

/* The most rows of a chunk, a multiple of what kernels hold in registers; its units are a multiple of UNITS, where
 * packed columns may begin. They are shared out evenly between the threads, since rows of a tensor are read as quickly
 * as they are long; an element's bits do not depend on it. Operations that are worth waking a thread for. */
enum { MOST_ROWS = 96, UNITS = 32 };
#define LEAST_OPERATIONS 1e6

/* Sums of a unit, at most; and what a row of a step costs beside its elements. */
enum { MOST_GATES = 4, ROW_WORK = 256 };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A tensor as [time, batch, columns], or [batch, columns] with a stride of 0 over time. */
typedef struct steps { char *data; gb_dtype dtype; int64_t bytes, time, row, column; } steps;

/* One call, forward or backward. */
typedef struct recurrent {
  const gb_op_call *call;
  gb_lane lane;
  size_t size;                     /* bytes of a lane */
  gb_dtype meets;                  /* what is multiplied with weight: as y, or lanes */
  int64_t meets_bytes;
  int64_t cell, gates, units;      /* a word; sums of a unit, and what backward keeps of it */
  int64_t time, batch, hidden;
  bool backwards;
  int64_t *lengths;                /* NULL: all are whole */
  gb_product_how how;
  gb_matrix weight;                /* as products take it: hidden rows, hidden columns for each gate */
  int64_t gate_step;               /* elements from a gate's part of it to the next one's */
  char *packed;
  size_t packed_bytes;             /* of one gate */
  int64_t rows, columns, across;   /* of a chunk, and chunks side by side */
  gb_scratch scratch;
  steps x, bias, y, kept, cells, first_h, first_c, grad, dgates, dsums, before; /* without data where absent */
  char *h[2], *c;                  /* [batch, hidden]: states by turns; lanes of the cell */
  char *slopes[2], *dh, *dc;       /* [gates, batch, hidden] by turns: gradients of sums; lanes of those of states */
  int64_t round;                   /* the steps that were done */
} recurrent;

/* {==== reading the call ==== */

static steps steps_of(const gb_tensor *t) {
  if (!t) return (steps){ 0 };
  return (steps){ gb_data(t), (gb_dtype)t->dtype, (int64_t)gb_dtype_bytes((gb_dtype)t->dtype),
                  t->ndim == 3 ? t->stride[0] : 0, t->ndim > 1 ? t->stride[t->ndim - 2] : 0, t->stride[t->ndim - 1] };
}

static char *element(const steps *s, int64_t t, int64_t row, int64_t column) {
  return s->data + (t * s->time + row * s->row + column * s->column) * s->bytes;
}

/* n elements of a row as lanes, and back. */
static void load(const recurrent *r, void *to, const steps *s, int64_t t, int64_t row, int64_t column, int64_t n) {
  gb_lane_load(r->lane, to, element(s, t, row, column), s->dtype, s->column, n);
}
static void store(const recurrent *r, const steps *s, int64_t t, int64_t row, int64_t column, const void *from,
                  int64_t n) {
  gb_lane_store(r->lane, element(s, t, row, column), s->dtype, s->column, from, n);
}

/* Element (row, column) of lanes [rows, hidden]. */
static char *lane_at(const recurrent *r, char *lanes, int64_t row, int64_t column) {
  return lanes + (size_t)(row * r->hidden + column) * r->size;
}

/* Element (row, column) of what is multiplied with weight, [rows, hidden]; n of them as lanes, and back. */
static char *met_at(const recurrent *r, char *met, int64_t row, int64_t column) {
  return met + (row * r->hidden + column) * r->meets_bytes;
}
static void load_met(const recurrent *r, void *to, char *met, int64_t row, int64_t column, int64_t n) {
  gb_lane_load(r->lane, to, met_at(r, met, row, column), r->meets, 1, n);
}
static void store_met(const recurrent *r, char *met, int64_t row, int64_t column, const void *from, int64_t n) {
  gb_lane_store(r->lane, met_at(r, met, row, column), r->meets, 1, from, n);
}

#define SAME_ATTR(name) \
  _Static_assert(GB_ATTR_AT(recurrent, name) == GB_ATTR_AT(recurrent_backward, name), #name);
SAME_ATTR(cell)
SAME_ATTR(backwards)

/* What forward and backward have in common; as_it_lies: products are with weight, not with its
 * transposition. */
static recurrent recurrent_of(gb_op_call *call, const gb_tensor *y, const gb_tensor *weight, bool as_it_lies) {
  const gb_attrs_recurrent *attrs = GB_ATTRS(call, recurrent);
  recurrent r = { .call = call, .lane = y->dtype == GB_FLOAT64 ? GB_LANE_F64 : GB_LANE_F32,
                  .cell = attrs->cell.integer, .time = y->shape[0], .batch = y->shape[1], .hidden = y->shape[2],
                  .backwards = attrs->backwards.integer, .how = gb_product_how_of(call->context) };
  r.size = gb_lane_bytes(r.lane);
  r.gates = r.cell == GB_WORD_lstm ? 4 : r.cell == GB_WORD_gru ? 3 : 1;
  r.units = r.gates == 1 ? 0 : 4;
  r.meets = gb_is_16bit((gb_dtype)y->dtype) ? (gb_dtype)y->dtype : gb_lane_dtype(r.lane);
  r.meets_bytes = (int64_t)gb_dtype_bytes(r.meets);
  if (r.meets != GB_BFLOAT16 || weight->dtype != GB_BFLOAT16) r.how.unit = GB_UNIT_NONE;
  int64_t along = weight->stride[0], across = weight->stride[1];
  r.weight = (gb_matrix){ gb_data(weight), (gb_dtype)weight->dtype, as_it_lies ? along : across,
                          as_it_lies ? across : along };
  r.gate_step = r.hidden * along;
  r.packed_bytes = gb_packed_bytes(r.how, r.lane, r.hidden, r.hidden);
  r.rows = least(r.batch, MOST_ROWS);
  r.columns = divide_up(divide_up(r.hidden, gb_threads_count(call->context->threads)), UNITS) * UNITS;
  double column = 2.0 * (double)(r.gates * r.hidden) * (double)(r.rows > 0 ? r.rows : 1);
  while (r.columns < r.hidden && column * (double)r.columns < LEAST_OPERATIONS) r.columns += UNITS;
  while (r.columns < r.hidden && r.hidden % r.columns == 1) r.columns += UNITS; /* one unit is summed as a vector */
  r.columns = least(r.columns, r.hidden);
  r.across = r.columns > 0 ? divide_up(r.hidden, r.columns) : 0;
  return r;
}

/* ====} */

/* {==== scratch ==== */

/* A part of the scratch that all chunks share: where its address goes. */
typedef struct piece { char **to; int64_t bytes; } piece;

/* Room for a thread: sums of a chunk, and rows of it. */
enum { ROOM_ROWS = 6 };

static size_t work_bytes(const recurrent *r) {
  return (gb_block_product_scratch(r->how, r->lane, r->rows, r->columns, r->hidden) + 63) / 64 * 64;
}

static int64_t sums_lanes(const recurrent *r) { return r->gates * r->rows * r->columns; }

/* Lay out packed weight, lengths and the given pieces. */
static gb_status open_scratch(gb_op_call *call, recurrent *r, const gb_tensor *lengths, const piece *pieces,
                              int count) {
  size_t total = 0, at[8];
  size_t packed = gb_scratch_take(&total, (int64_t)r->packed_bytes * r->gates);
  size_t list = gb_scratch_take(&total, lengths ? r->batch * (int64_t)sizeof(int64_t) : 0);
  for (int i = 0; i < count; i++) at[i] = gb_scratch_take(&total, pieces[i].bytes);
  size_t room = work_bytes(r) + ((size_t)(sums_lanes(r) + ROOM_ROWS * r->columns) * r->size + 63) / 64 * 64;
  GB_TRY(gb_scratch_open(call, total, room, &r->scratch));
  r->packed = r->scratch.shared + packed;
  for (int i = 0; i < count; i++) *pieces[i].to = r->scratch.shared + at[i];
  if (!lengths) return GB_OK;
  r->lengths = (int64_t *)(void *)(r->scratch.shared + list);
  gb_lane_load(GB_LANE_I64, r->lengths, gb_data(lengths), (gb_dtype)lengths->dtype, lengths->stride[0], r->batch);
  return GB_OK;
}

/* The part of weight of a gate, from a column on. */
static gb_matrix weight_at(const recurrent *r, int64_t gate, int64_t column) {
  gb_matrix m = r->weight;
  m.data = (const char *)m.data +
      (gate * r->gate_step + column * m.column_stride) * (int64_t)gb_dtype_bytes(m.dtype);
  return m;
}

/* Chunk: some columns of one gate's part of weight. */
static void pack_chunk(void *arg, int64_t chunk) {
  const recurrent *r = arg;
  int64_t blocks = divide_up(r->hidden, UNITS), gate = chunk / blocks, first = chunk % blocks * UNITS;
  gb_matrix m = weight_at(r, gate, 0);
  gb_pack_columns(r->how, r->lane, first, least(UNITS, r->hidden - first), r->hidden, &m,
                  gb_packed_columns(r->how, r->lane, r->hidden), r->packed + (size_t)gate * r->packed_bytes,
                  gb_scratch_room(&r->scratch));
}

static void pack_weight(const recurrent *r) {
  gb_parallel(r->call, r->gates * divide_up(r->hidden, UNITS), pack_chunk, (void *)(uintptr_t)r);
}

/* What a chunk works on: rows first .. first + m - 1 of the batch, n units from `column` on; its thread's room. */
typedef struct block { int64_t first, m, column, n; char *work, *sums, *row; } block;

static block block_of(const recurrent *r, int64_t chunk) {
  int64_t first = chunk / r->across * r->rows, column = chunk % r->across * r->columns;
  char *room = gb_scratch_room(&r->scratch), *sums = room + work_bytes(r);
  return (block){ first, least(r->rows, r->batch - first), column, least(r->columns, r->hidden - column), room, sums,
                  sums + (size_t)sums_lanes(r) * r->size };
}

/* sums = beta * sums + rows of `from`, [batch, hidden], times a gate's part of weight. */
static void multiply(const recurrent *r, const block *b, char *from, int64_t gate, double beta, char *sums,
                     int64_t ld) {
  gb_matrix x = { met_at(r, from, b->first, 0), r->meets, r->hidden, 1 };
  gb_matrix w = weight_at(r, gate, b->column);
  gb_packed packed = { r->packed + (size_t)gate * r->packed_bytes, gb_packed_columns(r->how, r->lane, r->hidden),
                       b->column };
  gb_block_product(r->how, r->lane, b->m, b->n, r->hidden, 1, &x, &w, &packed, beta, sums, ld,
                   gb_lane_dtype(r->lane), b->work);
}

/* Run the chunks of `rounds` rounds, one after another. */
static void run_rounds(recurrent *r, int64_t rounds, gb_chunk_fn fn) {
  int64_t chunks = r->rows > 0 ? divide_up(r->batch, r->rows) * r->across : 0;
  for (r->round = 0; r->round < rounds && !gb_was_stopped(r->call); r->round++) gb_parallel(r->call, chunks, fn, r);
}

/* The step that comes after `done` others in forward. */
static int64_t step_after(const recurrent *r, int64_t done) { return r->backwards ? r->time - 1 - done : done; }

static bool goes_on(const recurrent *r, int64_t t, int64_t row) { return !r->lengths || t < r->lengths[row]; }

/* ====} */

/* {==== the arithmetic, in lanes of either type ==== */

/* Lane arrays of a row of a chunk: what forward makes of sums, or backward of gates. */
typedef struct rows_of_gates { char *gate[MOST_GATES]; } rows_of_gates;

#define T float
#define OF(name) name##_f32
#include "cpu/recurrent_of.h"
#undef T
#undef OF

#define T double
#define OF(name) name##_f64
#include "cpu/recurrent_of.h"
#undef T
#undef OF

/* ====} */

/* {==== forward ==== */

/* A sequence has ended: its state stays, and what it shows is 0. */
static void stand_still(const recurrent *r, const block *b, int64_t t, int64_t row) {
  size_t bytes = (size_t)b->n * r->size;
  char *zeros = memset(b->row, 0, bytes), *now = met_at(r, r->h[r->round % 2], row, b->column);
  memcpy(met_at(r, r->h[(r->round + 1) % 2], row, b->column), now, (size_t)(b->n * r->meets_bytes));
  store(r, &r->y, t, row, b->column, zeros, b->n);
  for (int64_t k = 0; r->kept.data && k < r->units; k++)
    store(r, &r->kept, t, row, k * r->hidden + b->column, zeros, b->n);
  if (r->cells.data) store(r, &r->cells, t, row, b->column, lane_at(r, r->c, row, b->column), b->n);
}

/* The sums of a row with the input's part of them: in place, but for that of a GRU's last gate, which stays apart. */
static rows_of_gates complete(const recurrent *r, const block *b, int64_t t, int64_t row) {
  size_t bytes = (size_t)b->n * r->size;
  rows_of_gates g = { { 0 } };
  for (int64_t k = 0; k < r->gates; k++) {
    char *sums = b->sums + (size_t)((k * b->m + row - b->first) * b->n) * r->size, *own = b->row + (size_t)k * bytes;
    if (r->bias.data) {
      load(r, own, &r->bias, 0, 0, k * r->hidden + b->column, b->n);
      gb_row_add(r->lane, sums, own, b->n, 1);
    }
    load(r, own, &r->x, t, row, k * r->hidden + b->column, b->n);
    if (r->cell == GB_WORD_gru && k == 2) {
      g.gate[2] = own, g.gate[3] = sums;
      continue;
    }
    gb_row_add(r->lane, sums, own, b->n, 1);
    g.gate[k] = sums;
  }
  return g;
}

/* A row of a step, of which the products are there. */
static void forward_row(const recurrent *r, const block *b, int64_t t, int64_t row) {
  size_t bytes = (size_t)b->n * r->size;
  if (!goes_on(r, t, row)) { stand_still(r, b, t, row); return; }
  rows_of_gates g = complete(r, b, t, row);
  char *h = b->row + MOST_GATES * bytes;
  load_met(r, h, r->h[r->round % 2], row, b->column, b->n);
  char *c = r->c ? lane_at(r, r->c, row, b->column) : NULL;
  if (r->lane == GB_LANE_F32) forward_f32(r->cell, b->n, &g, h, c);
  else forward_f64(r->cell, b->n, &g, h, c);
  for (int64_t k = 0; r->kept.data && k < r->units; k++)
    store(r, &r->kept, t, row, k * r->hidden + b->column, g.gate[k], b->n);
  if (r->cells.data) store(r, &r->cells, t, row, b->column, c, b->n);
  store(r, &r->y, t, row, b->column, h, b->n);
  store_met(r, r->h[(r->round + 1) % 2], row, b->column, h, b->n);
}

/* Chunk: some rows and units of one step. */
static void forward_chunk(void *arg, int64_t chunk) {
  const recurrent *r = arg;
  block b = block_of(r, chunk);
  int64_t t = step_after(r, r->round);
  for (int64_t k = 0; k < r->gates; k++)
    multiply(r, &b, r->h[r->round % 2], k, 0, b.sums + (size_t)(k * b.m * b.n) * r->size, b.n);
  for (int64_t i = 0; i < b.m && !gb_work(ROW_WORK + 8 * b.n); i++) forward_row(r, &b, t, b.first + i);
}

/* Rows of a state as lanes, and back. */
static void load_state(const recurrent *r, const gb_tensor *from, char *to) {
  steps s = steps_of(from);
  for (int64_t i = 0; i < r->batch && !gb_work(ROW_WORK + r->hidden); i++)
    load(r, lane_at(r, to, i, 0), &s, 0, i, 0, r->hidden);
}
static void store_state(const recurrent *r, const gb_tensor *to, char *from) {
  steps s = steps_of(to);
  for (int64_t i = 0; to && i < r->batch && !gb_work(ROW_WORK + r->hidden); i++)
    store(r, &s, 0, i, 0, lane_at(r, from, i, 0), r->hidden);
}

/* The states that sequences begin and end with, as they meet weight. */
static void load_h(const recurrent *r, const gb_tensor *from) {
  steps s = steps_of(from);
  double lanes[UNITS];
  for (int64_t i = 0; i < r->batch && !gb_work(ROW_WORK + r->hidden); i++)
    for (int64_t j = 0; j < r->hidden; j += UNITS) {
      load(r, lanes, &s, 0, i, j, least(UNITS, r->hidden - j));
      store_met(r, r->h[0], i, j, lanes, least(UNITS, r->hidden - j));
    }
}
static void store_h(const recurrent *r, const gb_tensor *to) {
  steps s = steps_of(to);
  double lanes[UNITS];
  for (int64_t i = 0; i < r->batch && !gb_work(ROW_WORK + r->hidden); i++)
    for (int64_t j = 0; j < r->hidden; j += UNITS) {
      load_met(r, lanes, r->h[r->time % 2], i, j, least(UNITS, r->hidden - j));
      store(r, &s, 0, i, j, lanes, least(UNITS, r->hidden - j));
    }
}

static gb_status recurrent_forward(gb_op_call *call) {
  const gb_in_recurrent *in = GB_IN(call, recurrent);
  const gb_out_recurrent *out = GB_OUT(call, recurrent);
  recurrent r = recurrent_of(call, out->y, in->weight, false);
  int64_t places = r.batch * r.hidden, state = places * r.meets_bytes;
  const piece pieces[] = { { &r.h[0], state }, { &r.h[1], state }, { &r.c, in->c ? places * (int64_t)r.size : 0 } };
  if (out->last_h->numel == 0) return GB_OK;
  GB_TRY(open_scratch(call, &r, in->lengths, pieces, 3));
  if (!in->c) r.c = NULL;
  r.x = steps_of(in->gates), r.y = steps_of(out->y), r.kept = steps_of(out->units), r.cells = steps_of(out->cells);
  if (in->bias) r.bias = steps_of(in->bias);
  load_h(&r, in->h);
  if (in->c) load_state(&r, in->c, r.c);
  pack_weight(&r);
  run_rounds(&r, r.time, forward_chunk);
  store_h(&r, out->last_h);
  if (in->c) store_state(&r, out->last_c, r.c);
  gb_scratch_close(call, &r.scratch);
  return GB_OK;
}

/* ====} */

/* {==== backward ==== */

/* The step before t in forward; whether there is none for a row. */
static int64_t step_before(const recurrent *r, int64_t t) { return r->backwards ? t + 1 : t - 1; }
static bool is_first(const recurrent *r, int64_t t, int64_t row) {
  int64_t before = step_before(r, t);
  return before < 0 || before >= r->time || !goes_on(r, before, row);
}

/* Lane arrays of a row of a chunk. */
static char *room_row(const recurrent *r, const block *b, int64_t i) { return b->row + (size_t)(i * b->n) * r->size; }

/* The state before step t as lanes: its own, where it has one, or that which the sequence begins with. */
static void load_before(const recurrent *r, const block *b, char *to, const steps *own, const steps *first, int64_t t,
                        int64_t row) {
  if (is_first(r, t, row)) load(r, to, first, 0, row, b->column, b->n);
  else load(r, to, own, step_before(r, t), row, b->column, b->n);
}

/* The gradients of a row's sums are 0 where its sequence has ended; those of its states stay. */
static void pass_by(const recurrent *r, const block *b, char *slopes, int64_t t, int64_t row) {
  size_t bytes = (size_t)b->n * r->size;
  char *zeros = memset(b->row, 0, bytes);
  for (int64_t k = 0; k < r->gates; k++) {
    memset(met_at(r, slopes, k * r->batch + row, b->column), 0, (size_t)(b->n * r->meets_bytes));
    store(r, &r->dgates, t, row, k * r->hidden + b->column, zeros, b->n);
    if (r->dsums.data) store(r, &r->dsums, t, row, k * r->hidden + b->column, zeros, b->n);
  }
  if (r->before.data) store(r, &r->before, t, row, b->column, zeros, b->n);
}

/* A row of a step, whose dh has all that later steps add to it. */
static void backward_row(const recurrent *r, const block *b, int64_t t, int64_t row) {
  bool is_gru = r->cell == GB_WORD_gru;
  char *slopes = r->slopes[r->round % 2], *dh = lane_at(r, r->dh, row, b->column);
  if (!goes_on(r, t, row)) { pass_by(r, b, slopes, t, row); return; }
  rows_of_gates g = { { room_row(r, b, 0), room_row(r, b, 1), room_row(r, b, 2), room_row(r, b, 3) } };
  char *state = room_row(r, b, 4), *before = room_row(r, b, 5);
  if (r->grad.data) {
    load(r, state, &r->grad, t, row, b->column, b->n);
    gb_row_add(r->lane, dh, state, b->n, 1);
  }
  for (int64_t k = 0; k < r->units; k++) load(r, g.gate[k], &r->kept, t, row, k * r->hidden + b->column, b->n);
  if (r->units == 0) load(r, g.gate[0], &r->y, t, row, b->column, b->n);
  if (r->before.data || is_gru) load_before(r, b, before, &r->y, &r->first_h, t, row);
  if (r->before.data) store(r, &r->before, t, row, b->column, before, b->n);
  char *dc = NULL;
  if (r->cell == GB_WORD_lstm) {
    load(r, state, &r->cells, t, row, b->column, b->n);
    load_before(r, b, before, &r->cells, &r->first_c, t, row);
    dc = lane_at(r, r->dc, row, b->column);
  }
  if (r->lane == GB_LANE_F32) backward_f32(r->cell, b->n, &g, state, before, dh, dc);
  else backward_f64(r->cell, b->n, &g, state, before, dh, dc);
  for (int64_t k = 0; k < r->gates; k++) {
    int64_t column = k * r->hidden + b->column;
    char *sums = is_gru && k == 2 ? g.gate[3] : g.gate[k];
    store(r, &r->dgates, t, row, column, g.gate[k], b->n);
    if (r->dsums.data) store(r, &r->dsums, t, row, column, sums, b->n);
    store_met(r, slopes, k * r->batch + row, b->column, sums, b->n);
  }
}

/* Chunk: some rows and units of dh, to which the step that was done before adds its part, and then of the step before
 * that; after the first step only the former. */
static void backward_chunk(void *arg, int64_t chunk) {
  const recurrent *r = arg;
  block b = block_of(r, chunk);
  char *later = r->slopes[(r->round + 1) % 2];
  for (int64_t k = 0; r->round > 0 && k < r->gates; k++)
    multiply(r, &b, met_at(r, later, k * r->batch, 0), k, 1, lane_at(r, r->dh, b.first, b.column), r->hidden);
  if (r->round == r->time) return;
  int64_t t = step_after(r, r->time - 1 - r->round);
  for (int64_t i = 0; i < b.m && !gb_work(ROW_WORK + 8 * b.n); i++) backward_row(r, &b, t, b.first + i);
}

/* Rows of a state's gradient, or zeros. */
static void begin_gradient(const recurrent *r, const gb_tensor *from, char *to) {
  if (from) load_state(r, from, to);
  else gb_clear_bytes(to, (size_t)(r->batch * r->hidden) * r->size);
}

static gb_status recurrent_backward(gb_op_call *call) {
  const gb_in_recurrent_backward *in = GB_IN(call, recurrent_backward);
  const gb_out_recurrent_backward *out = GB_OUT(call, recurrent_backward);
  recurrent r = recurrent_of(call, in->y, in->weight, true);
  int64_t places = r.batch * r.hidden, state = places * (int64_t)r.size, sums = places * r.gates * r.meets_bytes;
  const piece pieces[] = { { &r.slopes[0], sums }, { &r.slopes[1], sums }, { &r.dh, state },
                           { &r.dc, in->c ? state : 0 } };
  if (out->dh->numel == 0) return GB_OK;
  GB_TRY(open_scratch(call, &r, in->lengths, pieces, 4));
  r.y = steps_of(in->y), r.kept = steps_of(in->units), r.cells = steps_of(in->cells), r.grad = steps_of(in->grad);
  r.first_h = steps_of(in->h), r.first_c = steps_of(in->c);
  r.dgates = steps_of(out->dgates), r.dsums = steps_of(out->dsums), r.before = steps_of(out->before);
  begin_gradient(&r, in->grad_h, r.dh);
  if (in->c) begin_gradient(&r, in->grad_c, r.dc);
  pack_weight(&r);
  run_rounds(&r, r.time + 1, backward_chunk);
  store_state(&r, out->dh, r.dh);
  store_state(&r, out->dc, r.dc);
  gb_scratch_close(call, &r.scratch);
  return GB_OK;
}

/* ====} */

void GB_CPU_FILL(recurrent)(gb_backend *backend);
void GB_CPU_FILL(recurrent)(gb_backend *backend) {
  backend->run[GB_OP_recurrent] = recurrent_forward;
  backend->run[GB_OP_recurrent_backward] = recurrent_backward;
}
