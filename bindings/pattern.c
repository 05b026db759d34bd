/* pattern.c - Lua's patterns by a matcher that can be stopped.
 *
 * A pattern of a few quantifiers can keep the standard library's matcher busy for hours, and no hook runs inside it.
 * This one accepts the same patterns, gives the same results and the same errors (reference manual, section 6.4.1), and
 * charges its steps to the host, so that limits and interrupts reach into a match. Only sandboxes use it. */
#include "pattern.h"

#include <ctype.h>
#include <string.h>

#define MOST_CAPTURES 32
#define MOST_DEPTH 200             /* of nested choices: the C stack */
#define STEPS_PER_CHARGE 4096      /* single characters compared between two charges */
#define STEPS_PER_CAPTURE 32       /* what a %1 of a replacement costs, though nothing may come of it */

enum { OPEN = -1, POSITION = -2 }; /* lengths of captures that are none */

typedef struct capture { const char *start; ptrdiff_t length; } capture;

typedef struct matcher {
  lua_State *L;
  const char *subject, *end, *pattern_end;
  int count, depth;
  size_t steps;                  /* not yet charged */
  capture captures[MOST_CAPTURES];
} matcher;

/* {==== One character ==== */

/* Count what is gone through next, and charge it when there is enough. */
static void spend(matcher *m, size_t steps) {
  m->steps += steps;
  if (m->steps < STEPS_PER_CHARGE) return;
  steps = m->steps;
  m->steps = 0;
  gbl_charge(m->L, steps / 4);
}

static void step(matcher *m) { spend(m, 1); }

/* Does c belong to the class of that letter? Capitals are the complement; other characters stand for themselves. */
static bool in_class(int c, int letter) {
  bool in;
  switch (tolower(letter)) {
    case 'a': in = isalpha(c); break;
    case 'c': in = iscntrl(c); break;
    case 'd': in = isdigit(c); break;
    case 'g': in = isgraph(c); break;
    case 'l': in = islower(c); break;
    case 'p': in = ispunct(c); break;
    case 's': in = isspace(c); break;
    case 'u': in = isupper(c); break;
    case 'w': in = isalnum(c); break;
    case 'x': in = isxdigit(c); break;
    default: return letter == c;
  }
  return isupper(letter) ? !in : in;
}

/* Where the single-character item at p ends. */
static const char *item_end(matcher *m, const char *p) {
  const char *start = p;
  char first = *p++;
  if (first == '%') {
    if (p == m->pattern_end) luaL_error(m->L, "malformed pattern (ends with '%%')");
    return p + 1;
  }
  if (first != '[') return p;
  if (p < m->pattern_end && *p == '^') p++;
  do { /* the first ']' stands for itself */
    if (p == m->pattern_end) luaL_error(m->L, "malformed pattern (missing ']')");
    if (*p++ == '%') {
      if (p == m->pattern_end) luaL_error(m->L, "malformed pattern (missing ']')");
      p++;
    }
  } while (p == m->pattern_end || *p != ']');
  spend(m, (size_t)(p - start));
  return p + 1;
}

/* Is c in the set that begins at '[' and whose ']' is at `last`? A set may be as long as a string, so its length is
 * what a look costs. */
static bool in_set(matcher *m, int c, const char *p, const char *last) {
  bool wanted = true;
  spend(m, (size_t)(last - p));
  if (*++p == '^') wanted = false, p++;
  for (; p < last; p++) {
    if (*p == '%') {
      if (in_class(c, (unsigned char)*++p)) return wanted;
    } else if (p + 2 < last && p[1] == '-') {
      if ((unsigned char)p[0] <= c && c <= (unsigned char)p[2]) return wanted;
      p += 2;
    } else if ((unsigned char)*p == c) return wanted;
  }
  return !wanted;
}

/* Does the character at s fit the item from p to end? */
static bool fits(matcher *m, const char *s, const char *p, const char *end) {
  step(m);
  if (s >= m->end) return false;
  int c = (unsigned char)*s;
  switch (*p) {
    case '.': return true;
    case '%': return in_class(c, (unsigned char)p[1]);
    case '[': return in_set(m, c, p, end - 1);
    default: return (unsigned char)*p == c;
  }
}

/* ====} */

/* {==== Matching ==== */

static const char *match(matcher *m, const char *s, const char *p);

/* %bxy: from x to the y that balances it. */
static const char *match_balance(matcher *m, const char *s, const char *p) {
  if (m->pattern_end - p < 2) luaL_error(m->L, "malformed pattern (missing arguments to '%%b')");
  if (s >= m->end || *s != p[0]) return NULL;
  int nesting = 1;
  while (++s < m->end) {
    step(m);
    if (*s == p[1] && --nesting == 0) return s + 1;
    if (*s == p[0] && *s != p[1]) nesting++;
  }
  return NULL;
}

