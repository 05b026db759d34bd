/* fuzz_csv.c - any bytes as a table of text: refused, or samples whose numbers are finite and whose ids are in range;
 * and the same file read by what was learned from it has the same samples.
 *
 * The first byte of the input chooses options. The second says how many bytes of what follows are a table that the rest
 * is fitted to. */
#include <math.h>
#include <string.h>

#include "data/readers.h"
#include "fuzz.h"

extern const gb_reader gb_reader_csv;

/* Open the bytes as a table. fitted: NULL or a dataset. */
static gb_status open_table(const uint8_t *data, size_t size, int how, gb_dataset *fitted, gb_dataset **out) {
  const char *const separator = how & 16 ? ";" : ",";
  const gb_option rows[] = { { .position = 1, .kind = GB_OPTION_NUMBER, .number = 2 },
                             { .position = 2, .kind = GB_OPTION_NUMBER, .number = 1 } };
  gb_option options[] = {
    { .name = "header", .kind = GB_OPTION_BOOL, .number = how & 1 },
    { .name = "quotes", .kind = GB_OPTION_BOOL, .number = !(how & 2) },
    { .name = "missing", .kind = GB_OPTION_STRING, .string = how & 4 ? "error" : "fill" },
    { .name = "separator", .kind = GB_OPTION_STRING, .string = separator, .length = 1 },
    { .name = "decimal_comma", .kind = GB_OPTION_BOOL, .number = how & 16 },
    { .name = "rows", .kind = how & 128 ? GB_OPTION_LIST : GB_OPTION_NONE, .list = rows, .count = 2 },
    { .name = "fitted", .kind = fitted ? GB_OPTION_DATASET : GB_OPTION_NONE, .dataset = fitted },
    { .name = "standardize", .kind = fitted ? GB_OPTION_NONE : GB_OPTION_BOOL, .number = how & 32 },
    { .name = "target", .kind = fitted || !(how & 64) ? GB_OPTION_NONE : GB_OPTION_NUMBER, .number = how & 8 ? 1 : -1 },
  };
  gb_reading given = { .path = { fuzz_file(data, size) }, .options = { .list = options,
                                                                       .count = sizeof options / sizeof *options } };
  gb_status status = gb_reader_csv.open(fuzz_context(), &given, out);
  CLAIM(status == GB_OK ? *out != NULL : *gb_error(fuzz_context()) != 0);
  return status;
}

/* Sample i of both, which are alike where b is not NULL. */
static void check_sample(gb_dataset *a, gb_dataset *b, int64_t i) {
  gb_tensor *x[GB_MAX_COLUMNS], *y[GB_MAX_COLUMNS];
  CLAIM(gb_dataset_get(fuzz_context(), a, i, x) == GB_OK);
  if (b) CLAIM(gb_dataset_get(fuzz_context(), b, i, y) == GB_OK);
  for (int c = 0; c < a->columns; c++) {
    const float *numbers = (const float *)gb_data(x[c]);
    const int64_t *ids = (const int64_t *)gb_data(x[c]);
    for (int64_t k = 0; k < x[c]->numel; k++) CLAIM(a->column[c].dtype == GB_FLOAT32 ?
                                                    isfinite(numbers[k]) : ids[k] >= 0 && ids[k] <= a->count);
    if (b) CLAIM(!memcmp(gb_data(x[c]), gb_data(y[c]), a->column[c].bytes));
    if (b) gb_tensor_release(y[c]);
    gb_tensor_release(x[c]);
  }
}

/* What is known of the columns makes sense. */
static void check_fields(const gb_dataset *set) {
  for (int i = 0; i < set->fields->count; i++) {
    const gb_field *field = &set->fields->field[i];
    CLAIM(field->missing >= 0 && field->missing + field->unseen <= set->count && field->name);
    CLAIM(field->is_category ? field->count > 0 : isfinite(field->mean) && field->std >= 0);
    for (int64_t k = 1; k < field->count; k++) CLAIM(strcmp(field->words[k - 1], field->words[k]) < 0);
  }
}

static void try_tables(const uint8_t *data, size_t size) {
  gb_dataset *first = NULL, *again = NULL, *second = NULL;
  int how = data[0];
  size_t head = data[1] < size - 2 ? data[1] : 0, bytes = head ? head : size - 2;
  if (open_table(data + 2, bytes, how, NULL, &first) != GB_OK) return;
  check_fields(first);
  CLAIM(open_table(data + 2, bytes, how, first, &again) == GB_OK && again->count == first->count
        && again->columns == first->columns);
  for (int64_t i = 0; i < first->count; i++) check_sample(first, again, i);
  gb_dataset_release(first); /* what was learned goes on */
  if (head && open_table(data + 2 + head, size - 2 - head, how, again, &second) == GB_OK) {
    check_fields(second);
    gb_tensor *samples[GB_MAX_COLUMNS];
    CLAIM(gb_dataset_get(fuzz_context(), second, second->count - 1, samples) == GB_OK);
    for (int c = 0; c < second->columns; c++) gb_tensor_release(samples[c]);
  }
  gb_dataset_release(again);
  gb_dataset_release(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t before = atomic_load(&fuzz_context()->budget.used);
  if (size >= 2) try_tables(data, size);
  CLAIM(atomic_load(&fuzz_context()->budget.used) == before); /* what was counted is given back, also where a table is
                                                                 refused */
  return 0;
}
