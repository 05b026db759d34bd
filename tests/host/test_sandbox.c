/* test_sandbox.c - what recipes cannot do: the allow-list is complete, each known way out is stopped with the right
 * status and leaves the host as it was, every function that is left stands hostile arguments, and files stay beneath
 * their folder. */
#define _DEFAULT_SOURCE /* mkdtemp, symlink */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bindings/host.h"
#include "open_host.h"

/* {==== The allow-list ==== */

/* Names that a table of the unrestricted universe has, and the list does not know. Called by the recipe below as
 * listed(table, name, is a table). */
static gb_status listed(gb_call *call, void *user) {
  gb_value table, name, is_table, level;
  (void)user;
  gb_call_get(call, 0, &table);
  gb_call_get(call, 1, &name);
  gb_call_get(call, 2, &is_table);
  level = gb_value_integer(gbl_sandbox_level(gb_call_host(call), table.as.string.data, name.as.string.data,
                                             is_table.as.boolean));
  return gb_call_return(call, &level);
}

/* A table of gb without a record is a module, if something in it has one. */
static const char survey[] =
  "local function at(path) local t = _G for part in path:gmatch('[^.]+') do t = t[part] end return t end\n"
  "local seen, missing, walk = {}, {}, nil\n"
  "for _, path in ipairs(tables) do seen[path] = true end\n"
  "local function is_module(path, t)\n"
  "  for name in pairs(t) do if type(name) == 'string' and listed(path, name, false) >= 0 then return true end end\n"
  "  return false\n"
  "end\n"
  "function walk(path)\n"
  "  for name, value in pairs(at(path)) do\n"
  "    local below = (path == '' and '' or path .. '.') .. name\n"
  "    if listed(path, name, type(value) == 'table') < 0 and not ours[name] then\n"
  "      if path:find('^gb') and type(value) == 'table' and is_module(below, value) then walk(below)\n"
  "      else missing[#missing + 1] = below end\n"
  "    elseif path:find('^gb') == nil and below ~= 'gb' and type(value) == 'table' and not seen[below] and below ~= "
  "'_G'\n"
  "      and not ours[name] and not below:find('^package%.') then missing[#missing + 1] = below .. ' (a table "
  "without rows)'\n"
  "    end\n"
  "  end\n"
  "end\n"
  "for path in pairs(seen) do walk(path) end\n"
  "walk('gb')\n"
  "table.sort(missing)\n"
  "if #missing > 0 then error('no sandbox has: ' .. table.concat(missing, ', '), 0) end\n";

static void test_list(void) {
  gb_host *host = open_host(NULL);
  gb_value tables, key, value;
  CHECK(gb_table_new(host, &tables) == GB_OK);
  int64_t n = 0;
  for (int i = 0; gbl_sandbox_table(i); i++) {
    key = gb_value_integer(++n);
    value = gb_value_string(gbl_sandbox_table(i));
    CHECK(gb_table_set(host, &tables, &key, &value) == GB_OK);
  }
  CHECK(gb_host_set(host, "tables", &tables) == GB_OK && gb_host_register(host, "listed", listed, NULL) == GB_OK);
  gb_value_release(host, &tables);
  CHECK(runs(host, "ours = { ours = true, tables = true, listed = true }"));
  CHECK(runs(host, survey));
  CHECK(runs(host, "new_global = 1") && fails(host, survey, GB_ERECIPE, "new_global"));
  CHECK(runs(host, "new_global = nil string.extra = print") && fails(host, survey, GB_ERECIPE, "string.extra"));
  CHECK(runs(host, "string.extra = nil rawset(gb, 'launch', print)") && fails(host, survey, GB_ERECIPE, "gb.launch"));
  CHECK(runs(host, "gb.launch = nil rawset(gb.nn, 'tools', {})") && fails(host, survey, GB_ERECIPE, "gb.nn.tools"));
  gb_host_close(host);
}

/* ====} */

/* {==== Ways out ==== */

/* A recipe, the status it must end with (GB_OK: it checks by itself), and what the error says. */
typedef struct escape { const char *text; gb_status status; const char *says; } escape;