/* As many as there are, then fewer, until the rest of the pattern fits. */
static const char *match_greedy(matcher *m, const char *s, const char *p, const char *end) {
  ptrdiff_t count = 0;
  while (fits(m, s + count, p, end)) count++;
  for (; count >= 0; count--) {
    const char *found = match(m, s + count, end + 1);
    if (found) return found;
  }
  return NULL;
}

/* As few as possible. */
static const char *match_lazy(matcher *m, const char *s, const char *p, const char *end) {
  for (;; s++) {
    const char *found = match(m, s, end + 1);
    if (found) return found;
    if (!fits(m, s, p, end)) return NULL;
  }
}

static const char *open_capture(matcher *m, const char *s, const char *p, ptrdiff_t length) {
  if (m->count >= MOST_CAPTURES) luaL_error(m->L, "too many captures");
  m->captures[m->count++] = (capture){ s, length };
  const char *found = match(m, s, p);
  if (!found) m->count--;
  return found;
}

static const char *close_capture(matcher *m, const char *s, const char *p) {
  int i = m->count - 1;
  while (i >= 0 && m->captures[i].length != OPEN) i--;
  if (i < 0) luaL_error(m->L, "invalid pattern capture");
  m->captures[i].length = s - m->captures[i].start;
  const char *found = match(m, s, p);
  if (!found) m->captures[i].length = OPEN;
  return found;
}

/* %1 .. %9: the text of a capture again. */
static const char *match_again(matcher *m, const char *s, int digit) {
  int i = digit - '1';
  if (i < 0 || i >= m->count || m->captures[i].length == OPEN) luaL_error(m->L, "invalid capture index %%%d", i + 1);
  size_t length = (size_t)m->captures[i].length; /* that of a position is more than any subject has */
  gbl_charge(m->L, length / 32 < (size_t)(m->end - s) ? length / 32 : 0);
  if ((size_t)(m->end - s) < length || memcmp(m->captures[i].start, s, length)) return NULL;
  return s + length;
}

/* %f[set]: between a character that is not in the set and one that is. */
static bool at_frontier(matcher *m, const char *s, const char *p, const char *end) {
  int before = s == m->subject ? 0 : (unsigned char)s[-1], here = s < m->end ? (unsigned char)*s : 0;
  step(m);
  return !in_set(m, before, p, end - 1) && in_set(m, here, p, end - 1);
}

/* A single-character item with '+', '*' or '-' at end, and what follows them. */
static const char *match_quantified(matcher *m, const char *s, const char *p, const char *end) {
  switch (*end) {
    case '+': return fits(m, s, p, end) ? match_greedy(m, s + 1, p, end) : NULL;
    case '*': return match_greedy(m, s, p, end);
    default: return match_lazy(m, s, p, end);
  }
}

/* The items that are no single characters; *p moves behind one that consumed its text, *s with it. False: it did not
 * fit. */
static bool match_special(matcher *m, const char **s, const char **p) {
  const char *set, *end;
  if ((*p)[1] == 'b') {
    *s = match_balance(m, *s, *p + 2);
    *p += 4;
  } else if ((*p)[1] == 'f') {
    set = *p + 2;
    if (set >= m->pattern_end || *set != '[') luaL_error(m->L, "missing '[' after '%%f' in pattern");
    end = item_end(m, set);
    if (!at_frontier(m, *s, set, end)) return false;
    *p = end;
  } else {
    *s = match_again(m, *s, (unsigned char)(*p)[1]);
    *p += 2;
  }
  return *s != NULL;
}

/* Match from p on at s; the end of the match, or NULL. Plain characters are gone through here, so that only choices
 * nest. */
static const char *match_from(matcher *m, const char *s, const char *p) {
  for (;;) {
    if (p == m->pattern_end) return s;
    step(m);
    if (*p == '(') return p + 1 < m->pattern_end && p[1] == ')' ? open_capture(m, s, p + 2, POSITION)
        : open_capture(m, s, p + 1, OPEN);
    if (*p == ')') return close_capture(m, s, p + 1);
    if (*p == '$' && p + 1 == m->pattern_end) return s == m->end ? s : NULL;
    if (*p == '%' && p + 1 < m->pattern_end && (p[1] == 'b' || p[1] == 'f' || isdigit((unsigned char)p[1]))) {
      if (!match_special(m, &s, &p)) return NULL;
      continue;
    }
    const char *end = item_end(m, p);
    if (end < m->pattern_end && *end && strchr("+*-", *end)) return match_quantified(m, s, p, end);
    bool fit = fits(m, s, p, end);
    if (end < m->pattern_end && *end == '?') { /* with it; else without it, which nests nothing */
      const char *found = fit ? match(m, s + 1, end + 1) : NULL;
      if (found) return found;
      p = end + 1;
      continue;
    }
    if (!fit) return NULL;
    s++;
    p = end;
  }
}

