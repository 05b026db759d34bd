/* test_prompt.c - the prompt on a pseudo-terminal: editing, completion, history, input of many lines, Ctrl-C in every
 * hard case, resizing, a paste of 1,000 lines, UTF-8, colours. The first argument is the executable; the second is 1
 * for lines that are edited by libedit and 0 for plain ones, which is what a dumb terminal gets. */
#define _XOPEN_SOURCE 700 /* posix_openpt */
#include "terminal.h"

#include "../c/check.h"

static char *program, *kind; /* kind: the setting of TERM */
static char state[64] = "/tmp/gibbous-prompt-XXXXXX", home_setting[96], state_setting[96];

/* A prompt with the settings given, up to its first "> ". */
static terminal start_with(char *extra) {
  char *settings[] = { state_setting, home_setting, kind, "NO_COLOR=1", "LC_ALL=C.UTF-8", "_=", extra, NULL };
  terminal t = terminal_start((char *[]){ program, NULL }, settings);
  CHECK(terminal_expect(&t, "> "));
  return t;
}

static terminal start(void) { return start_with(NULL); }

/* Type a line, and wait for what it shows and for the next prompt. */
static bool answers(terminal *t, const char *input, const char *answer) {
  terminal_send(t, input);
  terminal_send(t, "\n");
  return terminal_expect(t, answer) && terminal_expect(t, "> ");
}

/* Leave, and check that it was left in peace. */
static void leave(terminal *t) {
  terminal_send(t, "\004");
  int status = terminal_finish(t);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_values(void) {
  terminal t = start();
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  CHECK(answers(&t, "_ * 21", "\n42\n"));
  CHECK(answers(&t, "nil", "\nnil\n"));
  CHECK(answers(&t, "_", "\n42\n"));
  CHECK(answers(&t, "'a\\n\"b\"', true, 1.0", "\n\"a\\n\\\"b\\\"\"\ntrue\n1.0\n"));
  CHECK(answers(&t, "{ 1, { 2, x = {} }, name = 'n', [10] = false }",
                "{ 1, { 2, x = {} }, [10] = false, name = \"n\" }"));
  CHECK(answers(&t, "c = {} c.c = c", ""));
  CHECK(answers(&t, "c", "{ c = { ... itself } }"));
  CHECK(answers(&t, "{ { { { { 1 } } } } }", "{ { { { { ... } } } } }"));
  CHECK(answers(&t, "gb.tensor({ { 1, 2 }, { 3, 4 } })", "tensor([[1, 2],\n        [3, 4]])\n[int64 2x2 on cpu]"));
  CHECK(answers(&t, "gb.ones(2000, { dtype = 'float16' })", "1., 1., 1.,  ..., 1., 1., 1.]"));
  CHECK(answers(&t, "gb.nn.Sequential(gb.nn.Linear(2, 3), gb.nn.ReLU())", "[1]: Linear(2 -> 3)"));
  CHECK(answers(&t, "local y = 5", "note: a local ends with the input"));
  CHECK(answers(&t, "local z = 5", ""));
  CHECK(answers(&t, "y", "\nnil\n"));
  CHECK(answers(&t, ":modes", "gradients      on"));
  CHECK(answers(&t, ":mem", "tensors, all"));
  CHECK(answers(&t, "= 1 + 1", "\n2\n"));
  CHECK(answers(&t, ":time 1 + 1", "s\n"));
  CHECK(answers(&t, ":time", "write :time and an expression or statements"));
  CHECK(answers(&t, ":nothing", "there is no command ':nothing'"));
  CHECK(answers(&t, "? gb.matmul", "autocast  lower"));
  CHECK(answers(&t, "help 'conv2d'", "F.conv2d"));
  CHECK(answers(&t, "help()", "Ctrl-R searches"));
  CHECK(answers(&t, "_PROMPT = 'mine> '", "mine"));
  terminal_send(&t, ":quit\n");
  int status = terminal_finish(&t);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_errors(void) {
  terminal t = start();
  CHECK(answers(&t, "x = = 2", "unexpected symbol near '='\n    x = = 2\n        ^\n"));
  CHECK(answers(&t, "nothing.here = 1",
                "attempt to index a nil value (global 'nothing')\n    nothing.here = 1\n    ^\n"));
  CHECK(answers(&t, "x = 'abc", "unfinished string near"));
  terminal_send(&t, "function f(n)\nif n == 0 then return a.b end\nlocal r = f(n - 1)\nreturn r\nend\n");
  CHECK(answers(&t, "f(2)", "attempt to index a nil value (global 'a')\n    if n == 0 then return a.b end\n         "
                            "                 ^\n"));
  CHECK(answers(&t, "gb.matmul(gb.ones(2, 3), gb.ones(2, 3))", "matmul: 2x3 has 3 columns"));
  CHECK(answers(&t, "error({ 1 })", "(error object is a table value)"));
  CHECK(answers(&t, "error(setmetatable({}, { __tostring = function() return 'mine' end }))", "mine\n"));
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  leave(&t);
}

static void test_lines(void) {
  terminal t = start();
  terminal_send(&t, "for i = 1, 2 do\n");
  CHECK(terminal_expect(&t, ">> "));
  terminal_send(&t, "io.write('line ', i, ';')\n");
  CHECK(terminal_expect(&t, ">> "));
  CHECK(answers(&t, "end", "line 1;line 2;"));
  CHECK(answers(&t, "(1 +\n2) *\n3", "9\n"));
  CHECK(answers(&t, "[[one\ntwo]]", "\"one\\ntwo\""));
  terminal_send(&t, "if true then\n");
  CHECK(terminal_expect(&t, ">> "));
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "> "));
  CHECK(answers(&t, "'fresh'", "\"fresh\""));
  leave(&t);
}

