/* host.c - a Lua universe inside another program: options, opening and closing, Lua's memory and its limit, running,
 * errors.
 *
 * What may raise runs in gbl_host_protect. Limits and interrupts are those of interrupt.h; the allocator here adds the
 * one on Lua bytes, and charges large blocks, since library functions that make long strings do not pass the count
 * hook. */
#include "host.h"
#include "reader.h"

#include <lualib.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_BLOCK ((size_t)4096) /* bytes from which an allocation is charged as work */
#define LONG_STRING ((size_t)16 << 10) /* bytes from which a string makes limits look more often */
#define SLOT ((size_t)16)              /* bytes of a place on a stack of Lua's */
#define STACK_LEAST (40 * SLOT)        /* no stack has less */
#define STACK_EXTRA (5 * SLOT)         /* that Lua does not count when it doubles one */
/* in a sandbox one instruction, a chain of __call for example, deepens a stack no further; */
#define STACK_DEEP (41000 * SLOT)
#define STACK_MOST (82000 * SLOT)      /* calls may, up to here, and have an error at the next instruction */

/* {==== Errors ==== */

static uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); }

/* Another thread's call runs. */
static bool is_elsewhere(const gb_host *host) {
  uintptr_t user = atomic_load_explicit(&host->user, memory_order_acquire);
  return user && user != this_thread();
}

const char *gb_host_error(const gb_host *host) {
  if (!host) return "there is no host: NULL was passed";
  return is_elsewhere(host) ? gb_status_text(GB_ETHREAD) : host->error;
}

/* Keep a text and tell the callback, which may call the host: what fails there is not told, and leaves this text as it
 * is. */
static gb_status keep(gb_host *host, gb_status status, const char *text) {
  char copy[sizeof host->error];
  snprintf(copy, sizeof copy, "%s", text);
  if (host->options.on_error && !host->telling && !host->barred) {
    host->telling = true;
    memcpy(host->error, copy, sizeof copy);
    host->options.on_error(host->options.user, status, copy);
    host->telling = false;
  }
  memcpy(host->error, copy, sizeof copy);
  host->code = status;
  return status;
}