static const escape escapes[] = {
  /* files that tools would write */
  { "gb.Logger.csv('a.csv')", GB_ERECIPE, "gb has no 'Logger'" },
  /* other processes */
  { "gb.dist.init()", GB_ERECIPE, "gb.dist has no 'init'" },
  { "assert(rawget(gb.dist, 'finalize') == nil and gb.dist.rank() == 0)", GB_OK, NULL },
  { "gb.plot({ 1, 2 }, { file = 'a.svg' })", GB_EIO, "files are not allowed" },
  { "gb.plot.histogram({ 1, 2 }, { file = 'a.svg' })", GB_EIO, "files are not allowed" },
  { "gb.profile(function() end, { file = 'a.json', print = false })", GB_EIO, "files are not allowed" },
  { "local g = gb.plot assert(not getmetatable(g) and g({ 1, 2 }, { quiet = true }))", GB_OK, NULL },
  /* names that wait until they are used (late.h) */
  { "for _, path in ipairs { 'save', 'load' } do assert(not pcall(function() return gb[path] end)) end\n"
    "for name in pairs(gb) do assert(name ~= 'Logger' and name ~= 'Checkpoints' and name ~= 'test') end", GB_OK, NULL },
  { "return gb.Checkpoints", GB_ERECIPE, "gb has no 'Checkpoints'" },
  { "assert(not pcall(setmetatable, gb.nn, {}) and not getmetatable(gb.nn))", GB_OK, NULL },
  { "local form, tensor, nn = string.format, gb.is_tensor, gb.nn string.format, gb.is_tensor, gb.nn = nil\n"
    "local made = gb.Trainer and nn.Linear and gb.optim.lr.Cosine\n"
    "string.format, gb.is_tensor, gb.nn = form, tensor, nn\n"
    "assert(made)", GB_OK, NULL },
  { "local function dig() local ok, why = pcall(dig) if not ok then local _ = gb.data.DataLoader end error(why) end\n"
    "pcall(dig) assert(gb.data.DataLoader)", GB_OK, NULL },
  /* bytecode */
  { "assert(string.dump == nil and not load('\\27Lua', 'x', 't'))", GB_OK, NULL },
  { "load('return 1', 'x', 'b')", GB_ERECIPE, "text only" },
  { "local f, why = load('\\27Lua\\x54')\nassert(not f and why)", GB_OK, NULL },
  /* what is not there */
  { "assert(debug == nil and package == nil and io == nil and os.execute == nil and os.getenv == nil and os.exit == "
    "nil and os.remove == nil)", GB_OK, NULL },
  { "assert(dofile == nil and loadfile == nil and os.setlocale == nil and os.tmpname == nil and os.rename == nil)",
    GB_OK, NULL },
  { "require 'os'", GB_ERECIPE, "no module 'os'" },
  { "assert(require 'gibbous' == gb)", GB_OK, NULL },
  { "local gb = gb _G.gb = {} assert(require 'gibbous' == gb) _G.gb = gb", GB_OK, NULL },
  { "gb.save('/tmp/x', {})", GB_ERECIPE, "save" },
  { "gb.load('/etc/passwd')", GB_ERECIPE, "load" },
  { "gb.data.text('/etc/passwd')", GB_ERECIPE, "text" },
  { "gb.data.idx('/etc/passwd', '/etc/passwd')", GB_ERECIPE, "idx" },
  { "gb.data.csv('/etc/passwd')", GB_ERECIPE, "csv" },
  { "gb.io.save_checkpoint('/tmp/x', {})", GB_ERECIPE, "save_checkpoint" },
  { "gb.interrupt(false)", GB_ERECIPE, "interrupt" },
  { "gb.set_num_threads(1000)", GB_ERECIPE, "set_num_threads" },
  /* metatables */
  { "assert(getmetatable('') == false)", GB_OK, NULL },
  { "setmetatable('', {})", GB_ERECIPE, "table expected" },
  { "setmetatable({}, { __gc = function() while true do end end })", GB_ERECIPE, "finalisers" },
  { "assert(type(getmetatable(gb.ones(1))) ~= 'table')", GB_OK, NULL },
  { "local meta = getmetatable(gb.ones(2).shape)\nif meta then meta.__len = function() return 2^62 end "
    "end\ngb.ones(table.unpack({ 2 })):sum()", GB_OK, NULL },
  /* addresses */
  { "for _, v in ipairs { {}, print, coroutine.create(print), function() end, gb.nn.Linear(1, 1), gb.optim.SGD({ "
    "gb.ones(1):requires_grad_() }, { lr = 1 }) } do\n"
    "  assert(not (tostring(v) .. ('%s'):format(v)):find('0x'), tostring(v))\nend", GB_OK, NULL },
  { "local s = gb.ones(2).shape s[1] = {} assert(not (tostring(s) .. (s .. {}) .. (print .. gb.ones(1))):find('0x'))",
    GB_OK, NULL },
  { "('%p'):format({})", GB_ERECIPE, "address" },
  { "('%-30p'):format({})", GB_ERECIPE, "address" },
  { "('\\0%p'):format({})", GB_ERECIPE, "address" }, /* format goes on behind a zero */
  { "assert(('\\0%s'):format({}) == '\\0table')", GB_OK, NULL },
  { "assert(not pcall(string.format, '%d', {}) and ('%5.1f%%%s|%q'):format(2, { 1 } and 'x', 'y') == '  2.0%x|\"y\"')",
    GB_OK, NULL },
  { "assert(select('#', math.randomseed()) == 0)", GB_OK, NULL },
  { "gb.manual_seed(3) local a = math.random(1 << 40) gb.manual_seed(3) assert(a == math.random(1 << 40))", GB_OK,
    NULL },
  { "math.randomseed = error gb.manual_seed(3) assert(gb.random.integer(3, 3) == 3 and #gb.random.shuffle { 1, 2 } "
    "== 2)", GB_OK, NULL },
  { "assert(gb.to_bytes(gb.from_bytes('ab', 'uint8')) == 'ab')", GB_OK, NULL },
  { "local t = {} for i = 1, 1000 do t[i] = gb.to_bytes(gb.zeros(1 << 18)) end", GB_ELUABYTES, NULL },
  { "gb.from_bytes('', 'uint8', { 1 << 40 })", GB_ERECIPE, "takes 1099511627776 bytes" },
  { "error({})", GB_ERECIPE, "a table" },
  /* time without end */
  { "while true do end", GB_ETIME, "seconds" },
  { "while true do pcall(function() while true do end end) end", GB_ETIME, NULL },
  { "local t <close> = setmetatable({}, { __close = function() while true do end end }) while true do end", GB_ETIME,
    NULL },
  { "while true do coroutine.wrap(function() while true do end end)() end", GB_ETIME, NULL },
  { "while true do coroutine.wrap(function() end)() end", GB_ETIME, NULL },
  { "local co = coroutine.wrap(function() while true do coroutine.yield() end end) while true do co() end", GB_ETIME,
    NULL },
  { "xpcall(error, function() while true do end end)", GB_ETIME, NULL },
  { "load(function() return ' ' end)", GB_ETIME, NULL },
  { "load(os.time)", GB_ETIME, NULL },
  { "for _ in ipairs(setmetatable({}, { __index = function() return 1 end })) do end", GB_ETIME, NULL },
  { "local s = ('x'):rep(5e6) while true do local t = s .. 'y' end", GB_ETIME, NULL },
  { "local s = ('x'):rep(5e6) while true do s:upper() end", GB_ETIME, NULL },
  { "local t = {} for i = 1, 1e5 do t[i] = i end while true do collectgarbage() end", GB_ETIME, NULL },
  /* pattern bombs */
  { "(('a'):rep(200)):find(('.-'):rep(4) .. 'b')", GB_ETIME, NULL },
  { "(('a'):rep(1e6)):find(('.*'):rep(9) .. 'b')", GB_ETIME, NULL },
  { "(('a'):rep(5e5)):match('(.*)%1b')", GB_ETIME, NULL },
  { "(('('):rep(1e5)):gsub('%b()', '')", GB_ETIME, NULL },
  { "(('a'):rep(1e7)):find(('a'):rep(1e6) .. 'b', 1, true)", GB_ETIME, NULL },
  { "('x'):rep(300):find(('('):rep(300))", GB_ERECIPE, "too many captures" },
  { "assert((''):find(('a?'):rep(250)) == 1)", GB_OK, NULL },
  { "('a'):rep(500):find(('a?'):rep(500) .. ('a'):rep(500))", GB_ERECIPE, "too complex" },
  /* huge strings */
  { "('x'):rep(2^40)", GB_ERECIPE, "more than a sandbox allows" },
  { "('x'):rep(2^62)", GB_ERECIPE, "more than a sandbox allows" },
  { "assert((''):rep(2^62) == '')", GB_OK, NULL },
  { "string.pack('c4000000000', '')", GB_ERECIPE, "string.pack" },
  { "local s = 'x' while true do s = s .. s end", GB_ELUABYTES, NULL },
  { "pcall(string.rep, 'x', 1e8)", GB_ELUABYTES, NULL },
  { "pcall(string.rep, 'x', 1e8) error('it went on')", GB_ELUABYTES, "Lua bytes" },
  { "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end", GB_ELUABYTES, NULL },
  { "while true do pcall(function() local t = {} while true do t[#t + 1] = {} end end) end", GB_ELUABYTES, NULL },
  { "local t = {} while true do t[#t + 1] = coroutine.create(print) end", GB_ELUABYTES, NULL },
  { "local s = {} for i = 1, 2e7 do s[i] = i end", GB_ELUABYTES, NULL },
  /* tables that lie */
  { "table.move({}, 1, 2^62, 2)", GB_ERECIPE, "table.move" },
  { "table.insert(setmetatable({}, { __len = function() return 2^62 end }), 1, 1)", GB_ERECIPE, "__len" },
  { "table.concat(setmetatable({}, { __index = function() return 'x' end }), '', 1, 2^62)", GB_ERECIPE,
    "table.concat" },
  { "table.concat(setmetatable({}, { __index = string }), '', 1, 2^62)", GB_ERECIPE, "table.concat" },
  { "table.unpack({}, 1, 2^30)", GB_ERECIPE, "too many results" },
  { "local t = setmetatable({ 3, 1 }, { __index = { name = 'x' } }) table.insert(t, 1, 0) table.sort(t) "
    "assert(table.concat(t, t.name) == '0x1x3')", GB_OK, NULL },
  { "gb.ones(table.unpack(setmetatable({}, { __len = function() return 8 end }))):sum()", GB_ERECIPE, "__len" },
  /* nobody asks it */
  { "gb.tensor(setmetatable({}, { __len = function() return 2^62 end, __index = function() return 1 end }))", GB_OK,
    NULL },
  /* deep recursion */
  { "local function f() return f() + 1 end f()", GB_ERECIPE, "stack overflow" },
  { "local t = {} setmetatable(t, { __call = t }) t()", GB_ERECIPE, "stack overflow" },
  { "local m = {} local t = setmetatable({}, m) m.__call = t for i = 1, 3 do assert(not pcall(t)) end", GB_OK, NULL },
  { "local m = {} local t = setmetatable({}, m) m.__call = t while true do pcall(t) end", GB_ETIME, NULL },
  { "local f = print for i = 1, 8000 do f = setmetatable({}, { __call = f }) end while true do pcall(f, 1, nil, "
    "true) end", GB_ETIME, NULL },
  { "local t = {} for i = 1, 1e6 do t[i] = i end for i = 1, 1e6 do t[i] = nil end while true do next(t) end", GB_ETIME,
    NULL },
  { "local t = {} for i = 1, 1e6 do t[i] = i end for i = 1, 1e6 do t[i] = nil end while true do for k in pairs(t) "
    "do end end", GB_ETIME, NULL },
  { "local t = setmetatable({}, { __pairs = function(t) coroutine.yield() return next, { 1 } end })\n"
    "local f = coroutine.wrap(function() for k, v in pairs(t) do coroutine.yield(v) end end) f() assert(f() == 1)",
        GB_OK, NULL },
  { "local function f(n) return n == 0 and 0 or f(n - 1) + 1 end assert(f(1e4) == 1e4)", GB_OK, NULL },
  { "local function f() return pcall(f) end f()", GB_OK, NULL },
  { "local function f(t) return ('x'):gsub('x', f) end f()", GB_ERECIPE, "overflow" },
  { "local function f() return coroutine.wrap(f)() end f()", GB_ERECIPE, "overflow" },
  { "load('return ' .. ('('):rep(1e5) .. '1' .. (')'):rep(1e5))()", GB_ERECIPE, NULL },
  { "gb.io.json_decode(('['):rep(1e6))", GB_ERECIPE, "json_decode" },
  { "local t = {} t[1] = t gb.io.json_encode(t)", GB_ERECIPE, "deep" },
  { "local t = {} t[1] = t gb.tensor(t)", GB_ERECIPE, NULL },
  /* huge tensors */
  { "gb.ones(2^40)", GB_ETENSORBYTES, NULL },
  { "pcall(gb.ones, 2^40) while true do end", GB_ETENSORBYTES, NULL },
  { "gb.zeros(2^62, 2^62)", GB_ESHAPE, NULL },
  { "local t = {} while true do t[#t + 1] = gb.ones(1) end", GB_ETENSORBYTES, NULL },
  { "local t = {} for i = 1, 1e9 do t[i] = gb.ones(1) end", GB_ETENSORBYTES, NULL },
  { "local x = gb.ones(2) local t = {} while true do t[#t + 1] = x[1] end", GB_ETENSORBYTES, NULL },
  { "local x = gb.ones(1):requires_grad_() for i = 1, 1e7 do x = x + 1 end", GB_ETENSORBYTES, NULL },
  { "local x = gb.ones(1):expand(2^40):sum()", GB_ETENSORBYTES, NULL },
  { "local x = gb.ones(1, 1) local y = x:expand(3000, 20000):matmul(x:expand(20000, 3000))", GB_ETIME,
    "the limit of 0.3 seconds" },
  { "gb.data.DataLoader(gb.data.TensorDataset(gb.ones(4, 1000)), { batch_size = 2^40, batches = 1 }):iter()()",
    GB_ETENSORBYTES, NULL },
  { "local t = {} for i = 1, 200 do t[i] = gb.data.DataLoader(gb.data.TensorDataset(gb.ones(4)), { prefetch = 2 }) "
    "t[i]:iter()() end", GB_OK, NULL },
};

