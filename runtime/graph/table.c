/* graph/table.c - the table of ops: the rows of ops.def, taken apart once per process. The grammar stands in
 * ops.def. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops.h"

enum {
  G = GB_WHERE_GB, M = GB_WHERE_METHOD, F = GB_WHERE_F, NONE = GB_WHERE_NONE,
  GM = G | M, GF = G | F, MF = M | F, GMF = G | M | F, GMI = G | M | GB_WHERE_INPLACE, GMIF = GMI | F,
  MI = M | GB_WHERE_INPLACE
};

/* {==== the rows as data ==== */

#define GB_TAKE_IN(name, text, flags) { GB_ITEM_IN, flags, text, "" },
#define GB_TAKE_LIST(name, text) { GB_ITEM_LIST, 0, text, "" },
#define GB_TAKE_ATTR(type, name, text, facts) { GB_ITEM_ATTR, type, text, facts },
#define GB_TAKE_NAMED { GB_ITEM_NAMED, 0, "", "" },
#define GB_TAKE_OUT(name, text, kept) { GB_ITEM_OUT, kept, text, "" },
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) \
  static const gb_item items_##name[] = { arguments { 0 } };
#include "graph/ops.def"

static const gb_op_info rows[GB_OP_COUNT] = {
#define GB_OP(name_, family_, kind_, arguments_, where_, autocast_, derivative_, doc_) \
  { .op = GB_OP_##name_, .name = #name_, .family = #family_, .doc = doc_, .kind = GB_KIND_##kind_, \
      .autocast = GB_CLASS_##autocast_, \
    .derivative = GB_DERIVATIVE_##derivative_, .where = where_, .items = items_##name_, .row = #arguments_, \
    .list = -1 },
#include "graph/ops.def"
};

static const char *const words[GB_WORD_COUNT] = {
#define GB_WORD(word) [GB_WORD_##word] = #word,
#include "graph/words.def"
};

int gb_word_find(const char *text) {
  int i = GB_WORD_COUNT - 1;
  while (i > GB_WORD_UNKNOWN && strcmp(words[i], text)) i--;
  return i;
}

const char *gb_word_text(int64_t word) { return word > GB_WORD_UNKNOWN && word < GB_WORD_COUNT ? words[word] : "?"; }

/* ====} */

/* {==== taking a row apart ==== */

/* The whole table: rows, and the inputs and attributes that they point to. */
static struct {
  pthread_once_t once;
  gb_status status;
  char error[160];
  gb_op_info info[GB_OP_COUNT];
  gb_input_info *in;
  gb_attr_info *attrs;
} table = { .once = PTHREAD_ONCE_INIT };

static gb_status bad(const gb_op_info *row, const gb_item *item, const char *what) {
  snprintf(table.error, sizeof table.error, "ops.def: %s: '%s' %s", row->name, item->name, what);
  return GB_EINVAL;
}

/* The next part of a list that commas or bars separate, without blanks around it; false: there is none. */
static bool next_part(const char **at, const char *separator, char *part, size_t size) {
  while (**at == ' ') ++*at;
  if (!**at) return false;
  size_t n = strcspn(*at, separator), used = n;
  while (used > 0 && (*at)[used - 1] == ' ') used--;
  size_t kept = used < size ? used : size - 1;
  memcpy(part, *at, kept);
  part[kept] = '\0';
  *at += n + ((*at)[n] != 0);
  return true;
}

/* The default: a value as it is written in Lua. Dimensions count from 1 there, and from 0 here. */
static gb_status preset(const gb_op_info *row, const gb_item *item, gb_attr_info *attr, const char *text) {
  gb_attr *value = &attr->preset;
  int64_t whole = strtoll(text, NULL, 10);
  switch (attr->type) {
    case GB_ARG_INT: *value = gb_attr_int(whole); break;
    case GB_ARG_DIM: *value = gb_attr_int(whole > 0 ? whole - 1 : whole); break;
    case GB_ARG_INTS: *value = gb_attr_ints(1, &whole); break;
    case GB_ARG_NUMBER: *value = strpbrk(text, ".ein") ? gb_attr_num(strtod(text, NULL)) : gb_attr_whole(whole); break;
    case GB_ARG_BOOL: *value = gb_attr_int(!strcmp(text, "true")); break;
    case GB_ARG_DTYPE: *value = gb_attr_int(gb_dtype_from_name(text)); break;
    case GB_ARG_CHOICE: *value = gb_attr_word(gb_word_find(text)); break;
    default: return bad(row, item, "is of a type that takes no default");
  }
  return GB_OK;
}