static void test_editing(void) {
  terminal t = start();
  CHECK(answers(&t, "12\033[D3", "\n132\n"));
  CHECK(answers(&t, "99\0019", "\n999\n"));
  CHECK(answers(&t, "'aä€😀'", "\"aä€😀\""));
  CHECK(answers(&t, "'aä€\177\177b'", "\"ab\""));
  CHECK(answers(&t, "utf8.len('äöü')", "\n3\n"));
  CHECK(answers(&t, "'\303\244'\033[D\033[D1\005 .. 'end'", "1\303\244"));
  terminal_send(&t, "garbage that is not run(((\003");
  CHECK(terminal_expect(&t, "> "));
  CHECK(answers(&t, "7 * 6", "\n42\n"));
  leave(&t);
}

static void test_completion(void) {
  terminal t = start();
  CHECK(answers(&t, "gb.matm\tgb.ones(1, 1), gb.ones(1, 1)):item()", "\n1.0\n"));
  CHECK(answers(&t, "string.for\t'%03d', 7)", "\"007\""));
  CHECK(answers(&t, "t = gb.zeros(2, 2)", ""));
  CHECK(answers(&t, "t:flat\t):size(1) + t:siz\t1)", "\n6\n"));
  CHECK(answers(&t, "t.dty\t", "\"float32\""));
  CHECK(answers(&t, "class = setmetatable({ own_field = 31 }, { __index = { inherited_method = function() return 32 "
                    "end } })", ""));
  CHECK(answers(&t, "class.own\t + class:inh\t)", "\n63\n"));
  CHECK(answers(&t, "m = gb.nn.Sequential(gb.nn.Linear(2, 3))", ""));
  CHECK(answers(&t, "#m:param\t)", "\n2\n"));
  CHECK(answers(&t, "gb.nn.functional.conv2d(gb.ones(1, 1, 4, 4), gb.ones(1, 1, 2, 2), nil, { stri\t2 }).shape",
                "1, 1, 2, 2"));
  CHECK(answers(&t, "#gb.optim.SGD(m:parameters(), { lr = 0.1, mom\t0.9 }).param_groups", "\n1\n"));
  CHECK(answers(&t, "io.open('README.m\t') ~= nil", "\ntrue\n"));
  terminal_send(&t, "gb.lo\t");
  CHECK(terminal_expect(&t, "gb.lo"));
  terminal_send(&t, "\t");
  CHECK(terminal_expect(&t, "log10") && terminal_expect(&t, "logsumexp") && terminal_expect(&t, "> gb.lo"));
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "> "));
  CHECK(answers(&t, "strange = setmetatable({}, { __index = function() error('was run') end })", ""));
  terminal_send(&t, "strange.x\t");
  CHECK(terminal_expect(&t, "strange.x")); /* what is typed before Ctrl-C is seen would be thrown away with the line */
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "> "));
  CHECK(!strstr(t.text, "was run\n"));
  CHECK(answers(&t, "for_keyword = 1 whi\t for_keyword < 3 do for_keyword = for_keyword + 1 end for_keyword = "
                    "for_keyword * 5", ""));
  CHECK(answers(&t, "for_key\t", "\n15\n"));
  leave(&t);
}