/* What must hold in a host after each of them. */
static const char harmless[] =
  "local model = gb.nn.Linear(2, 1)\nlocal opt = gb.optim.SGD(model:parameters(), { lr = 0.1 })\n"
  "for i = 1, 3 do opt:zero_grad() model(gb.ones(4, 2)):sum():backward() opt:step() end\n"
  "assert(('key = value'):match('(%w+) = (%w+)') == 'key' and gb.is_grad_enabled() and not gb.amp.is_enabled())\n";

/* Each is work of many more instructions than the limit below, in few instructions of the machine. */
static const char *const charges[] = {
  "local p = '[' .. ('x'):rep(2^20) .. ']' for i = 1, 40 do ('a'):find(p) end",
  "local p = '[' .. ('x'):rep(2^20) .. ']' for i = 1, 40 do ('a'):find('%f' .. p) end",
  "local p = ('x'):rep(2^20) for i = 1, 40 do ('a'):find(p) end",
  "local r = ('%1'):rep(2^18) for i = 1, 40 do ('a'):gsub('(b?)a', r) end",
  "local s = (' '):rep(2^20) for i = 1, 40 do string.packsize(s) end",
  "local s = (' '):rep(2^20) for i = 1, 40 do string.pack(s) end",
  "local s = (' '):rep(2^20) for i = 1, 40 do string.unpack(s, '') end",
  "local s = ('x'):rep(2^20) for i = 1, 40 do pcall(string.unpack, 'z', s) end",
  "local s = ('x'):rep(2^20) for i = 1, 40 do utf8.len(s) end",
  "local s = ('x'):rep(2^20) for i = 1, 40 do utf8.offset(s, 2^20) end",
  "local s, f = ('\\x80'):rep(2^20), utf8.codes('') for i = 1, 40 do pcall(f, s, 1) end",
  "local s = ('1'):rep(2^20) for i = 1, 40 do tonumber(s) end",
  "local s = ('1'):rep(2^20) for i = 1, 40 do tonumber(s, 10) end",
  "local s = (' '):rep(2^20) .. 1 for i = 1, 40 do local x = s + 1 end",
  "local s = (' '):rep(2^20) .. 1 for i = 1, 40 do local x = -s // s end",
  "local t = {} for i = 1, 2e5 do t[i] = i end table.sort(t, math.ult)",
};

