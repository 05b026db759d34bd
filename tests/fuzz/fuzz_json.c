/* fuzz_json.c - any bytes as JSON: refused with a text, or a value that comes back from what is written of it. */
#include "fuzz.h"
#include "io/json.h"

/* Write a value; the parser has limited its depth. */
static void write_value(gb_json_writer *w, const gb_json *v) {
  switch (v->type) {
    case GB_JSON_NULL: gb_json_null(w); return;
    case GB_JSON_BOOL: gb_json_bool(w, v->as.boolean); return;
    case GB_JSON_NUMBER: gb_json_number(w, v->as.number); return;
    case GB_JSON_STRING: gb_json_string(w, v->as.string.text, v->as.string.length); return;
    case GB_JSON_INTEGER:
      if (v->negative) {
        int64_t integer;
        CLAIM(gb_json_int64(v, &integer));
        gb_json_integer(w, integer);
      } else gb_json_unsigned(w, v->as.magnitude);
      return;
    case GB_JSON_ARRAY:
    case GB_JSON_OBJECT: break;
  }
  bool object = v->type == GB_JSON_OBJECT;
  gb_json_open(w, object ? '{' : '[');
  for (const gb_json *e = v->as.list.first; e; e = e->next) {
    if (object) gb_json_key(w, e->key, e->key_length);
    write_value(w, e);
  }
  gb_json_close(w, object ? '}' : ']');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gb_context *context = fuzz_context();
  gb_json *value = NULL, *again = NULL;
  gb_json_writer first = { .context = context }, second = { .context = context };
  char error[160] = "";
  if (gb_json_parse(context, (const char *)data, size, &value, error, sizeof error) != GB_OK) {
    CLAIM(value == NULL && *error);
    return 0;
  }
  write_value(&first, value);
  CLAIM(first.status == GB_OK);
  CLAIM(gb_json_parse(context, first.text, first.length, &again, error, sizeof error) == GB_OK);
  write_value(&second, again);
  CLAIM(second.status == GB_OK && second.length == first.length);
  for (size_t i = 0; i < first.length; i++) CLAIM(first.text[i] == second.text[i]);
  gb_json_writer_free(&first);
  gb_json_writer_free(&second);
  gb_json_free(value);
  gb_json_free(again);
  return 0;
}