/* The text of the history file; to be freed. */
static char *history_text(void) {
  char path[160], *text = calloc(1, 1 << 20);
  snprintf(path, sizeof path, "%s/gibbous/history", state);
  FILE *file = fopen(path, "r");
  if (file && fread(text, 1, (1 << 20) - 1, file) == 0) *text = '\0';
  if (file) fclose(file);
  return text;
}

static void test_history(bool editing) {
  terminal one = start(), two = start();
  CHECK(answers(&one, "first_of_one = 1", ""));
  CHECK(answers(&two, "first_of_two = 2", ""));
  CHECK(answers(&one, "'second of one'", "\"second of one\""));
  if (editing) {
    CHECK(answers(&one, "\033[A", "\"second of one\""));         /* up: the line before */
    CHECK(answers(&one, "\022first_of\005 + 41", ""));       /* ^R searches backwards */
    CHECK(answers(&two, "\033[A\033[A\033[B", ""));
  }
  CHECK(answers(&one, "for i = 1, 2 do\nio.write('r', i, ' ')\nend", "r1 r2 "));
  CHECK(answers(&one, "x = 'between'", ""));
  if (editing) {
    /* a chunk of several lines is recalled as a whole, */
    CHECK(answers(&one, "\033[A\033[A", "r1 r2 "));
    CHECK(answers(&one, "\022write('r'\005", "r1 r2 "));           /* and found by what stands in any of them */
    CHECK(answers(&one, "\033[A\005 io.write('s', 3)", "r1 r2 s3"));  /* and can be changed */
  }
  leave(&one);
  leave(&two);
  char *text = history_text();
  CHECK(strstr(text, "first_of_one = 1\n") && strstr(text, "first_of_two = 2\n") && strstr(text, "'second of one'\n"));
  CHECK(strstr(text, "\nfor i = 1, 2 do\037io.write('r', i, ' ')\037end\n") && !strstr(text, "\nend\n"));
  free(text);
  terminal three = start();
  if (editing)
    CHECK(answers(&three, "\022second of", "\"second of one\"") && answers(&three, "\022r', i\005", "r1 r2 "));
  leave(&three);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Loops that only Ctrl-C ends; each writes "go" first. What must hold after each is asked for then. */
static void test_interrupts(void) {
  static const char *const loops[] = {
    "while true do end",
    "coroutine.wrap(function() while true do end end)()",
    "while true do pcall(function() while true do end end) end",
    "local function nest(n) if n == 0 then while true do end end coroutine.wrap(nest)(n - 1) end nest(20)",
    "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "local model = gb.nn.Linear(8, 8) local opt = gb.optim.SGD(model:parameters(), { lr = 0.1 }) while true do "
    "opt:zero_grad() "
    "gb.amp.autocast(function() return model(gb.ones(4, 8)):sum() end):backward() opt:step() end",
    "local _ <close> = gb.no_grad() while true do local _ <close> = gb.amp.autocast() pcall(function() while true "
    "do gb.ones(4) end end) end",
    "string.gsub(('x'):rep(100), 'x', function() while true do end end)",
    "io.read()",
    "while true do for i = 1, 1000 do print(i) end end",
    "return setmetatable({}, { __tostring = function() while true do end end })", /* while the result is shown */
  };
  double slowest = 0;
  terminal t = start();
  CHECK(answers(&t, "kept = gb.ones(3)", ""));
  for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
    terminal_send(&t, "io.write('g', 'o\\n') ");
    terminal_send(&t, loops[i]);
    terminal_send(&t, "\n");
    CHECK(terminal_expect(&t, "go\n"));
    nanosleep(&(struct timespec){ 0, 100000000 }, NULL); /* well into the loop */
    double pressed = now();
    terminal_send(&t, "\003");
    bool stopped = terminal_expect(&t, "interrupted");
    if (now() - pressed > slowest) slowest = now() - pressed;
    if (!stopped) fprintf(stderr, "one Ctrl-C did not stop: %s\n", loops[i]);
    CHECK(stopped && terminal_expect(&t, "> "));
    CHECK(answers(&t, "gb.is_grad_enabled(), gb.amp.is_enabled(), kept:sum():item(), debug.gethook()",
                  "true\nfalse\n3.0\nnil\n"));
  }
  printf("the slowest stop at the prompt took %.4f s\n", slowest);
  leave(&t);
}

