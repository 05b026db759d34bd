/* op_ids.h - the ids of ops inside the engine and its backends: rows of graph/ops.def, in order. They change with the
 * table, so a backend is opened only where both were compiled with the same one. */
#ifndef GB_OP_IDS_H
#define GB_OP_IDS_H

#include "gibbous.h"

enum {
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) GB_OP_##name,
#include "graph/ops.def"
  GB_OP_COUNT
};

/* The words that choices are made of. An attribute that is a choice holds one of these. */
enum {
  GB_WORD_UNKNOWN,
#define GB_WORD(word) GB_WORD_##word,
#include "graph/words.def"
  GB_WORD_COUNT
};

/* A choice as dispatch leaves it. */
static inline gb_attr gb_attr_word(int word) {
  gb_attr a = gb_attr_int(word);
  a.count = 1;
  return a;
}

/* FNV-1a over the names and arguments of all rows, and over the words. */
static inline uint64_t gb_op_table_hash(void) {
  static const char text[] =
#define GB_OP(name, family, kind, arguments, where, autocast, derivative, doc) #name " " #arguments "\n"
#include "graph/ops.def"
#define GB_WORD(word) #word "\n"
#include "graph/words.def"
      ;
  uint64_t hash = 14695981039346656037u;
  for (const char *at = text; *at; at++) hash = (hash ^ (unsigned char)*at) * 1099511628211u;
  return hash;
}

#endif