static void test_charges(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.instructions = 2000000;
  gb_host *host = open_host(&o);
  for (size_t i = 0; i < sizeof charges / sizeof *charges; i++)
    CHECK(fails(host, charges[i], GB_EINSTRUCTIONS, "2000000 instructions"));
  CHECK(runs(host, "local t = {} for p, c in utf8.codes('a\\u{e9}b') do t[#t + 1] = p .. ':' .. c end "
                   "assert(table.concat(t, ' ') == '1:97 2:233 4:98')"));
  CHECK(runs(host, "assert('10' + 1 == 11 and -'2' == -2 and tonumber('ff', 16) == 255 and string.unpack('z', "
                   "'ab\\0') == 'ab' and utf8.len('\\u{e9}') == 1)"));
  CHECK(fails(host, "tonumber({}, 10)", GB_ERECIPE, "'tonumber'"));
  gb_host_close(host);
}

/* Instructions that look through long strings, which no function of ours stands before: the limit is looked at as often
 * as they are long. Each of these would go on for minutes between two looks of the hook if it came after a thousand
 * instructions. */
static const char *const long_strings[] = {
  "local a, b = ('x'):rep(2^22) .. 'a', ('x'):rep(2^22) .. 'b' while true do local _ = a == b, a == b, a == b end",
  "local a = ('\\0'):rep(2^22) while true do local _ = a < a, a <= a, a < a end", /* the slowest way to compare */
  "local a = ('\\0'):rep(2^22) coroutine.wrap(function() while true do local _ = a < a, a <= a, a < a end end)()",
  "local co = coroutine.wrap(function() local a repeat a = coroutine.yield() until a while true do local _ = a < a, "
  "a <= a, a < a end end)\n"
  "co() co(('\\0'):rep(2^22))",
  "local a = (' '):rep(2^22) .. 1 while true do math.floor(a) math.abs(a) end",
  "local a, b = ('x'):rep(2^22) .. 'a', ('x'):rep(2^22) .. 'b' while true do rawequal(a, b) end",
  "local s = 'x' while true do s = #s < 2^22 and s .. s or 'x' end",
  "local t = {} for i = 1, 100 do t[i] = ('x'):rep(2^16) end while true do table.concat(t) end",
  "local s = ('x'):rep(2^22) while true do s = s:rep(2):sub(1, 2^22) end",
};

