/* test_limits.c - limits hold for what is no op and no Lua instruction: each test counts, none takes the time.
 *
 * lua_getstack is wrapped by the linker: how many levels all its calls walked is what a search for the recipe's line
 * costs. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <lua.h>
#include <stdio.h>
#include <stdlib.h>

#include "open_host.h"
#include "tensor/context.h"

/* {==== The recipe's line ==== */

static int64_t levels_walked;
int __real_lua_getstack(lua_State *L, int level, lua_Debug *frame);
int __wrap_lua_getstack(lua_State *L, int level, lua_Debug *frame);
int __wrap_lua_getstack(lua_State *L, int level, lua_Debug *frame) {
  levels_walked += level + 1;
  return __real_lua_getstack(L, level, frame);
}

/* The text runs with that status; gives the levels that were walked. */
static int64_t levels_of(gb_host *host, const char *text) {
  levels_walked = 0;
  CHECK(runs(host, text));
  return levels_walked;
}

/* Frames of a chunk that calls itself one of ours are none of the recipe's: an error below many of them looks through
 * the stack, once. */
static void test_frames(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  gb_host *host = open_host(&o);
  CHECK(runs(host, "dive = load('local function dive(n) if n == 0 then gb.zeros(-1) end dive(n - 1) return 1 end "
                   "return dive', '=gibbous/x')()"));
  int64_t shallow = levels_of(host, "local ok, why = pcall(dive, 100)\nassert(not ok and why:find(':1: ', 1, true), "
                                    "why)");
  CHECK(shallow > 100 && shallow < 100 * 200);
  int64_t deep = levels_of(host, "local ok, why = pcall(dive, 150000)\nassert(not ok and why:find(':1: ', 1, true), "
                                 "why)");
  CHECK(deep > 150000 && deep < 30 * 150000); /* level by level it were 150,000^2 / 2 */
  gb_host_close(host);
}

/* ====} */

/* {==== JSON ==== */

/* used(): bytes that count against the limit on tensor bytes. */
static gb_status used(gb_call *call, void *user) {
  (void)user;
  gb_value bytes = gb_value_integer((int64_t)gb_host_context(gb_call_host(call))->budget.used);
  return gb_call_return(call, &bytes);
}

/* What a recipe decodes and encodes is counted while it is used, and is let go of at once, not by the collector. */
static void test_json(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.tensor_bytes = (size_t)32 << 20;
  gb_host *host = open_host(&o);
  CHECK(gb_host_register(host, "used", used, NULL) == GB_OK);
  CHECK(runs(host, "local text, before = '[' .. ('1,'):rep(100000) .. '1]', used()\n"
                   "local t = gb.io.json_decode(text) assert(#t == 100001 and used() == "
                   "before)\ngb.io.json_encode(t) assert(used() == before)"));
  CHECK(fails(host, "gb.io.json_decode('[' .. ('1,'):rep(1000000) .. '1]')", GB_ETENSORBYTES, NULL));
  CHECK(fails(host, "local t = {} for i = 1, 100 do t[i] = ('x'):rep(1000000) end gb.io.json_encode(t)",
              GB_ETENSORBYTES, NULL));
  CHECK(runs(host, "assert(gb.io.json_decode('[1]')[1] == 1)"));
  gb_host_close(host);
}

/* ====} */

/* {==== Functions that are no ops ==== */

/* Work that takes few Lua instructions is charged: each text reaches a limit that the instructions which it runs are
 * far below. */
