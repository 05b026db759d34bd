/* graph/table.c - the table of ops: the rows of ops.def, their signatures parsed once per context. The grammar stands in ops.h. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ops.h"

enum {
  G = GB_WHERE_GB, M = GB_WHERE_METHOD, F = GB_WHERE_F, NONE = GB_WHERE_NONE,
  GM = G | M, GF = G | F, MF = M | F, GMF = G | M | F, GMI = G | M | GB_WHERE_INPLACE, GMIF = GMI | F
};

static const gb_op_info rows[GB_OP_COUNT] = {
#define GB_OP(name_, family_, kind_, signature_, where_, autocast_, derivative_, doc_)                                                  \
  { .op = GB_OP_##name_, .name = #name_, .family = #family_, .signature = signature_, .doc = doc_, .kind = GB_KIND_##kind_,            \
    .autocast = GB_CLASS_##autocast_, .derivative = GB_DERIVATIVE_##derivative_, .where = where_ },
#include "graph/ops.def"
#undef GB_OP
};

/* A signature being read. */
typedef struct parser { const char *at; const gb_op_info *row; char *error; size_t size; } parser;

static gb_status bad(parser *p, const char *what) {
  snprintf(p->error, p->size, "ops.def: %s: %s at '%s'", p->row->name, what, p->at);
  return GB_EINVAL;
}

static void skip(parser *p) { while (*p->at == ' ') p->at++; }

static bool accept(parser *p, const char *token) {
  skip(p);
  size_t n = strlen(token);
  if (strncmp(p->at, token, n)) return false;
  p->at += n;
  return true;
}

static bool word(parser *p, char *to, size_t size) {
  skip(p);
  size_t n = 0;
  while (isalnum((unsigned char)*p->at) || *p->at == '_') {
    if (n + 1 < size) to[n++] = *p->at;
    p->at++;
  }
  to[n] = 0;
  return n > 0;
}

static const struct { const char *name; gb_arg_type type; } types[] = {
  { "int", GB_ARG_INT }, { "dim", GB_ARG_DIM }, { "ints", GB_ARG_INTS }, { "dims", GB_ARG_DIMS }, { "number", GB_ARG_NUMBER },
  { "bool", GB_ARG_BOOL }, { "string", GB_ARG_STRING }, { "dtype", GB_ARG_DTYPE }, { "pointer", GB_ARG_POINTER },
};

/* The default after '='. Dimensions are written as in Lua, from 1, and kept from 0. */
static gb_status preset(parser *p, gb_attr_info *attr) {
  char text[32];
  skip(p);
  size_t n = strcspn(p->at, ",;- ");
  if (p->at[0] == '-') n = 1 + strcspn(p->at + 1, ",;- ");
  if (n > 1 && p->at[n - 1] == 'e' && p->at[n] == '-') n += 1 + strcspn(p->at + n + 1, ",;- "); /* 1e-5 */
  if (n == 0 || n >= sizeof text) return bad(p, "a default value is missing");
  memcpy(text, p->at, n);
  text[n] = 0;
  p->at += n;
  gb_attr *value = &attr->preset;
  value->given = true;
  switch (attr->type) {
    case GB_ARG_INT: value->integer = strtoll(text, NULL, 10); break;
    case GB_ARG_DIM: value->integer = strtoll(text, NULL, 10); if (value->integer > 0) value->integer--; break;
    case GB_ARG_INTS: value->count = 1; value->ints[0] = strtoll(text, NULL, 10); break;
    case GB_ARG_NUMBER:
      *value = strpbrk(text, ".e") ? gb_attr_num(strtod(text, NULL)) : gb_attr_whole(strtoll(text, NULL, 10));
      break;
    case GB_ARG_BOOL: value->integer = !strcmp(text, "true"); break;
    case GB_ARG_STRING: *value = gb_attr_text(text); break;
    case GB_ARG_DTYPE: value->integer = gb_dtype_from_name(text); break;
    default: return bad(p, "this type takes no default");
  }
  return GB_OK;
}

/* One argument: a tensor ("x", "x?", "x|number", "xs...") or an attribute ("name: type = default"). */
static gb_status argument(parser *p, gb_op_info *info, bool positional) {
  char name[24], type[16];
  if (!word(p, name, sizeof name)) return bad(p, "a name is missing");
  bool optional = accept(p, "?");
  if (!accept(p, ":")) {
    if (info->n_in == GB_MAX_IN) return bad(p, "too many tensors");
    gb_input_info *in = &info->in[info->n_in];
    snprintf(in->name, sizeof in->name, "%.19s", name);
    in->number = accept(p, "|number");
    in->list = accept(p, "...");
    in->optional = optional || accept(p, "?");
    info->position[info->n_positions].is_attr = false;
    info->position[info->n_positions++].index = info->n_in++;
    return GB_OK;
  }
  if (info->n_attrs == GB_MAX_ATTRS) return bad(p, "too many attributes");
  gb_attr_info *attr = &info->attrs[info->n_attrs];
  snprintf(attr->name, sizeof attr->name, "%s", name);
  if (!word(p, type, sizeof type)) return bad(p, "a type is missing");
  size_t i = 0;
  while (i < sizeof types / sizeof *types && strcmp(types[i].name, type)) i++;
  if (i == sizeof types / sizeof *types) return bad(p, "unknown type");
  attr->type = types[i].type;
  if (accept(p, "=")) GB_TRY(preset(p, attr));
  attr->required = !optional && !attr->preset.given;
  attr->positional = positional;
  if (positional) {
    info->position[info->n_positions].is_attr = true;
    info->position[info->n_positions++].index = info->n_attrs;
  }
  info->n_attrs++;
  return GB_OK;
}

static bool at_arrow(parser *p) { skip(p); return !strncmp(p->at, "->", 2); }

static gb_status parse(parser *p, gb_op_info *info) {
  bool positional = true;
  while (!at_arrow(p)) {
    if (accept(p, ";")) positional = false;
    else if (!accept(p, ",")) {
      if (!*p->at) return bad(p, "'->' is missing");
      GB_TRY(argument(p, info, positional));
    }
  }
  p->at += 2;
  char name[24];
  bool hidden = false;
  while (skip(p), *p->at) {
    if (accept(p, ";")) hidden = true;
    else if (!accept(p, ",")) {
      if (!word(p, name, sizeof name)) return bad(p, "the name of an output is missing");
      info->n_out++;
      info->n_hidden += hidden;
    }
  }
  return info->n_out <= GB_MAX_OUT ? GB_OK : bad(p, "too many outputs");
}

gb_status gb_op_table_parse(gb_op_info **out, char *error, size_t size) {
  gb_op_info *table = malloc(sizeof rows);
  if (!table) { snprintf(error, size, "out of memory"); return GB_EMEMORY; }
  memcpy(table, rows, sizeof rows);
  for (int i = 0; i < GB_OP_COUNT; i++) {
    parser p = { rows[i].signature, &rows[i], error, size };
    gb_status status = parse(&p, &table[i]);
    if (status != GB_OK) { free(table); return status; }
  }
  *out = table;
  return GB_OK;
}

gb_op gb_op_find(const gb_context *context, const char *name) {
  int i = 0;
  while (i < GB_OP_COUNT && strcmp(context->infos[i].name, name)) i++;
  return (gb_op)i;
}