static void test_long_strings(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.seconds = 1;
  gb_host *host = open_host(&o);
  double slowest = 0;
  for (size_t i = 0; i < sizeof long_strings / sizeof *long_strings; i++) {
    double start = seconds();
    CHECK(fails(host, long_strings[i], GB_ETIME, "the limit of 1 seconds"));
    if (seconds() - start > slowest) slowest = seconds() - start;
    CHECK(runs(host, "collectgarbage()"));
  }
  CHECK(host->n_strings == 0 && host->state->interrupt.longest == 0); /* and forgotten with the strings */
  CHECK(runs(host, "kept = ('x'):rep(2^20)") && host->n_strings == 1 && host->state->interrupt.longest > 1 << 20);
  CHECK(runs(host, "for i = 1, 1e5 do end")); /* what is counted does not change */
  gb_host_usage usage;
  gb_host_get_usage(host, &usage);
  CHECK(usage.instructions > 90000 && usage.instructions < 300000);
  gb_host_close(host);
  printf("the slowest end among long strings by a limit of 1 s took %.2f s\n", slowest);
}

/* A host function that takes longer than its caller's limit of time. */
static gb_status nap(gb_call *call, void *user) {
  (void)call;
  (void)user;
  nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
  return GB_OK;
}

/* A call that ends too late before the limit was looked at has reached it all the same; one that failed keeps its
 * reason. */
static void test_late_end(void) {
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  o.seconds = 0.04;
  gb_host *host = open_host(&o);
  CHECK(gb_host_register(host, "nap", nap, NULL) == GB_OK);
  CHECK(fails(host, "nap()", GB_ETIME, "the limit of 0.04 seconds"));
  CHECK(fails(host, "nap() error('of its own')", GB_ERECIPE, "of its own"));
  gb_host_close(host);
}

/* So many seconds that the time ends what tests the time, and nothing else. */
static gb_host_options limited(gb_sandbox sandbox, double most_seconds) {
  gb_host_options o = options_of(sandbox);
  o.lua_bytes = 64u << 20;
  o.tensor_bytes = 64u << 20;
  o.seconds = most_seconds;
  return o;
}

static void test_escapes(void) {
  gb_host_options o = limited(GB_SANDBOX_STRICT, 0.3), patient = limited(GB_SANDBOX_STRICT, 300);
  gb_host *hosts[2] = { open_host(&o), open_host(&patient) };
  double slowest = 0;
  for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
    const escape *e = &escapes[i];
    gb_host *host = hosts[e->status != GB_ETIME];
    double start = seconds();
    if (e->status == GB_OK) CHECK(runs(host, e->text));
    else CHECK(fails(host, e->text, e->status, e->says));
    if (e->status == GB_ETIME && seconds() - start > slowest) slowest = seconds() - start;
    gb_host_run_string(host, "collectgarbage()", NULL); /* what it left may take its time */
    CHECK(runs(host, harmless));
  }
  for (int i = 0; i < 2; i++) {
    gb_host_usage usage;
    gb_host_get_usage(hosts[i], &usage);
    CHECK(usage.lua_peak <= o.lua_bytes);
    gb_host_close(hosts[i]);
  }
  printf("the slowest end by a limit of 0.3 s took %.2f s\n", slowest);
}

/* ====} */

/* {==== Patterns: the same results as the standard library's ==== */

/* A digest of what the four functions make of random subjects and patterns, errors too. */
static const char digest[] =
  "local seed = 1\n"
  "local function random(n) seed = (seed * 1103515245 + 12345) % 2147483648 return seed // 65536 % n + 1 end\n"
  "local parts = { 'a', 'b', '.', '%a', '%d', '%w', '%s', '[ab]', '[^a]', '[a-c]', '[%d_]', '[]]', '[^]]', '%%', "
  "'a*', '.*', '.-', 'b+', '%w+', '%S-', 'c?',\n"
  "  '(a)', '(', ')', '()', '(.-)', '%1', '%2', '%b()', '%b', '%f[%w]', '%f', '^', '$', '%', '[', '[a', '[%', '-', "
  "'*', '[a-]', '[%a-z]', '\\0', '[\\0-a]' }\n"
  "local subjects = { '', 'a', 'abc', 'hello world', 'a1b22 c333', '((a)(b))', 'key = value', 'aaa', ']a]', '%d', "
  "'a\\0b', '  x  ', ('ab'):rep(20) }\n"
  "local replacements = { 'x', '%0%0', '%1', '<%1>', '%2', '%', '%x', '%%', '', function(a, b) return b end, "
  "function() return false end,\n"
  "  function() return {} end, { a = 'A', b = false, ab = 1 }, 5 }\n"
  "local out = {}\n"
  "local function note(...)\n"
  "  for i = 1, select('#', ...) do out[#out + 1] = tostring((select(i, ...))) end\n"
  "  out[#out + 1] = ';'\n"
  "end\n"
  "for i = 1, 20000 do\n"
  "  local p = ''\n"
  "  for k = 1, random(5) do p = p .. parts[random(#parts)] end\n"
  "  local s, init = subjects[random(#subjects)], random(14) - 7\n"
  "  note(p, s, init)\n"
  "  note(pcall(string.find, s, p, init)) note(pcall(string.find, s, p, init, true)) note(pcall(string.match, s, p, "
  "init))\n"
  "  note(pcall(string.gsub, s, p, replacements[random(#replacements)], random(3) == 1 and random(4) - 2 or nil))\n"
  "  note(pcall(function() local n = 0 for a, b in string.gmatch(s, p, init) do note(a, b) n = n + 1 end return n "
  "end))\n"
  "end\n"
  "return table.concat(out, '|')\n";

