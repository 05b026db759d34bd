/* recipes.c - the fuzzer of the Lua surface: runs hostile recipes that recipes.lua makes, each session in a host of its
 * own, and sees what crashes, hangs, or is not given back.
 *
 *   fuzz_recipes FOLDER SECONDS [SEED]  sessions for so long: the seeds from SEED on, or half the time those from 1 on
 *                                       and half from a random one on
 *   fuzz_recipes FOLDER seed SEED       the session of one seed: shown, run, and shrunk when it fails
 *   fuzz_recipes FOLDER show SEED       that session as a file that can be run
 *   fuzz_recipes FOLDER run FILE...     sessions that were kept, once more; FILE - also says what its statements raise
 *
 * FOLDER is tests/fuzz; the working directory is the repository's, since golden cases are read. A child runs the
 * sessions. What it is about to run lies in memory that the parent sees, so the parent can say what ended the child,
 * drop statements as long as it still ends so, and write what is left to GIBBOUS_FUZZ_KEEP, a folder, or to the one it
 * was started in. Ends with status 1 when there was a fault. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bindings/host.h"

enum {
  MOST_TEXT = 4 << 20,        /* bytes of a session */
  MOST_STATEMENTS = 2000,
  MOST_FAULTS = 200,          /* distinct ones of a run */
  SESSIONS_OF_A_CHILD = 400,
  CPU_SECONDS = 30,           /* of one session, then it hangs */
  WALL_SECONDS = 180,
  SHRINK_SECONDS = 40,
  SAME_KEPT = 3,              /* sessions that are shrunk for faults of one name: many ways may lead to a place */
  LEFT_BEHIND = 98,           /* exit status: a host that closed has not given back everything */
  STACK = 1 << 20             /* of the thread that runs recipes; the sanitizer's frames are large */
};

/* What the sanitizers offer, where they are. */
#pragma weak __sanitizer_get_current_allocated_bytes
#pragma weak __lsan_do_recoverable_leak_check
size_t __sanitizer_get_current_allocated_bytes(void);
int __lsan_do_recoverable_leak_check(void);
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

/* The parent finds the names of functions, once; a child would need a second for them each time. */
const char *__asan_default_options(void) {
  return "symbolize=0:allocator_may_return_null=1:malloc_context_size=12:exitcode=99:handle_abort=1";
}
const char *__ubsan_default_options(void) { return "print_stacktrace=1:symbolize=0:exitcode=99"; }

/* Between parent and child. */
static struct shared {
  uint64_t seed, sessions, programs, tried, done;
  uint64_t more;              /* of the children before */
  char text[MOST_TEXT];
} *shared;

static char scratch[64];      /* the folder that recipes write in */
static char errors[80];       /* what a child says */
static const char *folder;    /* tests/fuzz */
static char *helpers;
static gb_host *maker;        /* makes the sessions */
static bool shows;            /* statements that fail say why */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void give_up(const char *what) {
  fprintf(stderr, "fuzz_recipes: %s\n", what);
  exit(2);
}

/* The text of a file, or NULL. */
static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *text = calloc(1, MOST_TEXT);
  size_t n = text ? fread(text, 1, MOST_TEXT - 1, file) : 0;
  fclose(file);
  if (text) text[n] = 0;
  return text;
}

/* {==== What a host is given ==== */

/* Memory of one host: what it has not given back. Every so many'th request of Lua's is refused once, so that it
 * collects; `wait` and `press` see press_on. */
static struct memory { lua_State *L; size_t lua; long each, count, wait, press; bool refused, pressed; } memory;

/* The collector as the session wants it, or a whole cycle, finalisers too, at each of the next requests. Only numbers
 * are set: Lua lets an allocator do that much. */
static void press_on(bool on) {
  memory.pressed = on;
  lua_gc(memory.L, LUA_GCINC, 200, 400, on ? 70 : 8); /* 70: no end of a step before that of the cycle */
  lua_gc(memory.L, LUA_GCSETPAUSE, on ? 0 : 100);
  if (on) lua_gc(memory.L, LUA_GCRESTART);
}

/* Lua asks for more memory: time to begin or to end the pressure. */
static void count_request(void) {
  if (memory.wait > 0 && --memory.wait == 0) press_on(true);
  else if (memory.press > 0 && memory.pressed && --memory.press == 0) press_on(false);
}