gb_status gbl_host_fail(gb_host *host, gb_status status, const char *format, ...) {
  char text[GBL_HOST_ERROR_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return keep(host, status, text);
}

int gbl_host_refuse(lua_State *L, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return gbl_check_status(L, gb_fail(gbl_get_state(L)->context, GB_EINVAL, "%s", text));
}

/* The value by which a recipe ends without a failure (gb.args and --help). */
static bool is_finish(lua_State *L, int index) {
  gbl_raw_field(L, LUA_REGISTRYINDEX, "gibbous.finish");
  bool finish = !lua_isnil(L, -1) && lua_rawequal(L, -1, index);
  lua_pop(L, 1);
  return finish;
}

/* The message handler: message and traceback. */
static int add_traceback(lua_State *L) {
  if (is_finish(L, 1)) return 1;
  const char *text = lua_tostring(L, 1);
  if (!text && !luaL_callmeta(L, 1, "__tostring")) lua_pushfstring(L, "an error that is a %s", luaL_typename(L, 1));
  luaL_traceback(L, L, text ? text : lua_tostring(L, -1), 1);
  return 1;
}

/* The status of a Lua error: the engine's own where the error is the engine's last one. */
static gb_status status_of(const gb_host *host, int lua_status, const char *text) {
  if (lua_status == LUA_ERRMEM) return host->deep ? GB_ERECIPE : host->limited ? GB_ELUABYTES : GB_EMEMORY;
  if (!host->context || !*gb_error(host->context) || !text || !strstr(text, gb_error(host->context))) return GB_ERECIPE;
  gb_status code = gb_error_code(host->context);
  return code == GB_OK || code == GB_ECALLBACK ? GB_ERECIPE : code;
}

/* A call was stopped for a reason, which the error must name whatever the error that it unwound by says. */
static gb_status stopped(gb_host *host, gb_status reason, const char *text) {
  char why[GBL_REASON_BYTES];
  gbl_interrupt_text(host->state, reason, why, sizeof why);
  if (!text) return keep(host, reason, why);
  return strstr(text, why) ? keep(host, reason, text) : gbl_host_fail(host, reason, "%s: %s", why, text);
}

/* What came of a protected call, whose error value is at the top. */
static gb_status outcome(gb_host *host, lua_State *L, int lua_status, gb_status reason) {
  if (reason == GB_OK && (lua_status == LUA_OK || is_finish(L, lua_gettop(L)))) return GB_OK;
  const char *text = lua_status != LUA_OK && lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
  if (reason != GB_OK) return stopped(host, reason, lua_status == LUA_ERRMEM ? NULL : text);
  reason = status_of(host, lua_status, text);
  if (lua_status == LUA_ERRMEM && reason == GB_ERECIPE) text = GBL_TOO_DEEP;
  else if (lua_status == LUA_ERRMEM || !text) text = gb_status_text(reason);
  return keep(host, reason, text);
}

/* A protected call: what runs, and the scopes that were open before. */
typedef struct protected { lua_CFunction body; void *request; gbl_modes *modes; int64_t scopes; } protected;

/* The body takes this frame, so that tracebacks show it alone. */
static int run_body(lua_State *L) {
  protected *p = lua_touserdata(L, 1);
  p->modes = gbl_modes_of(L);
  p->scopes = p->modes->scopes;
  lua_settop(L, 0);
  lua_pushlightuserdata(L, p->request);
  return p->body(L);
}

gb_status gbl_host_protect(gb_host *host, lua_CFunction body, void *request) {
  lua_State *L = host->current;
  protected p = { .body = body, .request = request };
  int top = lua_gettop(L);
  if (!lua_checkstack(L, LUA_MINSTACK)) return gbl_host_fail(host, GB_EMEMORY, "the stack of this coroutine is full");
  host->refused = 0;
  host->limited = host->deep = false;
  gbl_interrupt_begin(L);
  lua_pushcfunction(L, add_traceback);
  lua_pushcfunction(L, run_body);
  lua_pushlightuserdata(L, &p);
  int lua_status = lua_pcall(L, 1, 0, top + 1);
  if (lua_status != LUA_OK && p.modes) gbl_close_scopes(p.modes, p.scopes);
  gb_status reason = gbl_interrupt_end(L, lua_status == LUA_OK);
  gb_status status = outcome(host, L, lua_status, reason != GB_OK ? reason
                             : (gb_status)atomic_load(&host->state->interrupt.reason));
  lua_settop(L, top);
  gbl_note(L, host->state); /* what the host does with the engine is done in this coroutine's modes */
  return status;
}

/* One thread at a time: who comes first uses the host until its outermost call has ended. */
gb_status gbl_host_enter(gb_host *host) {
  uintptr_t self = this_thread(), none = 0;
  if (!host) return GB_EINVAL;
  if (atomic_load_explicit(&host->user, memory_order_relaxed) != self &&
      !atomic_compare_exchange_strong(&host->user, &none, self)) return GB_ETHREAD;
  if (host->barred)
    return gbl_host_fail(host, GB_ESTATE, "this callback runs where the host cannot be called; note what is wanted, "
                                          "and do it later");
  host->depth++;
  return GB_OK;
}

void gbl_host_leave(gb_host *host) {
  if (--host->depth == 0) atomic_store_explicit(&host->user, 0, memory_order_release);
}

gb_status gbl_host_do(gb_host *host, const char *bad, lua_CFunction body, void *request) {
  gb_status status = gbl_host_enter(host);
  if (status != GB_OK) return status;
  status = bad ? gbl_host_fail(host, GB_EINVAL, "%s", bad) : gbl_host_protect(host, body, request);
  gbl_host_leave(host);
  return status;
}

/* ====} */

/* {==== Lua's memory ==== */

/* The state that allocations are told to, or NULL: it is not there yet, or goes. */
static gbl_state *told(const gb_host *host) { return host->closing ? NULL : host->state; }

/* The limit refuses. Lua collects and asks once more; what is refused twice, or is more than the limit by itself, is
 * out of reach, and everything must unwind. */
static void *refuse(gb_host *host, size_t bytes) {
  if ((host->refused == bytes || bytes > host->options.lua_bytes) && told(host))
    gbl_interrupt_request(told(host), GB_ELUABYTES);
  host->refused = bytes;
  host->limited = true;
  return NULL;
}

/* Strings are counted by powers of two: that many bits has the length. */
static int bits_of(size_t bytes) {
  int bits = 0;
  for (; bytes; bytes >>= 1) bits++;
  return bits;
}

/* Tell what the longest string is shorter than. */
static void note_longest(const gb_host *host) {
  int bits = (int)GBL_SIZE_BITS - 1;
  while (bits && !host->strings_of[bits]) bits--;
  size_t longest = bits ? ((size_t)1 << (bits - 1)) * 2 - 1 : 0;
  if (told(host) && told(host)->interrupt.longest != longest) gbl_note_longest(told(host), longest);
}

/* Room to note one more string. */
static bool make_room(gb_host *host) {
  if (host->n_strings < host->room_strings) return true;
  size_t room = 2 * host->room_strings + 16;
  void *longer = realloc(host->strings, room * sizeof *host->strings);
  if (!longer) return false;
  host->strings = longer;
  host->room_strings = room;
  return true;
}

/* A long string is there; make_room was asked. */
static void note_string(gb_host *host, const void *block, size_t bytes) {
  host->strings[host->n_strings].block = block;
  host->strings[host->n_strings++].bytes = bytes;
  host->strings_of[bits_of(bytes)]++;
  note_longest(host);
}

/* A large block goes; it may be one of a string. Lua frees the newest first. */
static void forget_string(gb_host *host, const void *block) {
  for (size_t i = host->n_strings; i-- > 0;) {
    if (host->strings[i].block != block) continue;
    host->strings_of[bits_of(host->strings[i].bytes)]--;
    host->strings[i] = host->strings[--host->n_strings];
    note_longest(host);
    return;
  }
}

/* Is the request about a stack? Lua makes one right after the coroutine that has it; `before` is a type where there is
 * no block. */
static bool is_stack(gb_host *host, const void *block, size_t before) {
  if (host->options.sandbox == GB_SANDBOX_NONE) return false;
  if (block) return before >= STACK_LEAST && gbl_stacks_has(&host->stacks, block);
  bool first = host->thread_made && before == 0;
  if (before == LUA_TTHREAD) host->thread_made = true;
  return first;
}

/* A stack that is too deep gets an error at its next instruction. */
static void note_depth(const gb_host *host, size_t bytes) {
  if (bytes > STACK_DEEP && told(host)) gbl_note_deep(told(host));
}

/* May a stack have so much room? Some versions of Lua ask for a new block, which is known by its length. The collection
 * that Lua tries then is charged. */
static bool may_deepen(gb_host *host, bool of_stack, size_t bytes) {
  if (bytes <= STACK_DEEP || (bytes <= STACK_MOST && told(host) && told(host)->interrupt.looked)) return true;
  if (!of_stack && !gbl_stacks_of(&host->stacks, (bytes + STACK_EXTRA) / 2)) return true;
  host->deep = true; /* the error is this one, of memory */
  if (told(host)) told(host)->interrupt.deep = false;
  if (told(host)) gbl_charge_block(told(host), host->lua_bytes);
  return false;
}

/* Was the stack at block, which goes, copied to the block that was made just before? What is compared are values and
 * types, with gaps. */
static bool has_moved(const gb_host *host, const char *block, size_t before) {
  const char *to = host->newest.block;
  size_t bytes = before < host->newest.bytes ? before : host->newest.bytes;
  if (!to || host->newest.bytes < STACK_LEAST || host->newest.bytes % SLOT) return false;
  for (size_t at = 0; at + SLOT <= bytes; at += SLOT)
    if (memcmp(block + at, to + at, sizeof(void *) + 1) != 0) return false;
  return true;
}

/* A stack has moved, changed its size, or gone. */
static void note_stack(gb_host *host, const void *block, const void *fresh, size_t bytes) {
  size_t most = gbl_stacks_most(&host->stacks);
  if (block) gbl_stacks_remove(&host->stacks, block);
  else host->thread_made = false;
  if (bytes) gbl_stacks_add(&host->stacks, fresh, bytes);
  if (bytes > STACK_DEEP / 4 && told(host)) told(host)->interrupt.looked = false;
  if (told(host) && gbl_stacks_most(&host->stacks) != most)
    gbl_note_deepest(told(host), gbl_stacks_most(&host->stacks) / SLOT);
}

/* A stack goes, perhaps because it has moved. */
static void end_stack(gb_host *host, const void *block, size_t before) {
  bool moved = has_moved(host, block, before);
  note_stack(host, block, host->newest.block, moved ? host->newest.bytes : 0);
  if (moved) note_depth(host, host->newest.bytes);
}

static void *lua_memory(void *user, void *block, size_t before, size_t bytes) {
  gb_host *host = user;
  const gb_host_options *o = &host->options;
  bool is_string = !block && before == LUA_TSTRING && bytes >= LONG_STRING, of_stack = is_stack(host, block, before);
  bool plain = block || before == 0; /* it is no object that Lua collects */
  if (!block) before = 0; /* then it is a type */
  bool grows = bytes > before;
  if (is_string && !make_room(host)) return NULL;
  if (of_stack && grows && !gbl_stacks_reserve(&host->stacks)) return NULL;
  if (grows && plain && !may_deepen(host, of_stack, bytes)) return NULL;
  if (of_stack && !bytes) end_stack(host, block, before);
  host->newest.block = NULL;
  if (grows && o->lua_bytes && (bytes - before > o->lua_bytes || host->lua_bytes > o->lua_bytes - (bytes - before)))
    return refuse(host, bytes);
  void *fresh = NULL;
  if (o->lua_alloc) {
    bool barred = host->barred;
    host->barred = true;
    fresh = o->lua_alloc(o->alloc_user, block, before, bytes);
    host->barred = barred;
  } else if (bytes) fresh = realloc(block, bytes);
  else free(block);
  if (bytes && !fresh) return NULL;
  if (of_stack && bytes) note_stack(host, block, fresh, bytes), note_depth(host, bytes);
  if (!block && plain) host->newest.block = fresh, host->newest.bytes = bytes;
  if (is_string) note_string(host, fresh, bytes);
  else if (before >= LONG_STRING && !bytes) forget_string(host, block);
  host->lua_bytes += bytes - before;
  if (host->lua_bytes > host->lua_peak) host->lua_peak = host->lua_bytes;
  if (grows) host->refused = 0;
  if (grows && bytes - before >= LARGE_BLOCK && told(host)) gbl_charge_block(told(host), bytes - before);
  return fresh;
}

void gb_host_get_usage(const gb_host *host, gb_host_usage *out) {
  if (!out) return;
  *out = (gb_host_usage){ 0 };
  if (host && !is_elsewhere(host))
    *out = (gb_host_usage){ host->lua_bytes, host->lua_peak, host->state->interrupt.instructions };
}

/* ====} */

/* {==== Callbacks ====
 * Those that a recipe causes may call the host: what they run runs on the coroutine that caused them. */

/* Around a callback: what the host runs, it runs on L. Gives what was before. */
static lua_State *turn_to(gb_host *host, lua_State *L) {
  lua_State *before = host->current;
  host->current = L;
  return before;
}

int gbl_host_print(lua_State *L) {
  gb_host *host = gbl_host_of(L);
  const gb_host_options *o = &host->options;
  luaL_Buffer line;
  int count = lua_gettop(L);
  luaL_buffinit(L, &line);
  for (int i = 1; i <= count; i++) {
    if (i > 1) luaL_addchar(&line, '\t');
    gbl_push_own_name(L, "tostring");
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
    if (!lua_isstring(L, -1)) return luaL_error(L, "'tostring' must return a string to 'print'");
    luaL_addvalue(&line);
  }
  luaL_pushresult(&line);
  size_t length;
  const char *text = lua_tolstring(L, -1, &length);
  lua_State *before = turn_to(host, L);
  if (o->on_print) o->on_print(o->user, text, length);
  turn_to(host, before);
  gbl_enter(L);
  return 0;
}

/* The engine asks before it opens a file, in the middle of what it does. */
static gb_status ask_file(void *user, const char *path, bool write) {
  gb_host *host = user;
  bool barred = host->barred;
  host->barred = true;
  gb_status status = host->options.on_file(host->options.user, path, write);
  host->barred = barred;
  return status;
}

/* A number at index, or NAN. */
static double number_or_nan(lua_State *L, int index) { return lua_type(L, index) == LUA_TNUMBER ? lua_tonumber(L, index)
                                                       : NAN; }

/* The lists of names at index and of numbers behind it, as the event has them; the lists keep the names. */
static void read_values(lua_State *L, int index, gb_event *e) {
  e->count = lua_istable(L, index) ? (int64_t)lua_rawlen(L, index) : 0;
  const char **names = lua_newuserdatauv(L, ((size_t)e->count + 1) * sizeof *names, 0);
  double *values = lua_newuserdatauv(L, ((size_t)e->count + 1) * sizeof *values, 0);
  for (int64_t i = 0; i < e->count; i++) {
    lua_rawgeti(L, index, i + 1);
    lua_rawgeti(L, index + 1, i + 1);
    names[i] = lua_tostring(L, -2);
    values[i] = lua_tonumber(L, -1);
    lua_pop(L, 2);
  }
  e->names = names;
  e->values = values;
}

/* event(title, step, total, loss, scale, skipped, names, numbers): tell the host; false where nobody listens. */
static int event(lua_State *L) {
  gb_host *host = gbl_host_of(L);
  bool heard = host && host->options.on_event;
  lua_settop(L, 8);
  if (heard) {
    gb_event e = { sizeof e, luaL_checkstring(L, 1), luaL_checkinteger(L, 2), luaL_checkinteger(L, 3),
                   number_or_nan(L, 4), number_or_nan(L, 5),
                   lua_isinteger(L, 6) ? lua_tointeger(L, 6) : -1, 0, NULL, NULL };
    read_values(L, 7, &e);
    lua_State *before = turn_to(host, L);
    host->options.on_event(host->options.user, &e);
    turn_to(host, before);
    gbl_enter(L);
  }
  lua_pushboolean(L, heard);
  return 1;
}

/* os.exit in a host: the process is not the recipe's. */
static int refuse_exit(lua_State *L) { return gbl_error(L, "os.exit: this recipe runs inside another program; end "
                                                           "it by returning, or by an error"); }

/* os.setlocale in a host: the locale is the whole process's. Asking is allowed. */
static int refuse_locale(lua_State *L) {
  if (!lua_isnoneornil(L, 1))
    return gbl_error(L, "os.setlocale: the locale belongs to the program this recipe runs in");
  lua_pushliteral(L, "C");
  return 1;
}

/* os.getenv where the host does not share its environment. */
static int no_getenv(lua_State *L) {
  luaL_checkstring(L, 1);
  lua_pushnil(L);
  return 1;
}

/* ====} */

/* {==== Opening ==== */

void gb_host_options_init(gb_host_options *options, size_t size) {
  if (!options || size < sizeof options->size) return;
  memset(options, 0, size);
  options->size = size;
}

/* Functions of stock Lua that would act on the whole process. */
static void tame_process(lua_State *L, const gb_host *host) {
  if (gbl_push_global(L, "os") == LUA_TTABLE) {
    lua_pushcfunction(L, refuse_exit);
    gbl_set_raw(L, -2, "exit");
    lua_pushcfunction(L, refuse_locale);
    gbl_set_raw(L, -2, "setlocale");
    if (!host->options.environment) {
      lua_pushcfunction(L, no_getenv);
      gbl_set_raw(L, -2, "getenv");
    }
  }
  lua_pop(L, 1);
  lua_pushcfunction(L, gbl_host_print);
  lua_setglobal(L, "print");
}

/* The engine's options from the host's. */
static gb_context_options context_options(const gb_host_options *o) {
  gb_context_options c;
  gb_context_options_init(&c, sizeof c);
  c.threads = o->threads;
  c.tensor_bytes = o->tensor_bytes;
  c.seed = o->seed;
  c.alloc = o->tensor_alloc;
  c.free = o->tensor_free;
  c.alloc_user = o->alloc_user;
  return c;
}

/* The device that was asked for must be there. */
static void check_device(lua_State *L, const gb_host *host) {
  gb_device device;
  if (host->options.device) gbl_check_status(L, gb_device_parse(host->context, host->options.device, &device));
}

/* Protected: the libraries, gb, and what a host changes of them. */
static int open_universe(lua_State *L) {
  gb_host *host = lua_touserdata(L, 1);
  const gb_host_options *o = &host->options;
  gb_context_options c = context_options(o);
  lua_gc(L, LUA_GCGEN, 0, 0);
  lua_gc(L, LUA_GCSTOP); /* what is made here stays */
  if (!o->environment) {
    lua_pushboolean(L, true);
    gbl_set_raw(L, LUA_REGISTRYINDEX, "LUA_NOENV");
  }
  luaL_openlibs(L);
  gbl_set_context_options(L, &c);
  luaL_requiref(L, "gibbous", luaopen_gibbous, false);
  lua_setglobal(L, "gb");
  host->state = gbl_enter(L);
  host->context = host->state->context;
  host->state->host = host;
  gbl_open_handles(L, host);
  check_device(L, host);
  gbl_replace_coroutine(L);
  tame_process(L, host);
  if (o->on_file) host->context->files = (gb_file_policy){ .root = GB_FILES_ANY, .ask = ask_file, .user = host };
  gbl_open_sandbox(L, host);
  host->state->interrupt.limits_tensors = o->tensor_bytes != 0;
  if (o->sandbox != GB_SANDBOX_NONE || o->instructions || o->seconds > 0 || o->interruptible)
    gbl_interrupt_count(L, o->instructions, o->seconds);
  lua_gc(L, LUA_GCRESTART);
  return 0;
}

/* A copy of the options, at the size that we know; false: no memory. */
static bool copy_options(const gb_host_options *from, gb_host_options *to) {
  gb_host_options_init(to, sizeof *to);
  if (!from) return true;
  size_t known = from->size < sizeof *to ? from->size : sizeof *to;
  memcpy(to, from, known);
  to->size = known;
  const char *root = to->root, *device = to->device;
  to->root = root ? strdup(root) : NULL;
  to->device = device ? strdup(device) : NULL;
  gbl_limit_sandbox(to);
  return (!root || to->root) && (!device || to->device);
}

/* The size says which fields there are, so it is looked at before any. NULL: all is well. */
static const char *bad_size(const gb_host_options *o) {
  if (o && o->size < offsetof(gb_host_options, root)) /* a sandbox that was asked for would not be looked at */
    return "options.size is too small to hold options; gb_host_options_init sets it";
  if (o && o->size % _Alignof(gb_host_options))
    return "options.size is the size of no such struct; gb_host_options_init sets it";
  return NULL;
}

/* What cannot be meant. NULL: all is well. */
static const char *bad_options(const gb_host_options *o) {
  if (o->sandbox != GB_SANDBOX_NONE && o->sandbox != GB_SANDBOX_FILES && o->sandbox != GB_SANDBOX_STRICT)
    return "options.sandbox is none of gb_sandbox";
  if ((o->sandbox == GB_SANDBOX_FILES) != (o->root != NULL))
    return "options.root names the folder of GB_SANDBOX_FILES, and goes with it alone";
  if (!o->tensor_alloc != !o->tensor_free) return "options.tensor_alloc and tensor_free go together";
  if (o->threads < 0 || o->threads > 1024) return "options.threads is 0 .. 1024";
  if (!(o->seconds >= 0)) return "options.seconds must not be negative";
  if (o->file_bytes && o->sandbox != GB_SANDBOX_FILES)
    return "options.file_bytes is a limit of GB_SANDBOX_FILES, and goes with it alone";
  return NULL;
}

/* Tensors may outlive the host, and what they ask afterwards is nobody's to answer. */
static void forget_host(gb_host *host) {
  if (host->context) host->context->files.ask = NULL;
}

/* End a host that opened in part or whole. A signal handler that comes meanwhile finds nothing to stop. */
static void end_host(gb_host *host) {
  atomic_store(&host->stoppable, NULL);
  forget_host(host);
  host->closing = true;
  if (host->state) host->state->closing = true;
  if (host->main) lua_close(host->main);
  free(host->strings);
  free(host->stacks.slot);
  free((char *)host->options.root);
  free((char *)host->options.device);
  free(host);
}

/* Open the universe; a failure leaves its text in the host. */
static gb_status open_host(gb_host *host) {
  const char *bad = bad_options(&host->options);
  if (bad) return gbl_host_fail(host, GB_EINVAL, "%s", bad);
  lua_State *L = host->main = host->current = lua_newstate(lua_memory, host);
  if (!L) return gbl_host_fail(host, host->limited ? GB_ELUABYTES : GB_EMEMORY, "there is no memory for a Lua state");
  lua_pushcfunction(L, open_universe);
  lua_pushlightuserdata(L, host);
  int lua_status = lua_pcall(L, 1, 0, 0);
  gb_status status = outcome(host, L, lua_status, GB_OK);
  lua_settop(L, 0);
  return status;
}

gb_status gb_host_open(const gb_host_options *options, gb_host **out, char *error, size_t size) {
  const char *bad = out ? bad_size(options) : "gb_host_open: out is NULL";
  if (out) *out = NULL;
  if (bad) {
    if (error && size) snprintf(error, size, "%s", bad);
    return GB_EINVAL;
  }
  gb_host *host = calloc(1, sizeof *host);
  gb_status status = GB_EMEMORY;
  if (host) status = copy_options(options, &host->options) ? open_host(host)
      : gbl_host_fail(host, GB_EMEMORY, "there is no memory for the options");
  if (status == GB_OK) {
    atomic_store(&host->stoppable, host->state);
    *out = host;
    return GB_OK;
  }
  if (error && size) snprintf(error, size, "%s", host ? host->error : gb_status_text(status));
  if (host) end_host(host);
  return status;
}

gb_status gb_host_close(gb_host *host) {
  if (!host) return GB_OK;
  gb_status status = gbl_host_enter(host);
  if (status != GB_OK) return status;
  if (host->depth > 1) { /* of another call of this thread, or of the close that runs */
    status = gbl_host_fail(host, GB_ESTATE, "gb_host_close: a call of this host runs; close it when that has returned");
    gbl_host_leave(host);
    return status;
  }
  end_host(host);
  return GB_OK;
}

gb_context *gb_host_context(gb_host *host) { return host ? host->context : NULL; }

/* ====} */

/* {==== Running ==== */

/* A chunk to run: a file, or text with a name. */
typedef struct chunk { const char *path, *text, *name; } chunk;

/* A scope that the chunk leaves open is an error, and ends. */
static int run_chunk(lua_State *L) {
  const chunk *c = lua_touserdata(L, 1);
  int status;
  if (c->path) status = luaL_loadfilex(L, c->path, "t");
  else {
    lua_pushfstring(L, "=%s", c->name ? c->name : "recipe");
    status = luaL_loadbufferx(L, c->text, strlen(c->text), lua_tostring(L, -1), "t");
  }
  if (status != LUA_OK) return lua_error(L);
  gbl_modes *modes = gbl_modes_of(L);
  int64_t before = modes->scopes;
  lua_call(L, 0, 0);
  if (!gbl_push_open_scope(L)) return 0;
  return gbl_close_scopes(modes, before) ? lua_error(L) : 0;
}

/* Run a recipe. How it ended says how the job of its processes is left when the host closes. */
static gb_status run_recipe(gb_host *host, const char *bad, chunk *c) {
  gb_status status = gbl_host_enter(host);
  if (status != GB_OK) return status;
  status = bad ? gbl_host_fail(host, GB_EINVAL, "%s", bad) : gbl_host_protect(host, run_chunk, c);
  gbl_note_end(host->current, status != GB_OK);
  gbl_host_leave(host);
  return status;
}

gb_status gb_host_run_file(gb_host *host, const char *path) {
  return run_recipe(host, path ? NULL : "gb_host_run_file: path is NULL", &(chunk){ .path = path });
}

gb_status gb_host_run_string(gb_host *host, const char *text, const char *name) {
  return run_recipe(host, text ? NULL : "gb_host_run_string: text is NULL", &(chunk){ .text = text, .name = name });
}

/* ====} */

/* {==== Stopping ==== */

void gb_host_interrupt(gb_host *host) {
  gbl_state *state = host ? atomic_load(&host->stoppable) : NULL;
  if (state) gbl_interrupt_post(state, GB_EINTERRUPT);
}

void gb_host_request_stop(gb_host *host) {
  gbl_state *state = host ? atomic_load(&host->stoppable) : NULL;
  if (state && !gbl_ask_to_stop(state)) gbl_interrupt_post(state, GB_EINTERRUPT);
}

/* ====} */

void gbl_open_host(lua_State *L) {
  gbl_push_module(L, "_native");
  gbl_set_functions(L, (const luaL_Reg[]){ { "event", event }, { NULL, NULL } });
  lua_pop(L, 1);
}