static void test_patterns(void) {
  gb_host *stock = open_host(NULL);
  gb_host_options o = options_of(GB_SANDBOX_STRICT);
  gb_host *strict = open_host(&o), *hosts[2] = { stock, strict };
  gb_value out[2], function, text = gb_value_string(digest);
  for (int i = 0; i < 2; i++) {
    CHECK(gb_host_call(hosts[i], "load", &text, 1, &function, 1) == GB_OK);
    out[i] = gb_value_nil();
    CHECK(gb_host_call_value(hosts[i], &function, NULL, 0, &out[i], 1) == GB_OK);
    gb_value_release(hosts[i], &function);
  }
  CHECK(out[0].type == GB_VALUE_STRING && out[1].type == GB_VALUE_STRING && out[0].as.string.length > 1000000);
  const char *a = out[0].as.string.data, *b = out[1].as.string.data;
  size_t at = 0;
  while (a[at] == b[at] && at < out[0].as.string.length) at++;
  bool same = at == out[0].as.string.length && at == out[1].as.string.length;
  if (!same)
    fprintf(stderr, "the results part after:\n%.160s\n---\n%.160s\n", a + (at > 100 ? at - 100 : 0),
            b + (at > 100 ? at - 100 : 0));
  CHECK(same);
  for (int i = 0; i < 2; i++) {
    gb_value_release(hosts[i], &out[i]);
    gb_host_close(hosts[i]);
  }
}

/* ====} */

/* {==== Hostile arguments ==== */

/* attack(f): f with every pair of hostile values, and more of each kind. */
static const char attacker[] =
  "local liar = setmetatable({}, { __len = function() return 2^62 end, __index = function(t) return t end, __call = "
  "function(...) return ... end,\n"
  "  __newindex = function() end, __concat = function() return 'x' end, __unm = function(t) return t end, __add = "
  "function(t) return t end,\n"
  "  __eq = function() return true end, __lt = function() return true end, __le = function() return true end, "
  "__name = 5,\n"
  "  __pairs = function(t) return function() return 1, 1 end end, __tostring = function() return 'liar' end, __mode "
  "= 'kv' })\n"
  "local endless = setmetatable({ 1 }, { __index = function() return 1 end, __len = function() return 2^53 end })\n"
  "local function values()\n"
  "  return { 2^62, math.tointeger(2^62), math.mininteger, -1, 0, 0/0, 1e308, '', ('a'):rep(1000), liar, endless, { "
  "2^62, 2^62 }, { { 1, 2 }, 3 },\n"
  "    function(...) return ... end, true, gb.ones(3, 3), gb.ones(1):expand(1e6), gb.zeros(2, dtype and {} or "
  "nil):to('int64'), coroutine.create(print) }\n"
  "end\n"
  "function attack(f)\n"
  "  local v = values()\n"
  "  pcall(f)\n"
  "  for i = 1, #v do\n"
  "    pcall(f, v[i])\n"
  "    for k = 1, #v do pcall(f, v[i], v[k]) pcall(f, v[i], v[k], v[k]) pcall(f, v[16], v[i], v[k]) end\n"
  "    v = values()\n"
  "  end\n"
  "end\n"
  "targets = {}\n"
  "for _, path in ipairs { '', 'coroutine', 'math', 'os', 'string', 'table', 'utf8', 'gb', 'gb.amp', 'gb.data', "
  "'gb.io', 'gb.nn', 'gb.nn.functional',\n"
  "    'gb.nn.init', 'gb.nn.utils', 'gb.optim', 'gb.optim.lr', 'gb.random' } do\n"
  "  local t = _G\n"
  "  for part in path:gmatch('[^.]+') do t = t[part] end\n"
  "  for name, f in pairs(t) do\n"
  "    if type(name) == 'string' and name ~= 'attack' and (type(f) == 'function' or type(f) == 'table' and "
  "path:find('^gb')) then\n"
  "      targets[#targets + 1] = { path .. '.' .. name, f }\n"
  "    end\n"
  "  end\n"
  "end\n"
  "for name in ('reshape view expand tile repeat_interleave narrow select slice chunk split unbind unfold gather "
  "scatter index_add masked_fill sum mean prod '\n"
  "  .. 'topk sort cumsum to tolist item copy_ fill_ clone detach backward register_hook requires_grad_ retain_grad "
  "free stats size stride dim t permute '\n"
  "  .. 'transpose flatten squeeze unsqueeze positions'):gmatch('%w+_?%w*_?') do\n"
  "  targets[#targets + 1] = { 'tensor:' .. name, function(...) local x = gb.ones(2, 2):requires_grad_() return "
  "x[name](x, ...) end }\n"
  "end\n"
  "table.sort(targets, function(a, b) return a[1] < b[1] end)\n"
  "function name_of(i) return targets[i] and targets[i][1] end\n"
  "function attack_target(i) attack(targets[i][2]) end\n";