static const char *match(matcher *m, const char *s, const char *p) {
  if (m->depth++ >= MOST_DEPTH) luaL_error(m->L, "pattern too complex");
  const char *found = match_from(m, s, p);
  m->depth--;
  return found;
}

/* A fresh attempt at s. */
static const char *attempt(matcher *m, const char *s, const char *p) {
  m->count = m->depth = 0;
  return match(m, s, p);
}

/* ====} */

/* {==== Captures ==== */

/* Push capture i of a match from s to e; the whole match counts as the first where there is none. */
static void push_capture(matcher *m, int i, const char *s, const char *e) {
  if (i >= m->count) {
    if (i != 0) luaL_error(m->L, "invalid capture index %%%d", i + 1);
    lua_pushlstring(m->L, s, (size_t)(e - s));
    return;
  }
  const capture *c = &m->captures[i];
  if (c->length == OPEN) luaL_error(m->L, "unfinished capture");
  if (c->length == POSITION) lua_pushinteger(m->L, c->start - m->subject + 1);
  else lua_pushlstring(m->L, c->start, (size_t)c->length);
}

/* Push all; `whole`: the match itself where there is none. */
static int push_captures(matcher *m, const char *s, const char *e, bool whole) {
  int count = m->count == 0 && whole ? 1 : m->count;
  luaL_checkstack(m->L, count, "too many captures");
  for (int i = 0; i < count; i++) push_capture(m, i, s, e);
  return count;
}

/* ====} */

/* {==== The functions ==== */

/* Subject and pattern from the first two arguments. */
static matcher prepare(lua_State *L, const char **pattern) {
  size_t length, pattern_length;
  const char *subject = luaL_checklstring(L, 1, &length);
  *pattern = luaL_checklstring(L, 2, &pattern_length);
  return (matcher){ .L = L, .subject = subject, .end = subject + length, .pattern_end = *pattern + pattern_length };
}

/* Where to begin, from 0: an argument that counts from 1, or from the end. */
static size_t start_of(lua_State *L, int arg, size_t length) {
  lua_Integer i = luaL_optinteger(L, arg, 1);
  if (i > 0) return (size_t)i - 1;
  if (i == 0 || i < -(lua_Integer)length) return 0;
  return length - (size_t)-i;
}

/* The first place of a text in another, or NULL. */
static const char *find_text(lua_State *L, const char *s, const char *end, const char *text, size_t length) {
  if (length == 0) return s;
  while ((size_t)(end - s) >= length) {
    const char *first = memchr(s, *text, (size_t)(end - s) - length + 1);
    gbl_charge(L, 1 + (uint64_t)((first ? first : end) - s) / 32 + (first ? length / 32 : 0));
    if (!first) return NULL;
    if (!memcmp(first, text, length)) return first;
    s = first + 1;
  }
  return NULL;
}

static bool has_specials(const char *p, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (p[i] && strchr("^$*+?.([%-", p[i])) return true;
  return false;
}

static int find_or_match(lua_State *L, bool find) {
  const char *p;
  matcher m = prepare(L, &p);
  size_t length = (size_t)(m.end - m.subject), start = start_of(L, 3, length),
      pattern_length = (size_t)(m.pattern_end - p);
  const char *s = m.subject + start, *e;
  if (start > length) { lua_pushnil(L); return 1; }
  spend(&m, pattern_length);
  if (find && (lua_toboolean(L, 4) || !has_specials(p, pattern_length))) {
    s = find_text(L, s, m.end, p, pattern_length);
    if (!s) { lua_pushnil(L); return 1; }
    lua_pushinteger(L, s - m.subject + 1);
    lua_pushinteger(L, s - m.subject + (ptrdiff_t)pattern_length);
    return 2;
  }
  bool anchored = p < m.pattern_end && *p == '^';
  if (anchored) p++;
  do {
    if (!(e = attempt(&m, s, p))) continue;
    if (!find) return push_captures(&m, s, e, true);
    lua_pushinteger(L, s - m.subject + 1);
    lua_pushinteger(L, e - m.subject);
    return push_captures(&m, s, e, false) + 2;
  } while (s++ < m.end && !anchored);
  lua_pushnil(L);
  return 1;
}

static int find(lua_State *L) { return find_or_match(L, true); }
static int match_first(lua_State *L) { return find_or_match(L, false); }

/* Where a gmatch stands; its subject and pattern are upvalues of the iterator. */
typedef struct iteration { size_t at, last; } iteration; /* last: the end of the last match, or SIZE_MAX */

