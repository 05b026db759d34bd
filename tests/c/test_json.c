/* test_json.c - io/json.h: what is JSON is read, what is not is refused, what is written comes back. */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "check.h"
#include "io/json.h"
#include "tensor/context.h"

static gb_context *context;

static gb_json *parse(const char *text, size_t bytes, gb_status *status) {
  static char error[200];
  gb_json *root = NULL;
  error[0] = 0;
  *status = gb_json_parse(context, text, bytes, &root, error, sizeof error);
  if (*status != GB_OK && !error[0]) *status = GB_OK; /* a failure must say something: let the caller's check see it */
  return root;
}

static int accepts(const char *text) {
  gb_status status;
  gb_json *root = parse(text, strlen(text), &status);
  gb_json_free(root);
  return status == GB_OK && root;
}

static int refuses(const char *text) {
  gb_status status;
  gb_json *root = parse(text, strlen(text), &status);
  gb_json_free(root);
  return status == GB_EFORMAT && !root;
}

static void test_grammar(void) {
  static const char *const good[] = {
    "{}", "[]", " [ ] ", "null", "true", "false", "0", "-0", "10", "-12", "1.5", "1e3", "1E-3", "0.0", "-0.25e+2",
        "\"\"", "\"a\"", "[1,2,[3]]",
    "{\"a\":1,\"b\":{\"a\":2}}", "\t{\n\"a\" : [ 1 , 2 ] }\r\n", "\"\\u00e9\\ud83d\\ude00\\n\\/\"",
        "18446744073709551615", "-9223372036854775808",
    "\"\xc3\xa9\xf0\x9f\x98\x80\"", "1e-400",
  };
  static const char *const bad[] = {
    "", " ", "{", "}", "[", "]", "{]", "[}", "nul", "nulll", "True", "01", "-", "+1", "1.", ".5", "1e", "1e+", "--1",
        "0x10", "1 2", "[1,]", "[,1]",
        "[1 2]",
    "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a\":1 \"b\":2}", "\"", "\"\\", "\"\\x\"", "\"\\u12\"",
        "\"\\u12g4\"", "\"\\ud800\"",
        "\"\\udc00\"",
    "\"\\ud800\\u0041\"", "\"a\nb\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xc3\"", "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"\\u0061\":2}", "18446744073709551616", "-9223372036854775809", "1e999", "NaN", "Infinity", "'a'",
        "[1]x", "/**/1",
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    CHECK(accepts(good[i]));
    if (!accepts(good[i])) fprintf(stderr, "  text: %s\n", good[i]);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    CHECK(refuses(bad[i]));
    if (!refuses(bad[i])) fprintf(stderr, "  text: %s\n", bad[i]);
  }
}

static void test_values(void) {
  static const char text[] =
      "{\"i\":-5,\"u\":18446744073709551615,\"x\":0.1,\"s\":\"a\\u0000b\\u00e9\\ud83d\\ude00\",\"l\":[true,null]}";
  gb_status status;
  gb_json *root = parse(text, sizeof text - 1, &status);
  int64_t integer;
  double number;
  CHECK(root && root->type == GB_JSON_OBJECT && root->as.list.count == 5);
  CHECK(gb_json_int64(gb_json_get(root, "i"), &integer) && integer == -5);
  CHECK(!gb_json_int64(gb_json_get(root, "u"), &integer) && gb_json_get(root, "u")->as.magnitude == UINT64_MAX);
  CHECK(gb_json_double(gb_json_get(root, "x"), &number) && number == 0.1);
  CHECK(gb_json_double(gb_json_get(root, "i"), &number) && number == -5);
  const gb_json *s = gb_json_get(root, "s");
  CHECK(s && s->as.string.length == 9 && !memcmp(s->as.string.text, "a\0b\xc3\xa9\xf0\x9f\x98\x80", 10));
  const gb_json *l = gb_json_get(root, "l");
  CHECK(l && l->as.list.count == 2 && l->as.list.first->as.boolean && l->as.list.first->next->type == GB_JSON_NULL);
  CHECK(!gb_json_get(root, "z") && !gb_json_get(l, "z") && !gb_json_int64(NULL, &integer) &&
        !gb_json_double(l, &number));
  gb_json_free(root);
}

