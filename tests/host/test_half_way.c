/* test_half_way.c - an op that is stopped half way does less than all of its work, gives nothing, and keeps nothing of
 * what it did.
 *
 * Memory that tensors are wrapped around has two pages that are closed until they are touched: one in the middle, whose
 * touch asks the host to stop, and the last one, whose touch is noted. With one thread chunks go in order, so an op
 * that heeds the request never comes to the last page, however fast or slow the machine is. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "open_host.h"

enum { ROWS = 2048, COLUMNS = 512, BYTES = ROWS * COLUMNS * 4 };

static gb_host *host;
static char *memory;           /* of x: float32 [ROWS, COLUMNS] */
static size_t page;
static volatile sig_atomic_t asked, reached_end;

/* A closed page was touched: open it, and note which one it was. */
static void on_fault(int signal, siginfo_t *info, void *context) {
  char *at = (char *)((uintptr_t)info->si_addr / page * page);
  (void)context;
  if (at == memory + BYTES / 2) {
    asked = 1;
    gb_host_interrupt(host);
  } else if (at == memory + BYTES - page) reached_end = 1;
  else {
    const char text[] = "a fault that is not the test's\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(4);
    _exit(128 + signal);
  }
  mprotect(at, page, PROT_READ | PROT_WRITE);
}

static void open_pages(int protection) {
  asked = reached_end = 0;
  CHECK(mprotect(memory + BYTES / 2, page, protection) == 0 && mprotect(memory + BYTES - page, page, protection) == 0);
}

/* What prepares, what is stopped, and what must hold afterwards (or NULL). */
typedef struct op { const char *before, *run, *after; } op;

static const op ops[] = {
  { "", "y = x:exp()", "assert(y == nil)" }, /* no result is seen */
  { "", "y = x + 1", NULL },
  { "", "y = x:to('bfloat16')", NULL },
  { "", "y = x:to('int32')", NULL },
  { "", "y = x:clone()", NULL },
  { "", "y = gb.cat({ x, x }, 1)", NULL },
  { "", "y = x:flip(2)", NULL },
  { "", "y = gb.where(x:gt(0), x, x)", NULL },
  { "", "y = x:sum()", NULL },
  { "", "y = x:cumsum(2)", NULL },
  { "", "y = x:argmax(2)", NULL },
  { "", "y = x:sort(2)", NULL },
  { "", "y = F.softmax(x, 2)", NULL },
  { "", "y = F.log_softmax(x, 2)", NULL },
  { "", "y = F.layer_norm(x, { 512 })", NULL },
  { "", "y = F.mse_loss(x, x)", NULL },
  { "", "y = F.dropout(x, 0.5)", NULL },
  { "", "y = x:index_select(1, all)", NULL },
  { "", "y = F.embedding(all, x)", NULL },
  { "", "y = x:gather(2, zeros)", NULL },
  { "", "y = x:masked_select(gb.ones(1, dtype_bool):expand(2048, 512))", NULL },
  { "", "y = x:nonzero()", NULL },
  { "", "y = z:index_add(1, all, x)", NULL },
  { "", "y = z:scatter_add(2, zeros, x)", NULL },
  { "", "y = F.cross_entropy(x, labels)", NULL },
  { "", "y = F.cross_entropy(x, labels, { reduction = 'none' })", NULL },
  { "", "y = F.nll_loss(x:view(16384, 64), gb.zeros(16384, { dtype = 'int64' }))", NULL },
  { "", "y = F.linear_cross_entropy(x, gb.ones(512, 512), labels)", NULL },
  { "", "y = x:matmul(gb.ones(512, 64))", NULL },
  { "", "y = F.conv2d(x:view(32, 8, 64, 64), gb.ones(8, 8, 3, 3))", NULL },
  { "", "y = F.max_pool2d(x:view(32, 8, 64, 64), 2)", NULL },
  /* from one layout into another: rows of the result are written in order */
  { "", "x:copy_(z:view(512, 2048):t())", NULL },
  { "", "x:copy_(z:to('float16'))", NULL },
  { "", "x:fill_(3)", NULL },
  { "", "x:add_(z)", NULL },
  { "", "x:exp_()", NULL },
  /* index values in x were not all checked: nothing is done by them */
  { "w = whole:view(2048, 512)", "y = F.embedding(w, table)", NULL },
  { "w = whole:view(2048 * 512)", "y = table:index_add(1, w, gb.ones(1, 4):expand(2048 * 512, 4))", NULL },
  { "w = whole:view(2048 * 512)", "y = gb.index_put(table, w, gb.ones(1, 4):expand(2048 * 512, 4))", NULL },
  { "l = gb.ones(4, 4):requires_grad_() e = F.embedding(whole:view(2048 * 512), l):sum()", "e:backward()",
    "assert(l.grad == nil)" },
  /* backward */
  { "l = x:detach():requires_grad_() e = F.softmax(gb.ones(512):requires_grad_() * l, 2):sum()", "e:backward()", NULL },
  { "l = gb.ones(8, 8, 3, 3):requires_grad_() e = F.conv2d(x:view(32, 8, 64, 64), l):sum()", "e:backward()",
    "assert(l.grad == nil)" },
  { "l = gb.ones(64, 512):requires_grad_() e = F.scaled_dot_product_attention(x, l, l):sum()", "e:backward()",
    "assert(l.grad == nil)" },
  { "l = gb.ones(512):requires_grad_() e = F.layer_norm(x, { 512 }, l):sum()", "e:backward()",
    "assert(l.grad == nil)" },
  /* running statistics are moved by whole batches */
  { "b = gb.nn.BatchNorm1d(512)", "y = b(x)", "assert(b.running_mean:eq(0):all():item() and "
                                              "b.running_var:eq(1):all():item())" },
};