static int gmatch_next(lua_State *L) {
  iteration *it = lua_touserdata(L, lua_upvalueindex(3));
  size_t length, pattern_length;
  const char *subject = lua_tolstring(L, lua_upvalueindex(1), &length),
      *p = lua_tolstring(L, lua_upvalueindex(2), &pattern_length), *e;
  matcher m = { .L = L, .subject = subject, .end = subject + length, .pattern_end = p + pattern_length };
  for (; it->at <= length; it->at++) {
    const char *s = subject + it->at;
    if (!(e = attempt(&m, s, p)) || (size_t)(e - subject) == it->last) continue;
    it->at = it->last = (size_t)(e - subject);
    return push_captures(&m, s, e, true);
  }
  return 0;
}

static int gmatch(lua_State *L) {
  size_t length;
  luaL_checklstring(L, 1, &length);
  luaL_checkstring(L, 2);
  size_t start = start_of(L, 3, length);
  lua_settop(L, 2);
  iteration *it = lua_newuserdatauv(L, sizeof *it, 0);
  *it = (iteration){ start > length ? length + 1 : start, SIZE_MAX };
  lua_pushcclosure(L, gmatch_next, 3);
  return 1;
}

/* Add a replacement string: %0 is the match, %1 .. %9 captures, %% itself. */
static void add_template(matcher *m, luaL_Buffer *out, const char *s, const char *e) {
  size_t length;
  const char *text = lua_tolstring(m->L, 3, &length), *end = text + length;
  for (const char *percent; (percent = memchr(text, '%', (size_t)(end - text))); text = percent + 2) {
    luaL_addlstring(out, text, (size_t)(percent - text));
    char c = percent + 1 < end ? percent[1] : 0;
    spend(m, STEPS_PER_CAPTURE + (size_t)(percent - text) / 8);
    if (c == '%') luaL_addchar(out, '%');
    else if (c == '0') luaL_addlstring(out, s, (size_t)(e - s));
    else if (isdigit((unsigned char)c)) {
      push_capture(m, c - '1', s, e);
      luaL_tolstring(m->L, -1, NULL);
      lua_remove(m->L, -2);
      luaL_addvalue(out);
    } else luaL_error(m->L, "invalid use of '%%' in replacement string");
  }
  spend(m, (size_t)(end - text) / 8);
  luaL_addlstring(out, text, (size_t)(end - text));
}

/* Add what takes the place of a match; false: the match itself stays. */
static bool add_replacement(matcher *m, luaL_Buffer *out, const char *s, const char *e) {
  lua_State *L = m->L;
  int type = lua_type(L, 3);
  if (type == LUA_TNUMBER || type == LUA_TSTRING) return add_template(m, out, s, e), true;
  gbl_check_stack(L); /* the buffer lies there */
  if (type == LUA_TFUNCTION) {
    lua_pushvalue(L, 3);
    lua_call(L, push_captures(m, s, e, true), 1);
  } else {
    push_capture(m, 0, s, e);
    lua_gettable(L, 3);
  }
  bool replaced = lua_toboolean(L, -1);
  if (replaced && !lua_isstring(L, -1)) luaL_error(L, "invalid replacement value (a %s)", luaL_typename(L, -1));
  if (!replaced) {
    lua_pop(L, 1);
    luaL_addlstring(out, s, (size_t)(e - s));
  } else luaL_addvalue(out);
  return replaced;
}

static int gsub(lua_State *L) {
  const char *p, *last = NULL;
  matcher m = prepare(L, &p);
  int type = lua_type(L, 3);
  luaL_argexpected(L, type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TFUNCTION || type == LUA_TTABLE, 3,
                   "string/function/table");
  lua_Integer most = luaL_optinteger(L, 4, m.end - m.subject + 1), count = 0;
  bool anchored = p < m.pattern_end && *p == '^', changed = false;
  const char *s = m.subject;
  luaL_Buffer out;
  if (anchored) p++;
  luaL_buffinit(L, &out);
  while (count < most) {
    const char *e = attempt(&m, s, p);
    if (e && e != last) {
      count++;
      changed |= add_replacement(&m, &out, s, e);
      s = last = e;
    } else if (s < m.end) luaL_addchar(&out, *s++);
    else break;
    if (anchored) break;
  }
  if (changed) {
    luaL_addlstring(&out, s, (size_t)(m.end - s));
    luaL_pushresult(&out);
  } else lua_pushvalue(L, 1);
  lua_pushinteger(L, count);
  return 2;
}

void gbl_replace_patterns(lua_State *L) {
  luaL_setfuncs(L, (const luaL_Reg[]){ { "find", find }, { "match", match_first }, { "gmatch", gmatch },
                                       { "gsub", gsub }, { NULL, NULL } }, 0);
}

/* ====} */