static void test_charges(void) {
  static const char *const texts[] = {
    "local row, all = {}, {} for i = 1, 1000 do row[i] = 1 end for i = 1, 1000 do all[i] = row end gb.tensor(all)",
    "gb.ones(1000000):tolist()",
    "gb.ones(1000000):stats()",
    "local list = {} for i = 1, 20000 do list[i] = 1 end local set = gb.data.TensorDataset(gb.ones(8))\nfor i = 1, "
    "10 do set:subset(list) end",
    "local list = {} for i = 1, 10000 do list[i] = {} end for i = 1, 20 do gb.io.json_encode(list) end",
    "local text = '[' .. ('1,'):rep(200000) .. '1]' gb.io.json_decode(text)",
    "local shape = gb.ones(2).shape for i = 1, 10000 do shape[i] = 1 end for i = 1, 20 do tostring(shape) end",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    gb_host_options o = options_of(GB_SANDBOX_STRICT);
    o.instructions = 150000;
    gb_host *host = open_host(&o);
    CHECK(fails(host, texts[i], GB_EINSTRUCTIONS, NULL));
    gb_host_close(host);
  }
}

/* ====} */

/* {==== Libraries that nothing stops ==== */

static bool has_lapack(gb_host *host) { return gb_host_run_string(host, "gb.linalg.inv(gb.eye(2))", NULL) == GB_OK; }

/* A routine of LAPACK runs to its end. One that would outlast the limit of time does not begin; the recipe goes on. */
static void test_time(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.seconds = 5;
  gb_host *host = open_host(&o);
  if (!has_lapack(host)) printf("skipped: no LAPACK\n");
  else {
    double began = seconds();
    CHECK(runs(host, "local ok, why = pcall(gb.linalg.svd, gb.rand(3000, 3000))\n"
                     "assert(not ok and why:find('takes some', 1, true) and why:find('limit of time', 1, true), why)\n"
                     "gb.linalg.svd(gb.rand(20, 20))"));
    CHECK(seconds() - began < 5);
  }
  gb_host_close(host);
}

/* ====} */

/* {==== A Trainer that saves on errors ==== */

/* Nothing runs any more where a limit is reached, so it ends before, with its state in a file; a second run goes on. */
static void test_trainer(void) {
  char root[] = "/tmp/gibbous_limits_XXXXXX", text[64];
  CHECK(mkdtemp(root) != NULL);
  for (int again = 0; again < 2; again++) {
    gb_host_options o = options_of(GB_SANDBOX_FILES);
    o.root = root;
    o.instructions = 4000000;
    gb_host *host = open_host(&o);
    CHECK(runs(host, "local t = gb.Trainer { model = gb.nn.Linear(4, 1), optimizer = { 'SGD', lr = 0.1 }, "
                     "loss = gb.nn.functional.mse_loss, steps = 1 << 60, checkpoint = { 'run', every_steps = 1 << 60 "
                     "}, "
                     "save_on_error = true, resume = true, progress = false,\n"
                     "on = { load = function(t) loaded = t.step end } }\n"
                     "local values = t:fit { { gb.ones(8, 4), gb.ones(8, 1) } }\n"
                     "local why = values.reason assert(why == 'the limit of instructions of the program around is "
                     "near', why)\n"
                     "assert(t.step > 10) steps = t.step"));
    CHECK(runs(host, again ? "assert(loaded > 10 and steps > loaded)" : "assert(not loaded)"));
    gb_host_close(host);
  }
  snprintf(text, sizeof text, "rm -rf %s", root);
  CHECK(system(text) == 0);
}

/* ====} */

/* {==== Memory ==== */