static void test_paste(void) {
  terminal t = start();
  char *text = calloc(1, 64 * 1000), *end = text;
  for (int i = 1; i <= 1000; i++)
    end += sprintf(end, i == 1 ? "pasted = 0 function add()\n" : i == 1000 ? "end add()\n" : "\tpasted = pasted + %d\n",
                   i);
  terminal_send(&t, text);
  free(text);
  terminal_send(&t, "'sum ' .. pasted\n");
  CHECK(terminal_expect(&t, "\"sum 499499\"") && terminal_expect(&t, "> "));
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  for (int i = 0; i < 1000; i++) terminal_send(&t, "pasted = pasted + 1\n");
  CHECK(answers(&t, "'then ' .. pasted", "\"then 500499\""));
  leave(&t);
}

/* A paste between brackets is one input, so locals live to its end, and one entry of the history. */
static void test_bracketed_paste(void) {
  terminal t = start();
  terminal_send(&t, "\033[200~local a = 20\nlocal b = 1\n\tlocal c = a * 2 + b + 1\nprint('sum ' .. c)\033[201~\n");
  CHECK(terminal_expect(&t, "\nsum 42\n") && terminal_expect(&t, "> "));
  terminal_send(&t, "\033[200~local d = 7\rprint('d ' .. 'is ' .. d)\r\033[201~\n");
  CHECK(terminal_expect(&t, "\nd is 7\n") && terminal_expect(&t, "> "));
  terminal_send(&t, "mixed = 40 + \033[200~1\n+ 1\033[201~ + 0\n");
  CHECK(answers(&t, "'mixed ' .. mixed", "\"mixed 42\""));
  terminal_send(&t, "\033[200~\033[201~\n"); /* nothing at all */
  terminal_send(&t, "\033[200~for i = 1, 2 do\n\033[201~\n"); /* an input that is not whole goes on */
  CHECK(answers(&t, "io.write('round ', i, ';') end", "round 1;round 2;"));
  char *text = calloc(1, 64 * 1000), *end = text + sprintf(text, "\033[200~local many = 0\n");
  for (int i = 1; i <= 500; i++) end += sprintf(end, "many = many + %d\n", i);
  sprintf(end, "print('many ' .. many)\n\033[201~\n");
  terminal_send(&t, text);
  free(text);
  CHECK(terminal_expect(&t, "\nmany 125250\n") && terminal_expect(&t, "> "));
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  leave(&t);
  char path[128], line[256];
  snprintf(path, sizeof path, "%s/gibbous/history", state);
  FILE *file = fopen(path, "r");
  bool kept = false;
  while (file && fgets(line, sizeof line, file))
    kept |= !strcmp(line, "local a = 20\037local b = 1\037\tlocal c = a * 2 + b + 1\037print('sum ' .. c)\n");
  if (file) fclose(file);
  CHECK(kept);
}