static void *lua_block(void *user, void *block, size_t before, size_t bytes) {
  (void)user;
  if (!block) before = 0;
  if (bytes > before) count_request();
  if (bytes > before && !memory.refused && memory.each && ++memory.count % memory.each == 0) {
    memory.refused = true;
    return NULL;
  }
  if (bytes > before) memory.refused = false;
  if (!bytes) {
    free(block);
    memory.lua -= before;
    return NULL;
  }
  void *fresh = realloc(block, bytes);
  if (fresh) memory.lua += bytes - before;
  return fresh;
}

/* Memory of the host's that a recipe was lent. */
enum { LOANS = 64 };
static struct { float *memory; gb_tensor *tensor; } loans[LOANS];
static int n_loans;

/* loan(): a tensor of the host's memory. */
static gb_status loan(gb_call *call, void *user) {
  (void)user;
  if (n_loans == LOANS) return gb_call_error(call, GB_EINVAL, "no more loans");
  float *memory_lent = calloc(16, sizeof *memory_lent);
  gb_tensor *x = NULL;
  gb_context *context = gb_host_context(gb_call_host(call));
  if (gb_tensor_wrap(context, memory_lent, GB_FLOAT32, 2, (int64_t[]){ 4, 4 }, NULL, NULL, &x) != GB_OK) {
    free(memory_lent);
    return gb_call_error(call, GB_EMEMORY, "no loan");
  }
  loans[n_loans].memory = memory_lent;
  loans[n_loans++].tensor = x;
  gb_value v = gb_value_tensor(x);
  return gb_call_return(call, &v);
}

static void end_loans(void) {
  for (; n_loans > 0; n_loans--) {
    gb_tensor_revoke(loans[n_loans - 1].tensor);
    free(loans[n_loans - 1].memory); /* whoever reads it now is seen */
    gb_tensor_release(loans[n_loans - 1].tensor);
  }
}

/* revoke(): the end of all loans. */
static gb_status revoke_all(gb_call *call, void *user) {
  (void)call;
  (void)user;
  end_loans();
  return GB_OK;
}

/* lent(tensor, fn): calls fn while the host holds the tensor it was lent, then reads that. */
static gb_status lent(gb_call *call, void *user) {
  (void)user;
  gb_value tensor, fn, result;
  gb_host *host = gb_call_host(call);
  gb_call_get(call, 0, &tensor);
  gb_call_get(call, 1, &fn);
  gb_status status = gb_host_call_value(host, &fn, &tensor, 1, &result, 1);
  if (status == GB_OK) gb_value_release(host, &result);
  if (tensor.type != GB_VALUE_TENSOR) return status == GB_OK ? GB_OK : gb_call_error(call, status, "lent: it failed");
  static double room[512];
  gb_tensor *t = tensor.as.tensor;
  int64_t sum = gb_tensor_numel(t);
  for (int i = 0; i < gb_tensor_ndim(t); i++) sum += gb_tensor_shape(t)[i];
  if (gb_tensor_numel(t) <= 512) gb_tensor_read(t, room, sizeof room);
  gb_value v = gb_value_integer(sum);
  return gb_call_return(call, &v);
}

/* apply(fn, ...): calls fn from the host. */
static gb_status apply(gb_call *call, void *user) {
  (void)user;
  gb_value fn, in[4], out;
  int n = gb_call_count(call) - 1;
  n = n < 0 ? 0 : n > 4 ? 4 : n;
  gb_call_get(call, 0, &fn);
  for (int i = 0; i < n; i++) gb_call_get(call, i + 1, &in[i]);
  gb_status status = gb_host_call_value(gb_call_host(call), &fn, in, n, &out, 1);
  if (status != GB_OK) return gb_call_error(call, status, "apply: %s", gb_host_error(gb_call_host(call)));
  status = gb_call_return(call, &out);
  gb_value_release(gb_call_host(call), &out);
  return status;
}

/* press(wait, n): after so many requests of Lua's a whole collection comes with each of the next n. */
static gb_status press(gb_call *call, void *user) {
  gb_value n, wait;
  (void)user;
  gb_call_get(call, 0, &wait);
  gb_call_get(call, 1, &n);
  if (!memory.L) return GB_OK; /* not beside a generational collector, or one that requests call */
  memory.wait = wait.type == GB_VALUE_INTEGER ? (long)wait.as.integer + 1 : 0;
  memory.press = n.type == GB_VALUE_INTEGER ? (long)n.as.integer : 0;
  return GB_OK;
}