/* Depth, and many members: the check for duplicates must not be quadratic. */
static void test_limits(void) {
  gb_status status;
  char deep[2 * (GB_JSON_MOST_DEPTH + 1)];
  for (int extra = 0; extra < 2; extra++) {
    size_t depth = (size_t)(GB_JSON_MOST_DEPTH + extra);
    memset(deep, '[', depth);
    memset(deep + depth, ']', depth);
    gb_json *root = parse(deep, 2 * depth, &status);
    CHECK(status == (extra ? GB_EFORMAT : GB_OK));
    gb_json_free(root);
  }
  size_t count = 200000, length = 1;
  char *text = malloc(count * 16);
  text[0] = '{';
  for (size_t i = 0; i < count; i++)
    length += (size_t)sprintf(text + length, "%s\"%zu\":%zu", i ? "," : "", i * 7919 % count, i);
  text[length++] = '}';
  gb_json *root = parse(text, length, &status);
  CHECK(status == GB_OK && root && root->as.list.count == (int64_t)count);
  gb_json_free(root);
  memset(text, '[', 100000);
  CHECK(!parse(text, 100000, &status) && status == GB_EFORMAT);
  free(text);
}

/* Every prefix of a text, and every byte of it changed: an answer, never a crash. */
static void test_mutations(void) {
  static const char text[] = "{\"a\\u00e9\":[1,-2.5e3,true,null,\"\xc3\xa9\\n\"],\"b\":{\"c\":\"\\ud83d\\ude00\"}}";
  size_t bytes = sizeof text - 1;
  int refused = 0;
  gb_status status;
  for (size_t length = 0; length < bytes; length++) {
    char *part = malloc(length + 1); /* of exact size, for the address sanitizer */
    memcpy(part, text, length);
    gb_json *root = parse(part, length, &status);
    refused += status == GB_EFORMAT && !root;
    free(part);
  }
  CHECK(refused == (int)bytes);
  for (size_t i = 0; i < bytes; i++)
    for (int value = 0; value < 256; value++) {
      char changed[sizeof text];
      memcpy(changed, text, sizeof text);
      changed[i] = (char)value;
      gb_json *root = parse(changed, bytes, &status);
      if (status == GB_OK && !root) CHECK(!"a failure without a text");
      gb_json_free(root);
    }
}

/* Integers, strings and doubles come back as they went. */
static void test_writer(void) {
  gb_json_writer w = { .context = context };
  gb_json_open(&w, '{');
  gb_json_key(&w, "a\"\\\n", 4);
  gb_json_open(&w, '[');
  gb_json_integer(&w, INT64_MIN);
  gb_json_unsigned(&w, UINT64_MAX);
  gb_json_number(&w, 1);
  gb_json_bool(&w, true);
  gb_json_null(&w);
  gb_json_close(&w, ']');
  gb_json_key(&w, "b", 1);
  gb_json_open(&w, '{');
  gb_json_close(&w, '}');
  gb_json_key(&w, "c", 1);
  gb_json_string(&w, "x\0\xc3\xa9", 4);
  gb_json_close(&w, '}');
  CHECK(w.status == GB_OK);
  CHECK(!strcmp(w.text,
                "{\"a\\\"\\\\\\u000a\":[-9223372036854775808,18446744073709551615,1.0,true,null],"
                 "\"b\":{},\"c\":\"x\\u0000\xc3\xa9\"}"));
  CHECK(accepts(w.text));
  gb_json_writer_free(&w);
  gb_json_string(&w, "\xff", 1);
  CHECK(w.status == GB_EINVAL);
  gb_json_writer_free(&w);
  gb_json_number(&w, NAN);
  gb_json_integer(&w, 1);
  CHECK(w.status == GB_EINVAL);
  gb_json_writer_free(&w);
}