/* Ctrl-C in the middle of a paste takes it away, and the prompt goes on. */
static void test_interrupted_paste(void) {
  terminal t = start();
  terminal_send(&t, "\033[200~local a = 20\nprint('not ' .. 'this')");
  while (terminal_read(&t, 300)) continue;
  kill(t.pid, SIGINT);
  CHECK(terminal_expect(&t, "> "));
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  CHECK(!strstr(t.text, "not this"));
  leave(&t);
}

/* Does the prompt answer, once it has read what was typed ahead? An interrupt that comes late takes a line along, so it
 * is asked again. */
static bool still_answers(terminal *t) {
  for (int attempt = 0; attempt < 10; attempt++) {
    while (terminal_read(t, 200)) continue;
    terminal_send(t, "'still ' .. 'here'\n");
    while (terminal_read(t, 500)) continue;
    if (strstr(t->text + t->mark, "\"still here\"")) return true;
  }
  return false;
}

/* SIGINT between two reads, where a line is kept, checked or prepared for, ended the program once. */
static void test_interrupts_in_a_paste(void) {
  terminal t = start();
  for (int i = 1; i <= 1000; i++) {
    char text[32];
    snprintf(text, sizeof text, "a%d = %d\n", i, i);
    terminal_send(&t, text);
    if (i % 10 == 0) kill(t.pid, SIGINT);
  }
  CHECK(still_answers(&t));
  leave(&t);
}

/* What users do to their globals does not end the prompt. */
static void test_guarded_globals(void) {
  terminal t = start();
  CHECK(answers(&t, "setmetatable(_G, { __index = function(_, k) error('no ' .. k) end, __newindex = function(_, k) "
                    "error('new ' .. k) end })", ""));
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  CHECK(answers(&t, "missing", "no missing"));
  CHECK(answers(&t, "rawset(_G, '_PROMPT', setmetatable({}, { __tostring = function() error('fails') end })) return "
                    "'rest'", "\"rest\""));
  CHECK(answers(&t, "2 + 2", "\n4\n"));
  leave(&t);
}