static gb_status show(gb_call *call, void *user) {
  gb_value v;
  (void)user;
  gb_call_get(call, 0, &v);
  if (v.type == GB_VALUE_STRING) printf("  raised: %s\n", v.as.string.data);
  return GB_OK;
}

/* ====} */

/* {==== Running a session ==== */

/* The collector that the session asks for. */
static void set_collector(gb_host *host, const char *name, long each) {
  memory.each = !strcmp(name, "each") ? each : 0;
  memory.L = !strcmp(name, "each") || !strcmp(name, "generational") ? NULL : host->main;
  if (!strcmp(name, "generational")) lua_gc(host->main, LUA_GCGEN, 20, 100);
  if (!strcmp(name, "incremental")) {
    lua_gc(host->main, LUA_GCINC, 100, 1000, 4);
    lua_gc(host->main, LUA_GCSETPAUSE, 0);
  }
}

static gb_host *open_host(const char *sandbox) {
  gb_host_options o;
  gb_host_options_init(&o, sizeof o);
  o.sandbox = GB_SANDBOX_NONE;
  if (!strcmp(sandbox, "strict")) o.sandbox = GB_SANDBOX_STRICT;
  if (!strcmp(sandbox, "files")) o.sandbox = GB_SANDBOX_FILES;
  o.root = o.sandbox == GB_SANDBOX_FILES ? scratch : NULL;
  o.threads = 1;
  o.device = "cpu";
  o.lua_bytes = 64u << 20;
  o.tensor_bytes = 256u << 20;
  o.instructions = 3000000;
  o.seconds = 3;
  o.file_bytes = o.root ? 10u << 20 : 0;
  o.lua_alloc = lua_block;
  char why[256];
  gb_host *host = NULL;
  if (gb_host_open(&o, &host, why, sizeof why) != GB_OK) give_up(why);
  gb_host_register(host, "loan", loan, NULL);
  gb_host_register(host, "revoke", revoke_all, NULL);
  gb_host_register(host, "lent", lent, NULL);
  gb_host_register(host, "apply", apply, NULL);
  gb_host_register(host, "press", press, NULL);
  if (shows) gb_host_register(host, "shows", show, NULL);
  return host;
}

/* A number that a recipe keeps in a global. */
static uint64_t global_number(gb_host *host, const char *name) {
  gb_value v;
  if (gb_host_get(host, name, &v) != GB_OK) return 0;
  uint64_t n = v.type == GB_VALUE_INTEGER ? (uint64_t)v.as.integer : 0;
  gb_value_release(host, &v);
  return n;
}

/* Run each program of the session, whose text is changed while it is run. */
static void run_programs(gb_host *host, char *text) {
  for (char *program = strtok(text, "\2"); program; program = strtok(NULL, "\2")) {
    for (char *c = program; *c; c++)
      if (*c == '\1') *c = '\n';
    if (shows) printf("-- program\n%s\n", program);
    gb_status status = gb_host_run_string(host, program, "program");
    if (shows && status != GB_OK) printf("  ended: %s\n", gb_host_error(host));
    shared->programs++;
  }
}

/* Bytes that malloc gave and that were not freed, or 0 where nobody counts. */
static size_t allocated(void) {
  return __sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : 0;
}

/* Run the session in `shared`. Ends the process when the host does not give back everything. */
static void run_session(void) {
  struct itimerval limit = { .it_value = { .tv_sec = CPU_SECONDS } };
  setitimer(ITIMER_PROF, &limit, NULL);
  char *text = strdup(shared->text), *rest = strchr(text, '\2');
  char sandbox[16] = "none", collector[16] = "plain";
  long each = 0;
  sscanf(text, "%15s %15s %ld", sandbox, collector, &each);
  size_t before = allocated();
  memory = (struct memory){ 0 };
  gb_host *host = open_host(sandbox);
  if (gb_host_run_string(host, helpers, "helpers") != GB_OK) give_up(gb_host_error(host));
  set_collector(host, collector, each);
  if (rest) run_programs(host, rest + 1);
  memory.each = memory.press = memory.wait = 0;
  shared->tried += global_number(host, "tried");
  shared->done += global_number(host, "done");
  end_loans();
  gb_host_close(host);
  if (memory.lua) fprintf(stderr, "%zu bytes of Lua's were not given back\n", memory.lua), _exit(LEFT_BEHIND);
  bool more = allocated() > before && __lsan_do_recoverable_leak_check;
  if (more && __lsan_do_recoverable_leak_check()) _exit(LEFT_BEHIND);
  free(text);
  shared->sessions++;
}