static void test_hostile(void) {
  gb_host_options o = limited(GB_SANDBOX_STRICT, 1);
  gb_host *host = open_host(&o);
  int64_t attacked = 0;
  CHECK(runs(host, attacker));
  for (int64_t i = 1;; i++) {
    gb_value name, index = gb_value_integer(i);
    double start = seconds();
    CHECK(gb_host_call(host, "name_of", &index, 1, &name, 1) == GB_OK);
    if (name.type != GB_VALUE_STRING) break;
    gb_host_call(host, "attack_target", &index, 1, NULL, 0); /* it may end in any way but one: not at all */
    if (seconds() - start > 2) fprintf(stderr, "  took %.1f s: %s\n", seconds() - start, name.as.string.data);
    gb_value_release(host, &name);
    attacked++;
    if (i % 20 == 0) CHECK(runs(host, "collectgarbage() assert(gb.ones(2):sum():item() == 2)"));
  }
  CHECK(attacked > 300);
  printf("%lld functions attacked\n", (long long)attacked);
  gb_host_close(host);
}

/* ====} */

/* {==== Files ==== */

static void write_text(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  CHECK(file != NULL);
  if (!file) return;
  fputs(text, file);
  fclose(file);
}

/* What a recipe may do in its folder, and what not. `outside` holds a file "secret" beside the folder. */
static const escape file_escapes[] = {
  { "local f = assert(io.open('a.txt', 'w')) f:write('one\\ntwo\\n') f:close()", GB_OK, NULL },
  { "local n = 0 for line in io.lines('a.txt') do n = n + #line end assert(n == 6)", GB_OK, NULL },
  { "assert(io.open('a.txt'):read('a') == 'one\\ntwo\\n' and io.open('./sub/../a.txt') == nil and "
    "io.open('sub//b.lua'))", GB_OK, NULL },
  { "assert(tostring(io.open('a.txt')) == 'file' and io.type(io.open('a.txt')) == 'file' and not "
    "getmetatable(io.open('a.txt')))", GB_OK, NULL },
  { "assert(io.popen == nil and io.stdout == nil and io.tmpfile == nil and io.output == nil)", GB_OK, NULL },
  { "gb.save('w.safetensors', { x = gb.ones(3) }) assert(gb.load('w.safetensors').x:sum():item() == 3)", GB_OK, NULL },
  { "assert(loadfile('sub/b.lua')() == 7 and dofile('sub/b.lua') == 7 and require('sub.b') == 7 and "
    "require('sub.b') == 7)", GB_OK, NULL },
  { "assert(loadfile('sub/b.lua', 't', { })() == 7)", GB_OK, NULL },
  { "local f, why = loadfile('byte.lua') assert(not f and why)", GB_OK, NULL },
  { "gb.data.text('a.txt', { kind = 'bytes' })", GB_OK, NULL },
  { "for _, folder in ipairs { './runs/1', '.', 'runs/2/', 'runs' } do local log = "
    "gb.Logger.tensorboard(folder) log:log({ a = 1 }, 1) log:close() end", GB_OK, NULL },
  { "gb.Logger.tensorboard('../out')", GB_EIO, "cannot" },
  { "gb.Logger.tensorboard('folder/out')", GB_EIO, "cannot" },
  { "gb.Logger.csv('link')", GB_EIO, "cannot" },
  { "gb.Logger.jsonl('pipe')", GB_EIO, "cannot" },
  { "gb.plot({ 1, 2 }, { file = 'folder/a.svg' })", GB_EIO, "cannot" },
  { "for path, says in pairs { ['../secret'] = 'leads out of the folder', ['/etc/passwd'] = 'leads out of the folder', "
    "link = 'a symbolic link', ['self/a.txt'] = 'a symbolic link', pipe = 'no regular file', sub = 'no regular file' } "
    "do local _, why = io.open(path) assert(why:find(says, 1, true), why) end assert(select(2, io.open('pipe', "
    "'w')):find('no regular file'))", GB_OK, NULL },
  { "for _, path in ipairs { '.', './', './.', 'sub/..' } do local ok, list = pcall(gb.data.files, path, { ending = "
    "'a.txt' }) assert(ok == (path ~= 'sub/..') and (not ok or #list == 1 and io.open(list[1])), path) end",
    GB_OK, NULL },
  { "assert(gb.data.csv('a.txt'):columns()[1].categories[1] == 'two')", GB_OK, NULL },
  { "for _, path in ipairs { '/etc/passwd', '../secret', 'sub/../../secret', '..', '.', '', 'link', "
    "'folder/secret', 'sub', '/', 'pipe', 'self/a.txt' } do\n"
    "  local f, why = io.open(path) assert(not f and why, path)\n  assert(not io.open(path, 'w') and not "
    "io.open(path, 'a') and not io.open(path, 'r+'), path)\n"
    "  assert(not pcall(gb.load, path) and not pcall(gb.save, path, { x = gb.ones(1) }) and not pcall(gb.data.text, "
    "path), path)\n"
    "  assert(not pcall(gb.data.idx, path, path) and not pcall(gb.io.load_checkpoint, path, {}) and not "
    "pcall(gb.data.tokens, path), path)\n"
    "  assert(not pcall(gb.data.csv, path), path)\n"
    "  assert(not pcall(dofile, path) and not loadfile(path), path)\n"
    "end", GB_OK, NULL },
  { "assert(not pcall(gb.data.mnist, '..') and not pcall(require, '...secret') and not pcall(require, '/etc/passwd'))",
    GB_OK, NULL },
  { "local t = {} for i = 1, 64 do t[i] = assert(io.open('a.txt')) end local f, why = io.open('a.txt') assert(not f "
    "and why:find('64 files'))\n"
    "t[1]:close() assert(io.open('a.txt'))", GB_OK, NULL },
  { "for i = 1, 200 do assert(io.open('a.txt')) end", GB_OK, NULL }, /* what nobody holds is closed */
  { "io.open('a.txt', 'rx')", GB_ERECIPE, "invalid mode" },
  { "gb.save('../escaped.safetensors', { x = gb.ones(1) })", GB_EIO, NULL },
};