/* The prompt's own functions are its own: a library that is taken away is missing in the user's code alone. */
static void test_missing_libraries(void) {
  terminal t = start();
  CHECK(answers(&t, "string.find = nil", ""));
  CHECK(answers(&t, "io, os, load, _G = nil", ""));
  CHECK(answers(&t, "{ 1, x = 'y' }", "{ 1, x = \"y\" }"));
  CHECK(answers(&t, "x = = 2", "unexpected symbol near '='\n    x = = 2\n        ^\n"));
  CHECK(answers(&t, "io.write(1)", "attempt to index a nil value (global 'io')"));
  CHECK(answers(&t, "gb.ones(2)", "[float32 2 on cpu]"));
  CHECK(answers(&t, ":mem", "tensors, all"));
  CHECK(answers(&t, ":modes", "gradients      on"));
  CHECK(answers(&t, "help()", "Ctrl-R searches"));
  leave(&t);
  t = start(); /* nor does the library itself need them */
  CHECK(answers(&t, "table, string, math, debug, utf8, coroutine = nil", ""));
  CHECK(answers(&t, "help('matmul')", "found as") && answers(&t, "? gb.nn.Linear", "outputs"));
  CHECK(answers(&t, "? gb.save", "only those that have files") &&
        answers(&t, "? gb.amp.fp8", "gb.amp.fp8 is not built into this version"));
  CHECK(answers(&t, "gb.nn.Linear(2, 3)", "9 parameters") && answers(&t, ":time gb.ones(2)", "s\n"));
  CHECK(answers(&t, "x = 1 + nil_value", "    x = 1 + nil_value\n            ^\n"));
  CHECK(answers(&t, "next, pairs, ipairs, type, tostring, select, error, pcall, setmetatable, getmetatable, rawget, "
                    "rawset, require, load = nil", ""));
  CHECK(answers(&t, "{ { 1 }, gb.ones(3) }", "{ { 1 }, tensor(float32 3) }") && answers(&t, "? gb.relu", "found as"));
  CHECK(answers(&t, "gb.oness", "did you mean 'ones'"));
  leave(&t);
  t = start(); /* nor what lies in them */
  CHECK(answers(&t, "for _, library in ipairs { math, table, utf8, string } do for name in pairs(library) do "
                    "library[name] = nil end end", ""));
  CHECK(answers(&t, "help(gb.matmul)", "found as") && answers(&t, "? gb.nn.Linear", "outputs") &&
        answers(&t, "help 'x:relu'", "found as"));
  CHECK(answers(&t, "help 'rellu'", "did you mean") && answers(&t, "? gb", "ones()") &&
        answers(&t, ":modes", "gradients      on"));
  leave(&t);
}

/* What fails leaves no scope open; what an input leaves open on purpose stays. */
static void test_scopes(void) {
  terminal t = start();
  CHECK(answers(&t, "gb.no_grad() gb.amp.autocast() error('inside')", "inside"));
  CHECK(answers(&t, "gb.is_grad_enabled(), gb.amp.is_enabled()", "true\nfalse\n"));
  CHECK(answers(&t, "scope = gb.no_grad()", ""));
  CHECK(answers(&t, "gb.enable_grad() gb.anomaly() error('deeper')", "deeper"));
  CHECK(answers(&t, "gb.is_grad_enabled()", "\nfalse\n"));
  terminal_send(&t, "gb.enable_grad() io.write('g', 'o\\n') while true do end\n");
  CHECK(terminal_expect(&t, "go\n"));
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "interrupted") && terminal_expect(&t, "> ") &&
        answers(&t, "gb.is_grad_enabled()", "\nfalse\n"));
  CHECK(answers(&t, "scope:close() return gb.is_grad_enabled()", "\ntrue\n"));
  leave(&t);
}

static void test_resize(void) {
  terminal t = start();
  CHECK(answers(&t, "long = {} for i = 1, 12 do long[i] = 'a word that is not short ' .. i end", ""));
  terminal_resize(&t, 40);
  terminal_send(&t, "#'");
  for (int i = 0; i < 10; i++) terminal_send(&t, "0123456789");
  CHECK(terminal_expect(&t, "0123456789"));
  terminal_resize(&t, 120);
  CHECK(answers(&t, "'", "\n100\n"));
  terminal_resize(&t, 30);
  CHECK(answers(&t, "{ 'twenty characters...', 'and twenty more.....' }", "{\n  \"twenty characters...\",\n"));
  leave(&t);
}

static void test_colour(void) {
  terminal t = start();
  CHECK(answers(&t, "error 'plain'", "plain"));
  CHECK(!strstr(t.raw, "\033[31"));
  leave(&t);
  t = start_with("NO_COLOR=");
  CHECK(answers(&t, "error 'red'", "red"));
  CHECK(!strstr(t.raw, "\033[31") == !strcmp(kind, "TERM=dumb"));
  leave(&t);
}