/* Let recipes.lua make the session of a seed, into `shared`. */
static void make_session(uint64_t seed) {
  gb_value in = gb_value_integer((int64_t)seed), out;
  if (gb_host_call(maker, "session", &in, 1, &out, 1) != GB_OK) give_up(gb_host_error(maker));
  if (out.as.string.length >= MOST_TEXT) give_up("a session is too long");
  memcpy(shared->text, out.as.string.data, out.as.string.length + 1);
  shared->seed = seed;
  gb_value_release(maker, &out);
}

/* What a child has to do: the seeds from `first` on until `until` by the clock, or what lies in `shared`. */
typedef struct work { uint64_t first; double until; bool ready; } work;

static void *child_thread(void *argument) {
  work *w = argument;
  if (w->ready) run_session();
  else
    for (int i = 0; i < SESSIONS_OF_A_CHILD && seconds() < w->until; i++) {
      make_session(w->first + (uint64_t)i);
      run_session();
    }
  return NULL;
}

/* Everything of a child: recipes run on a thread whose stack has a known size, in the scratch folder. */
static void child(work *w) {
  int out = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0600), nothing = open("/dev/null", O_WRONLY);
  if (!shows) dup2(nothing, 1);
  dup2(out, 2);
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK);
  if (chdir(scratch) != 0 || pthread_create(&thread, &attributes, child_thread, w) != 0) _exit(2);
  pthread_join(thread, NULL);
  fflush(stdout);
  _exit(0);
}

/* Run a child to its end. Its status; what hangs without using the processor is ended. */
static int run_child(work *w) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid < 0) give_up("fork failed");
  if (pid == 0) child(w);
  int status = 0;
  uint64_t sessions = shared->sessions;
  double since = seconds();
  for (useconds_t nap = 500; waitpid(pid, &status, WNOHANG) == 0; nap = nap < 50000 ? nap * 2 : nap) {
    usleep(nap);
    if (shared->sessions != sessions) since = seconds();
    sessions = shared->sessions;
    if (seconds() - since > WALL_SECONDS) kill(pid, SIGKILL);
  }
  return status;
}

/* ====} */

/* {==== What ended a child ==== */

/* A fault: its name, of its kind and the functions at the top of the stack; and the report with names of functions. */
typedef struct fault { char name[400]; char report[6000]; } fault;

/* Frames that say nothing about where it happened. */
static bool is_noise(const char *function) {
  static const char *const noise[] = { "__", "lua_", "luaD_", "luaV_", "luaM_", "luaH_", "lua_block", "free", "malloc",
                                       "realloc", "calloc", "mem", "str", "_start", NULL };
  for (int i = 0; noise[i]; i++)
    if (!strncmp(function, noise[i], strlen(noise[i]))) return true;
  return strchr("<?(", *function) != NULL; /* the end of the text, too */
}

/* Where an address of this program lies, "function file:line", by addr2line, which is asked once for each. */
static const char *place_of(const char *offset) {
  static struct { char offset[20], place[200]; } places[4096];
  static int n;
  for (int i = 0; i < n; i++)
    if (!strcmp(places[i].offset, offset)) return places[i].place;
  if (n == 4096) return "?";
  char command[400], function[120] = "?", line[200] = "?", self[256] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return "?";
  snprintf(command, sizeof command, "addr2line -f -e %s %s 2>/dev/null", self, offset);
  FILE *pipe = popen(command, "r");
  if (pipe && fscanf(pipe, "%119s %199[^\n]", function, line) < 1) strcpy(function, "?");
  if (pipe) pclose(pipe);
  const char *file = strrchr(line, '/');
  snprintf(places[n].offset, sizeof places[n].offset, "%s", offset);
  snprintf(places[n].place, sizeof places[n].place, "%s %.70s", function, file ? file + 1 : line);
  return places[n++].place;
}