/* One rule after the default: a bound, or how many numbers there are. */
static gb_status rule(const gb_op_info *row, const gb_item *item, gb_rule *r, const char *text) {
  static const char *const counts[] = { "SINGLE", "PAIR", "TRIPLE" };
  for (int i = 0; i < 3; i++)
    if (!strcmp(text, counts[i])) { r->count = (int8_t)(i + 1); return GB_OK; }
  if (*text != '<' && *text != '>') return bad(row, item, "has a rule that nobody knows");
  bool itself = text[1] == '=';
  double bound = strtod(text + 1 + itself, NULL);
  if (*text == '>') r->least = bound, r->above = !itself;
  else r->most = bound, r->below = !itself;
  return GB_OK;
}

/* The words of an attribute, which end its facts. */
static gb_status add_words(const gb_op_info *row, const gb_item *item, gb_attr_info *attr, const char *at) {
  char part[64];
  while (*at == ' ') at++;
  attr->choices = at;
  while (next_part(&at, "|", part, sizeof part))
    if (gb_word_find(part) == GB_WORD_UNKNOWN) return bad(row, item, "has a word that words.def does not list");
  return attr->choices[0] ? GB_OK : bad(row, item, "has no choices");
}

static gb_status add_attribute(gb_op_info *info, const gb_item *item, bool positional, gb_attr_info *attr) {
  const char *at = item->facts;
  char part[64];
  *attr = (gb_attr_info){ .name = item->name, .type = (gb_arg_type)item->flags, .positional = positional,
                          .rule = { -INFINITY, INFINITY, 0, 0, 0 } };
  if (!next_part(&at, ",", part, sizeof part)) return bad(info, item, "has no default; write REQUIRED or OPTIONAL");
  attr->required = !strcmp(part, "REQUIRED");
  if (!attr->required && strcmp(part, "OPTIONAL")) GB_TRY(preset(info, item, attr, part));
  if (attr->type == GB_ARG_TEXT && info->kind != GB_KIND_COMPOSITE)
    return bad(info, item, "is a text, which only composites take");
  if (attr->type == GB_ARG_CHOICE) return add_words(info, item, attr, at);
  for (const char *begin = at; next_part(&at, ",", part, sizeof part); begin = at)
    if (*part < 'a' || attr->type != GB_ARG_INTS) GB_TRY(rule(info, item, &attr->rule, part));
    else GB_TRY(add_words(info, item, attr, begin));
  return GB_OK;
}

/* Read the items of a row into it; in and attrs have room for them. */
static gb_status take_apart(gb_op_info *info, gb_input_info *in, gb_attr_info *attrs) {
  bool positional = true;
  info->in = in;
  info->attrs = attrs;
  info->inputs_first = info->takes_tensors = true;
  for (const gb_item *item = info->items; item->kind != GB_ITEM_END; item++) {
    bool tensor = item->kind == GB_ITEM_IN || item->kind == GB_ITEM_LIST;
    if (item->kind == GB_ITEM_NAMED) positional = false;
    if (item->kind == GB_ITEM_OUT) info->n_out++, info->n_hidden += item->flags;
    if (!tensor && item->kind != GB_ITEM_ATTR) continue;
    if (info->n_in == GB_MAX_IN || info->n_attrs == GB_MAX_ATTRS) return bad(info, item, "is one argument too many");
    if (tensor && info->list >= 0) return bad(info, item, "is a tensor after a list of tensors");
    if (positional || tensor) {
      info->position[info->n_positions].is_attr = !tensor;
      info->position[info->n_positions++].index = (int8_t)(tensor ? info->n_in : info->n_attrs);
    }
    if (!tensor) {
      GB_TRY(add_attribute(info, item, positional, &attrs[info->n_attrs]));
      info->takes_tensors &= !attrs[info->n_attrs++].required;
    } else {
      if (item->kind == GB_ITEM_LIST) info->list = info->n_in;
      info->inputs_first &= item->kind != GB_ITEM_LIST && info->n_attrs == 0;
      in[info->n_in++] = (gb_input_info){ item->name, item->flags & GB_IN_OPTIONAL, item->kind == GB_ITEM_LIST,
                                          item->flags & GB_IN_NUMBER };
    }
  }
  info->takes_tensors &= info->inputs_first;
  return info->n_out <= GB_MAX_OUT ? GB_OK : bad(info, info->items, "begins a row of too many outputs");
}