/* Scripts stop in the same way, and end as SIGINT ends a program. */
static void test_script(void) {
  char *settings[] = { state_setting, home_setting, "TERM=xterm", NULL };
  char *statement = "io.write('g', 'o\\n') io.stdout:flush() while true do pcall(coroutine.wrap(function() while "
                    "true do end end)) end";
  terminal t = terminal_start((char *[]){ program, "-e", statement, NULL }, settings);
  CHECK(terminal_expect(&t, "go\n"));
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "interrupted"));
  int status = terminal_finish(&t);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  statement = "io.write('g', 'o\\n') io.stdout:flush() _ = (('a'):rep(40)):find(('a*'):rep(30) .. 'b')";
  t = terminal_start((char *[]){ program, "-e", statement, NULL }, settings);
  CHECK(terminal_expect(&t, "go\n"));
  nanosleep(&(struct timespec){ 1, 0 }, NULL); /* until it is within the pattern, which heeds none outside a sandbox */
  terminal_send(&t, "\003");
  nanosleep(&(struct timespec){ 2, 200000000 }, NULL);
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "heeds no interrupt"));
  status = terminal_finish(&t);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  statement = "print('g' .. 'o') while true do pcall(string.find, ('a'):rep(1000), ('a*'):rep(20) .. 'b') end";
  t = terminal_start((char *[]){ program, "--sandbox", "-e", statement, NULL }, settings);
  CHECK(terminal_expect(&t, "go\n"));
  nanosleep(&(struct timespec){ 0, 100000000 }, NULL); /* well into the pattern */
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "interrupted"));
  status = terminal_finish(&t);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  t = terminal_start((char *[]){ program, "-i", "-e", "x = 5", NULL }, settings);
  CHECK(terminal_expect(&t, "> ") && answers(&t, "x", "\n5\n"));
  leave(&t);
}

/* gb.on_stop: the first Ctrl-C ends the loop between two steps, the second one at once. */
static void test_on_stop(void) {
  static const char text[] =
      "gb.on_stop(function() print('saved after ' .. steps .. ' steps') end) steps = 0 local p = gb.nn.Linear(2, 2) "
      "local opt = gb.optim.SGD(p:parameters(), { lr = 0.1 }) io.write('g', 'o\\n') "
      "while true do opt:zero_grad() p(gb.ones(1, 2)):sum():backward() opt:step() steps = steps + 1 end\n";
  terminal t = start();
  terminal_send(&t, text);
  CHECK(terminal_expect(&t, "go\n"));
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "saved after ") && terminal_expect(&t, " steps\n") && terminal_expect(&t, "interrupted") &&
        terminal_expect(&t, "> "));
  CHECK(answers(&t, "steps > 0", "\ntrue\n"));
  terminal_send(&t, "gb.on_stop(print) io.write('g', 'o\\n') while true do end\n"); /* no step ever ends */
  CHECK(terminal_expect(&t, "go\n"));
  terminal_send(&t, "\003");
  nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
  terminal_send(&t, "\003");
  CHECK(terminal_expect(&t, "interrupted") && terminal_expect(&t, "> "));
  CHECK(answers(&t, "1 + 1", "\n2\n"));
  leave(&t);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  bool editing = !strcmp(argv[2], "1");
  program = argv[1];
  kind = editing ? "TERM=xterm" : "TERM=dumb";
  CHECK(mkdtemp(state) != NULL);
  snprintf(home_setting, sizeof home_setting, "HOME=%s", state);
  snprintf(state_setting, sizeof state_setting, "XDG_STATE_HOME=%s", state);
  test_values();
  test_errors();
  test_lines();
  if (editing) test_editing(), test_completion();
  test_history(editing);
  test_interrupts();
  test_paste();
  test_bracketed_paste();
  test_interrupted_paste();
  test_interrupts_in_a_paste();
  test_guarded_globals();
  test_missing_libraries();
  test_scopes();
  test_resize();
  test_colour();
  test_script();
  test_on_stop();
  char command[96];
  snprintf(command, sizeof command, "rm -rf '%s'", state);
  CHECK(system(command) == 0);
  return check_report();
}