/* Doubles of all sizes, and the edges, bit for bit. */
static int doubles_return(int count) {
  static const double edges[] = { 0.0, -0.0, 0x1p-1074, DBL_MIN, DBL_MAX, -DBL_MAX, 0.1, 1e21, 123456789012345678.0,
                                  5e-324, 1e100 };
  int good = 0, n = (int)(sizeof edges / sizeof *edges);
  for (int i = 0; i < count; i++) {
    uint32_t r[4];
    gb_philox(3, 0, (uint64_t)i, r);
    double x = i < n ? edges[i] : ldexp(gb_uniform64(r[0], r[1]) - 0.5, (int)(r[2] % 2000) - 1000), back = NAN;
    gb_json_writer w = { .context = context };
    gb_status status;
    gb_json_number(&w, x);
    gb_json *root = parse(w.text, w.length, &status);
    good += status == GB_OK && root->type == GB_JSON_NUMBER && gb_json_double(root, &back) &&
        !memcmp(&x, &back, sizeof x);
    gb_json_free(root);
    gb_json_writer_free(&w);
  }
  return good == count;
}

/* A tree counts against the limit on tensor bytes while it lives, is refused beyond it, and heeds a stop; a text that
 * is written counts too. */
static void test_counting(void) {
  enum { VALUES = 400000 };
  static char text[2 * VALUES + 2];
  gb_context_options options;
  gb_context *outer = context;
  gb_status status;
  text[0] = '[';
  for (int i = 0; i < VALUES; i++) memcpy(text + 1 + 2 * i, i < VALUES - 1 ? "1," : "1]", 2);
  gb_context_options_init(&options, sizeof options);
  options.tensor_bytes = (size_t)4 << 20;
  CHECK(gb_context_open(&options, &context) == GB_OK);
  size_t before = context->budget.used;
  CHECK(!parse(text, sizeof text - 1, &status) && status == GB_EMEMORY && context->budget.used == before);
  gb_context_close(context);
  options.tensor_bytes = (size_t)64 << 20;
  CHECK(gb_context_open(&options, &context) == GB_OK);
  before = context->budget.used;
  gb_json *root = parse(text, sizeof text - 1, &status);
  CHECK(status == GB_OK && context->budget.used - before > VALUES * sizeof(gb_json));
  gb_json_free(root);
  CHECK(context->budget.used == before);
  gb_json_writer w = { .context = context };
  gb_json_string(&w, text, sizeof text - 2);
  CHECK(w.status == GB_OK && context->budget.used - before > sizeof text);
  gb_json_writer_free(&w);
  CHECK(context->budget.used == before);
  gb_interrupt(context);
  CHECK(!parse(text, sizeof text - 1, &status) && status == GB_EINTERRUPT && context->budget.used == before);
  memset(text, ' ', sizeof text - 1);
  CHECK(!parse(text, sizeof text - 1, &status) && status == GB_EINTERRUPT);
  memset(text, '1', sizeof text - 1);
  CHECK(!parse(text, sizeof text - 1, &status) && status == GB_EFORMAT);
  gb_context_close(context);
  context = outer;
}

/* Keys that come twice are found wherever they stand among many, and many different ones are none. */
static void test_many_keys(void) {
  enum { KEYS = 1000 };
  static char text[KEYS * 8 + 8];
  gb_status status;
  for (int twice = -1; twice < KEYS; twice += 37) {
    int length = 0;
    for (int i = 0; i < KEYS; i++)
      length += snprintf(text + length, sizeof text - (size_t)length, "%c\"%03d\":1", i ? ',' : '{',
                         i == twice ? (i + 500) % KEYS : i * 7 % KEYS);
    text[length++] = '}';
    gb_json *root = parse(text, (size_t)length, &status);
    CHECK(twice < 0 ? status == GB_OK : status == GB_EFORMAT || twice * 7 % KEYS == (twice + 500) % KEYS);
    gb_json_free(root);
  }
}

int main(void) {
  CHECK(gb_context_open(NULL, &context) == GB_OK);
  test_grammar();
  test_counting();
  test_many_keys();
  test_values();
  test_limits();
  test_mutations();
  test_writer();
  CHECK(doubles_return(20000));
  static const char *const commas[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "nl_NL.UTF-8" };
  for (size_t i = 0; i < sizeof commas / sizeof *commas; i++)
    /* a host may have set one; not every machine has one */
    if (setlocale(LC_ALL, commas[i])) CHECK(doubles_return(1000));
  gb_context_close(context);
  return check_report();
}