/* Memory of the process: it is given back by nobody. */
static void fill_table(void) {
  size_t n_in = 0, n_attrs = 0;
  for (int i = 0; i < GB_OP_COUNT; i++)
    for (const gb_item *item = rows[i].items; item->kind != GB_ITEM_END; item++) {
      n_in += item->kind == GB_ITEM_IN || item->kind == GB_ITEM_LIST;
      n_attrs += item->kind == GB_ITEM_ATTR;
    }
  table.in = calloc(n_in + GB_MAX_IN, sizeof *table.in);
  table.attrs = calloc(n_attrs + 1, sizeof *table.attrs);
  snprintf(table.error, sizeof table.error, "out of memory");
  table.status = table.in && table.attrs ? GB_OK : GB_EMEMORY;
  gb_input_info *in = table.in;
  gb_attr_info *attrs = table.attrs;
  memcpy(table.info, rows, sizeof rows);
  for (int i = 0; i < GB_OP_COUNT && table.status == GB_OK; i++) {
    table.status = take_apart(&table.info[i], in, attrs);
    in += table.info[i].n_in;
    attrs += table.info[i].n_attrs;
  }
}

gb_status gb_op_table(const gb_op_info **out, char *error, size_t size) {
  pthread_once(&table.once, fill_table);
  *out = table.info;
  if (table.status != GB_OK) snprintf(error, size, "%s", table.error);
  return table.status;
}

gb_op gb_op_named(const char *name) {
  int i = GB_OP_COUNT - 1;
  while (i >= 0 && (!name || strcmp(rows[i].name, name))) i--;
  return i;
}

/* ====} */

/* {==== the signature as people read it ==== */

/* "int = 1", or the words of a choice. */
static int attribute_text(const gb_item *item, char *text, size_t size) {
  static const char *const types[] = {
    [GB_ARG_INT] = "int", [GB_ARG_DIM] = "dim", [GB_ARG_INTS] = "ints", [GB_ARG_DIMS] = "dims",
        [GB_ARG_NUMBER] = "number", [GB_ARG_BOOL] = "bool",
    [GB_ARG_DTYPE] = "dtype", [GB_ARG_CHOICE] = "string", [GB_ARG_TEXT] = "string",
  };
  char value[64];
  const char *at = item->facts;
  if (!next_part(&at, ",", value, sizeof value)) *value = 0;
  bool optional = !strcmp(value, "OPTIONAL"), required = !strcmp(value, "REQUIRED");
  bool worded = item->flags == GB_ARG_INTS && strchr(at, '|');
  return snprintf(text, size, "%s%s: %s%s%s%s", item->name, optional ? "?" : "", types[item->flags],
                  worded ? "|string" : "", optional || required ? "" : " = ", optional || required ? "" : value);
}

const char *gb_op_signature(const gb_op_info *info, char *text, size_t size) {
  size_t at = 0;
  const char *separator = "";
  bool out = false;
  text[0] = 0;
  for (const gb_item *item = info->items; item->kind != GB_ITEM_END && at + 1 < size; item++) {
    if (item->kind == GB_ITEM_OUT && item->flags) continue;
    if (item->kind == GB_ITEM_NAMED) { separator = "; "; continue; }
    bool first = item->kind == GB_ITEM_OUT && !out;
    out |= first;
    at += (size_t)snprintf(text + at, size - at, "%s", first ? " -> " : separator);
    separator = ", ";
    if (at + 1 >= size) break;
    if (item->kind == GB_ITEM_ATTR) at += (size_t)attribute_text(item, text + at, size - at);
    else
      at += (size_t)snprintf(text + at, size - at, "%s%s%s%s", item->name,
                             item->flags & GB_IN_NUMBER && item->kind == GB_ITEM_IN ? "|number" : "",
                             item->flags & GB_IN_OPTIONAL && item->kind == GB_ITEM_IN ? "?" : "",
                                 item->kind == GB_ITEM_LIST ? "..." : "");
  }
  return text;
}

/* ====} */