/* Lets everything be read, and only what begins with 'a' be written; counts. */
static gb_status only_a(void *user, const char *path, bool write) {
  ++*(int *)user;
  return !write || *path == 'a' ? GB_OK : GB_EIO;
}

/* What is written is bounded over the life of the host, by whichever way it is written, and the end by it cannot be
 * swallowed. */
static void test_file_bytes(gb_host_options o) {
  static const char *const writers[] = {
    "while true do local f = assert(io.open('n.txt', 'w')) f:write(('x'):rep(1000)) f:close() end",
    "local f = assert(io.open('n.txt', 'a')) while true do pcall(f.write, f, 1.5, 'x', 12345678) end",
    "local f = assert(io.open('n.txt', 'w')) while true do f:seek('set', 0) pcall(f.write, f, ('x'):rep(5000)) end",
    "local i = 0 while true do i = i + 1 pcall(io.open, 'n' .. i % 50, 'w') end", /* files without bytes */
    "while true do pcall(gb.save, 'n.safetensors', { x = gb.ones(1000) }) end",
    "local m = gb.nn.Linear(10, 10) while true do pcall(gb.io.save_checkpoint, 'n.checkpoint', { model = m }) end",
  };
  o.file_bytes = 1000000;
  for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
    gb_host *host = open_host(&o);
    CHECK(runs(host, "local f = assert(io.open('n.txt', 'w')) f:write('a', 1, 2.5) f:close() "
                     "assert(io.open('n.txt'):read('a') == 'a12.5')"));
    CHECK(fails(host, writers[i], GB_EFILEBYTES, "bytes written to files"));
    CHECK(runs(host, "assert(io.open('a.txt'):read('a') == 'one\\ntwo\\n')")); /* reading goes on */
    CHECK(fails(host, "gb.save('n.safetensors', { x = gb.ones(300000) })", GB_EFILEBYTES, NULL));
    gb_host_close(host);
  }
  gb_host *host;
  char why[128] = "";
  o.sandbox = GB_SANDBOX_STRICT;
  o.root = NULL;
  CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_EINVAL && strstr(why, "file_bytes"));
}

static void test_files(void) {
  char base[] = "/tmp/gibbous-sandbox-XXXXXX", root[64], path[128], secret[64];
  CHECK(mkdtemp(base) != NULL);
  snprintf(root, sizeof root, "%s/root", base);
  snprintf(secret, sizeof secret, "%s/secret", base);
  mkdir(root, 0700);
  write_text(secret, "secret");
  snprintf(path, sizeof path, "%s/sub", root), mkdir(path, 0700);
  snprintf(path, sizeof path, "%s/sub/b.lua", root), write_text(path, "#!lua\nreturn 7\n");
  snprintf(path, sizeof path, "%s/byte.lua", root), write_text(path, "\x1bLuaT");
  snprintf(path, sizeof path, "%s/link", root); CHECK(symlink(secret, path) == 0);
  snprintf(path, sizeof path, "%s/folder", root); CHECK(symlink(base, path) == 0);
  snprintf(path, sizeof path, "%s/self", root); CHECK(symlink(".", path) == 0);
  snprintf(path, sizeof path, "%s/pipe", root); CHECK(mkfifo(path, 0600) == 0);

  gb_host_options o = limited(GB_SANDBOX_FILES, 300);
  char why[128];
  gb_host *host;
  o.root = secret;
  CHECK(gb_host_open(&o, &host, why, sizeof why) != GB_OK && strstr(why, "folder"));
  o.root = NULL;
  CHECK(gb_host_open(&o, &host, why, sizeof why) == GB_EINVAL);
  o.root = root;
  host = open_host(&o);
  for (size_t i = 0; i < sizeof file_escapes / sizeof *file_escapes; i++) {
    const escape *e = &file_escapes[i];
    if (e->status == GB_OK) CHECK(runs(host, e->text));
    else CHECK(fails(host, e->text, e->status, e->says));
  }
  gb_host_close(host);
  test_file_bytes(o);

  int asked = 0;
  o.on_file = only_a;
  o.user = &asked;
  host = open_host(&o);
  CHECK(runs(host, "assert(io.open('a.txt') and io.open('a.txt', 'w') and not io.open('b.txt', 'w') and not "
                   "pcall(gb.save, 'b', { x = gb.ones(1) }))") && asked == 4);
  gb_host_close(host);

  FILE *file = fopen(secret, "r"); /* untouched */
  char text[16] = "";
  CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "secret"));
  if (file) fclose(file);
  snprintf(path, sizeof path, "rm -r %s", base);
  CHECK(system(path) == 0);
}

/* ====} */

int main(void) {
  test_list();
  test_patterns();
  test_files();
  test_charges();
  test_late_end();
  test_long_strings();
  test_escapes();
  test_hostile();
  return check_report();
}