/* What stopped half way goes to its end when it is asked again. */
static void stop(const op *o) {
  open_pages(PROT_READ | PROT_WRITE);
  CHECK(runs(host, "y, w, l, e, b = nil collectgarbage()"));
  CHECK(runs(host, o->before));
  open_pages(PROT_NONE);
  gb_status status = gb_host_run_string(host, o->run, NULL);
  bool right = status == GB_EINTERRUPT && asked && !reached_end;
  if (!right)
    fprintf(stderr, "  %s\n  gave %s%s%s\n", o->run, gb_status_text(status), asked ? "" : ", touched no middle",
            reached_end ? ", came to the end" : "");
  CHECK(right);
  if (o->after) CHECK(runs(host, o->after));
  open_pages(PROT_READ | PROT_WRITE);
  memset(memory, 0, BYTES);
  CHECK(runs(host, o->before) && runs(host, o->run));
}

/* An optimizer's step is taken or not: a stop that comes while it runs lets it go to its end. */
static void step_is_whole(void) {
  open_pages(PROT_READ | PROT_WRITE);
  CHECK(runs(host, "p = gb.zeros(2048, 512):requires_grad_() p.grad = x opt = gb.optim.SGD({ p }, { lr = 1 }) "
                   "x:fill_(1)"));
  open_pages(PROT_NONE);
  gb_status status = gb_host_run_string(host, "opt:step()", NULL);
  CHECK(status == GB_OK || status == GB_EINTERRUPT);
  open_pages(PROT_READ | PROT_WRITE);
  CHECK(runs(host, "assert(p:eq(p[1][1]):all():item())"));
}

/* x and whole are the same memory, as float32 and as int32. */
static void wrap(const char *name, gb_dtype dtype) {
  gb_tensor *tensor = NULL;
  CHECK(gb_tensor_wrap(gb_host_context(host), memory, dtype, 2, (int64_t[]){ ROWS, COLUMNS }, NULL, NULL, &tensor) ==
        GB_OK);
  gb_value value = gb_value_tensor(tensor);
  CHECK(gb_host_set(host, name, &value) == GB_OK);
  gb_tensor_release(tensor);
}

int main(void) {
  gb_host_options o = options_of(GB_SANDBOX_NONE);
  page = (size_t)sysconf(_SC_PAGESIZE);
  memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED && BYTES / 2 % page == 0);
  if (memory == MAP_FAILED) return check_report();
  struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
  sigaction(SIGSEGV, &action, NULL);
  host = open_host(&o);
  wrap("x", GB_FLOAT32);
  wrap("whole", GB_INT32);
  CHECK(runs(host, "F = gb.nn.functional all = gb.arange(2048) zeros = gb.zeros(2048, 512, { dtype = 'int64' }) "
                   "labels = gb.zeros(2048, { dtype = 'int64' })\n"
                   "z = gb.ones(2048, 512) table = gb.ones(4, 4) dtype_bool = { dtype = 'bool' }"));
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) stop(&ops[i]);
  step_is_whole();
  gb_host_close(host);
  return check_report();
}