/* Read the report of a child: the error in its first line, the first frames with names. */
static void read_report(fault *f, const char *kind) {
  char *text = read_file(errors), *more = NULL;
  char *line = text ? strtok_r(text, "\n", &more) : NULL;
  int frames = 0, shown = 0;
  size_t used = 0;
  bool stack_over = false;
  char summary[200] = "";
  for (; line && shown < 60; line = strtok_r(NULL, "\n", &more)) {
    char function[120] = "", *number = strstr(line, "    #"), *at = strstr(line, "fuzz_recipes+0x");
    if (number && strstr(line, " 0x")) {
      char offset[20] = "";
      if (at) sscanf(at + 13, "%19[0-9a-fx]", offset);
      const char *frame = at ? place_of(offset) : "(a library)";
      number += 4;
      sscanf(frame, "%119s", function);
      if (!stack_over && frames < 3 && !is_noise(function)) {
        frames++;
        strncat(f->name, frames == 1 ? ": " : " < ", sizeof f->name - strlen(f->name) - 1);
        strncat(f->name, function, sizeof f->name - strlen(f->name) - 1);
      }
      if (atoi(number + 1) >= 14) continue;
      used += (size_t)snprintf(f->report + used, sizeof f->report - used, "    #%d %s\n", atoi(number + 1), frame);
      shown++;
    } else {
      char *error = strstr(line, "ERROR: "), *runtime = strstr(line, "runtime error: ");
      if (!*summary && error) snprintf(summary, sizeof summary, "%s", error + 7);
      if (!*summary && runtime) snprintf(summary, sizeof summary, "%s", runtime);
      if (frames > 0 && strspn(line, " ") == strlen(line)) stack_over = true;
      used += (size_t)snprintf(f->report + used, sizeof f->report - used, "  %.200s\n", line);
      shown++;
    }
    if (used >= sizeof f->report - 1 || strstr(line, "SUMMARY: Add")) break;
  }
  char *address = strstr(summary, " on ");
  if (address) *address = 0;
  address = strstr(summary, "0x");
  if (address) *address = 0;
  if (*summary) kind = summary;
  bool leak = !strncmp(kind, "LeakSanitizer", 13); /* which block comes first says nothing */
  if (leak) kind = "not given back", f->name[0] = 0;
  char stack[400];
  snprintf(stack, sizeof stack, "%s", f->name);
  snprintf(f->name, sizeof f->name, "%.100s%.290s", kind, stack);
  free(text);
}

/* What a status of a child says: false when it went well. */
static bool fault_of(int status, fault *f) {
  char kind[64] = "";
  *f = (fault){ 0 };
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)
    snprintf(kind, sizeof kind, "it does not end (%d s of the processor)", CPU_SECONDS);
  else if (WIFSIGNALED(status)) snprintf(kind, sizeof kind, "signal %d", WTERMSIG(status));
  else if (WEXITSTATUS(status) == LEFT_BEHIND) snprintf(kind, sizeof kind, "not given back");
  else snprintf(kind, sizeof kind, "exit status %d", WEXITSTATUS(status));
  read_report(f, kind);
  return true;
}

/* ====} */

/* {==== Shrinking ==== */

static char *statements[MOST_STATEMENTS]; /* of the session, "\2" between programs included as the statement "" */
static bool dropped[MOST_STATEMENTS];

/* Put the statements that are left into `shared`. */
static void join(int n) {
  char *out = shared->text;
  bool first = true;
  for (int i = 0; i < n; i++) {
    if (dropped[i]) continue;
    if (!*statements[i]) *out++ = '\2', first = true;
    else {
      if (!first) *out++ = '\1';
      out = stpcpy(out, statements[i]);
      first = false;
    }
  }
  *out = 0;
}

/* Does what is left fail in the same way? */
static bool fails_alike(int n, const char *name) {
  fault f;
  work w = { .ready = true };
  join(n);
  return fault_of(run_child(&w), &f) && !strcmp(f.name, name);
}

/* Drop statements of the session in `shared` as long as it ends with the same fault. The result is in `shared`, and in
 * *f what it says. */