/* Each runs with limits on tensor bytes that rise until it succeeds, so that each of its tensors is refused once. */
static void test_shortage(void) {
  static const char *const texts[] = {
    "F.conv1d(leaf(2, 3, 9), leaf(4, 3, 3), leaf(4), { padding = 'same' })",
    "F.conv2d(leaf(2, 3, 9, 9), leaf(4, 3, 3, 3), leaf(4), { padding = 1, activation = 'relu' })",
    "F.conv3d(leaf(2, 3, 5, 5, 5), leaf(4, 3, 3, 3, 3), leaf(4), { padding = 1 })",
    "F.conv_transpose1d(leaf(2, 3, 9), leaf(3, 4, 3), leaf(4), { stride = 2 })",
    "F.conv_transpose2d(leaf(2, 3, 5, 5), leaf(3, 4, 3, 3), leaf(4), { stride = 2, output_padding = 1 })",
    "F.conv_transpose3d(leaf(2, 3, 3, 3, 3), leaf(3, 4, 3, 3, 3), leaf(4), { stride = 2 })",
    "F.max_pool1d(leaf(2, 3, 9), 2, { return_indices = true })",
    "F.max_pool2d(leaf(2, 3, 9, 9), { 2, 3 }, { return_indices = true, dilation = 2 })",
    "F.max_pool3d(leaf(2, 3, 4, 4, 4), 2, { return_indices = true })",
    "F.adaptive_max_pool1d(leaf(2, 3, 9), 2, { return_indices = true })",
    "F.adaptive_max_pool3d(leaf(2, 3, 4, 4, 4), 2, { return_indices = true })",
    "F.adaptive_avg_pool3d(leaf(2, 3, 4, 4, 4), 2)",
    "F.avg_pool3d(leaf(2, 3, 4, 4, 4), 2)",
    "F.lp_pool2d(leaf(2, 3, 4, 4), 2, 2)",
    "(function() local y, i = F.max_pool1d(leaf(2, 3, 8), 2, { return_indices = true }) return F.max_unpool1d(y, "
    "i, 2) end)()",
    "(function() local y, i = F.max_pool2d(leaf(2, 3, 8, 8), 2, { return_indices = true }) return "
    "F.max_unpool2d(y, i, 2) end)()",
    "(function() local y, i = F.max_pool3d(leaf(2, 3, 4, 4, 4), 2, { return_indices = true }) return "
    "F.max_unpool3d(y, i, 2) end)()",
    "F.col2im(leaf(2, 12, 16), { 5, 5 }, { 2, 2 })",
    "F.im2col(leaf(2, 3, 5, 5), { 2, 2 }, { padding = 1 })",
    "F.affine_grid(leaf(2, 2, 3), { 2, 1, 4, 4 })",
    "F.grid_sample(leaf(2, 2, 5, 5), (gb.rand(2, 3, 3, 2)*2-1):requires_grad_())",
    "F.grid_sample(leaf(2, 2, 5, 5, 5), (gb.rand(2, 3, 3, 3, 3)*2-1):requires_grad_(), { padding_mode = "
    "'reflection' })",
    "F.grid_sample(leaf(2, 2, 5, 5), (gb.rand(2, 3, 3, 2)*2-1):requires_grad_(), { mode = 'bicubic' })",
    "F.interpolate(leaf(2, 2, 5, 5), { size = { 7, 9 }, mode = 'bilinear' })",
    "F.ctc_loss(leaf(6, 2, 5):log_softmax(3), gb.tensor{ { 1, 2 }, { 3, 4 } }, gb.tensor{ 6, 6 }, gb.tensor{ 2, 2 })",
    "F.embedding_bag(gb.tensor{ 0, 1, 2, 3 }, leaf(5, 4), gb.tensor{ 0, 2 }, { mode = 'mean' })",
    "F.embedding_bag(gb.tensor{ 0, 1, 2, 3 }, leaf(5, 4), gb.tensor{ 0, 2 }, { mode = 'max' })",
    "leaf(5, 4):quantile(gb.tensor{ 0.1, 0.5 }, 1)",
    "leaf(5, 4):quantile(0.3, 2, { interpolation = 'midpoint' })",
    "leaf(5, 4):nanquantile(gb.tensor{ 0.1, 0.5 }, 2)",
    "leaf(5, 4):quantile(gb.tensor(0.5))",
    "leaf(5, 4):scatter(1, gb.tensor{ { 0, 1, 2, 3 } }, leaf(1, 4))",
    "leaf(5, 4):scatter_add(1, gb.tensor{ { 0, 1, 2, 3 } }, leaf(1, 4))",
    "leaf(5, 4):index_copy(1, gb.tensor{ 0, 2 }, leaf(2, 4))",
    "leaf(5, 4):index_add(1, gb.tensor{ 0, 2 }, leaf(2, 4))",
    "leaf(5, 4):index_fill(1, gb.tensor{ 0, 2 }, 3)",
    "leaf(5, 4):index_select(1, gb.tensor{ 0, 2 })",
    "leaf(5, 4):gather(1, gb.tensor{ { 0, 2, 1, 1 } })",
    "leaf(5, 4):select_scatter(leaf(4), 1, 2)",
    "leaf(5, 4):masked_scatter(gb.rand(5, 4):gt(0.5), leaf(5, 4))",
    "leaf(5, 4):unfold(1, 2, 1)",
    "gb.einsum('abc, adc->bd', leaf(3, 2, 4), leaf(3, 5, 4))",
    "gb.tensordot(leaf(3, 2, 4), leaf(2, 4, 3), 2)",
    "gb.trapezoid(leaf(5), leaf(5))",
    "gb.bincount(gb.tensor{ 0, 1, 1, 5 }, { weights = gb.rand(4) })",
    "F.bilinear(leaf(3, 4), leaf(3, 5), leaf(2, 4, 5), leaf(2))",
    "F.cosine_embedding_loss(leaf(3, 4), leaf(3, 4), gb.tensor{ 1, -1, 1 })",
    "F.multi_margin_loss(leaf(3, 4), gb.tensor{ 1, 0, 2 }, { weight = gb.rand(4) })",
    "F.scaled_dot_product_attention(leaf(2, 2, 4, 4), leaf(2, 2, 4, 4), leaf(2, 2, 4, 4), { is_causal = true })",
    "gb.linalg.svd(leaf(5, 4))",
    "gb.linalg.qr(leaf(5, 4))",
    "gb.linalg.eigh((gb.rand(4, 4)+gb.eye(4)*3):requires_grad_())",
    "gb.linalg.pinv(leaf(5, 4))",
    "gb.linalg.lstsq(leaf(5, 4), leaf(5, 2))",
    "gb.linalg.cond(leaf(4, 4))",
    "gb.linalg.matrix_norm(leaf(4, 4), 'nuc')",
    "gb.linalg.slogdet((gb.rand(4, 4)+gb.eye(4)*3):requires_grad_())",
    "gb.linalg.det((gb.rand(4, 4)+gb.eye(4)*3):requires_grad_())",
    "gb.linalg.inv((gb.rand(4, 4)+gb.eye(4)*3):requires_grad_())",
    "gb.linalg.cholesky((gb.rand(4, 4)+gb.eye(4)*9):requires_grad_())",
    "gb.linalg.matrix_power((gb.rand(4, 4)+gb.eye(4)*9):requires_grad_(), -3)",
    "(function() local r = gb.nn.GRU(4, 5, { num_layers = 2, bidirectional = true, dropout = 0.2 }) return "
    "r(gb.rand(3, 2, 4)) end)()",
    "(function() local r = gb.nn.LSTM(4, 5, { num_layers = 2, proj_size = 3 }) return r(gb.rand(3, 2, 4)) end)()",
    "(function() local r = gb.nn.TransformerEncoder(gb.nn.TransformerEncoderLayer(8, 2), 2) return r(gb.rand(3, "
    "2, 8)) end)()",
    "(function() local r = gb.nn.Transformer(8, 2, { num_encoder_layers = 1, num_decoder_layers = 1, "
    "dim_feedforward = 16 }) return r(gb.rand(3, 2, 8), gb.rand(3, 2, 8)) end)()",
    "(function() local l = gb.nn.utils.weight_norm(gb.nn.Linear(4, 4)) return l(gb.rand(2, 4)) end)()",
    "(function() local l = gb.nn.utils.spectral_norm(gb.nn.Linear(4, 4)) return l(gb.rand(2, 4)) end)()",
    "F.instance_norm(leaf(2, 3, 4, 4), gb.zeros(3), gb.ones(3), gb.ones(3):requires_grad_(), "
    "gb.zeros(3):requires_grad_())",
    "F.group_norm(leaf(2, 4, 4, 4), 2, gb.ones(4):requires_grad_(), gb.zeros(4):requires_grad_())",
    "F.local_response_norm(leaf(2, 4, 4, 4), 3)",
    "F.pad(leaf(2, 4, 4, 4), { 1, 2, 1, 1 }, 'reflect')",
    "F.pad(leaf(2, 4, 4, 4), { 1, 2, 1, 1 }, 'constant', 2)",
    "F.triplet_margin_loss(leaf(3, 4), leaf(3, 4), leaf(3, 4), { swap = true })",
    "gb.kron(leaf(2, 2), leaf(3, 2))",
    "gb.block_diag(leaf(2, 2), leaf(3, 2))",
    "leaf(3):diag_embed(1)",
    "gb.cdist(leaf(3, 4), leaf(5, 4))",
    "leaf(4, 5):renorm(2, 1, 0.5)",
    "leaf(4, 5):logcumsumexp(1)",
    "leaf(4, 5):cumprod(1)",
    "leaf(4, 5):cummax(1)",
    "leaf(4, 5):kthvalue(2, 1)",
    "leaf(4, 5):median(1)",
    "leaf(4, 5):nanmedian()",
    "gb.rand(4, 5):mode(1)",
    "gb.rand(40):histc(5)",
    "leaf(4, 5):var_mean(1)",
    "leaf(4, 5):cov()",
    "leaf(4, 5):corrcoef()",
    "F.gumbel_softmax(leaf(3, 4), 1, true)",
  };
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.tensor_bytes = (size_t)64 << 20;
  gb_host *host = open_host(&o);
  gb_budget *budget = &gb_host_context(host)->budget;
  CHECK(runs(host, "F = gb.nn.functional\n"
                   "local leaves\n"
                   "function begin() leaves = {} end\n"
                   "function leaf(...) leaves[#leaves + 1] = gb.rand(...):requires_grad_() return leaves[#leaves] end\n"
                   "function backward(y) -- in a graph of its own, where there are second derivatives\n"
                   "  if not y.requires_grad then return end\n"
                   "  local sum = (y * 1):sum()\n"
                   "  local options = { create_graph = true, allow_unused = true }\n"
                   "  if not pcall(gb.grad, sum, leaves, options) then (y * 1):sum():backward() end\n"
                   "end"));
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    char text[512];
    gb_status status = GB_ETENSORBYTES;
    snprintf(text, sizeof text, "begin()\nlocal y = %s\nbackward(y)", texts[i]);
    budget->limit = (size_t)64 << 20;
    if (!strstr(texts[i], "linalg") || has_lapack(host)) CHECK(runs(host, text));
    else continue;
    CHECK(runs(host, "begin() collectgarbage() collectgarbage()"));
    size_t used = budget->used;
    for (size_t more = 0; status == GB_ETENSORBYTES && more < (size_t)8 << 20; more += more < 8192 ? 192 : more / 6) {
      budget->limit = used + more;
      status = gb_host_run_string(host, text, NULL);
    }
    if (status != GB_OK) fprintf(stderr, "  %s\n  gave %s: %s\n", text, gb_status_text(status), gb_host_error(host));
    CHECK(status == GB_OK);
    budget->limit = (size_t)64 << 20;
    CHECK(runs(host, "begin() collectgarbage() collectgarbage()"));
    size_t left = budget->used;
    if (left > used) fprintf(stderr, "  %s\n  left %zu bytes behind\n", text, left - used);
    CHECK(left <= used);
  }
  gb_host_close(host);
}

/* ====} */

int main(void) {
  test_charges();
  test_shortage();
  test_time();
  test_trainer();
  test_frames();
  test_json();
  return check_report();
}
