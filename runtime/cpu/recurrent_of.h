/* cpu/recurrent_of.h - base/gates.h over n units of a row, in lanes of type T; cpu/recurrent.c includes it for float32
 * and float64. */

/* Sums become gates, and h and c those after the step. */
static void OF(forward)(int64_t cell, int64_t n, const rows_of_gates *g, void *state, void *cell_state) {
  T *restrict p = (T *)(void *)g->gate[0], *restrict q = (T *)(void *)g->gate[1];
  T *restrict s = (T *)(void *)g->gate[2], *restrict u = (T *)(void *)g->gate[3];
  T *restrict h = state, *restrict c = cell_state;
  if (cell == GB_WORD_lstm) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) OF(gb_lstm)(&p[i], &q[i], &s[i], &u[i], &c[i], &h[i]);
  } else if (cell == GB_WORD_gru) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) OF(gb_gru)(&p[i], &q[i], &s[i], u[i], &h[i]);
  } else if (cell == GB_WORD_tanh) {
    for (int64_t i = 0; i < n; i++) h[i] = OF(gb_tanh)(p[i]);
  } else {
    for (int64_t i = 0; i < n; i++) h[i] = OF(gb_relu)(p[i]);
  }
}

/* Gates become the gradients of their sums, and dh and dc what reaches the states before past the products. c: the
 * cell state after the step; before: the state before it, of an LSTM that of the cell. */
static void OF(backward)(int64_t cell, int64_t n, const rows_of_gates *g, const void *after, const void *earlier,
                         void *slope, void *cell_slope) {
  T *restrict p = (T *)(void *)g->gate[0], *restrict q = (T *)(void *)g->gate[1];
  T *restrict s = (T *)(void *)g->gate[2], *restrict u = (T *)(void *)g->gate[3];
  const T *restrict c = after, *restrict before = earlier;
  T *restrict dh = slope, *restrict dc = cell_slope;
  if (cell == GB_WORD_gru) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) OF(gb_gru_backward)(&p[i], &q[i], &s[i], &u[i], before[i], &dh[i]);
    return;
  }
  if (cell == GB_WORD_lstm) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) OF(gb_lstm_backward)(&p[i], &q[i], &s[i], &u[i], c[i], before[i], dh[i], &dc[i]);
  } else if (cell == GB_WORD_tanh) {
    for (int64_t i = 0; i < n; i++) p[i] = OF(gb_tanh_backward)(dh[i], p[i]);
  } else {
    for (int64_t i = 0; i < n; i++) p[i] = OF(gb_relu_backward)(dh[i], p[i]);
  }
  for (int64_t i = 0; i < n; i++) dh[i] = 0;
}