static void shrink(fault *f) {
  char *copy = strdup(shared->text);
  int n = 0;
  double until = seconds() + SHRINK_SECONDS;
  for (char *at = copy; n < MOST_STATEMENTS - 1;) {
    size_t length = strcspn(at, "\1\2");
    char end = at[length];
    at[length] = 0;
    statements[n++] = at;
    if (end == '\2') statements[n++] = "";
    if (!end) break;
    at += length + 1;
  }
  memset(dropped, 0, sizeof dropped);
  for (int size = n / 2; size >= 1; size /= 2)
    for (int from = n - size; from > 0 && seconds() < until; from -= size) {
      bool before[MOST_STATEMENTS], any = false;
      memcpy(before, dropped, sizeof before);
      for (int i = from; i < from + size && i < n; i++)
        if (i > 1 && !dropped[i]) dropped[i] = any = true; /* the first line stays, with the end of it */
      if (!any) continue;
      if (!fails_alike(n, f->name)) memcpy(dropped, before, sizeof before);
    }
  join(n);
  work w = { .ready = true };
  fault last;
  if (fault_of(run_child(&w), &last)) *f = last;
  join(n);
  free(copy);
}

/* The session in `shared` as a file that can be run again. */
static void write_session(FILE *file, const fault *f, uint64_t seed) {
  size_t head = strcspn(shared->text, "\2");
  fprintf(file, "-- %s\n-- seed %llu; sandbox and collector are in the next line\n", f->name, (unsigned long long)seed);
  fprintf(file, "--! %.*s\n", (int)head, shared->text);
  for (const char *c = shared->text + head; *c; c++) {
    if (*c == '\1') fputc('\n', file);
    else if (*c == '\2') fputs(c[1] ? "\n--- program\n" : "\n", file);
    else fputc(*c, file);
  }
  fputc('\n', file);
}

/* A session from such a file into `shared`. */
static bool read_session(const char *path) {
  char *text = read_file(path), *line, *more = NULL, *out = shared->text;
  char head[100] = "none plain 0";
  if (!text) return false;
  bool first = true;
  *out = 0;
  for (line = strtok_r(text, "\n", &more); line; line = strtok_r(NULL, "\n", &more)) {
    if (!strncmp(line, "--! ", 4)) snprintf(head, sizeof head, "%s", line + 4), out = stpcpy(shared->text, head);
    else if (!strncmp(line, "--- ", 4)) *out++ = '\2', first = true;
    else if (strncmp(line, "-- ", 3) && *line) {
      if (!first) *out++ = '\1';
      out = stpcpy(out, line);
      first = false;
    }
  }
  *out = 0;
  free(text);
  return true;
}

/* ====} */

static char known[MOST_FAULTS][400]; /* names of faults, as often as each was kept */
static int n_known, n_faults;

/* Say what ended the session in `shared`; one that is new is shrunk and kept. */
static void take_fault(fault *f, double started) {
  uint64_t seed = shared->seed;
  n_faults++;
  int same = 0;
  for (int i = 0; i < n_known; i++) same += !strcmp(known[i], f->name);
  if (same == (strncmp(f->name, "it does", 7) && strncmp(f->name, "not g", 5) ? SAME_KEPT : 1)) return;
  if (n_known < MOST_FAULTS) snprintf(known[n_known++], sizeof known[0], "%s", f->name);
  printf("FAULT %d after %.0f s and %llu programs: seed %llu: %s\n", n_known, seconds() - started,
         (unsigned long long)shared->programs, (unsigned long long)seed, f->name);
  fflush(stdout);
  uint64_t counts[] = { shared->sessions, shared->programs, shared->tried, shared->done };
  shrink(f);
  shared->sessions = counts[0], shared->programs = counts[1], shared->tried = counts[2], shared->done = counts[3];
  const char *to = getenv("GIBBOUS_FUZZ_KEEP");
  char path[300];
  snprintf(path, sizeof path, "%s/recipe-%llu.lua", to ? to : ".", (unsigned long long)seed);
  write_session(stdout, f, seed);
  printf("%s\nkept as %s; again with: fuzz_recipes %s run %s\n", f->report, path, folder, path);
  FILE *file = fopen(path, "w");
  if (file) {
    write_session(file, f, seed);
    for (char *line = strtok(f->report, "\n"); line; line = strtok(NULL, "\n")) fprintf(file, "-- %s\n", line);
    fclose(file);
  }
  fflush(stdout);
}

/* Sessions from seed `first` on until the time is over. */
static void run_seeds(uint64_t first, double until, double started) {
  while (seconds() < until) {
    work w = { .first = first, .until = until };
    fault f;
    uint64_t before = shared->sessions;
    shared->seed = first;
    int status = run_child(&w);
    bool bad = fault_of(status, &f);
    first = bad ? shared->seed + 1 : first + (shared->sessions - before);
    if (bad) take_fault(&f, started);
  }
}

