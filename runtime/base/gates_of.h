/* base/gates_of.h - recurrent cells in the type T; base/gates.h includes it once for float and once for double.
 * OF(name) is a name that ends in the type.
 *
 * Going forward, sums of products become gates where they lie. Going backward, gates become the gradients of these
 * sums where they lie. */

/* Gates of an LSTM from their sums; c from the cell state before, and h. */
GB_INLINE void OF(gb_lstm)(T *input, T *forget, T *fresh, T *output, T *c, T *h) {
  T i = OF(gb_sigmoid)(*input), f = OF(gb_sigmoid)(*forget), g = OF(gb_tanh)(*fresh), o = OF(gb_sigmoid)(*output);
  T cell = f * *c + i * g;
  *input = i, *forget = f, *fresh = g, *output = o, *c = cell;
  *h = o * OF(gb_tanh)(cell);
}

/* c: the cell state after the step; before: that before it; dh: what reaches h; dc: what reaches c from later steps,
 * and then the state before. */
GB_INLINE void OF(gb_lstm_backward)(T *input, T *forget, T *fresh, T *output, T c, T before, T dh, T *dc) {
  T i = *input, f = *forget, g = *fresh, o = *output, bent = OF(gb_tanh)(c);
  T d = *dc + dh * o * (1 - bent * bent);
  *input = d * g * (i * (1 - i));
  *forget = d * before * (f * (1 - f));
  *fresh = d * i * (1 - g * g);
  *output = dh * bent * (o * (1 - o));
  *dc = d * f;
}

/* Gates of a GRU from their sums, where fresh has the input's part alone and past that of the state, and h from the
 * state before. */
GB_INLINE void OF(gb_gru)(T *reset, T *update, T *fresh, T past, T *h) {
  T r = OF(gb_sigmoid)(*reset), z = OF(gb_sigmoid)(*update), n = OF(gb_tanh)(*fresh + r * past);
  *reset = r, *update = z, *fresh = n;
  *h = n + z * (*h - n);
}

/* before: the state before the step; dh: what reaches h, and then what reaches the state before past the products. */
GB_INLINE void OF(gb_gru_backward)(T *reset, T *update, T *fresh, T *past, T before, T *dh) {
  T r = *reset, z = *update, n = *fresh, d = *dh, dn = d * (1 - z) * (1 - n * n);
  *reset = dn * *past * (r * (1 - r));
  *update = d * (before - n) * (z * (1 - z));
  *fresh = dn;
  *past = dn * r;
  *dh = d * z;
}