static int report(double started) {
  printf("%llu programs in %llu sessions, %.0f s; ", (unsigned long long)shared->programs,
         (unsigned long long)shared->sessions, seconds() - started);
  printf("%llu of %llu statements ran to their end; %d faults, %d kept\n", (unsigned long long)shared->done,
         (unsigned long long)shared->tried, n_faults, n_known);
  for (int i = 0; i < n_known; i++) printf("  %s\n", known[i]);
  printf("%llu passed, %d failed\n", (unsigned long long)shared->programs, n_faults);
  return n_faults > 0;
}

/* Run kept sessions. */
static int run_files(int n, char **paths) {
  for (int i = 0; i < n; i++) {
    fault f;
    work w = { .ready = true };
    if (!read_session(paths[i])) {
      printf("%s cannot be read\n", paths[i]);
      n_faults++;
      continue;
    }
    if (fault_of(run_child(&w), &f)) {
      n_faults++;
      printf("FAULT: %s: %s\n%s\n", paths[i], f.name, f.report);
    }
  }
  return report(seconds());
}

static int forget(const char *path, const struct stat *s, int flag, struct FTW *at) {
  (void)s;
  (void)flag;
  (void)at;
  return remove(path);
}

static void put(const char *name, const char *text) {
  char path[100];
  snprintf(path, sizeof path, "%s/%s", scratch, name);
  FILE *file = fopen(path, "w");
  if (file) fputs(text, file), fclose(file);
}

/* The folder that recipes see, the sessions' maker, and the memory that children share. */
static void prepare(void) {
  snprintf(scratch, sizeof scratch, "/tmp/gibbous-recipes-XXXXXX");
  if (!mkdtemp(scratch)) give_up("no folder in /tmp");
  snprintf(errors, sizeof errors, "%s.err", scratch);
  put("a.txt", "abc abba\ncab\n");
  put("b.bin", "abcdefghijklmnopqrstuvwxyz012345");
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) give_up("no shared memory");
  char path[400], why[256];
  gb_host_options o;
  gb_host_options_init(&o, sizeof o);
  o.threads = 1;
  o.device = "cpu";
  if (gb_host_open(&o, &maker, why, sizeof why) != GB_OK) give_up(why);
  snprintf(path, sizeof path, "%s/recipes.lua", folder);
  if (gb_host_run_file(maker, path) != GB_OK) give_up(gb_host_error(maker));
  snprintf(path, sizeof path, "%s/recipes_helpers.lua", folder);
  if (!(helpers = read_file(path))) give_up("recipes_helpers.lua cannot be read");
}

int main(int n, char **words) {
  if (n < 3) give_up("fuzz_recipes FOLDER SECONDS [SEED] | FOLDER seed SEED | FOLDER run FILE...");
  folder = words[1];
  prepare();
  double started = seconds();
  int status = 0;
  if (!strcmp(words[2], "run")) {
    shows = n == 5 && !strcmp(words[4], "-");
    status = run_files(n - 3 - shows, words + 3);
  } else if (!strcmp(words[2], "show") && n == 4) {
    make_session(strtoull(words[3], NULL, 10));
    write_session(stdout, &(fault){ .name = "a session" }, shared->seed);
  } else if (!strcmp(words[2], "seed") && n == 4) {
    fault f;
    work w = { .ready = true };
    make_session(strtoull(words[3], NULL, 10));
    write_session(stdout, &(fault){ .name = "a session" }, shared->seed);
    if (fault_of(run_child(&w), &f)) take_fault(&f, started);
    status = report(started);
  } else {
    double most = atof(words[2]);
    uint64_t seed = n > 3 ? strtoull(words[3], NULL, 10) : (uint64_t)time(NULL) * 1000003u % 1000000000u + 1000000u;
    printf("seeds %sfrom %llu on\n", n > 3 ? "" : "from 1 on, then ", (unsigned long long)seed);
    if (n == 3) run_seeds(1, started + most / 2, started);
    run_seeds(seed, started + most, started);
    status = report(started);
  }
  gb_host_close(maker);
  nftw(scratch, forget, 16, FTW_DEPTH | FTW_PHYS);
  unlink(errors);
  free(helpers);
  return status;
}
